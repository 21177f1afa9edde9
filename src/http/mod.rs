//! The HTTP port: probes and metrics. It has no authentication and shows no secrets.
//!
//! | path | answer |
//! | --- | --- |
//! | `/healthz` | 200 as long as the process can answer at all |
//! | `/readyz` | 200 while the server takes work, else 503 and why it takes none |
//! | `/metrics` | Prometheus text |

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Content type of the Prometheus text format.
const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long a scrape waits for fresh gauges; well below Prometheus' own time-out of 10 s.
const REFRESH_MAX: Duration = Duration::from_secs(2);
/// How long a client that does not read may hold up the end of the server.
const LINGER: Duration = Duration::from_secs(2);

/// Brings the gauges up to date before a scrape, which waits 2 s for it at most.
pub type Refresh = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Why the server takes no work, if it takes none.
pub type NotReady = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What the pages show.
#[derive(Clone)]
struct Pages {
    metrics: Metrics,
    not_ready: NotReady,
    refresh: Refresh,
}

/// The pages. `not_ready` is asked for each probe; `refresh` runs before each rendering of the metrics.
pub fn router(metrics: Metrics, not_ready: NotReady, refresh: Refresh) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .with_state(Pages { metrics, not_ready, refresh })
}

/// Serves until `shutdown` ends, and finishes the answers under way then, for 2 s at most.
///
/// # Errors
/// If the listener fails.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let stopping = CancellationToken::new();
    let signal = stopping.clone();
    let shutdown = async move {
        shutdown.await;
        signal.cancel();
    };
    let overdue = async {
        stopping.cancelled().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::select! {
        served = axum::serve(listener, router).with_graceful_shutdown(shutdown) => served,
        () = overdue => Ok(()),
    }
}

async fn readyz(State(pages): State<Pages>) -> impl IntoResponse {
    match (pages.not_ready)() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}

async fn render(State(pages): State<Pages>) -> impl IntoResponse {
    if timeout(REFRESH_MAX, (pages.refresh)()).await.is_err() {
        tracing::warn!("gauges of this scrape are old, the store did not answer in time");
    }
    ([(header::CONTENT_TYPE, METRICS_TEXT)], pages.metrics.render())
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tokio::sync::watch;
    use tower::ServiceExt as _;

    use super::*;

    async fn fetch(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn ready() -> NotReady {
        Arc::new(|| None)
    }

    fn idle() -> Refresh {
        Arc::new(|| Box::pin(async {}))
    }

    #[tokio::test]
    async fn readiness_follows_the_server_and_health_does_not() {
        let (why, asked) = watch::channel(None);
        let not_ready: NotReady = Arc::new(move || asked.borrow().map(str::to_owned));
        let router = router(Metrics::new(), not_ready, idle());
        for (is, status, body) in [
            (Some("no shard answers"), 503, "not ready: no shard answers\n"),
            (None, 200, "ready\n"),
            (Some("it ends"), 503, "not ready: it ends\n"),
        ] {
            why.send_replace(is);
            let (code, text) = fetch(&router, "/readyz").await;
            assert_eq!((code.as_u16(), &*text), (status, body));
            assert_eq!(fetch(&router, "/healthz").await, (StatusCode::OK, "ok".to_owned()));
        }
        assert_eq!(fetch(&router, "/nothing").await.0, 404);
    }

    #[tokio::test]
    async fn gauges_are_fresh_in_a_scrape() {
        let metrics = Metrics::new();
        let fresh = metrics.clone();
        let refresh: Refresh = Arc::new(move || {
            let fresh = fresh.clone();
            Box::pin(async move { fresh.set_streams(3) })
        });
        let router = router(metrics, ready(), refresh);
        let (status, text) = fetch(&router, "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("\nringq_streams 3\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_does_not_wait_for_ever() {
        let stuck: Refresh = Arc::new(|| Box::pin(std::future::pending()));
        let router = router(Metrics::new(), ready(), stuck);
        assert_eq!(fetch(&router, "/metrics").await.0, 200);
    }
}
