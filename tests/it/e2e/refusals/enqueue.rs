//! Forbidden requests of calls that enqueue, beside those of their jobs.

use ringq::pb::{BatchEnqueueRequest, EnqueueRequest};

use super::{Call, INVALID, LARGE, Row, long};
use crate::harness::{Client, job, request};

pub(super) fn rows() -> Vec<Vec<Row>> {
    vec![one(), batch()]
}

fn one() -> Vec<Row> {
    let call = || request(job("t"));
    let with_request_id =
        |request_id: String| EnqueueRequest { request_id, ..request(job("t").with_id("x")) };
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
    ]
}

fn batch() -> Vec<Row> {
    let batch = |jobs| BatchEnqueueRequest { jobs, ..Default::default() };
    vec![
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
