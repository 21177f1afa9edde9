//! Connections of the HTTP port.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected as _;
use tower::ServiceExt as _;

use crate::connections::{AcceptedConnection, Connections, FirstBytes, FrameBudget, UnreadBody};
use crate::grpc::json::CALLS_MAX;
use crate::grpc::{AbortableCall, CallExecutor, JsonCalls};
use crate::metrics::Metrics;
use crate::tls::{PeerCertificate, PortTls, SecuredSocket};

use super::client_socket::ClientSocket;
use super::connection_use::{ConnectionUse, HeldBody};
use super::json::ConnectionCalls;
use super::local_names;

/// Maximum time from the first byte of a connection until its first request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time from an answer to the next request of its connection. A client that uses the connection at this moment
/// gets an error for a call that it must not repeat blindly, so it is longer than usual pauses.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum size in bytes of the head of an HTTP/1.1 request, and of what is read ahead of it: twice as much as on HTTP/2. A
/// connection holds so much for a client that does not end its request.
const READ_BUFFER_BYTES_MAX: usize = 32 << 10;
/// Size in bytes of the send buffer of a socket: as much as an HTTP/2 client takes without reading. The system would
/// take megabytes, and an answer that it has taken counts as sent, with the jobs in it.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Maximum time that a client that does not read may delay the shutdown.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// Limits on connections that have not carried a JSON call: probes and scrapers, which are few, and clients that have just
/// connected. Connections with calls are counted with those of the gRPC port.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections. One more takes the place of the one that is unused for the longest time: probes need
    /// none for long.
    pub max: usize,
    /// Maximum number of connections from one address, or from one IPv6 network of 64 bits.
    pub per_peer: usize,
}

/// Connection whose first bytes have arrived.
struct BegunConnection<S> {
    socket: S,
    client: ClientSocket,
    certificate: Option<Arc<PeerCertificate>>,
    is_http2: bool,
}

/// Runs a connection until its client closes it, or until `stop` and its last answer.
macro_rules! until {
    ($connection:expr, $stop:expr) => {{
        let mut connection = pin!($connection);
        tokio::select! {
            served = &mut connection => served,
            () = $stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }};
}

/// Serves `router`, and `calls` as JSON if there are any, until `shutdown` ends; then finishes the answers in flight,
/// for 2 s at most.
pub async fn serve(
    listener: TcpListener,
    (limits, metrics): (ConnectionLimits, Metrics),
    tls: PortTls,
    router: Router,
    calls: Option<JsonCalls>,
    shutdown: impl Future<Output = ()>,
) {
    let ConnectionLimits { max, per_peer } = limits;
    let connections = Connections::new("http", max, per_peer, metrics);
    let stop = CancellationToken::new();
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let router = if is_local { local_names::only(router) } else { router };
    let serve =
        |accepted| connection(accepted, tls.clone(), router.clone(), calls.clone(), stop.clone());
    let tasks = connections.serve(listener, shutdown, &stop, serve).await;
    let _ = tokio::time::timeout(SHUTDOWN_MAX, tasks.wait()).await;
}

async fn connection(
    accepted: AcceptedConnection,
    tls: PortTls,
    router: Router,
    calls: Option<JsonCalls>,
    stop: CancellationToken,
) {
    let AcceptedConnection { socket, peer, origin, slot } = accepted;
    let info = socket.connect_info();
    bound_send_buffer(&socket, peer);
    let begun = tokio::select! {
        () = stop.cancelled() => None,
        begun = begin(socket, peer, &tls) => begun,
    };
    let Some(BegunConnection { socket, client, certificate, is_http2 }) = begun else { return };
    let standing = Arc::clone(slot.standing());
    let of_requests = Arc::clone(&standing);
    let (calls, _slot) = match calls {
        Some(calls) => {
            let is_gone = Arc::new(move || client.is_closed());
            let calls = calls.connection(info, slot, certificate.clone(), is_gone);
            (Some(Arc::new(calls)), None)
        }
        None => (None, Some(slot)),
    };
    let calls = ConnectionCalls(calls);
    let ended = tls.certificate_ended(certificate.clone());
    let stop = stop.child_token();
    let requests = ConnectionUse::default();
    let open = requests.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let open = open.begin();
        of_requests.touch();
        // A client that waits for leave to send its body does not send it after another answer.
        let reads_on = is_http2 || !request.headers().contains_key(header::EXPECT);
        let mut request = request.map(|body| match reads_on {
            true => Body::new(UnreadBody::new(body)),
            false => Body::new(body),
        });
        request.extensions_mut().insert(calls.clone());
        request.extensions_mut().insert(ConnectInfo(peer));
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        let answer = router.clone().oneshot(request);
        async move { answer.await.map(|answer| answer.map(|body| HeldBody::new(body, open))) }
    });
    let serve = async {
        let served = if is_http2 {
            let socket = TokioIo::new(FrameBudget::new(socket, &standing));
            let connection = http2().serve_connection(socket, service);
            until!(connection, stop)
        } else {
            let connection = http1().serve_connection(TokioIo::new(socket), service);
            until!(connection, stop)
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "http connection failed");
            origin.ended(&error);
        }
    };
    let ended = async {
        ended.await;
        tracing::debug!(%peer, "http connection closed: its client certificate is not valid any more");
        stop.cancel();
        std::future::pending().await
    };
    // On HTTP/1.1 the connection ends with a call whose answer is not read in time; on HTTP/2 each call has a task.
    tokio::select! {
        () = AbortableCall::new(serve) => {}
        () = ended => {}
        () = requests.idle(HEADERS_TIMEOUT, IDLE_TIMEOUT) => {
            tracing::debug!(%peer, "http connection closed: client sent no request in time");
        }
    }
}

