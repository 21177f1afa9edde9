//! Forbidden requests of Stream and Pull.

use ringq::pb::{PullRequest, StreamRequest};

use super::{Call, DAY, INVALID, LARGE, Row, long, span};
use crate::harness::{Client, take};

pub(super) fn rows() -> Vec<Vec<Row>> {
    vec![stream_topics(), stream_credit(), stream_times(), pull()]
}

/// Returns more topics than one call may name.
fn many() -> Vec<String> {
    vec!["t".to_owned(); 65]
}

fn stream_topics() -> Vec<Row> {
    let topics = |topics: &[&str]| StreamRequest {
        topics: topics.iter().map(|topic| topic.to_string()).collect(),
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
            "a weight above the maximum",
            queue.stream(StreamRequest { topic_weights: [("t".into(), 101)].into(), ..take("t") }),
            INVALID "topic_weights[t]"
        ),
        row!(
            "a weight of no topic of the request",
            queue.stream(StreamRequest { topic_weights: [("u".into(), 3)].into(), ..take("t") }),
            INVALID "topic_weights[u]"
        ),
        row!(
            "more weights than topics",
            queue.stream(StreamRequest {
                topic_weights: [("t".into(), 3), ("u".into(), 3)].into(),
                ..take("t")
            }),
            INVALID "topic_weights"
        ),
    ]
}

fn stream_credit() -> Vec<Row> {
    vec![
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
    ]
}

fn stream_times() -> Vec<Row> {
    vec![
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
    ]
}

fn pull() -> Vec<Row> {
    let pull = |topic: &str| PullRequest {
        topics: vec![topic.to_owned()],
        wait: Some(span(0, 0)),
        ..Default::default()
    };
    vec![
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
