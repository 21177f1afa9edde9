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
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::server::Connected as _;
use tower::Service as _;

use crate::connections::{AcceptedConnection, Connections, FrameBudget, read_preface};
use crate::domain::limit;

use super::connection_age::ConnectionAge;
use super::layers::{AbortableCall, CallLayer};

/// Maximum number of calls that a client has reset before they were accepted; beyond it the connection is closed, and
/// all streams on it. Equal to the number of calls in flight that it may have: their deadlines may pass together
/// while this process stands still, and a proxy resets calls of many clients at once. Without a limit a client could
/// make the server hold any number.
const RESETS_MAX: usize = limit::CONNECTION_CALLS_MAX as usize;
/// Interval of keepalive pings on a silent connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time until a ping is answered.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Executor of the calls of a connection: each runs in a task that ends with its call, or when the call requests its
/// abort.
#[derive(Clone, Copy)]
pub(crate) struct CallExecutor;

/// Serves `routes` on `listener` until `shutdown` ends; then accepts no more connections or calls, and returns when
/// the last call has ended.
pub(super) async fn serve(
    listener: TcpListener,
    connections: Arc<Connections>,
    routes: Routes,
    layer: CallLayer,
    max_age: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let stop = CancellationToken::new();
    let serve = |accepted| {
        connection(
            accepted,
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
    routes: Routes,
    layer: CallLayer,
    age: ConnectionAge,
    stop: CancellationToken,
) {
    let AcceptedConnection { socket, peer, slot: place } = accepted;
    let info = socket.connect_info();
    let begun = tokio::time::timeout(limit::PREFACE_MAX, read_preface(socket));
    let socket = tokio::select! {
        () = stop.cancelled() => return,
        begun = begun => match begun {
            Ok(Ok((socket, _))) => socket,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "connection closed before its first call"),
            Err(_) => return tracing::debug!(%peer, "connection closed: client sent no HTTP/2 preface in time"),
        },
    };
    let (calls, shared_age) = (layer.connection(routes), age.clone());
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(info.clone());
        request.extensions_mut().insert(shared_age.clone());
        calls.clone().call(request)
    });
    let mut connection =
        pin!(http().serve_connection(TokioIo::new(FrameBudget::new(socket)), service));
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
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection failed");
    }
    drop(place);
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

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::super::layers::CallLimits;
    use super::*;
    use crate::connections::PREFACE;
    use crate::metrics::Metrics;
    use crate::trace::Tracer;

    /// An empty SETTINGS frame.
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

    /// Returns the lifetime in seconds of a connection that sends `sent` and then nothing, and the bytes sent to it.
    async fn lives(sent: &[u8]) -> (u64, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let connections = Connections::new("grpc", 2, 2);
        let limits = CallLimits::new(1, 32 << 20, Duration::from_secs(30));
        let layer = CallLayer::new(Metrics::new(), Tracer::default(), limits);
        let serving =
            serve(listener, connections, Routes::default(), layer, Duration::ZERO, pending());
        let _serving = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(serving));
        socket.write_all(sent).await.unwrap();
        let (begun, mut answer) = (Instant::now(), Vec::new());
        let _ = socket.read_to_end(&mut answer).await;
        (begun.elapsed().as_secs(), answer)
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
        ] {
            let (lived, _) = lives(&sent).await;
            assert_eq!(lived, seconds, "{sent:?}");
        }
    }
}
