//! Connections of the HTTP port.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::connections::{AcceptedConnection, Connections, read_preface};

/// Maximum number of connections: probes and scrapers are few, and each holds an open file.
const CONNECTIONS_MAX: usize = 128;
/// Maximum number of connections from one address, so that a single machine cannot lock out the others.
const PEER_CONNECTIONS_MAX: usize = 64;
/// Maximum time for the head of a request, and maximum time that a connection may have none.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 16;
/// Maximum time that a client that does not read may delay the shutdown.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

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

/// Serves until `shutdown` ends, then finishes the answers in flight, for 2 s at most.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let connections = Connections::new("http", CONNECTIONS_MAX, PEER_CONNECTIONS_MAX);
    let stop = CancellationToken::new();
    let serve = |accepted| connection(accepted, router.clone(), stop.clone());
    let tasks = connections.serve(listener, shutdown, &stop, serve).await;
    let _ = tokio::time::timeout(SHUTDOWN_MAX, tasks.wait()).await;
}

async fn connection(accepted: AcceptedConnection, router: Router, stop: CancellationToken) {
    let AcceptedConnection { socket, peer, slot: _place } = accepted;
    let (socket, is_http2) = tokio::select! {
        () = stop.cancelled() => return,
        begun = tokio::time::timeout(HEADERS_TIMEOUT, read_preface(socket)) => match begun {
            Ok(Ok(begun)) => begun,
            _ => return tracing::debug!(%peer, "http connection closed: client sent no complete request in time"),
        },
    };
    let service = service_fn(move |request: http::Request<Incoming>| {
        router.clone().oneshot(request.map(Body::new))
    });
    let socket = TokioIo::new(socket);
    let served = if is_http2 {
        let connection = http2().serve_connection(socket, service);
        until!(connection, stop)
    } else {
        let connection = http1().serve_connection(socket, service);
        until!(connection, stop)
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "http connection failed");
    }
}

fn http1() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
    http
}

/// Serves HTTP/2 for gRPC clients that use the wrong port: they receive an answer that this is no gRPC server.
fn http2() -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(HEADERS_TIMEOUT)
        .keep_alive_timeout(HEADERS_TIMEOUT);
    http
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_whole_request_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", axum::routing::get(async || "ok"));
        let serving = serve(listener, router, pending());
        let _serving = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(serving));
        for (sent, served) in [
            (&b""[..], false),
            (b"GET /healthz HT", false),
            (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", false),
            (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", true),
        ] {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(sent).await.unwrap();
            let (begun, mut answer) = (Instant::now(), Vec::new());
            let _ = socket.read_to_end(&mut answer).await;
            assert_eq!(begun.elapsed().as_secs(), HEADERS_TIMEOUT.as_secs(), "{sent:?}");
            assert_eq!(answer.starts_with(b"HTTP/1.1 200"), served);
        }
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(crate::connections::PREFACE).await.unwrap();
        let mut settings = [0; 9];
        socket.read_exact(&mut settings).await.unwrap();
        assert_eq!(settings[3], 4, "SETTINGS: a gRPC client is answered in its own protocol");
    }
}