fn bound_send_buffer(socket: &TcpStream, peer: SocketAddr) {
    if let Err(error) = rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES)
    {
        tracing::debug!(%peer, %error, "cannot set the send buffer of an http connection");
    }
}

/// Runs the handshake of TLS and reads the first bytes; `None`: the connection is not to be served.
async fn begin(
    socket: TcpStream,
    peer: SocketAddr,
    tls: &PortTls,
) -> Option<BegunConnection<impl AsyncRead + AsyncWrite + Send + Unpin + use<>>> {
    let mut client = None;
    let prepare = |socket: TcpStream| {
        let (read, write) = socket.into_split();
        let read = client.insert(ClientSocket::new(read));
        join(read.clone(), write)
    };
    let SecuredSocket { mut socket, certificate } = tls.accept(socket, peer, prepare).await?;
    match timeout(HEADERS_TIMEOUT, FirstBytes::read(&mut socket)).await {
        Ok(Ok(first)) if first.are_tls() => {
            tls.refuse_tls(socket, peer).await;
            None
        }
        Ok(Ok(first)) => {
            let is_http2 = first.are_preface();
            let socket = first.before(socket);
            Some(BegunConnection { socket, client: client?, certificate, is_http2 })
        }
        _ => {
            tracing::debug!(%peer, "http connection closed: client sent no complete request in time");
            None
        }
    }
}

fn http1() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(READ_BUFFER_BYTES_MAX);
    http
}

/// Serves HTTP/2 for JSON calls, and for gRPC clients that use the wrong port: they receive an answer that this is no
/// gRPC server.
fn http2() -> http2::Builder<CallExecutor> {
    let mut http = http2::Builder::new(CallExecutor);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX as u32)
        .max_pending_accept_reset_streams(CALLS_MAX)
        .keep_alive_interval(HEADERS_TIMEOUT)
        .keep_alive_timeout(HEADERS_TIMEOUT);
    http
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::Extension;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::clock::Clock;
    use crate::tls::tests::{Certificates, Valid};
    use crate::tls::{ClientAuth, ServerTls};

    const LIMITS: ConnectionLimits = ConnectionLimits { max: 4, per_peer: 4 };

    #[tokio::test]
    async fn requests_have_the_certificate_of_their_client() {
        let Some(made) = Certificates::make() else { return };
        let metrics = Metrics::new();
        let files = made.server(Some(ClientAuth::Required));
        let tls = ServerTls::load(files, Clock::system(), metrics.clone()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let names = async |Extension(peer): Extension<Arc<PeerCertificate>>| peer.uris.join(" ");
        let router = Router::new().route("/healthz", axum::routing::get(names));
        let worker = made.sign("worker", "URI:spiffe://example.org/worker", Valid::Days(2));
        let address = listener.local_addr().unwrap();
        let limits = (LIMITS, metrics.clone());
        let tls = PortTls::http(Some(tls), metrics);
        let serving = serve(listener, limits, tls, router, None, pending());
        let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let mut socket = made.client(Some(&worker)).connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        socket.write_all(request).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nspiffe://example.org/worker"), "{answer}");
    }

    /// Serves a page, and returns its address.
    async fn healthz() -> (SocketAddr, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", axum::routing::get(async || "ok"));
        let tls = PortTls::http(None, Metrics::new());
        let serving = serve(listener, (LIMITS, Metrics::new()), tls, router, None, pending());
        (address, AbortOnDropHandle::new(tokio::spawn(serving)))
    }

    /// A connection holds a bounded number of bytes of a request that does not end.
    #[tokio::test]
    async fn the_head_of_a_request_is_bounded() {
        let (address, _serving) = healthz().await;
        for (bytes, status) in [(READ_BUFFER_BYTES_MAX / 2, "200"), (READ_BUFFER_BYTES_MAX, "431")]
        {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let long = "x".repeat(bytes);
            let head = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close";
            let head = format!("{head}\r\nx-long: {long}\r\n\r\n");
            socket.write_all(head.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            socket.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, format!("HTTP/1.1 {status}").as_bytes(), "{bytes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_whole_request_are_closed() {
        let (address, _serving) = healthz().await;
        for (sent, served) in [
            (&b""[..], false),
            (b"GET /healthz HT", false),
            (b"GET /healthz HTTP/1.1\r\nhost: [::1]\r\n", false),
            (b"GET /healthz HTTP/1.1\r\nhost: [::1]\r\n\r\n", true),
        ] {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(sent).await.unwrap();
            let (begun, mut answer) = (Instant::now(), Vec::new());
            let _ = socket.read_to_end(&mut answer).await;
            let timeout = if served { IDLE_TIMEOUT } else { HEADERS_TIMEOUT };
            assert_eq!(begun.elapsed().as_secs(), timeout.as_secs(), "{sent:?}");
            assert_eq!(answer.starts_with(b"HTTP/1.1 200"), served);
        }
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(crate::connections::PREFACE).await.unwrap();
        let mut settings = [0; 9];
        socket.read_exact(&mut settings).await.unwrap();
        assert_eq!(settings[3], 4, "SETTINGS: a gRPC client is answered in its own protocol");
    }
}
