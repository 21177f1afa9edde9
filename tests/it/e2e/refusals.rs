//! The rules of the contract as rows: what is asked, how it is refused, and that nothing changed.

use std::future::Future;
use std::pin::Pin;

use ringq::pb::job_spec::{Expiration, Schedule};
use ringq::pb::payload::Kind;
use ringq::pb::{
    AckItem, AckRequest, BatchEnqueueRequest, ConflictPolicy, DeleteRequest, EnqueueRequest,
    ExtendItem, ExtendRequest, GetRequest, GetTopicRequest, GetTopicStatsRequest, HttpTarget,
    JobSpec, JobState, ListJobsRequest, ListTopicsRequest, NackAction, NackItem, NackRequest,
    Payload, PullRequest, RedriveJobsRequest, RescheduleRequest, RetryPolicy, StreamRequest,
};
use tonic::Status;

use crate::harness::{
    Client, JobExt as _, Server, Worker, job, millis, nack, proto, refusal, request, take,
    timestamp, wall_now,
};

/// A request and the way to send it; answers with the refusal, or with what came instead.
type Call = Box<dyn FnOnce(Client) -> Pin<Box<dyn Future<Output = Result<String, Status>>>>>;

/// A rule: what it is about, the call that breaks it, and the refusal: code, reason, fields.
struct Row(String, Call, &'static str);

const INVALID: &str = "InvalidArgument INVALID_FIELD";
const LARGE: &str = "InvalidArgument TOO_LARGE";
const FEATURE: &str = "InvalidArgument FEATURE_UNSUPPORTED";

/// A row of one method: its client, its name, the request, and the refusal.
macro_rules! row {
    ($what:expr, $service:ident.$method:ident($request:expr), $reason:ident $field:literal) => {{
        let request = $request;
        let call: Call = Box::new(move |client: Client| {
            Box::pin(async move {
                let mut service = client.$service.clone();
                service.$method(request).await.map(|answer| format!("{:?}", answer.into_inner()))
            })
        });
        let refusal: &'static str = match ($reason, $field) {
            (reason, "") => reason,
            (reason, field) => Box::leak(format!("{reason} {field}").into_boxed_str()),
        };
        Row(format!("{}: {}", stringify!($method), $what), call, refusal)
    }};
}

fn long(bytes: usize) -> String {
    "a".repeat(bytes)
}

fn span(seconds: i64, nanos: i32) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos }
}

fn at(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos: 0 }
}

const YEAR: i64 = 366 * 24 * 3600;
const DAY: i64 = 24 * 3600;

