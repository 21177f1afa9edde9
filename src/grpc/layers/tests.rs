//! Tests of the layer with handlers of every kind of misbehaviour.

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

const ACK: &str = "/ringq.v1.QueueService/Ack";

/// Creates a layer for one call at a time, each of at most a second.
fn layer(metrics: &Metrics) -> CallLayer {
    CallLayer::new(
        metrics.clone(),
        Tracer::default(),
        (Authenticator::off(), AuditLog::off()),
        CallLimits::new(1, 32 << 20, Duration::from_secs(1)),
    )
}

/// Handler that reads its message, as those of tonic do.
async fn reads(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let mut body = Box::pin(request.into_body());
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Err(status) = frame {
            return Ok(status.into_http());
        }
    }
    Ok(ok())
}

fn request(path: &str, headers: &[(&'static str, &str)]) -> Request<Body> {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

/// Returns an answer of these frames, which does not end if `endless`.
fn answer(frames: Vec<Frame<Bytes>>, endless: bool) -> Response<Body> {
    let frames = futures::stream::iter(frames.into_iter().map(Ok::<_, Status>));
    let rest =
        futures::stream::poll_fn(move |_| if endless { Poll::Pending } else { Poll::Ready(None) });
    Response::new(Body::new(FrameBody(Box::pin(frames.chain(rest)))))
}

struct FrameBody(
    std::pin::Pin<Box<dyn futures::Stream<Item = Result<Frame<Bytes>, Status>> + Send>>,
);

impl http_body::Body for FrameBody {
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

/// Returns the status that ends an answer, from its headers or its last frame.
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

/// Returns code and reason of one call to `handler`, and its line in the metrics.
async fn outcome<F>(
    request: Request<Body>,
    handler: impl FnMut(Request<Body>) -> F + Clone,
) -> (Code, String, String)
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    let metrics = Metrics::new();
    let calls = layer(&metrics).connection(service_fn(handler));
    let status = status(calls.oneshot(request).await.unwrap()).await;
    let reason = status.get_details_error_info().map_or(String::new(), |info| info.reason);
    let line = metrics.render();
    let line = line.lines().find(|line| line.starts_with("ringq_rpc_seconds_count"));
    (status.code(), reason, line.unwrap_or_default().to_owned())
}

fn counted(method: &str, code: &str) -> String {
    format!(r#"ringq_rpc_seconds_count{{code="{code}",method="{method}"}} 1"#)
}

#[tokio::test(start_paused = true)]
async fn calls_end_with_their_code_and_are_counted_once() {
    let done = outcome(request(GET, &[]), |_| ready(Ok(ok()))).await;
    assert_eq!(done, (Code::Ok, String::new(), counted("Get", "OK")));
    let refused =
        outcome(request(GET, &[]), |_| ready(Ok(Status::from(RpcError::internal()).into_http())));
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
        (HEALTH, None, 1_000),
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
async fn only_a_pull_gets_the_callers_deadline() {
    for (path, timeout, expected) in [(PULL, "5S", true), (PULL, "x", false), (GET, "5S", false)] {
        let seen = Arc::new(AtomicBool::new(false));
        let handler = |request: Request<Body>| {
            let deadline = request.extensions().get::<CallDeadline>();
            seen.store(deadline.is_some_and(|d| d.left() > Duration::ZERO), Ordering::Relaxed);
            ready(Ok(ok()))
        };
        outcome(request(path, &[("grpc-timeout", timeout)]), handler).await;
        assert_eq!(seen.load(Ordering::Relaxed), expected, "{path} {timeout}");
    }
}

#[tokio::test(start_paused = true)]
async fn panics_answer_internal_before_and_after_the_headers() {
    let panics = |_| async { panic!("on purpose") };
    let (code, reason, line) = outcome(request(GET, &[]), panics).await;
    assert_eq!((code, &*reason, line), (Code::Internal, "INTERNAL", counted("Get", "INTERNAL")));
    let later = |_| {
        let frames = futures::stream::poll_fn(|_| panic!("on purpose"));
        ready(Ok(Response::new(Body::new(FrameBody(Box::pin(frames))))))
    };
    let (code, reason, line) = outcome(request(STREAM, &[]), later).await;
    assert_eq!((code, &*reason, line), (Code::Internal, "INTERNAL", counted("Stream", "INTERNAL")));
}

#[tokio::test(start_paused = true)]
async fn unary_calls_beyond_the_bound_are_refused_until_one_has_ended() {
    let metrics = Metrics::new();
    let calls = layer(&metrics).connection(service_fn(reads));
    let held = calls.clone().oneshot(request(GET, &[])).await.unwrap();
    for (path, expected) in [
        (GET, Code::ResourceExhausted),
        (PULL, Code::Ok),
        (STREAM, Code::Ok),
        (HEALTH, Code::Ok),
        (ACK, Code::Ok),
    ] {
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
        layer(&metrics).connection(service_fn(|_| pending::<Result<Response<Body>, Infallible>>()));
    for _ in 0..3 {
        let call = calls.clone().oneshot(request(GET, &[]));
        assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
    }
    let cancelled = r#"ringq_rpc_seconds_count{code="CANCELLED",method="Get"} 3"#;
    assert!(metrics.render().contains(cancelled), "{}", metrics.render());
}

#[tokio::test(start_paused = true)]
async fn every_answer_echoes_the_request_id() {
    let metrics = Metrics::new();
    let panics = layer(&metrics).connection(service_fn(|request: Request<Body>| async move {
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

/// Returns a message that arrives in these pieces and then ends, breaks, or stalls.
fn sends(pieces: Vec<Bytes>, end: RequestEnd) -> Body {
    let pieces = futures::stream::iter(pieces.into_iter().map(|piece| Ok(Frame::data(piece))));
    let end = futures::stream::poll_fn(move |_| match end {
        RequestEnd::Whole => Poll::Ready(None),
        RequestEnd::Reset => Poll::Ready(Some(Err(Status::unknown("the stream was reset")))),
        RequestEnd::Never => Poll::Pending,
    });
    Body::new(FrameBody(Box::pin(pieces.chain(end))))
}

#[derive(Clone, Copy)]
enum RequestEnd {
    Whole,
    Reset,
    Never,
}

fn request_of(path: &str, body: Body) -> Request<Body> {
    Request::builder().uri(path).body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_before_its_message_is_there_has_cancelled() {
    for path in [GET, PULL, STREAM, HEALTH, ACK] {
        let body = sends(vec![Bytes::from_static(b"x")], RequestEnd::Reset);
        let (code, _, line) = outcome(request_of(path, body), reads).await;
        assert_eq!(code, Code::Cancelled, "{path}");
        assert_eq!(line, counted(RpcMethod::from_path(path).name, "CANCELLED"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_does_not_arrive_ends_its_call() {
    let metrics = Metrics::new();
    let limits = CallLimits::new(10, 32 << 20, Duration::from_secs(60));
    let calls =
        CallLayer::new(metrics, Tracer::default(), (Authenticator::off(), AuditLog::off()), limits)
            .connection(service_fn(reads));
    for path in [GET, PULL, STREAM, ACK, HEALTH, "/grpc.health.v1.Health/Watch"] {
        let begun = Instant::now();
        let body = sends(vec![Bytes::from_static(b"x")], RequestEnd::Never);
        let answer = status(calls.clone().oneshot(request_of(path, body)).await.unwrap()).await;
        let reason = answer.get_details_error_info().unwrap().reason;
        assert_eq!((answer.code(), &*reason), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
        assert_eq!(begun.elapsed().as_secs(), limit::REQUEST_STALL_MAX.as_secs(), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_message_trickles_in_ends_at_the_request_timeout() {
    let trickle = futures::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Some((Ok(Frame::data(Bytes::from_static(b"x"))), ()))
    });
    let begun = Instant::now();
    let body = Body::new(FrameBody(Box::pin(trickle)));
    let (code, ..) = outcome(request_of(STREAM, body), reads).await;
    assert_eq!(code, Code::DeadlineExceeded);
    assert!(begun.elapsed() <= Duration::from_secs(2), "{:?}", begun.elapsed());
}

/// A health call has its message at once: one whose message trickles in ends, too.
#[tokio::test(start_paused = true)]
async fn a_health_call_whose_message_trickles_in_ends() {
    let limits = CallLimits::new(10, 32 << 20, Duration::from_secs(60));
    let doors = (Authenticator::off(), AuditLog::off());
    let layer = CallLayer::new(Metrics::new(), Tracer::default(), doors, limits);
    let calls = layer.connection(service_fn(reads));
    for path in [HEALTH, "/grpc.health.v1.Health/Watch"] {
        let trickle = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(Frame::data(Bytes::from_static(b"x"))), ()))
        });
        let begun = Instant::now();
        let body = Body::new(FrameBody(Box::pin(trickle)));
        let answer = status(calls.clone().oneshot(request_of(path, body)).await.unwrap()).await;
        assert_eq!(answer.code(), Code::DeadlineExceeded, "{path}");
        assert!(begun.elapsed() <= limit::REQUEST_STALL_MAX + Duration::from_secs(1), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn half_messages_take_no_places_and_a_bounded_number_of_bytes() {
    let metrics = Metrics::new();
    let layer = layer(&metrics);
    let (hostile, polite) =
        (layer.connection(service_fn(reads)), layer.connection(service_fn(reads)));
    let half = || sends(vec![vec![7; 1 << 20].into()], RequestEnd::Never);
    let mut held: Vec<_> =
        (0..10).map(|_| Box::pin(hostile.clone().oneshot(request_of(GET, half())))).collect();
    let mut refused = 0;
    for call in &mut held {
        if let Poll::Ready(answer) = futures::poll!(call) {
            let answer = status(answer.unwrap()).await;
            assert_eq!(answer.code(), Code::ResourceExhausted, "{answer:?}");
            assert_eq!(
                answer.get_error_details().quota_failure().unwrap().violations[0].subject,
                "max_message_mib"
            );
            refused += 1;
        }
    }
    assert_eq!(refused, 7, "an eighth of 32 MiB is the share of one connection");
    for path in [GET, ACK, PULL] {
        let body = sends(vec![vec![7; 1 << 20].into()], RequestEnd::Whole);
        let answer = polite.clone().oneshot(request_of(path, body)).await.unwrap();
        assert_eq!(status(answer).await.code(), Code::Ok, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_ends_at_the_deadline_of_its_call() {
    let metrics = Metrics::new();
    for (path, bytes) in [(GET, 1), (GET, 1 << 20), (PULL, 1), (ACK, 1)] {
        let answers = move |_| {
            let mut trailers = http::HeaderMap::new();
            Status::new(Code::Ok, "").add_header(&mut trailers).unwrap();
            let frames = vec![Frame::data(vec![7; bytes].into()), Frame::trailers(trailers)];
            ready(Ok::<_, Infallible>(answer(frames, false)))
        };
        let calls = layer(&metrics).connection(service_fn(answers));
        let begun = Instant::now();
        // Like hyper: the first frame is taken, then none, because the window is full.
        let unread = AbortableCall::new(async move {
            let response = calls.oneshot(request(path, &[])).await.unwrap();
            let mut body = Box::pin(response.into_body());
            let _first = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
            pending::<()>().await;
        });
        unread.await;
        let most = if path == PULL { 61 } else { 1 };
        assert_eq!(begun.elapsed().as_secs(), most, "{path} {bytes}");
    }
    let line = r#"ringq_rpc_seconds_count{code="DEADLINE_EXCEEDED",method="Get"} 2"#;
    assert!(metrics.render().contains(line), "{}", metrics.render());
}

#[tokio::test(start_paused = true)]
async fn the_last_frame_of_a_large_answer_waits_until_the_others_are_written() {
    let metrics = Metrics::new();
    for (bytes, waits) in [(16 << 10, false), ((16 << 10) + 1, true)] {
        let answers = move |_| {
            let frames = vec![Frame::data(vec![7; bytes].into())];
            ready(Ok::<_, Infallible>(answer(frames, false)))
        };
        let calls = layer(&metrics).connection(service_fn(answers));
        let mut body = Box::pin(calls.oneshot(request(GET, &[])).await.unwrap().into_body());
        let first = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
        let mut last = Box::pin(std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)));
        assert_eq!(futures::poll!(&mut last).is_pending(), waits);
        drop(first);
        if waits {
            assert!(last.await.is_none());
        }
    }
}
