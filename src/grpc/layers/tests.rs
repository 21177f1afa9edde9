//! The layer around handlers of every kind of misbehaviour.

use std::future::{pending, ready};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body::{Body as _, Frame};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tower::{ServiceExt as _, service_fn};

use super::*;

const GET: &str = "/ringq.v1.QueueService/Get";
const PULL: &str = "/ringq.v1.QueueService/Pull";
const STREAM: &str = "/ringq.v1.QueueService/Stream";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// A layer for one call at a time, each of at most a second.
fn layer(metrics: &Metrics) -> CallLayer {
    CallLayer::new(metrics.clone(), 1, Duration::from_secs(1))
}

fn request(path: &str, headers: &[(&'static str, &str)]) -> Request<Body> {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

/// An answer of these frames, without end if the last one is missing.
fn answer(frames: Vec<Frame<Bytes>>, endless: bool) -> Response<Body> {
    let frames = futures::stream::iter(frames.into_iter().map(Ok::<_, Status>));
    let rest =
        futures::stream::poll_fn(move |_| if endless { Poll::Pending } else { Poll::Ready(None) });
    Response::new(Body::new(Frames(Box::pin(frames.chain(rest)))))
}

struct Frames(std::pin::Pin<Box<dyn futures::Stream<Item = Result<Frame<Bytes>, Status>> + Send>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_next_unpin(cx)
    }
}

fn ok() -> Response<Body> {
    let mut trailers = http::HeaderMap::new();
    Status::new(Code::Ok, "").add_header(&mut trailers).unwrap();
    answer(vec![Frame::data(Bytes::from_static(b"x")), Frame::trailers(trailers)], false)
}

/// The status that ends an answer, from its headers or its last frame.
async fn status(response: Response<CallBody>) -> Status {
    if let Some(status) = Status::from_header_map(response.headers()) {
        return status;
    }
    let mut body = Box::pin(response.into_body());
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Some(trailers) = frame.unwrap().trailers_ref() {
            return Status::from_header_map(trailers).unwrap();
        }
    }
    Status::unknown("no status")
}

/// How one call to `handler` ends, and the line that the metrics have for it.
async fn outcome<F>(
    request: Request<Body>,
    handler: impl FnMut(Request<Body>) -> F + Clone,
) -> (Code, String, String)
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    let metrics = Metrics::new();
    let calls = layer(&metrics).layer(service_fn(handler));
    let status = status(calls.oneshot(request).await.unwrap()).await;
    let reason = status.get_details_error_info().map_or(String::new(), |info| info.reason);
    let line = metrics.render();
    let line = line.lines().find(|line| line.starts_with("ringq_rpc_seconds_count"));
    (status.code(), reason, line.unwrap_or_default().to_owned())
}

