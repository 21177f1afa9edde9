//! One forbidden request of each kind and RPC: the unit tables of `ringq::contract` have every rule of every field.

use ringq::pb::payload::Kind;
use ringq::pb::{
    AckItem, AckRequest, BatchEnqueueRequest, ConflictPolicy, DeleteRequest, Durability,
    EnqueueRequest, ExplainJobRequest, ExtendItem, ExtendRequest, GetRequest, GetTopicRequest,
    GetTopicStatsRequest, HttpTarget, JobSpec, JobState, ListGroupsRequest, ListJobsRequest,
    ListTopicsRequest, NackAction, NackItem, NackRequest, Payload, PullRequest, PurgeTopicRequest,
    RedriveJobsRequest, RescheduleRequest, RetryPolicy, StreamRequest,
};

use super::{Call, INVALID, LARGE, Row, long, span};
use crate::harness::{Client, job, millis, nack, proto, request, take};

const FEATURE: &str = "InvalidArgument FEATURE_UNSUPPORTED";
const NO_JOB: &str = "NotFound JOB_NOT_FOUND";
const NO_TOPIC: &str = "NotFound TOPIC_NOT_FOUND";
const STATE: &str = "FailedPrecondition WRONG_JOB_STATE";
const EXISTS: &str = "AlreadyExists JOB_EXISTS";
const DURABILITY: &str = "FailedPrecondition DURABILITY_UNSUPPORTED";

/// Returns all rows, for jobs of `seed`; `receipt`: that of the running one.
pub(super) fn rows(receipt: &str) -> Vec<Row> {
    [enqueues(), jobs(), workers(), settles(receipt), lists(), topics()]
        .into_iter()
        .flatten()
        .collect()
}

fn enqueues() -> Vec<Row> {
    let payload = Payload { kind: Some(Kind::Text(long((1 << 20) + 1))), ..Default::default() };
    let target = HttpTarget { url: "https://example.com".into(), ..Default::default() };
    let retry = RetryPolicy { delays: vec![span(1, 0), span(-1, 0)], ..Default::default() };
    let reject = ConflictPolicy::Reject.into();
    let durability = Durability::Replicated.into();
    let batch = |jobs| BatchEnqueueRequest { jobs, ..Default::default() };
    vec![
        row!("no job", queue.enqueue(EnqueueRequest::default()), INVALID "job"),
        row!(
            "two mistakes",
            queue.enqueue(request(job("a b").with_priority(77))),
            INVALID "job.topic,job.priority"
        ),
        row!(
            "a large payload",
            queue.enqueue(request(JobSpec { payload: Some(payload), ..job("t") })),
            LARGE "job.payload"
        ),
        row!(
            "a negative delay between retries",
            queue.enqueue(request(job("t").with_retry(retry))),
            INVALID "job.retry.delays[1]"
        ),
        row!(
            "an http target",
            queue.enqueue(request(JobSpec { http_target: Some(target), ..job("t") })),
            FEATURE "job.http_target"
        ),
        row!(
            "a taken id",
            queue.enqueue(EnqueueRequest { on_conflict: reject, ..request(job("seed").with_id("ready")) }),
            EXISTS ""
        ),
        row!(
            "a durability that cannot be had",
            queue.enqueue(EnqueueRequest { durability, ..request(job("new.topic")) }),
            DURABILITY ""
        ),
        row!("1001 jobs", queue.batch_enqueue(batch(vec![job("t"); 1_001])), LARGE "jobs"),
        row!(
            "an unknown policy",
            queue.batch_enqueue(BatchEnqueueRequest { on_conflict: -1, ..batch(vec![job("t")]) }),
            INVALID "on_conflict"
        ),
    ]
}

fn jobs() -> Vec<Row> {
    let get = |id: &str| GetRequest { topic: "seed".into(), id: id.into(), view: 0 };
    let delete =
        |id: &str| DeleteRequest { topic: "seed".into(), id: id.into(), ..Default::default() };
    let reschedule =
        |id: &str| RescheduleRequest { topic: "seed".into(), id: id.into(), ..Default::default() };
    vec![
        row!("an unknown view", queue.get(GetRequest { view: 7, ..get("ready") }), INVALID "view"),
        row!("a missing job", queue.get(get("none")), NO_JOB ""),
        row!("a long id", queue.delete(delete(&long(129))), INVALID "id"),
        row!("a missing job", queue.delete(delete("none")), NO_JOB ""),
        row!(
            "priority 10",
            queue.reschedule(RescheduleRequest { priority: Some(10), ..reschedule("ready") }),
            INVALID "priority"
        ),
        row!("a missing job", queue.reschedule(reschedule("none")), NO_JOB ""),
        row!("a running job", queue.reschedule(reschedule("running")), STATE ""),
    ]
}

fn workers() -> Vec<Row> {
    let pull =
        |topics: Vec<String>| PullRequest { topics, wait: Some(span(0, 0)), ..Default::default() };
    vec![
        row!("no topics", queue.stream(StreamRequest::default()), INVALID "topics"),
        row!(
            "a weight of no topic of the request",
            queue.stream(StreamRequest { topic_weights: [("u".into(), 3)].into(), ..take("t") }),
            INVALID "topic_weights[u]"
        ),
        row!(
            "a long worker id",
            queue.stream(StreamRequest { worker_id: long(129), ..take("t") }),
            LARGE "worker_id"
        ),
        row!("65 topics", queue.pull(pull(vec!["t".into(); 65])), LARGE "topics"),
        row!(
            "a long worker id",
            queue.pull(PullRequest { worker_id: long(129), ..pull(vec!["t".into()]) }),
            LARGE "worker_id"
        ),
        row!(
            "a lease below 1 s",
            queue.pull(PullRequest { lease_duration: Some(span(0, 5)), ..pull(vec!["seed".into()]) }),
            INVALID "lease_duration"
        ),
    ]
}

