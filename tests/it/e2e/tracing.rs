//! Traces and log records, at an OTLP receiver.

use std::time::Duration;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use ringq::pb::{
    AckItem, AckRequest, BatchEnqueueRequest, GetRequest, JobSpec, NackRequest, PullRequest,
};
use tonic::{Code, Request};

use crate::harness::otlp::{OtlpReceiver, attribute};
use crate::harness::{
    Certificates, Client, Setup, Worker, eventually, free_port, job, nack_retry, proto, request,
    take, within,
};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
/// Span of a producer.
const SENT: &str = "b7ad6b7169203331";

/// Returns settings of a server that exports traces at once.
fn traced(receiver: &str) -> Setup {
    Setup::new()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver)
        .variable("OTEL_BSP_SCHEDULE_DELAY", "20")
        .variable("OTEL_BLRP_SCHEDULE_DELAY", "20")
}

/// Returns a request with a trace context.
fn within_trace<T>(message: T, span_id: &str, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let traceparent = format!("00-{TRACE_ID}-{span_id}-{flags}");
    request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
    request
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name.ends_with(name)).collect()
}

/// Returns whether there are this number of spans with this end of a name.
fn has(count: usize, name: &'static str) -> impl Fn(&[Span]) -> bool {
    move |spans| named(spans, name).len() >= count
}

/// Sends a job within the trace of a producer.
async fn send(client: &Client, job: JobSpec, flags: &str) -> String {
    let call = within_trace(request(job), SENT, flags);
    client.queue.clone().enqueue(call).await.unwrap().into_inner().id
}