fn enqueue_rows() -> Vec<Row> {
    let id = |id: &str| request(job("t").with_id(id));
    let due = |schedule| request(JobSpec { schedule: Some(schedule), ..job("t") });
    let payload = |kind, content_type: &str| {
        let content_type = content_type.to_owned();
        request(JobSpec { payload: Some(Payload { kind, content_type }), ..job("t") })
    };
    let wide = |bytes: usize| request(job("t").with_header("k", long(bytes - 1)));
    let far = timestamp(wall_now() + millis(3_600_000));
    let target = HttpTarget { url: "https://example.com".into(), ..Default::default() };
    vec![
        row!("no job", queue.enqueue(EnqueueRequest::default()), INVALID "job"),
        row!("no topic", queue.enqueue(request(job(""))), INVALID "job.topic"),
        row!("a space", queue.enqueue(request(job("a b"))), INVALID "job.topic"),
        row!("a first dot", queue.enqueue(request(job(".a"))), INVALID "job.topic"),
        row!("a slash", queue.enqueue(request(job("a/b"))), INVALID "job.topic"),
        row!("a glob", queue.enqueue(request(job("a.*"))), INVALID "job.topic"),
        row!("an umlaut", queue.enqueue(request(job("a\u{e4}"))), INVALID "job.topic"),
        row!("a long topic", queue.enqueue(request(job(&long(129)))), INVALID "job.topic"),
        row!("a reserved topic", queue.enqueue(request(job("ringq.x"))), INVALID "job.topic"),
        row!("a space", queue.enqueue(id("a b")), INVALID "job.id"),
        row!("a slash", queue.enqueue(id("a/b")), INVALID "job.id"),
        row!("a tilde", queue.enqueue(id("a~b")), INVALID "job.id"),
        row!("no made id", queue.enqueue(id("s0~0123")), INVALID "job.id"),
        row!("a long id", queue.enqueue(id(&long(129))), INVALID "job.id"),
        row!(
            "a payload above 1 MiB",
            queue.enqueue(payload(Some(Kind::Data(vec![0; (1 << 20) + 1].into())), "")),
            LARGE "job.payload"
        ),
        row!(
            "a text above 1 MiB",
            queue.enqueue(payload(Some(Kind::Text(long((1 << 20) + 1))), "")),
            LARGE "job.payload"
        ),
        row!(
            "a content type above 255 bytes",
            queue.enqueue(payload(None, &long(256))),
            LARGE "job.payload.content_type"
        ),
        row!("headers above 8 KiB", queue.enqueue(wide((8 << 10) + 1)), LARGE "job.headers"),
        row!(
            "a delay above ten years",
            queue.enqueue(due(Schedule::Delay(span(10 * YEAR + 1, 0)))),
            INVALID "job.delay"
        ),
        row!(
            "a negative delay",
            queue.enqueue(due(Schedule::Delay(span(-1, 0)))),
            INVALID "job.delay"
        ),
        row!(
            "a delay that is none",
            queue.enqueue(due(Schedule::Delay(span(1, 1_000_000_000)))),
            INVALID "job.delay"
        ),
        row!(
            "a due time beyond ten years",
            queue.enqueue(due(Schedule::DueTime(at(9_000_000_000)))),
            INVALID "job.due_time"
        ),
        row!(
            "a due time that is none",
            queue.enqueue(due(Schedule::DueTime(prost_types::Timestamp {
                seconds: 1,
                nanos: -1
            }))),
            INVALID "job.due_time"
        ),
        row!("priority 10", queue.enqueue(request(job("t").with_priority(10))), INVALID "job.priority"),
        row!("priority -1", queue.enqueue(request(job("t").with_priority(-1))), INVALID "job.priority"),
        row!(
            "a lease below 1 s",
            queue.enqueue(request(job("t").with_lease(millis(999)))),
            INVALID "job.lease_duration"
        ),
        row!(
            "a lease above 24 h",
            queue.enqueue(request(JobSpec { lease_duration: Some(span(DAY + 1, 0)), ..job("t") })),
            INVALID "job.lease_duration"
        ),
        row!(
            "a retention above 366 days",
            queue.enqueue(request(JobSpec { retention: Some(span(YEAR + 1, 0)), ..job("t") })),
            INVALID "job.retention"
        ),
        row!(
            "a ttl that ends before the job is due",
            queue.enqueue(request(job("t").with_delay(millis(1_000)).with_ttl(millis(1_000)))),
            INVALID "job.ttl"
        ),
        row!("a ttl of nothing", queue.enqueue(request(job("t").with_ttl(millis(0)))), INVALID "job.ttl"),
        row!(
            "an expire time that has passed",
            queue.enqueue(request(JobSpec {
                expiration: Some(Expiration::ExpireTime(at(1))),
                ..job("t")
            })),
            INVALID "job.expire_time"
        ),
        row!(
            "an expire time before the due time",
            queue.enqueue(request(JobSpec {
                schedule: Some(Schedule::DueTime(far)),
                expiration: Some(Expiration::ExpireTime(far)),
                ..job("t")
            })),
            INVALID "job.expire_time"
        ),
        row!(
            "a group",
            queue.enqueue(request(JobSpec { group: "g".into(), ..job("t") })),
            FEATURE "job.group"
        ),
        row!(
            "an http target",
            queue.enqueue(request(JobSpec { http_target: Some(target), ..job("t") })),
            FEATURE "job.http_target"
        ),
        row!(
            "two mistakes",
            queue.enqueue(request(job("a b").with_priority(77))),
            INVALID "job.topic,job.priority"
        ),
    ]
}

