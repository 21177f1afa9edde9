//! Tests of the spans.

use std::time::Duration;

use opentelemetry::trace::SpanId;
use opentelemetry_sdk::trace::Sampler;

use super::recorder::SpanRecorder;
use super::*;

const GET: &str = "ringq.v1.QueueService/Get";
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn headers(parent: &str) -> TraceHeaders<'_> {
    TraceHeaders { parent, state: "" }
}

/// Sampler of the default: the parent decides, and a call without one is recorded.
fn parent_based() -> Sampler {
    Sampler::ParentBased(Box::new(Sampler::AlwaysOn))
}

fn ok() -> CallEnd<'static> {
    CallEnd { code: "OK", number: 0, reason: "", is_server_error: false }
}

fn delivery(parent: &str) -> SpanDelivery<'_> {
    SpanDelivery {
        context: headers(parent),
        job: SpanJob { topic: "orders", id: "a-1", shard: "s0" },
        worker_id: "w",
        delivery: 3,
        attempt: 2,
        lag: Duration::from_secs(90),
        payload_bytes: 5,
    }
}

#[test]
fn a_call_is_a_child_of_its_caller() {
    let (tracer, recorder) = SpanRecorder::tracer(parent_based(), Conventions::default());
    let span = tracer.start_call(GET, Some(headers(SAMPLED))).unwrap();
    assert_eq!(span.trace_id().to_string(), TRACE_ID);
    span.set_job(SpanJob { topic: "orders", id: "a-1", shard: "" });
    span.set_peer("[::ffff:127.0.0.1]:80".parse().unwrap());
    let traceparent = span.traceparent();
    span.end(&ok());
    drop(span);
    let [span] = &recorder.take()[..] else { panic!("one span") };
    assert_eq!((&*span.0.name, &span.0.span_kind), (GET, &SpanKind::Server));
    assert_eq!(span.0.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
    assert_eq!(span.0.status, Status::Unset);
    let id = span.0.span_context.span_id();
    assert_eq!(traceparent, format!("00-{TRACE_ID}-{id}-01"));
    for (name, value) in [
        ("rpc.system.name", "grpc"),
        ("rpc.method", GET),
        ("rpc.status_code", "OK"),
        ("error.type", ""),
        ("network.peer.address", "127.0.0.1"),
        ("network.peer.port", "80"),
        ("messaging.destination.name", "orders"),
        ("messaging.message.id", "a-1"),
        ("messaging.destination.partition.id", ""),
        ("rpc.service", ""),
    ] {
        assert_eq!(span.attribute(name), value, "{name}");
    }
}

#[test]
fn only_errors_of_the_server_are_errors_of_its_span() {
    let (tracer, recorder) = SpanRecorder::tracer(parent_based(), Conventions::default());
    let mut end = CallEnd { code: "NOT_FOUND", number: 5, reason: "JOB", is_server_error: false };
    tracer.start_call(GET, None).unwrap().end(&end);
    (end.code, end.is_server_error) = ("UNAVAILABLE", true);
    tracer.start_call(GET, None).unwrap().end(&end);
    let spans = recorder.take();
    let seen: Vec<_> =
        spans.iter().map(|span| (span.0.status.clone(), span.attribute("error.type"))).collect();
    assert_eq!(seen[0], (Status::Unset, String::new()));
    assert_eq!(seen[1], (Status::error("JOB"), "UNAVAILABLE".to_owned()));
    assert!(spans.iter().all(|span| span.attribute("ringq.error.reason") == "JOB"));
}

#[test]
fn what_is_not_sampled_has_no_span() {
    let (tracer, recorder) = SpanRecorder::tracer(parent_based(), Conventions::default());
    assert!(tracer.start_call(GET, Some(headers(UNSAMPLED))).is_none());
    assert!(tracer.delivery(&delivery(UNSAMPLED)).is_none());
    assert!(recorder.take().is_empty());
    let invalid = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    assert!(tracer.delivery(&delivery(invalid)).is_none());
    assert!(tracer.delivery(&delivery(&SAMPLED.replacen("00", "ff", 1))).is_none());
    let (off, recorder) = SpanRecorder::tracer(Sampler::AlwaysOff, Conventions::default());
    assert!(off.start_call(GET, None).is_none());
    assert!(off.start_call(GET, Some(headers(SAMPLED))).is_none());
    assert!(Tracer::default().start_call(GET, None).is_none());
    assert!(Tracer::default().delivery(&delivery(SAMPLED)).is_none());
    assert!(recorder.take().is_empty());
}

#[test]
fn a_delivery_belongs_to_the_trace_of_its_job_and_begins_when_it_was_due() {
    let (tracer, recorder) = SpanRecorder::tracer(parent_based(), Conventions::default());
    let before = opentelemetry::time::now();
    let span = tracer.delivery(&delivery(SAMPLED)).unwrap();
    assert!(recorder.take().is_empty(), "it is not handed over yet");
    span.record();
    let [span] = &recorder.take()[..] else { panic!("one span") };
    assert_eq!((&*span.0.name, &span.0.span_kind), ("deliver orders", &SpanKind::Internal));
    assert_eq!(span.0.span_context.trace_id().to_string(), TRACE_ID);
    assert_eq!(span.0.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
    assert!(span.0.end_time >= before);
    let lasted = span.0.end_time.duration_since(span.0.start_time).unwrap();
    assert!((90..100).contains(&lasted.as_secs()), "{lasted:?}");
    for (name, value) in [
        ("messaging.system", "ringq"),
        ("messaging.operation.name", "deliver"),
        ("messaging.destination.name", "orders"),
        ("messaging.destination.partition.id", "s0"),
        ("messaging.message.id", "a-1"),
        ("messaging.message.body.size", "5"),
        ("messaging.client.id", "w"),
        ("messaging.ringq.delivery", "3"),
        ("messaging.ringq.attempt", "2"),
        ("messaging.ringq.lag_seconds", "90"),
        ("messaging.operation", ""),
    ] {
        assert_eq!(span.attribute(name), value, "{name}");
    }
}

#[test]
fn older_names_are_added_on_request() {
    let seen = |opt_in: &str| {
        let conventions = Conventions::from_opt_in(opt_in);
        let (tracer, recorder) = SpanRecorder::tracer(parent_based(), conventions);
        tracer.start_call(GET, None).unwrap().end(&ok());
        tracer.delivery(&delivery(SAMPLED)).unwrap().record();
        let spans = recorder.take();
        [
            spans[0].attribute("rpc.service"),
            spans[0].attribute("rpc.grpc.status_code"),
            spans[1].attribute("messaging.operation"),
        ]
        .join(" ")
    };
    for (opt_in, want) in [
        ("", "  "),
        ("messaging,rpc", "  "),
        ("http/dup", "  "),
        ("rpc/dup", "ringq.v1.QueueService 0 "),
        ("http, messaging/dup", "  deliver"),
        ("rpc/dup,messaging/dup", "ringq.v1.QueueService 0 deliver"),
    ] {
        assert_eq!(seen(opt_in), want, "{opt_in:?}");
    }
}
