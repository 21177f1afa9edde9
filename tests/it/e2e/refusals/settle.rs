//! Forbidden requests of Ack, Nack and Extend: the first of two items could be settled, and is not.

use ringq::pb::payload::Kind;
use ringq::pb::{
    AckItem, AckRequest, ExtendItem, ExtendRequest, NackAction, NackItem, NackRequest, Payload,
    RetryPolicy,
};

use super::{Call, DAY, INVALID, LARGE, Row, long, span};
use crate::harness::{Client, job, millis, nack, proto};

/// Builds the rows. `good`: the receipt of a running job.
pub(super) fn rows(good: &str) -> Vec<Vec<Row>> {
    vec![ack(good), refuse(good), extend(good)]
}

fn ack(good: &str) -> Vec<Row> {
    let done = || AckItem { receipt: good.to_owned(), ..Default::default() };
    let ack = |item: AckItem| AckRequest { items: vec![done(), item] };
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
        row!(
            "a follow-up that moves to its own topic",
            queue.ack(ack(follow(vec![job("next").with_retry(RetryPolicy {
                crash_topic: "next".into(),
                ..Default::default()
            })]))),
            INVALID "items[1].enqueue[0].retry.crash_topic"
        ),
    ]
}

fn refuse(good: &str) -> Vec<Row> {
    let refuse = || nack(good, NackAction::DeadLetter);
    let nacks = |item: NackItem| NackRequest { items: vec![refuse(), item] };
    vec![
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
    ]
}

fn extend(good: &str) -> Vec<Row> {
    let longer = || ExtendItem {
        receipt: good.to_owned(),
        lease_duration: Some(proto(millis(3_600_000))),
        progress: "moved".into(),
        checkpoint: None,
    };
    let extend = |item: ExtendItem| ExtendRequest { items: vec![longer(), item] };
    let large = || Some(Payload::text(long((64 << 10) + 1)));
    vec![
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
            "a checkpoint above 64 KiB",
            queue.extend(extend(ExtendItem { checkpoint: large(), ..longer() })),
            LARGE "items[1].checkpoint"
        ),
    ]
}
