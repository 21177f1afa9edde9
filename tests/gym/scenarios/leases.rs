//! Leases: extended from the arrival of a job, and what happens when that fails.

use std::time::Duration;

use ringq::pb::SettleError;

use super::super::answers::Answer;
use super::super::call::Method;
use super::super::handle::{Gym, secs};
use super::super::jobs::{job, unix_seconds};
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "long_job",
        is_essential: true,
        text: [
            "A job takes four times its lease, and another one waits behind it.",
            "Both leases are extended before each end, counted from arrival; both jobs are acked once.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "1"), ("RINGQ_LEASE", "1.5")]),
        play: |gym| Box::pin(long_job(gym)),
    },
    Scenario {
        name: "stale_extend",
        is_essential: true,
        text: [
            "The Extend of a running job is answered STALE.",
            "Its handler stops, the next job begins; the job is neither written, acked nor nacked.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "1"), ("RINGQ_LEASE", "3")]),
        play: |gym| Box::pin(stale_extend(gym)),
    },
    Scenario {
        name: "clock_skew",
        is_essential: false,
        text: [
            "The clock of the server is hours ahead, and due times lie in the future.",
            "Jobs run at once, and leases are counted from arrival by the worker's monotonic clock.",
        ],
        kind: Kind::Worker(&[("RINGQ_LEASE", "1.5")]),
        play: |gym| Box::pin(clock_skew(gym)),
    },
    Scenario {
        name: "batch_beyond_credit",
        is_essential: false,
        text: [
            "64 jobs come at once to a worker that asked for 3 and runs 3.",
            "At most 3 run at once, all waiting ones are extended, and each is acked once.",
        ],
        kind: Kind::Worker(&[
            ("RINGQ_CREDIT", "3"),
            ("RINGQ_CONCURRENCY", "3"),
            ("RINGQ_LEASE", "1.5"),
        ]),
        play: |gym| Box::pin(batch_beyond_credit(gym)),
    },
    Scenario {
        name: "duplicate_message",
        is_essential: false,
        text: [
            "The same delivery, with the same receipt, comes twice.",
            "It runs once and is acked once.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(duplicate_message(gym)),
    },
    Scenario {
        name: "lease_over",
        is_essential: false,
        text: [
            "No Extend is ever answered.",
            "The handler stops at the end of the lease by the worker's clock; nothing is settled for it.",
        ],
        kind: Kind::Worker(&[
            ("RINGQ_CONCURRENCY", "1"),
            ("RINGQ_LEASE", "1.5"),
            ("RINGQ_CALL_TIMEOUT", "1"),
        ]),
        play: |gym| Box::pin(lease_over(gym)),
    },
];

/// Returns the times between delivery and each Extend of a job.
fn extended_after(log: &Log, id: &str) -> Vec<Duration> {
    let start = log.delivered_at(id).unwrap_or_default();
    log.with(Method::Extend, id).iter().map(|call| call.at.saturating_sub(start)).collect()
}

async fn long_job(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(1, 6_000), job("b")])?;
    gym.expect_acked(15.0, &["a", "b"]).await?;
    let times = gym.read(|log| extended_after(log, "a"));
    let first = times.first().copied().unwrap_or_default();
    let sentence =
        format!("the first Extend comes at half of the lease of 1.5 s, not after {first:?}");
    gym.check(sentence, first >= secs(0.4) && first <= secs(1.2))?;
    let count = times.len();
    gym.check(format!("6 s take 5 to 16 Extends, not {count}"), (5..=16).contains(&count))?;
    let once = gym.read(|log| log.settles("a") == 1 && log.settles("b") == 1);
    gym.check("each job is settled once", once)?;
    gym.check("each job runs once", gym.done("a") == 1 && gym.done("b") == 1)
}

async fn stale_extend(gym: Gym) -> Check<()> {
    gym.answer(Method::Extend, |call| match call.item("a") {
        Some(_) => Answer::Items(vec![("a", SettleError::Stale)]),
        None => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(1, 4_500)])?;
    let extended = |log: &Log| !log.items(Method::Extend, "a").is_empty();
    gym.expect(3.0, "a is extended", extended).await?;
    gym.lose("a");
    source.deliver([job("b").lease(10.0)])?;
    // Before the end of the lease, 1.5 s from now.
    gym.expect_acked(1.0, &["b"]).await?;
    nothing_settled(&gym, "a", 5.0).await?;
    let repeats = gym.read(|log| log.items(Method::Extend, "a").len());
    gym.check(format!("a is not extended after STALE, but {repeats} times"), repeats <= 2)?;
    gym.terminate().await;
    let stopped = gym.stopped(5.0).await?;
    let counted = (stopped.acked, stopped.lost) == (1, 1);
    gym.check(format!("one job counts as lost: {stopped:?}"), counted)
}

