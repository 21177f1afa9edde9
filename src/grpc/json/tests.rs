//! Tests of JSON calls without handlers: what the layers do with their texts and answers.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use prost::Message as _;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use crate::connections::Connections;
use crate::grpc::layers::{CallLayer, CallLimits};
use crate::metrics::Metrics;
use crate::pb;
use crate::tls::PeerCertificate;
use crate::trace::Tracer;

use super::answer::JsonBody;
use super::*;
use crate::audit::AuditLog;
use crate::auth::Authenticator;
use crate::domain::limit;

/// Handler of Get that returns a job of this topic, or of the name in the certificate of its client.
#[derive(Clone)]
struct Echo;

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "ringq.v1.QueueService";
}

impl tower::Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            assert_eq!(request.headers()[header::CONTENT_TYPE], "application/grpc");
            let peer = request.extensions().get::<Arc<PeerCertificate>>().cloned();
            let framed = request.into_body().collect().await.unwrap().to_bytes();
            let topic = pb::GetRequest::decode(framed.slice(5..)).unwrap().topic;
            let topic = peer.map_or(topic, |peer| peer.uris.join(" "));
            let spec = Some(pb::JobSpec { topic, ..Default::default() });
            let job = pb::Job { spec, ..Default::default() };
            let answer = pb::GetResponse { job: Some(job) }.encode_to_vec();
            let length = u32::try_from(answer.len()).unwrap().to_be_bytes();
            let framed = Bytes::from([&[0][..], &length, &answer].concat());
            let trailers = http::HeaderMap::from_iter([(
                tonic::Status::GRPC_STATUS,
                http::HeaderValue::from_static("0"),
            )]);
            let frames = [Frame::data(framed), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
            Ok(Response::new(Body::new(StreamBody::new(futures::stream::iter(frames)))))
        })
    }
}

/// Returns the calls of a server with this handler, and its token.
fn calls(requests_max: usize) -> (JsonCalls, CancellationToken, Metrics) {
    let (metrics, stop) = (Metrics::new(), CancellationToken::new());
    let limits = CallLimits::new(requests_max, 32 << 20, Duration::from_secs(30));
    let grpc = GrpcServer {
        routes: Routes::new(Echo),
        layer: CallLayer::new(
            metrics.clone(),
            Tracer::default(),
            (Authenticator::off(), AuditLog::off()),
            limits,
        ),
        connections: Connections::new("grpc", 2, 2, metrics.clone()),
        connection_max_age: Duration::ZERO,
    };
    (JsonCalls::new(grpc, stop.clone()).unwrap(), stop, metrics)
}

fn connect(calls: &JsonCalls) -> JsonConnection {
    let peer = "127.0.0.1:9".parse().unwrap();
    let connections = Connections::new("http", 1, 1, Metrics::new());
    let (slot, _) = connections.admit("127.0.0.1".parse().unwrap()).unwrap();
    let info = TcpConnectInfo { local_addr: None, remote_addr: Some(peer) };
    calls.connection(info, slot, None, Arc::new(|| false))
}

fn get(text: &str) -> Request<Full<Bytes>> {
    let text = Bytes::copy_from_slice(text.as_bytes());
    Request::post("/v1/ringq.v1.QueueService/Get").body(Full::new(text)).unwrap()
}

async fn text(answer: Response<JsonBody>) -> (StatusCode, String) {
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_small_answer_has_a_length_and_a_large_one_ends_when_it_is_written() {
    let (calls, _stop, metrics) = calls(8);
    let connection = connect(&calls);
    let small = connection.call(get(r#"{"topic":"a"}"#), None).await;
    assert_eq!(http_body::Body::size_hint(small.body()).exact(), Some(30));
    assert_eq!(text(small).await, (StatusCode::OK, r#"{"job":{"spec":{"topic":"a"}}}"#.to_owned()));

    let large = format!(r#"{{"topic":"{}"}}"#, "a".repeat(100_000));
    let answer = connection.call(get(&large), None).await;
    let mut body = answer.into_body();
    assert_eq!(http_body::Body::size_hint(&body).exact(), None);
    let written = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let end = tokio::time::timeout(Duration::from_millis(50), body.frame()).await;
    assert!(end.is_err(), "the call goes on until its text is written");
    let ended = || metrics.render().contains(r#"code="OK",method="Get"} 2"#);
    assert!(!ended());
    drop(written);
    assert!(body.frame().await.is_none());
    assert!(ended(), "{}", metrics.render());
}

#[tokio::test]
async fn calls_have_the_certificate_of_their_client() {
    let (calls, _stop, _metrics) = calls(8);
    let mut certificate = PeerCertificate::default();
    certificate.uris.push("spiffe://a".to_owned());
    let mut request = get(r#"{"topic":"a"}"#);
    request.extensions_mut().insert(Arc::new(certificate));
    let (_, body) = text(connect(&calls).call(request, None).await).await;
    assert!(body.contains("spiffe://a"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn a_text_that_stops_is_given_up_like_a_message() {
    let (calls, _stop, _metrics) = calls(8);
    let begun = Instant::now();
    let part = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("{")))]);
    let stuck = StreamBody::new(futures::StreamExt::chain(part, futures::stream::pending()));
    let request = Request::post("/v1/ringq.v1.QueueService/Get").body(stuck).unwrap();
    let (status, body) = text(connect(&calls).call(request, None).await).await;
    assert_eq!((status.as_u16(), begun.elapsed()), (504, limit::REQUEST_STALL_MAX));
    assert!(body.contains("did not arrive in time"), "{body}");
}

#[tokio::test]
async fn connections_with_calls_share_the_limit_of_grpc() {
    let (calls, _stop, _metrics) = calls(8);
    let held = [connect(&calls), connect(&calls)];
    for connection in &held {
        assert_eq!(connection.call(get("{}"), None).await.status(), 200);
    }
    let third = connect(&calls);
    let refused = third.call(get("{}"), None).await;
    assert_eq!(refused.headers()[header::CONNECTION], "close");
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    assert_eq!(refused.status(), 429);
    drop(held);
    assert_eq!(third.call(get("{}"), None).await.status(), 200);
}

#[tokio::test]
async fn a_server_that_stops_finishes_its_calls_and_takes_no_more() {
    let (calls, stop, _metrics) = calls(8);
    let connection = connect(&calls);
    let unread = connection.call(get("{}"), None).await;
    let ended = tokio::spawn({
        let calls = calls.clone();
        async move { calls.ended().await }
    });
    stop.cancel();
    let (status, body) = text(connection.call(get("{}"), None).await).await;
    assert!(status == 503 && body.contains("DRAINING"), "{body}");
    assert!(!ended.is_finished(), "an answer is not read yet");
    drop(unread);
    ended.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unread_answers_of_one_connection_are_bounded() {
    let (calls, _stop, _metrics) = calls(1_000);
    let connection = connect(&calls);
    let mut unread = Vec::new();
    for _ in 0..CALLS_MAX {
        unread.push(connection.call(get("{}"), None).await);
    }
    let wait = Duration::from_secs(1);
    assert!(tokio::time::timeout(wait, connection.call(get("{}"), None)).await.is_err());
    unread.pop();
    assert!(tokio::time::timeout(wait, connection.call(get("{}"), None)).await.is_ok());
}