fn call_rows() -> Vec<Row> {
    let call = || request(job("t"));
    let with_request_id =
        |request_id: String| EnqueueRequest { request_id, ..request(job("t").with_id("x")) };
    let batch = |jobs| BatchEnqueueRequest { jobs, ..Default::default() };
    vec![
        row!(
            "an unknown policy",
            queue.enqueue(EnqueueRequest { on_conflict: 99, ..call() }),
            INVALID "on_conflict"
        ),
        row!(
            "an unknown durability",
            queue.enqueue(EnqueueRequest { durability: 99, ..call() }),
            INVALID "durability"
        ),
        row!("65 characters", queue.enqueue(with_request_id(long(65))), INVALID "request_id"),
        row!("a space", queue.enqueue(with_request_id("a b".into())), INVALID "request_id"),
        row!("a tilde", queue.enqueue(with_request_id("a~b".into())), INVALID "request_id"),
        row!("no jobs", queue.batch_enqueue(batch(vec![])), INVALID "jobs"),
        row!("1001 jobs", queue.batch_enqueue(batch(vec![job("t"); 1_001])), LARGE "jobs"),
        row!(
            "an unknown policy",
            queue.batch_enqueue(BatchEnqueueRequest {
                on_conflict: -1,
                ..batch(vec![job("t")])
            }),
            INVALID "on_conflict"
        ),
        row!(
            "an unknown durability",
            queue.batch_enqueue(BatchEnqueueRequest { durability: 9, ..batch(vec![job("t")]) }),
            INVALID "durability"
        ),
        row!(
            "a bad request id",
            queue.batch_enqueue(BatchEnqueueRequest {
                request_id: "\u{e4}".into(),
                ..batch(vec![job("t")])
            }),
            INVALID "request_id"
        ),
    ]
}

fn retry_rows() -> Vec<Row> {
    let retry = |retry: RetryPolicy| request(job("t").with_retry(retry));
    let none = RetryPolicy::default;
    let delays = |delays| retry(RetryPolicy { delays, ..none() });
    vec![
        row!(
            "below -1",
            queue.enqueue(retry(RetryPolicy { max_attempts: -2, ..none() })),
            INVALID "job.retry.max_attempts"
        ),
        row!(
            "below -1",
            queue.enqueue(retry(RetryPolicy { max_deliveries: -2, ..none() })),
            INVALID "job.retry.max_deliveries"
        ),
        row!("101 delays", queue.enqueue(delays(vec![span(1, 0); 101])), LARGE "job.retry.delays"),
        row!(
            "a negative delay",
            queue.enqueue(delays(vec![span(1, 0), span(1, 0), span(-1, 0)])),
            INVALID "job.retry.delays[2]"
        ),
        row!(
            "a negative first delay",
            queue.enqueue(retry(RetryPolicy { initial_delay: Some(span(-1, 0)), ..none() })),
            INVALID "job.retry.initial_delay"
        ),
        row!(
            "a negative cap",
            queue.enqueue(retry(RetryPolicy { max_delay: Some(span(-1, 0)), ..none() })),
            INVALID "job.retry.max_delay"
        ),
        row!(
            "a shrinking wait",
            queue.enqueue(retry(RetryPolicy { multiplier: 0.9, ..none() })),
            INVALID "job.retry.multiplier"
        ),
        row!(
            "no number",
            queue.enqueue(retry(RetryPolicy { multiplier: f64::NAN, ..none() })),
            INVALID "job.retry.multiplier"
        ),
        row!(
            "more than all",
            queue.enqueue(retry(RetryPolicy { jitter: Some(1.01), ..none() })),
            INVALID "job.retry.jitter"
        ),
        row!(
            "less than none",
            queue.enqueue(retry(RetryPolicy { jitter: Some(-0.01), ..none() })),
            INVALID "job.retry.jitter"
        ),
        row!(
            "a negative end",
            queue.enqueue(retry(RetryPolicy { max_retry_duration: Some(span(-1, 0)), ..none() })),
            INVALID "job.retry.max_retry_duration"
        ),
    ]
}