/// Returns rows of calls whose first item could be settled, and is not.
fn settles(good: &str) -> Vec<Row> {
    let done = || AckItem { receipt: good.to_owned(), ..Default::default() };
    let follow = |enqueue| AckRequest { items: vec![done(), AckItem { enqueue, ..done() }] };
    let own = RetryPolicy { crash_topic: "next".into(), ..Default::default() };
    let dead = || nack(good, NackAction::DeadLetter);
    let longer = |checkpoint| ExtendItem {
        receipt: good.to_owned(),
        lease_duration: Some(proto(millis(3_600_000))),
        progress: "moved".into(),
        checkpoint,
    };
    let large = Some(Payload::text(long((64 << 10) + 1)));
    vec![
        row!("1001 items", queue.ack(AckRequest { items: vec![done(); 1_001] }), LARGE "items"),
        row!("17 follow-ups", queue.ack(follow(vec![job("next"); 17])), LARGE "items[1].enqueue"),
        row!(
            "a follow-up without a topic",
            queue.ack(follow(vec![job("next"), job("")])),
            INVALID "items[1].enqueue[1].topic"
        ),
        row!(
            "a follow-up that moves to its own topic",
            queue.ack(follow(vec![job("next").with_retry(own)])),
            INVALID "items[1].enqueue[0].retry.crash_topic"
        ),
        row!(
            "an unknown action",
            queue.nack(NackRequest { items: vec![dead(), NackItem { action: 9, ..dead() }] }),
            INVALID "items[1].action"
        ),
        row!(
            "a checkpoint above 64 KiB",
            queue.extend(ExtendRequest { items: vec![longer(None), longer(large)] }),
            LARGE "items[1].checkpoint"
        ),
    ]
}

fn lists() -> Vec<Row> {
    let list = || ListJobsRequest {
        topic: "seed".into(),
        state: JobState::Ready.into(),
        ..Default::default()
    };
    let redrive =
        |topic: &str| RedriveJobsRequest { topic: topic.into(), all: true, ..Default::default() };
    let explain = |topic: &str, id: &str| ExplainJobRequest { topic: topic.into(), id: id.into() };
    vec![
        row!(
            "a filter",
            admin.list_jobs(ListJobsRequest { filter: "true".into(), ..list() }),
            FEATURE "filter"
        ),
        row!(
            "an odd token",
            admin.list_jobs(ListJobsRequest { page_token: "next".into(), ..list() }),
            INVALID "page_token"
        ),
        row!(
            "neither ids nor all",
            admin.redrive_jobs(RedriveJobsRequest { all: false, ..redrive("seed") }),
            INVALID "ids"
        ),
        row!(
            "a rate that is none",
            admin.redrive_jobs(RedriveJobsRequest { max_rate: f64::NAN, ..redrive("seed") }),
            INVALID "max_rate"
        ),
        row!("an unknown topic", admin.redrive_jobs(redrive("nowhere")), NO_TOPIC ""),
        row!("a glob", admin.explain_job(explain("seed.*", "ready")), INVALID "topic"),
        row!("an unknown job", admin.explain_job(explain("seed", "nowhere")), NO_JOB ""),
        row!("an unknown topic", admin.explain_job(explain("nowhere", "ready")), NO_JOB ""),
    ]
}

fn topics() -> Vec<Row> {
    let topic = |name: &str| GetTopicRequest { name: name.into() };
    let stats = |name: &str| GetTopicStatsRequest { name: name.into() };
    let groups = |topic: &str| ListGroupsRequest { topic: topic.into(), ..Default::default() };
    let purge = |name: &str, states: &[JobState]| PurgeTopicRequest {
        name: name.into(),
        states: states.iter().map(|&state| state.into()).collect(),
        ..Default::default()
    };
    let dead = [JobState::Dead];
    let in_group = PurgeTopicRequest { group: Some("a b".into()), ..purge("seed", &dead) };
    let counted = PurgeTopicRequest { validate_only: true, ..purge("nowhere", &dead) };
    vec![
        row!(
            "an odd token",
            topics.list_topics(ListTopicsRequest { page_token: "x".into(), ..Default::default() }),
            INVALID "page_token"
        ),
        row!("no topic", topics.list_groups(groups("")), INVALID "topic"),
        row!("an unknown topic", topics.list_groups(groups("nowhere")), NO_TOPIC ""),
        row!("no name", topics.get_topic(topic("")), INVALID "name"),
        row!("an unknown topic", topics.get_topic(topic("nowhere")), NO_TOPIC ""),
        row!("no name", topics.get_topic_stats(stats("")), INVALID "name"),
        row!("an unknown topic", topics.get_topic_stats(stats("nowhere")), NO_TOPIC ""),
        row!("no states", topics.purge_topic(purge("seed", &[])), INVALID "states"),
        row!("a bad group", topics.purge_topic(in_group), INVALID "group"),
        row!("an unknown topic", topics.purge_topic(purge("nowhere", &dead)), NO_TOPIC ""),
        row!("an unknown topic to count", topics.purge_topic(counted), NO_TOPIC ""),
    ]
}