/// Checks that nothing is settled or written for a job until so many seconds after its delivery.
async fn nothing_settled(gym: &Gym, id: &str, seconds: f64) -> Check<()> {
    let until = gym.read(|log| log.delivered_at(id)).unwrap_or_default() + secs(seconds);
    let sentence = format!("nothing is settled for {id}, whose lease is gone");
    gym.holds(until, &sentence, |log| log.settles(id) == 0).await?;
    gym.check(format!("{id} is not written to the ledger"), gym.done(id) == 0)
}

async fn clock_skew(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info_at(unix_seconds() + 7 * 3_600, &[])?;
    let due = 7 * 3_600 + 30;
    source.deliver([job("a").steps(1, 3_000).due_in(due), job("b").due_in(due)])?;
    gym.expect_acked(2.0, &["b"]).await?;
    gym.expect_acked(6.0, &["a"]).await?;
    let times = gym.read(|log| extended_after(log, "a"));
    let first = times.first().copied().unwrap_or_default();
    let sentence =
        format!("the first Extend comes at half of the lease of 1.5 s, not after {first:?}");
    gym.check(sentence, first >= secs(0.4) && first <= secs(1.2))?;
    gym.check("3 s take at most 8 Extends", times.len() <= 8)
}

async fn batch_beyond_credit(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    let ids: Vec<String> = (0..64).map(|number| format!("j{number}")).collect();
    source.deliver(ids.iter().map(|id| job(id).steps(1, 150)))?;
    let start = gym.now();
    let all = |log: &Log| log.all_acked(ids.iter().map(String::as_str));
    gym.expect(15.0, "64 jobs are acked", all).await?;
    let took = gym.now().saturating_sub(start);
    let sentence = format!("64 jobs of 0.15 s, 3 at once, take at least 3.1 s, not {took:?}");
    gym.check(sentence, took >= secs(3.1))?;
    let doubled = gym.read(|log| ids.iter().filter(|id| log.settles(id) != 1).count());
    gym.check(format!("each job is settled once, but not {doubled}"), doubled == 0)?;
    let (calls, items) = gym.read(|log| {
        let calls = log.calls(Method::Extend);
        (calls.len(), calls.iter().map(|call| call.items.len()).sum::<usize>())
    });
    let sentence = format!("Extends of waiting jobs share calls: {items} items in {calls} calls");
    gym.check(sentence, items >= 2 * calls)
}

async fn duplicate_message(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(2, 200)])?;
    source.deliver_again("a")?;
    gym.expect_acked(5.0, &["a"]).await?;
    let once = |log: &Log| log.settles("a") == 1;
    gym.holds(gym.now() + secs(1.0), "a is settled once", once).await?;
    gym.check("a runs once", gym.done("a") == 1)?;
    source.deliver([job("b")])?;
    gym.expect_acked(5.0, &["b"]).await
}

async fn lease_over(gym: Gym) -> Check<()> {
    gym.answer(Method::Extend, |call| match call.item("a") {
        Some(_) => Answer::Never,
        None => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(1, 3_500)])?;
    let extended = |log: &Log| !log.items(Method::Extend, "a").is_empty();
    gym.expect(3.0, "a is extended", extended).await?;
    source.deliver([job("b").lease(10.0)])?;
    gym.expect_acked(2.2, &["b"]).await?;
    let (start, end) = gym.read(|log| (log.delivered_at("a"), log.with(Method::Ack, "b")[0].at));
    let ran = end.saturating_sub(start.unwrap_or_default());
    let sentence = format!("a runs until its lease of 1.5 s is over, not for {ran:?} only");
    gym.check(sentence, ran >= secs(1.2))?;
    gym.lose("a");
    nothing_settled(&gym, "a", 4.0).await?;
    gym.terminate().await;
    let stopped = gym.stopped(5.0).await?;
    let counted = (stopped.acked, stopped.lost) == (1, 1);
    gym.check(format!("one job counts as lost: {stopped:?}"), counted)
}