fn job_rows() -> Vec<Row> {
    use ringq::pb::reschedule_request::Schedule;
    let get = |topic: &str, id: &str, view| GetRequest { topic: topic.into(), id: id.into(), view };
    let delete = |topic: &str, id: &str| DeleteRequest {
        topic: topic.into(),
        id: id.into(),
        allow_missing: true,
    };
    let reschedule = |topic: &str, id: &str| RescheduleRequest {
        topic: topic.into(),
        id: id.into(),
        ..Default::default()
    };
    vec![
        row!("no topic", queue.get(get("", "ready", 0)), INVALID "topic"),
        row!("no id", queue.get(get("seed", "", 0)), INVALID "id"),
        row!("a bad id", queue.get(get("seed", "a b", 0)), INVALID "id"),
        row!("an unknown view", queue.get(get("seed", "ready", 7)), INVALID "view"),
        row!("no topic", queue.delete(delete("", "ready")), INVALID "topic"),
        row!("no id", queue.delete(delete("seed", "")), INVALID "id"),
        row!("a long id", queue.delete(delete("seed", &long(129))), INVALID "id"),
        row!("no topic", queue.reschedule(reschedule("", "ready")), INVALID "topic"),
        row!("no id", queue.reschedule(reschedule("seed", "")), INVALID "id"),
        row!(
            "priority 10",
            queue.reschedule(RescheduleRequest {
                priority: Some(10),
                ..reschedule("seed", "ready")
            }),
            INVALID "priority"
        ),
        row!(
            "a negative delay",
            queue.reschedule(RescheduleRequest {
                schedule: Some(Schedule::Delay(span(-1, 0))),
                ..reschedule("seed", "ready")
            }),
            INVALID "delay"
        ),
        row!(
            "beyond ten years",
            queue.reschedule(RescheduleRequest {
                schedule: Some(Schedule::DueTime(at(9_000_000_000))),
                ..reschedule("seed", "ready")
            }),
            INVALID "due_time"
        ),
        row!(
            "a missing job",
            queue.delete(DeleteRequest { allow_missing: false, ..delete("seed", "none") }),
            MISSING ""
        ),
        row!("a missing job", queue.get(get("seed", "none", 0)), MISSING ""),
        row!("a missing job", queue.reschedule(reschedule("seed", "none")), MISSING ""),
        row!("a running job", queue.reschedule(reschedule("seed", "running")), STATE ""),
        row!(
            "a taken id",
            queue.enqueue(EnqueueRequest {
                on_conflict: ConflictPolicy::Reject.into(),
                ..request(job("seed").with_id("ready"))
            }),
            EXISTS ""
        ),
        row!(
            "a durability that cannot be had",
            queue.enqueue(EnqueueRequest {
                durability: ringq::pb::Durability::Replicated.into(),
                ..request(job("new.topic"))
            }),
            DURABILITY ""
        ),
    ]
}

const MISSING: &str = "NotFound JOB_NOT_FOUND";
const STATE: &str = "FailedPrecondition WRONG_JOB_STATE";
const EXISTS: &str = "AlreadyExists JOB_EXISTS";
const DURABILITY: &str = "FailedPrecondition DURABILITY_UNSUPPORTED";
const NO_TOPIC: &str = "NotFound TOPIC_NOT_FOUND";

