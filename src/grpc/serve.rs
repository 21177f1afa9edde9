//! The gRPC port: its connections, from the first byte to the last, and the task of each call.
//!
//! hyper is used without tonic's server around it, which limits neither the time to the first byte nor the tasks of
//! calls: a call whose client reads nothing could not be ended.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::server::Connected as _;
use tower::Service as _;

use crate::connections::{AcceptedConnection, Connections, FirstBytes, FrameBudget, UnreadBody};
use crate::domain::limit;
use crate::tls::{self, PortTls, SecuredSocket};

use super::connection_age::ConnectionAge;
use super::layers::{AbortableCall, CallLayer, MessageEncoding};

/// Maximum number of calls that a client has reset before they were accepted; beyond it the connection is closed, and
/// all streams on it. Equal to the number of calls in flight that it may have: their deadlines may pass together
/// while this process stands still, and a proxy resets calls of many clients at once. Without a limit a client could
/// make the server hold any number.
const RESETS_MAX: usize = limit::CONNECTION_CALLS_MAX as usize;
/// Interval of keepalive pings on a silent connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time until a ping is answered.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answer to a client that uses another protocol, a browser or curl.
const WRONG_PORT: &str = "this is the gRPC port of ringq, for HTTP/2; health, metrics and calls as JSON are at its HTTP port (http_listen, by default 7701)";

/// Executor of the calls of a connection: each runs in a task that ends with its call, or when the call requests its
/// abort.
#[derive(Clone, Copy)]
pub(crate) struct CallExecutor;

/// Serves `routes` on `listener` until `shutdown` ends; then accepts no more connections or calls, and returns when
/// the last call has ended.
pub(super) async fn serve(
    listener: TcpListener,
    connections: Arc<Connections>,
    tls: PortTls,
    routes: Routes,
    layer: CallLayer,
    max_age: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let stop = CancellationToken::new();
    let serve = |accepted| {
        connection(
            accepted,
            tls.clone(),
            routes.clone(),
            layer.clone(),
            ConnectionAge::new(max_age),
            stop.clone(),
        )
    };
    connections.serve(listener, shutdown, &stop, serve).await.wait().await;
}

/// Serves one connection until its client closes it, or until `stop` or its retirement, and its last call.
async fn connection(
    accepted: AcceptedConnection,
    tls: PortTls,
    routes: Routes,
    layer: CallLayer,
    age: ConnectionAge,
    stop: CancellationToken,
) {
    let AcceptedConnection { socket, peer, origin, slot } = accepted;
    let info = socket.connect_info();
    let begun = async {
        let SecuredSocket { mut socket, certificate } =
            tls.accept(socket, peer, |socket| socket).await?;
        match timeout(limit::PREFACE_MAX, FirstBytes::read(&mut socket)).await {
            Ok(Ok(first)) if first.are_tls() => {
                tls.refuse_tls(socket, peer).await;
                return None;
            }
            Ok(Ok(first)) if !first.are_preface() => {
                tracing::debug!(%peer, "connection closed: client does not use HTTP/2");
                origin.violated();
                tls::answer_http1(first.before(socket), WRONG_PORT).await;
                return None;
            }
            Ok(Ok(first)) => return Some((first.before(socket), certificate)),
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "connection closed before its first call");
            }
            Err(_) => {
                tracing::debug!(%peer, "connection closed: client sent no HTTP/2 preface in time");
            }
        }
        None
    };
    let begun = tokio::select! {
        () = stop.cancelled() => None,
        begun = begun => begun,
    };
    let Some((socket, certificate)) = begun else { return };
    let standing = Arc::clone(slot.standing());
    let calls =
        layer.connection_for(routes, certificate.clone(), standing, MessageEncoding::Protobuf);
    let ended = tls.certificate_ended(certificate.clone());
    let shared_age = age.clone();
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(info.clone());
        request.extensions_mut().insert(shared_age.clone());
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        calls.clone().call(request.map(UnreadBody::new))
    });
    let socket = TokioIo::new(FrameBudget::new(socket, slot.standing()));
    let mut connection = pin!(http().serve_connection(socket, service));
    let served = tokio::select! {
        served = &mut connection => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = age.retirement() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = ended => {
            tracing::debug!(%peer, "connection closed: its client certificate is not valid any more");
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection failed");
        origin.ended(&error);
    }
    drop(slot);
}