/// A job that fails once: the trace of its producer has the call, both deliveries and both settles.
#[tokio::test]
async fn a_trace_has_each_call_and_each_delivery_of_its_job() {
    let receiver = OtlpReceiver::start().await;
    let server = traced(&receiver.url()).start().await;
    let client = server.connect().await;
    let spec = JobSpec {
        retry: Some(ringq::pb::RetryPolicy {
            initial_delay: Some(proto(Duration::from_millis(1))),
            ..Default::default()
        }),
        ..job("orders").with_text("x".repeat(7))
    };
    let id = send(&client, spec, "01").await;
    let mut worker = Worker::open(
        &client,
        ringq::pb::StreamRequest { worker_id: "w1".into(), ..take("orders") },
    )
    .await;
    let first = worker.next().await;
    assert_eq!(first.headers["traceparent"], format!("00-{TRACE_ID}-{SENT}-01"));
    let failed = NackRequest { items: vec![nack_retry(&first.receipt, "no")] };
    let failed = within_trace(failed, "00000000000000a1", "01");
    client.queue.clone().nack(failed).await.unwrap();
    let second = worker.next().await;
    let item = AckItem { receipt: second.receipt, ..Default::default() };
    let done = within_trace(AckRequest { items: vec![item] }, "00000000000000a2", "01");
    client.queue.clone().ack(done).await.unwrap();
    let spans = receiver.spans(has(1, "/Ack")).await;
    let spans: Vec<_> = spans.into_iter().filter(|span| hex(&span.trace_id) == TRACE_ID).collect();
    let mut seen: Vec<_> = spans.iter().map(|s| (&*s.name, hex(&s.parent_span_id))).collect();
    seen.sort_unstable();
    let own = |name: &'static str, parent: &str| (name, parent.to_owned());
    assert_eq!(
        seen,
        [
            own("deliver orders", SENT),
            own("deliver orders", SENT),
            own("ringq.v1.QueueService/Ack", "00000000000000a2"),
            own("ringq.v1.QueueService/Enqueue", SENT),
            own("ringq.v1.QueueService/Nack", "00000000000000a1"),
        ]
    );
    for span in &spans {
        assert_eq!(attribute(&span.attributes, "messaging.message.id"), id, "{span:?}");
        assert_eq!(attribute(&span.attributes, "messaging.destination.name"), "orders");
        assert_eq!(attribute(&span.attributes, "messaging.destination.partition.id"), "s0");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }
    let deliveries = named(&spans, "deliver orders");
    let attributes = |name| deliveries.iter().map(move |span| attribute(&span.attributes, name));
    assert_eq!(attributes("messaging.ringq.delivery").collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(attributes("messaging.ringq.attempt").collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(attributes("messaging.client.id").collect::<Vec<_>>(), ["w1", "w1"]);
    assert_eq!(attributes("messaging.message.body.size").collect::<Vec<_>>(), ["7", "7"]);
    for (name, kind) in [("deliver orders", SpanKind::Internal), ("/Ack", SpanKind::Server)] {
        assert!(named(&spans, name).iter().all(|span| span.kind == kind as i32));
    }
    let resource = receiver.received().resources().remove(0);
    assert_eq!(attribute(&resource.attributes, "service.name"), "ringq");
    assert_eq!(attribute(&resource.attributes, "service.version"), env!("CARGO_PKG_VERSION"));
    assert!(!attribute(&resource.attributes, "service.instance.id").is_empty());
}

/// Without a trace of the producer the server begins one, and the job carries it to the worker.
#[tokio::test]
async fn a_job_without_a_trace_gets_that_of_its_enqueue() {
    let receiver = OtlpReceiver::start().await;
    let server = traced(&receiver.url()).start().await;
    let client = server.connect().await;
    client.enqueue(job("a")).await;
    let jobs = vec![job("b"), JobSpec { id: "bad id".into(), ..job("b") }, job("b")];
    client
        .queue
        .clone()
        .batch_enqueue(BatchEnqueueRequest { jobs, ..Default::default() })
        .await
        .unwrap();
    let delivery = client.pull_one("a").await;
    let pull = PullRequest {
        topics: vec!["b".into()],
        max_jobs: 10,
        worker_id: "w".into(),
        ..Default::default()
    };
    assert_eq!(client.pull(pull).await.unwrap().len(), 2);
    let spans = receiver.spans(|spans| has(2, "deliver b")(spans) && has(2, "/Pull")(spans)).await;
    let [call] = named(&spans, "/Enqueue")[..] else { panic!("one call: {spans:?}") };
    let (trace_id, span_id) = (hex(&call.trace_id), hex(&call.span_id));
    assert!(call.parent_span_id.is_empty());
    assert_eq!(delivery.headers["traceparent"], format!("00-{trace_id}-{span_id}-01"));
    let [delivered] = named(&spans, "deliver a")[..] else { panic!("one delivery: {spans:?}") };
    assert_eq!((hex(&delivered.trace_id), hex(&delivered.parent_span_id)), (trace_id, span_id));
    let [batch] = named(&spans, "/BatchEnqueue")[..] else { panic!("one batch: {spans:?}") };
    assert_eq!(attribute(&batch.attributes, "messaging.batch.message_count"), "3");
    for delivered in named(&spans, "deliver b") {
        assert_eq!(delivered.parent_span_id, batch.span_id);
        assert_eq!(attribute(&delivered.attributes, "messaging.client.id"), "w");
    }
    let pulls = named(&spans, "/Pull");
    let counts =
        pulls.iter().map(|pull| attribute(&pull.attributes, "messaging.batch.message_count"));
    assert_eq!(counts.collect::<Vec<_>>(), ["1", "2"]);
}

/// The producer decides: without its flag, and with a sampler that takes none, nothing is exported.
#[tokio::test]
async fn what_is_not_sampled_or_switched_off_is_not_exported() {
    let receiver = OtlpReceiver::start().await;
    let traced = || traced(&receiver.url());
    for setup in [
        traced().variable("OTEL_TRACES_SAMPLER", "always_off"),
        traced().variable("OTEL_SDK_DISABLED", "true"),
        traced().config("otlp = \"none\""),
    ] {
        let mut server = setup.start().await;
        let client = server.connect().await;
        client.enqueue(job("a")).await;
        send(&client, job("a"), "00").await;
        assert!(!client.pull_one("a").await.headers.contains_key("traceparent"));
        client.pull_one("a").await;
        server.terminate();
        assert!(server.exit().await.success());
        assert_eq!(receiver.received().messages(), 0, "{}", receiver.received().text());
    }
    // The default sampler follows the flag of the caller.
    let mut server = traced().start().await;
    let client = server.connect().await;
    send(&client, job("a"), "00").await;
    let ask = GetRequest { topic: "a".into(), id: "x".into(), ..Default::default() };
    client.queue.clone().get(within_trace(ask, SENT, "00")).await.unwrap_err();
    server.terminate();
    assert!(server.exit().await.success());
    assert_eq!(receiver.received().messages(), 0, "{}", receiver.received().text());
}

/// Probes and metrics are no calls of users.
#[tokio::test]
async fn probes_are_not_traced_and_the_last_spans_are_exported_at_the_end() {
    let receiver = OtlpReceiver::start().await;
    let setup = traced(&receiver.url()).variable("OTEL_BSP_SCHEDULE_DELAY", "3600000");
    let mut server = setup.start().await;
    let client = server.connect().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(client.channel.clone());
    health.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
    client.enqueue(job("a")).await;
    server.terminate();
    assert!(server.exit().await.success());
    let spans = receiver.spans(has(1, "/Enqueue")).await;
    assert_eq!(spans.len(), 1, "{spans:?}");
}

/// Errors of callers are not errors of the server, and log lines name the trace.
#[tokio::test]
async fn a_refused_call_has_its_reason_and_its_log_record_has_its_trace() {
    let receiver = OtlpReceiver::start().await;
    let setup = traced(&receiver.url()).variable("OTEL_LOGS_EXPORTER", "otlp");
    let server = setup.variable("OTEL_SERVICE_NAME", "queue-eu").start().await;
    let client = server.connect().await;
    let call = within_trace(request(job("no topic")), SENT, "01");
    let refused = client.queue.clone().enqueue(call).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let spans = receiver.spans(has(1, "/Enqueue")).await;
    let [span] = &spans[..] else { panic!("one span: {spans:?}") };
    let status = span.status.as_ref().map_or(StatusCode::Unset, |status| status.code());
    assert_eq!(status, StatusCode::Unset);
    for (name, value) in [
        ("rpc.system.name", "grpc"),
        ("rpc.method", "ringq.v1.QueueService/Enqueue"),
        ("rpc.status_code", "INVALID_ARGUMENT"),
        ("ringq.error.reason", "INVALID_FIELD"),
        ("network.peer.address", "127.0.0.1"),
    ] {
        assert_eq!(attribute(&span.attributes, name), value, "{name}");
    }
    let record = receiver.log("call refused").await;
    assert_eq!((hex(&record.trace_id), &record.span_id), (TRACE_ID.to_owned(), &span.span_id));
    let request_id = attribute(&span.attributes, "ringq.request_id");
    assert_eq!(attribute(&record.attributes, "request_id"), request_id);
    let resource = receiver.received().resources().remove(0);
    assert_eq!(attribute(&resource.attributes, "service.name"), "queue-eu");
    let line = || {
        server.log().lines().any(|line| line.contains("call refused") && line.contains(TRACE_ID))
    };
    eventually("the trace in the log on stderr", async || line().then_some(())).await;
}

/// No text of a job leaves the server with a span or a log record.
#[tokio::test]
async fn exports_have_no_content_of_jobs() {
    let receiver = OtlpReceiver::start().await;
    let server = traced(&receiver.url())
        .variable("OTEL_LOGS_EXPORTER", "otlp")
        .variable("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token-secret")
        .config("log_filter = \"debug\"")
        .start()
        .await;
    let client = server.connect().await;
    let mut spec = job("a").with_text("payload-secret");
    spec.headers.insert("x-key".into(), "header-secret".into());
    send(&client, spec, "01").await;
    let delivery = client.pull_one("a").await;
    client
        .queue
        .clone()
        .nack(NackRequest { items: vec![nack_retry(&delivery.receipt, "error-secret")] })
        .await
        .unwrap();
    receiver.spans(has(1, "/Nack")).await;
    receiver.log("call ended").await;
    assert_eq!(receiver.received().authorization(), "Bearer token-secret");
    let sent = receiver.received().text();
    assert!(!sent.contains("secret"), "{sent}");
    assert!(!server.log().contains("secret"), "{}", server.log());
}

/// A receiver that is away costs its spans and a line in the log, never a call.
#[tokio::test]
async fn a_receiver_that_is_away_is_logged_once_and_found_again() {
    let address = format!("127.0.0.1:{}", free_port());
    let server = traced(&format!("http://{address}")).start().await;
    let client = server.connect().await;
    for _ in 0..5 {
        client.enqueue(job("a")).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let count = |text: &str| server.log().lines().filter(|line| line.contains(text)).count();
    let failed = "an export to the OTLP receiver failed";
    eventually("the failure in the log", async || (count(failed) > 0).then_some(())).await;
    let receiver = OtlpReceiver::listen(address.parse().unwrap()).await;
    let found = async {
        while receiver.received().messages() == 0 {
            client.enqueue(job("a")).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("spans at the receiver", found).await;
    assert!(server.log().contains(&address), "{}", server.log());
    let again = "exports to the OTLP receiver work again";
    eventually("the recovery in the log", async || (count(again) > 0).then_some(())).await;
    assert_eq!((count(failed), count(again)), (1, 1), "{}", server.log());
}

/// A variable that no exporter can use ends the start.
#[tokio::test]
async fn settings_that_make_no_sense_end_the_start() {
    let failed = traced("not a url").fail().await;
    assert_eq!(failed.code, Some(2));
    let mistake =
        "otlp: is not a URL like http://localhost:4317 (from OTEL_EXPORTER_OTLP_ENDPOINT)";
    assert!(failed.stderr.contains(mistake), "{}", failed.stderr);
    let failed = Setup::new().config("otlp = \"spans\"").fail().await;
    assert_eq!(failed.code, Some(2));
    assert!(failed.stderr.contains("\"spans\" is not a signal"), "{}", failed.stderr);
}

/// Metrics leave as they are scraped, fresh without a scrape, and once more at the end.
#[tokio::test]
async fn metrics_are_exported_under_their_names() {
    let receiver = OtlpReceiver::start().await;
    let mut server = Setup::new()
        .config("otlp = \"metrics\"")
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url())
        .variable("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .variable("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20a")
        .variable("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1,zone=eu")
        .variable("OTEL_METRIC_EXPORT_INTERVAL", "50")
        .start()
        .await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("a"), job("a"), job("a")]).await;
    let ready = |metric: &Metric| gauge(metric, &[("topic", "a"), ("state", "ready")]);
    receiver.metric("ringq_jobs", |metric| ready(metric).filter(|ready| *ready == 3.0)).await;
    let created = |metric: &Metric| sum(metric, &[("topic", "a"), ("outcome", "created")]);
    receiver
        .metric("ringq_jobs_enqueued_total", |found| created(found).filter(|n| *n == 3.0))
        .await;
    let delivery = client.pull_one("a").await;
    client.ack(&delivery.receipt).await;
    let lag = |metric: &Metric| match &metric.data {
        Some(Data::Histogram(lag)) => lag.data_points.iter().map(|point| point.count).max(),
        other => panic!("{other:?}"),
    };
    receiver.metric("ringq_job_lag_seconds", |metric| lag(metric).filter(|n| *n == 1)).await;
    let resource = receiver.received().resources().remove(0);
    for (name, value) in
        [("service.name", "ringq"), ("service.instance.id", "pod-1"), ("zone", "eu")]
    {
        assert_eq!(attribute(&resource.attributes, name), value);
    }
    assert_eq!(receiver.received().authorization(), "Bearer a");
    server.terminate();
    assert!(server.exit().await.success());
    assert!(!server.log().contains("WARN"), "{}", server.log());
}

/// The last values are exported at the end, however long the interval is.
#[tokio::test]
async fn the_last_metrics_are_exported_at_the_end() {
    let receiver = OtlpReceiver::start().await;
    let mut server = Setup::new()
        .variable("OTEL_METRICS_EXPORTER", "otlp")
        .variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", receiver.url())
        .start()
        .await;
    server.connect().await.enqueue(job("a")).await;
    server.terminate();
    assert!(server.exit().await.success());
    let created = |metric: &Metric| sum(metric, &[("topic", "a"), ("outcome", "created")]);
    assert_eq!(receiver.metric("ringq_jobs_enqueued_total", created).await, 1.0);
    assert_eq!(receiver.metric("ringq_shard_counted", |m| gauge(m, &[("shard", "s0")])).await, 1.0);
}

/// An encrypted receiver is verified by the system's certificate authorities, which a variable can replace.
#[tokio::test]
async fn all_signals_are_sent_to_an_encrypted_receiver() {
    let Some(certificates) = Certificates::make() else { return };
    let receiver = OtlpReceiver::encrypted(&certificates).await;
    let setup = || {
        traced(&format!("https://localhost:{}", receiver.address.port()))
            .config("otlp = \"traces,metrics,logs\"")
            .variable("OTEL_METRIC_EXPORT_INTERVAL", "50")
    };
    let server =
        setup().variable("SSL_CERT_FILE", certificates.ca.display().to_string()).start().await;
    server.connect().await.enqueue(job("a")).await;
    receiver.spans(has(1, "/Enqueue")).await;
    receiver.log("serving").await;
    receiver.metric("ringq_streams", |_| Some(())).await;
    let before = receiver.received().messages();
    drop(server);
    let server = setup().start().await;
    server.connect().await.enqueue(job("a")).await;
    let failures =
        || server.log().lines().filter(|line| line.contains("OTLP receiver failed")).count();
    eventually("a failure of each signal", async || (failures() == 3).then_some(())).await;
    assert_eq!(receiver.received().messages(), before, "an unknown certificate is refused");
}

/// The last exports of all signals run at once, and after what else ends: the next server can have the file of the shard
/// before.
#[tokio::test]
async fn a_receiver_that_hangs_holds_up_the_end_only_once_and_no_shard() {
    let receiver = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", receiver.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = receiver.accept().await {
            held.push(socket);
        }
    });
    let mut server = traced(&url).config("otlp = \"traces,metrics,logs\"").start().await;
    server.connect().await.enqueue(job("a")).await;
    server.terminate();
    assert!(server.exit().await.success());
    let log = server.log();
    let place = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{log}"));
    assert!(place("ringq::app: stopped") < place("the receiver does not answer"), "{log}");
}

fn number(points: &[NumberDataPoint], labels: &[(&str, &str)]) -> Option<f64> {
    let has = |point: &&NumberDataPoint| {
        labels.iter().all(|(name, value)| attribute(&point.attributes, name) == *value)
    };
    match points.iter().find(has)?.value? {
        number_data_point::Value::AsDouble(value) => Some(value),
        number_data_point::Value::AsInt(value) => panic!("{value} is an integer"),
    }
}

fn gauge(metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
    match &metric.data {
        Some(Data::Gauge(gauge)) => number(&gauge.data_points, labels),
        other => panic!("{other:?}"),
    }
}

fn sum(metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
    match &metric.data {
        Some(Data::Sum(sum)) => number(&sum.data_points, labels),
        other => panic!("{other:?}"),
    }
}