fn worker_rows() -> Vec<Row> {
    let topics = |topics: &[&str]| StreamRequest {
        topics: topics.iter().map(|topic| topic.to_string()).collect(),
        ..Default::default()
    };
    let many = || vec!["t".to_owned(); 65];
    let pull = |topic: &str| PullRequest {
        topics: vec![topic.to_owned()],
        wait: Some(span(0, 0)),
        ..Default::default()
    };
    vec![
        row!("no topics", queue.stream(StreamRequest::default()), INVALID "topics"),
        row!(
            "65 topics",
            queue.stream(StreamRequest { topics: many(), ..Default::default() }),
            LARGE "topics"
        ),
        row!("a bad topic", queue.stream(topics(&["a", "a b"])), INVALID "topics[1]"),
        row!("an inner glob", queue.stream(topics(&["a.*.b"])), INVALID "topics[0]"),
        row!("an empty topic", queue.stream(topics(&["a", ""])), INVALID "topics[1]"),
        row!(
            "negative credit",
            queue.stream(StreamRequest { max_in_flight: -1, ..take("t") }),
            INVALID "max_in_flight"
        ),
        row!(
            "negative bytes",
            queue.stream(StreamRequest { max_in_flight_bytes: -1, ..take("t") }),
            INVALID "max_in_flight_bytes"
        ),
        row!(
            "a negative batch",
            queue.stream(StreamRequest { max_batch: -1, ..take("t") }),
            INVALID "max_batch"
        ),
        row!(
            "negative jobs",
            queue.stream(StreamRequest { max_jobs: -1, ..take("t") }),
            INVALID "max_jobs"
        ),
        row!(
            "a long worker id",
            queue.stream(StreamRequest { worker_id: long(129), ..take("t") }),
            LARGE "worker_id"
        ),
        row!(
            "a lease below 1 s",
            queue.stream(StreamRequest { lease_duration: Some(span(0, 1)), ..take("t") }),
            INVALID "lease_duration"
        ),
        row!(
            "a lease above 24 h",
            queue.stream(StreamRequest { lease_duration: Some(span(DAY + 1, 0)), ..take("t") }),
            INVALID "lease_duration"
        ),
        row!(
            "a negative heartbeat",
            queue.stream(StreamRequest { heartbeat_interval: Some(span(-1, 0)), ..take("t") }),
            INVALID "heartbeat_interval"
        ),
        row!(
            "a negative idle time-out",
            queue.stream(StreamRequest { idle_timeout: Some(span(-1, 0)), ..take("t") }),
            INVALID "idle_timeout"
        ),
        row!(
            "a negative grace",
            queue.stream(StreamRequest { orphan_grace: Some(span(-1, 0)), ..take("t") }),
            INVALID "orphan_grace"
        ),
        row!(
            "weights",
            queue.stream(StreamRequest { topic_weights: [("t".into(), 3)].into(), ..take("t") }),
            FEATURE "topic_weights"
        ),
        row!("no topics", queue.pull(PullRequest::default()), INVALID "topics"),
        row!("65 topics", queue.pull(PullRequest { topics: many(), ..pull("t") }), LARGE "topics"),
        row!("a bad topic", queue.pull(pull("a b")), INVALID "topics[0]"),
        row!(
            "negative jobs",
            queue.pull(PullRequest { max_jobs: -1, ..pull("t") }),
            INVALID "max_jobs"
        ),
        row!(
            "a long worker id",
            queue.pull(PullRequest { worker_id: long(129), ..pull("t") }),
            LARGE "worker_id"
        ),
        row!(
            "a negative wait",
            queue.pull(PullRequest { wait: Some(span(-1, 0)), ..pull("seed") }),
            INVALID "wait"
        ),
        row!(
            "a lease below 1 s",
            queue.pull(PullRequest { lease_duration: Some(span(0, 5)), ..pull("seed") }),
            INVALID "lease_duration"
        ),
    ]
}