fn http() -> http2::Builder<CallExecutor> {
    let mut http = http2::Builder::new(CallExecutor);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(limit::CONNECTION_CALLS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    http
}

// === impl CallExecutor ===

impl<F> Executor<F> for CallExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        tokio::spawn(AbortableCall::new(call));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::Extension;
    use axum::routing::post;
    use hyper_util::rt::TokioExecutor;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::super::layers::CallLimits;
    use super::*;
    use crate::audit::AuditLog;
    use crate::auth::Authenticator;
    use crate::clock::Clock;
    use crate::connections::PREFACE;
    use crate::metrics::Metrics;
    use crate::tls::tests::{Certificates, Valid};
    use crate::tls::{ClientAuth, PeerCertificate, ServerTls};
    use crate::trace::Tracer;

    /// An empty SETTINGS frame.
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

    /// Returns the lifetime in seconds of a connection that sends `sent` and then nothing, and the bytes sent to it.
    async fn lives(sent: &[u8]) -> (u64, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let connections = Connections::new("grpc", 2, 2, Metrics::new());
        let limits = CallLimits::new(1, 32 << 20, Duration::from_secs(30));
        let tls = PortTls::grpc(None, Metrics::new());
        let layer = CallLayer::new(
            Metrics::new(),
            Tracer::default(),
            (Authenticator::off(), AuditLog::off()),
            limits,
        );
        let serving =
            serve(listener, connections, tls, Routes::default(), layer, Duration::ZERO, pending());
        let _serving = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(serving));
        socket.write_all(sent).await.unwrap();
        let (begun, mut answer) = (Instant::now(), Vec::new());
        let _ = socket.read_to_end(&mut answer).await;
        (begun.elapsed().as_secs(), answer)
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let head = [0, 0, u8::try_from(payload.len()).unwrap(), kind, flags];
        [&head[..], &stream.to_be_bytes(), payload].concat()
    }

    /// Returns the headers of a call whose deadline has passed, as HPACK without a table.
    fn late_call() -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", "/ringq.v1.QueueService/Enqueue"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "0n"),
        ] {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).unwrap());
                block.extend(text.as_bytes());
            }
        }
        block
    }

    /// Reads frames until so many calls are answered.
    async fn read_answers(socket: &mut TcpStream, count: usize) {
        let mut answers = 0;
        while answers < count {
            let mut head = [0; 9];
            socket.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            socket.read_exact(&mut payload).await.unwrap();
            assert_ne!(head[3], 7, "GOAWAY: {}", String::from_utf8_lossy(&payload));
            answers += usize::from(head[3] == 1);
        }
    }

    /// The message of each call comes after its refusal; the connection lives on all the same.
    #[tokio::test]
    async fn a_connection_survives_thousands_of_refused_calls() {
        const AT_ONCE: u32 = 100;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let metrics = Metrics::new();
        let limits = CallLimits::new(1, 32 << 20, Duration::from_secs(30));
        let doors = (Authenticator::off(), AuditLog::off());
        let layer = CallLayer::new(metrics.clone(), Tracer::default(), doors, limits);
        let connections = Connections::new("grpc", 2, 2, metrics.clone());
        let tls = PortTls::grpc(None, metrics);
        let routes = Routes::default();
        let serving = serve(listener, connections, tls, routes, layer, Duration::ZERO, pending());
        let _serving = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(serving));
        socket.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
        let headers = late_call();
        for batch in 0..30 {
            let streams = (0..AT_ONCE).map(|n| 2 * (batch * AT_ONCE + n) + 1);
            let calls: Vec<u8> = streams.clone().flat_map(|id| frame(1, 4, id, &headers)).collect();
            socket.write_all(&calls).await.unwrap();
            read_answers(&mut socket, AT_ONCE as usize).await;
            let messages: Vec<u8> = streams.flat_map(|id| frame(0, 1, id, &[0; 5])).collect();
            socket.write_all(&messages).await.unwrap();
        }
    }

    #[tokio::test]
    async fn calls_have_the_certificate_of_their_client() {
        let Some(made) = Certificates::make() else { return };
        let metrics = Metrics::new();
        let files = made.server(Some(ClientAuth::Required));
        let tls = ServerTls::load(files, Clock::system(), metrics.clone()).await.unwrap();
        let names = async |Extension(peer): Extension<Arc<PeerCertificate>>| peer.dns.join(" ");
        let routes = Routes::from(axum::Router::new().route("/a.B/C", post(names)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = CallLimits::new(1, 32 << 20, Duration::from_secs(30));
        let doors = (Authenticator::off(), AuditLog::off());
        let layer = CallLayer::new(metrics.clone(), Tracer::default(), doors, limits);
        let tls = PortTls::grpc(Some(tls), metrics);
        let connections = Connections::new("grpc", 2, 2, Metrics::new());
        let serving = serve(listener, connections, tls, routes, layer, Duration::ZERO, pending());
        let _serving = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(serving));
        let worker = made.sign("worker", "DNS:worker.example", Valid::Days(2));
        let socket = TokioIo::new(made.client(Some(&worker)).connect(address).await.unwrap());
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), socket).await.unwrap();
        let _connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
        let request = http::Request::post("http://localhost/a.B/C");
        let answer = client.send_request(request.body(String::new()).unwrap()).await.unwrap();
        let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        assert_eq!(body, "worker.example");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_complete_preface_are_closed() {
        let preface = limit::PREFACE_MAX.as_secs();
        for (sent, seconds) in [
            (Vec::new(), preface),
            (PREFACE[..1].to_vec(), preface),
            (PREFACE[..PREFACE.len() - 1].to_vec(), preface),
            // Later, keepalive pings detect whether the client is still there.
            (PREFACE.to_vec(), 40),
            ([PREFACE, SETTINGS].concat(), 40),
            ([PREFACE, SETTINGS, &[0, 1, 0, 1, 4]].concat(), 40),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 0),
            // The beginning of a TLS handshake.
            (b"\x16\x03\x01\x02\0\x01".to_vec(), 0),
        ] {
            let (lived, _) = lives(&sent).await;
            assert_eq!(lived, seconds, "{sent:?}");
        }
    }
}
