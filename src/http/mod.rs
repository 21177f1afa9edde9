//! The HTTP port: probes, metrics, and calls as JSON. Probes are open; metrics and calls need an identity where there are
//! identities. Probes and metrics show no secrets; of shards they show only their names.
//!
//! | path | answer |
//! | --- | --- |
//! | `/` | the list of these paths |
//! | `/healthz` | 200 as long as the process can answer at all |
//! | `/readyz` | 200 while the server accepts work, else 503 and the reason |
//! | `/metrics` | Prometheus text |
//! | `POST /v1/{service}/{method}` | the answer of a call, see [`grpc::json`](crate::grpc) |

mod client_socket;
mod connection_use;
mod json;
mod local_names;
mod metrics_access;
mod scrape_limiter;
mod serve;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures::future::BoxFuture;

use crate::metrics::Metrics;
use crate::tls::PeerCertificate;

pub use metrics_access::MetricsAccess;
use metrics_access::MetricsDenial;
use scrape_limiter::ScrapeLimiter;
pub use serve::{ConnectionLimits, serve};

/// Content type of the Prometheus text format.
const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Text of `/`, and of a path that does not exist.
const PATHS: &str = "ringq: GET /healthz, /readyz, /metrics; calls as JSON: POST /v1/{service}/{method}, as in docs/json.md\n";
/// Maximum time that a scrape or an export waits for fresh gauges; well below Prometheus' own timeout of 10 s.
pub const REFRESH_MAX: Duration = Duration::from_secs(2);

/// Function that updates the gauges before a scrape, which waits 2 s for it at most. Calls at the same time share one
/// update, which goes on when no call waits for it any more.
pub type Refresh = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Function that returns the reason why the server accepts no work, if it accepts none.
pub type NotReady = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// State of the pages.
#[derive(Clone)]
struct HttpState {
    metrics: Metrics,
    not_ready: NotReady,
    scrapes: ScrapeLimiter,
    access: MetricsAccess,
}

/// Creates the pages. Each probe calls `not_ready`; `refresh` runs before a rendering of the metrics.
///
/// Metrics show all topics: `access` has the identities with a right to see the whole server.
pub fn router(
    metrics: Metrics,
    not_ready: NotReady,
    refresh: Refresh,
    access: MetricsAccess,
) -> Router {
    Router::new()
        .route("/", get(async || PATHS))
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .route(json::PATH, any(json::call))
        .fallback(unknown_path)
        .with_state(HttpState { metrics, not_ready, scrapes: ScrapeLimiter::new(refresh), access })
}

async fn unknown_path(headers: HeaderMap) -> impl IntoResponse {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    // A gRPC client takes the text for a message of its call.
    let is_grpc = content_type.is_some_and(|it| it.starts_with(b"application/grpc"));
    (StatusCode::NOT_FOUND, if is_grpc { "" } else { PATHS })
}

async fn readyz(State(pages): State<HttpState>) -> impl IntoResponse {
    match (pages.not_ready)() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}

async fn render(
    State(pages): State<HttpState>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    certificate: Option<Extension<Arc<PeerCertificate>>>,
    headers: HeaderMap,
) -> Response {
    let peer = peer.map(|Extension(ConnectInfo(peer))| peer);
    let certificate = certificate.as_ref().map(|Extension(certificate)| certificate);
    if let Err(denial) = pages.access.check(peer, certificate, &headers) {
        let MetricsDenial { status, text, .. } = denial;
        return (status, [(header::WWW_AUTHENTICATE, "Bearer")], text).into_response();
    }
    let Some(_place) = pages.scrapes.try_acquire() else {
        let busy = "too many scrapes are in flight; try again\n";
        return (StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
    };
    if !pages.scrapes.refresh(REFRESH_MAX).await {
        tracing::warn!("gauges of this scrape are outdated: the shards did not answer in time");
    }
    ([(header::CONTENT_TYPE, METRICS_TEXT)], pages.metrics.render()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tokio::sync::watch;
    use tower::ServiceExt as _;

    use crate::audit::AuditLog;
    use crate::auth::Authenticator;

    use super::*;

    fn open_to_all() -> MetricsAccess {
        MetricsAccess::new(Authenticator::off(), AuditLog::off())
    }

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
        let router = router(Metrics::new(), not_ready, idle(), open_to_all());
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
        for (path, status) in [("/", 200), ("/nothing", 404)] {
            let (code, text) = fetch(&router, path).await;
            assert_eq!((code.as_u16(), &*text), (status, PATHS));
        }
    }

    #[tokio::test]
    async fn gauges_are_fresh_in_a_scrape() {
        let metrics = Metrics::new();
        let fresh = metrics.clone();
        let refresh: Refresh = Arc::new(move || {
            let fresh = fresh.clone();
            Box::pin(async move { fresh.set_streams(3) })
        });
        let router = router(metrics, ready(), refresh, open_to_all());
        let (status, text) = fetch(&router, "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("\nringq_streams 3\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn few_scrapes_are_served_at_once() {
        let slow: Refresh = Arc::new(|| Box::pin(tokio::time::sleep(Duration::from_secs(30))));
        let router = router(Metrics::new(), ready(), slow, open_to_all());
        for _ in 0..3 {
            let scrapes = (0..60).map(|_| fetch(&router, "/metrics"));
            let answers = futures::future::join_all(scrapes).await;
            let served = answers.iter().filter(|(status, _)| *status == 200).count();
            let refused = answers.iter().filter(|(status, _)| *status == 503).count();
            assert_eq!(
                (served, refused),
                (scrape_limiter::AT_ONCE_MAX, 60 - scrape_limiter::AT_ONCE_MAX)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_does_not_wait_for_ever() {
        let stuck: Refresh = Arc::new(|| Box::pin(std::future::pending()));
        let router = router(Metrics::new(), ready(), stuck, open_to_all());
        assert_eq!(fetch(&router, "/metrics").await.0, 200);
    }
}