fn settle_rows(good: &str) -> Vec<Row> {
    let done = || AckItem { receipt: good.to_owned(), ..Default::default() };
    let ack = |item: AckItem| AckRequest { items: vec![done(), item] };
    let refuse = || nack(good, NackAction::DeadLetter);
    let nacks = |item: NackItem| NackRequest { items: vec![refuse(), item] };
    let longer = || ExtendItem {
        receipt: good.to_owned(),
        lease_duration: Some(proto(millis(3_600_000))),
        progress: "moved".into(),
    };
    let extend = |item: ExtendItem| ExtendRequest { items: vec![longer(), item] };
    let result = Payload { kind: Some(Kind::Text(long((1 << 20) + 1))), ..Default::default() };
    let follow = |enqueue| AckItem { enqueue, ..done() };
    vec![
        row!("no items", queue.ack(AckRequest::default()), INVALID "items"),
        row!("1001 items", queue.ack(AckRequest { items: vec![done(); 1_001] }), LARGE "items"),
        row!(
            "a result above 1 MiB",
            queue.ack(ack(AckItem { result: Some(result), ..done() })),
            LARGE "items[1].result"
        ),
        row!(
            "17 follow-ups",
            queue.ack(ack(follow(vec![job("next"); 17]))),
            LARGE "items[1].enqueue"
        ),
        row!(
            "a follow-up without a topic",
            queue.ack(ack(follow(vec![job("next"), job("")]))),
            INVALID "items[1].enqueue[1].topic"
        ),
        row!(
            "a follow-up with a bad ladder",
            queue.ack(ack(follow(vec![job("next").with_retry(RetryPolicy {
                delays: vec![span(1, 0), span(-1, 0)],
                ..Default::default()
            })]))),
            INVALID "items[1].enqueue[0].retry.delays[1]"
        ),
        row!("no items", queue.nack(NackRequest::default()), INVALID "items"),
        row!("1001 items", queue.nack(NackRequest { items: vec![refuse(); 1_001] }), LARGE "items"),
        row!(
            "an unknown action",
            queue.nack(nacks(NackItem { action: 9, ..refuse() })),
            INVALID "items[1].action"
        ),
        row!(
            "a negative delay",
            queue.nack(nacks(NackItem { delay: Some(span(-1, 0)), ..refuse() })),
            INVALID "items[1].delay"
        ),
        row!(
            "an error above 4 KiB",
            queue.nack(nacks(NackItem { error: long(4097), ..refuse() })),
            LARGE "items[1].error"
        ),
        row!("no items", queue.extend(ExtendRequest::default()), INVALID "items"),
        row!(
            "1001 items",
            queue.extend(ExtendRequest { items: vec![longer(); 1_001] }),
            LARGE "items"
        ),
        row!(
            "a lease below 1 s",
            queue.extend(extend(ExtendItem { lease_duration: Some(span(0, 1)), ..longer() })),
            INVALID "items[1].lease_duration"
        ),
        row!(
            "a lease above 24 h",
            queue.extend(extend(ExtendItem { lease_duration: Some(span(DAY, 1)), ..longer() })),
            INVALID "items[1].lease_duration"
        ),
        row!(
            "a note above 1 KiB",
            queue.extend(extend(ExtendItem { progress: long(1025), ..longer() })),
            LARGE "items[1].progress"
        ),
    ]
}