fn counted(method: &str, code: &str) -> String {
    format!(r#"ringq_rpc_seconds_count{{method="{method}",code="{code}"}} 1"#)
}

#[tokio::test(start_paused = true)]
async fn calls_end_with_their_code_and_are_counted_once() {
    let done = outcome(request(GET, &[]), |_| ready(Ok(ok()))).await;
    assert_eq!(done, (Code::Ok, String::new(), counted("Get", "OK")));
    let refused =
        outcome(request(GET, &[]), |_| ready(Ok(Status::from(Failure::internal()).into_http())));
    assert_eq!(refused.await, (Code::Internal, "INTERNAL".into(), counted("Get", "INTERNAL")));
    let too_large =
        outcome(request(GET, &[]), |_| ready(Ok(Status::out_of_range("found 5 MiB").into_http())));
    let expected = (Code::InvalidArgument, "TOO_LARGE".into(), counted("Get", "INVALID_ARGUMENT"));
    assert_eq!(too_large.await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_late_call_ends_at_the_earlier_of_both_deadlines() {
    let cases = [
        (GET, None, 1_000),
        (GET, Some("100m"), 98),
        (GET, Some("5S"), 1_000),
        (GET, Some("1m"), 0),
        (PULL, None, 61_000),
        (PULL, Some("5S"), 4_998),
        (STREAM, Some("90S"), 89_998),
    ];
    for (path, timeout, millis) in cases {
        let headers: Vec<_> =
            timeout.map(|timeout| ("grpc-timeout", timeout)).into_iter().collect();
        let began = Instant::now();
        let (code, reason, _) = outcome(request(path, &headers), |_| pending()).await;
        assert_eq!((code, &*reason), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"), "{path}");
        let took = u64::try_from(began.elapsed().as_millis()).unwrap();
        assert!((millis..=millis + 2).contains(&took), "{path} {timeout:?} {took}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_cut_off_at_its_callers_deadline_only() {
    let endless = |_| ready(Ok(answer(vec![Frame::data(Bytes::from_static(b"x"))], true)));
    let (code, reason, line) = outcome(request(STREAM, &[("grpc-timeout", "90S")]), endless).await;
    assert_eq!((code, &*reason), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
    assert_eq!(line, counted("Stream", "DEADLINE_EXCEEDED"));
    let forever =
        tokio::time::timeout(Duration::from_secs(86_400), outcome(request(STREAM, &[]), endless));
    assert!(forever.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn only_a_pull_is_told_its_callers_deadline() {
    for (path, timeout, told) in [(PULL, "5S", true), (PULL, "x", false), (GET, "5S", false)] {
        let seen = Arc::new(AtomicBool::new(false));
        let handler = |request: Request<Body>| {
            let deadline = request.extensions().get::<Deadline>();
            seen.store(deadline.is_some_and(|d| d.left() > Duration::ZERO), Ordering::Relaxed);
            ready(Ok(ok()))
        };
        outcome(request(path, &[("grpc-timeout", timeout)]), handler).await;
        assert_eq!(seen.load(Ordering::Relaxed), told, "{path} {timeout}");
    }
}

#[tokio::test(start_paused = true)]
async fn panics_answer_internal_before_and_after_the_headers() {
    let panics = |_| async { panic!("on purpose") };
    let (code, reason, line) = outcome(request(GET, &[]), panics).await;
    assert_eq!((code, &*reason, line), (Code::Internal, "INTERNAL", counted("Get", "INTERNAL")));
    let later = |_| {
        let frames = futures::stream::poll_fn(|_| panic!("on purpose"));
        ready(Ok(Response::new(Body::new(Frames(Box::pin(frames))))))
    };
    let (code, reason, line) = outcome(request(STREAM, &[]), later).await;
    assert_eq!((code, &*reason, line), (Code::Internal, "INTERNAL", counted("Stream", "INTERNAL")));
}

#[tokio::test(start_paused = true)]
async fn unary_calls_beyond_the_bound_are_refused_until_one_has_ended() {
    let metrics = Metrics::new();
    let calls = layer(&metrics).layer(service_fn(|_| async { Ok(ok()) }));
    let held = calls.clone().oneshot(request(GET, &[])).await.unwrap();
    for (path, expected) in
        [(GET, Code::ResourceExhausted), (PULL, Code::Ok), (STREAM, Code::Ok), (HEALTH, Code::Ok)]
    {
        let response = calls.clone().oneshot(request(path, &[])).await.unwrap();
        let status = status(response).await;
        assert_eq!(status.code(), expected, "{path}");
        if expected != Code::Ok {
            let details = status.get_error_details();
            assert_eq!(details.error_info().unwrap().reason, "RATE_LIMITED");
            assert!(details.retry_info().is_some() && details.quota_failure().is_some());
        }
    }
    assert_eq!(status(held).await.code(), Code::Ok);
    let next = calls.oneshot(request(GET, &[])).await.unwrap();
    assert_eq!(status(next).await.code(), Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_goes_is_cancelled_and_leaves_its_place() {
    let metrics = Metrics::new();
    let calls =
        layer(&metrics).layer(service_fn(|_| pending::<Result<Response<Body>, Infallible>>()));
    for _ in 0..3 {
        let call = calls.clone().oneshot(request(GET, &[]));
        assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
    }
    let cancelled = r#"ringq_rpc_seconds_count{method="Get",code="CANCELLED"} 3"#;
    assert!(metrics.render().contains(cancelled), "{}", metrics.render());
}

#[tokio::test(start_paused = true)]
async fn every_answer_echoes_the_request_id() {
    let metrics = Metrics::new();
    let panics = layer(&metrics).layer(service_fn(|request: Request<Body>| async move {
        assert_eq!(request.uri().path(), PULL);
        Ok(ok())
    }));
    for path in [GET, PULL] {
        let asked = request(path, &[("x-request-id", "abc")]);
        let response = panics.clone().oneshot(asked).await.unwrap();
        assert_eq!(response.headers()["x-request-id"], "abc");
        let response = panics.clone().oneshot(request(path, &[])).await.unwrap();
        assert_eq!(response.headers()["x-request-id"].len(), 16);
    }
}
