//! Forbidden requests of Get, Delete and Reschedule, by their fields and by the state of the job.

use ringq::pb::reschedule_request::Schedule;
use ringq::pb::{
    ConflictPolicy, DeleteRequest, Durability, EnqueueRequest, GetRequest, RescheduleRequest,
};

use super::{Call, INVALID, Row, at, long, span};
use crate::harness::{Client, job, request};

const MISSING: &str = "NotFound JOB_NOT_FOUND";
const STATE: &str = "FailedPrecondition WRONG_JOB_STATE";
const EXISTS: &str = "AlreadyExists JOB_EXISTS";
const DURABILITY: &str = "FailedPrecondition DURABILITY_UNSUPPORTED";

pub(super) fn rows() -> Vec<Vec<Row>> {
    vec![get(), delete(), reschedule(), enqueue()]
}

fn get() -> Vec<Row> {
    let get = |topic: &str, id: &str, view| GetRequest { topic: topic.into(), id: id.into(), view };
    vec![
        row!("no topic", queue.get(get("", "ready", 0)), INVALID "topic"),
        row!("no id", queue.get(get("seed", "", 0)), INVALID "id"),
        row!("a bad id", queue.get(get("seed", "a b", 0)), INVALID "id"),
        row!("an unknown view", queue.get(get("seed", "ready", 7)), INVALID "view"),
        row!("a missing job", queue.get(get("seed", "none", 0)), MISSING ""),
    ]
}

fn delete() -> Vec<Row> {
    let delete = |topic: &str, id: &str| DeleteRequest {
        topic: topic.into(),
        id: id.into(),
        allow_missing: true,
    };
    vec![
        row!("no topic", queue.delete(delete("", "ready")), INVALID "topic"),
        row!("no id", queue.delete(delete("seed", "")), INVALID "id"),
        row!("a long id", queue.delete(delete("seed", &long(129))), INVALID "id"),
        row!(
            "a missing job",
            queue.delete(DeleteRequest { allow_missing: false, ..delete("seed", "none") }),
            MISSING ""
        ),
    ]
}

fn reschedule() -> Vec<Row> {
    let reschedule = |topic: &str, id: &str| RescheduleRequest {
        topic: topic.into(),
        id: id.into(),
        ..Default::default()
    };
    vec![
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
        row!("a missing job", queue.reschedule(reschedule("seed", "none")), MISSING ""),
        row!("a running job", queue.reschedule(reschedule("seed", "running")), STATE ""),
    ]
}

fn enqueue() -> Vec<Row> {
    vec![
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
                durability: Durability::Replicated.into(),
                ..request(job("new.topic"))
            }),
            DURABILITY ""
        ),
    ]
}