fn operator_rows() -> Vec<Row> {
    let list = || ListJobsRequest {
        topic: "seed".into(),
        state: JobState::Ready.into(),
        ..Default::default()
    };
    let redrive = |topic: &str| RedriveJobsRequest { topic: topic.into(), ..Default::default() };
    let topic = |name: &str| GetTopicRequest { name: name.into() };
    let stats = |name: &str| GetTopicStatsRequest { name: name.into() };
    vec![
        row!(
            "no topic",
            admin.list_jobs(ListJobsRequest { topic: String::new(), ..list() }),
            INVALID "topic"
        ),
        row!("no state", admin.list_jobs(ListJobsRequest { state: 0, ..list() }), INVALID "state"),
        row!("an odd state", admin.list_jobs(ListJobsRequest { state: 9, ..list() }), INVALID "state"),
        row!("an odd view", admin.list_jobs(ListJobsRequest { view: 9, ..list() }), INVALID "view"),
        row!(
            "a filter",
            admin.list_jobs(ListJobsRequest { filter: "true".into(), ..list() }),
            FEATURE "filter"
        ),
        row!(
            "a negative page",
            admin.list_jobs(ListJobsRequest { page_size: -1, ..list() }),
            INVALID "page_size"
        ),
        row!(
            "an odd token",
            admin.list_jobs(ListJobsRequest { page_token: "next".into(), ..list() }),
            INVALID "page_token"
        ),
        row!("no topic", admin.redrive_jobs(redrive("")), INVALID "topic"),
        row!(
            "a bad id",
            admin.redrive_jobs(RedriveJobsRequest {
                ids: vec!["dead".into(), "a b".into()],
                ..redrive("seed")
            }),
            INVALID "ids[1]"
        ),
        row!(
            "a filter",
            admin.redrive_jobs(RedriveJobsRequest { filter: "true".into(), ..redrive("seed") }),
            FEATURE "filter"
        ),
        row!(
            "a bad target",
            admin.redrive_jobs(RedriveJobsRequest { target_topic: "a b".into(), ..redrive("seed") }),
            INVALID "target_topic"
        ),
        row!(
            "a negative rate",
            admin.redrive_jobs(RedriveJobsRequest { max_rate: -1.0, ..redrive("seed") }),
            INVALID "max_rate"
        ),
        row!(
            "a rate that is none",
            admin.redrive_jobs(RedriveJobsRequest { max_rate: f64::NAN, ..redrive("seed") }),
            INVALID "max_rate"
        ),
        row!("an unknown topic", admin.redrive_jobs(redrive("nowhere")), NO_TOPIC ""),
        row!(
            "a negative page",
            topics.list_topics(ListTopicsRequest { page_size: -1, ..Default::default() }),
            INVALID "page_size"
        ),
        row!(
            "an odd token",
            topics.list_topics(ListTopicsRequest { page_token: "x".into(), ..Default::default() }),
            INVALID "page_token"
        ),
        row!("no name", topics.get_topic(topic("")), INVALID "name"),
        row!("an unknown topic", topics.get_topic(topic("nowhere")), NO_TOPIC ""),
        row!("no name", topics.get_topic_stats(stats("")), INVALID "name"),
        row!("an unknown topic", topics.get_topic_stats(stats("nowhere")), NO_TOPIC ""),
    ]
}

/// A topic with a job in each state that a request could move; the receipt of the running one.
async fn seed(client: &Client) -> (Worker, String) {
    let far = millis(3_600_000);
    client.enqueue(job("seed").with_id("dead")).await;
    client.nack(nack(&client.pull_one("seed").await.receipt, NackAction::DeadLetter)).await;
    client.enqueue(job("seed").with_id("backoff")).await;
    let retry = nack(&client.pull_one("seed").await.receipt, NackAction::Retry);
    client.nack(NackItem { delay: Some(proto(far)), ..retry }).await;
    client.enqueue(job("seed").with_id("running").with_lease(far)).await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 1, ..take("seed") }).await;
    let receipt = worker.next().await.receipt;
    client.enqueue(job("seed").with_id("scheduled").with_delay(far)).await;
    client.enqueue(job("seed").with_id("ready").with_text("x")).await;
    (worker, receipt)
}

/// All that a client can see of the jobs; what changes by itself is left out.
async fn snapshot(client: &Client) -> String {
    use std::fmt::Write as _;
    let all = ListTopicsRequest { page_size: 1_000, ..Default::default() };
    let topics = client.topics.clone().list_topics(all).await.unwrap().into_inner().topics;
    let mut text = String::new();
    for row in topics {
        let (topic, mut stats) = (row.topic.unwrap(), row.stats.unwrap());
        stats.oldest_ready_age = None;
        (stats.enqueue_rate, stats.finish_rate, stats.fail_rate) = (0.0, 0.0, 0.0);
        stats.streams = 0;
        writeln!(text, "{topic:?} {stats:?}").unwrap();
        for state in 1..=8 {
            let state = JobState::try_from(state).unwrap();
            writeln!(text, "{:?}", client.list(&topic.name, state).await).unwrap();
        }
    }
    text
}

#[tokio::test]
async fn every_rule_refuses_with_its_reason_and_its_field_and_nothing_changes() {
    let server = Server::start().await;
    let client = server.connect().await;
    let (_worker, receipt) = seed(&client).await;
    let rows: Vec<Row> = enqueue_rows()
        .into_iter()
        .chain(call_rows())
        .chain(retry_rows())
        .chain(job_rows())
        .chain(worker_rows())
        .chain(settle_rows(&receipt))
        .chain(operator_rows())
        .collect();
    assert!(rows.len() > 120, "{} rules", rows.len());
    let mut wrong = Vec::new();
    let mut before = snapshot(&client).await;
    for Row(what, call, expected) in rows {
        let found = match call(client.clone()).await {
            Ok(answer) => format!("accepted: {answer:.200}"),
            Err(status) => refusal(&status),
        };
        if found != expected {
            wrong.push(format!("{what}: {found}, not {expected}"));
        }
        let after = snapshot(&client).await;
        if after != before {
            wrong.push(format!("{what}: changed\n{before}to\n{after}"));
            before = after;
        }
    }
    assert!(wrong.is_empty(), "{} rules are broken:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn what_is_just_within_the_limits_is_accepted() {
    let server = Server::start().await;
    let client = server.connect().await;
    let longest = long(128);
    let spec = JobSpec {
        lease_duration: Some(span(DAY, 0)),
        retention: Some(span(YEAR, 0)),
        ..job(&longest)
            .with_id(&longest)
            .with_header("k", long((8 << 10) - 1))
            .with_priority(9)
            .with_bytes(1 << 20)
            .with_retry(RetryPolicy {
                max_attempts: -1,
                max_deliveries: -1,
                delays: vec![span(10 * 365 * DAY, 0); 100],
                jitter: Some(1.0),
                multiplier: 1.0,
                ..Default::default()
            })
    };
    let request_id = long(64);
    client.send(EnqueueRequest { request_id, ..request(spec) }).await.unwrap();
    let ten_years = JobSpec {
        schedule: Some(Schedule::Delay(span(10 * 365 * DAY, 0))),
        expiration: Some(Expiration::Ttl(span(10 * 365 * DAY, 1_000_000))),
        ..job("a.B_c:d-9")
    };
    client.enqueue(ten_years.with_id("A.z_0:@-9")).await;
    let mut worker = client
        .stream(StreamRequest {
            topics: vec![longest.clone(); 64],
            worker_id: long(128),
            ..Default::default()
        })
        .await;
    let delivery = worker.next().await;
    assert!(delivery.receipt.len() <= 512, "{}", delivery.receipt.len());
    assert_eq!((delivery.max_attempts, delivery.priority), (-1, 9));
    let extend = ExtendItem {
        receipt: delivery.receipt.clone(),
        lease_duration: Some(span(1, 0)),
        progress: long(1_024),
    };
    assert_eq!(client.extend_items(vec![extend]).await, []);
    let error = long(4_096);
    client.nack(NackItem { error, ..nack(&delivery.receipt, NackAction::DeadLetter) }).await;
    let stored = client.get(&longest, &longest).await;
    assert_eq!((stored.last_error.len(), stored.progress.len()), (4_096, 1_024));
}
