//! Streams that break, fall silent or end.

use std::time::Duration;

use ringq::pb::SettleError;
use tonic::Code;

use super::super::answers::{Answer, bare};
use super::super::call::Method;
use super::super::handle::{Gym, WORKER_ID, secs};
use super::super::jobs::job;
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};
use super::super::source::{HEARTBEAT, ORPHAN_GRACE, Source, pause};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "cut_stream",
        is_essential: false,
        text: [
            "The connection is cut twice and the stream broken four times while one job runs and one waits.",
            "Within the grace of 1 s one Extend names both; a new stream continues the former one after a random pause.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "1"), ("RINGQ_LEASE", "10")]),
        play: |gym| Box::pin(cut_stream(gym)),
    },
    Scenario {
        name: "failed_extend",
        is_essential: false,
        text: [
            "After a broken stream the first Extend fails with UNAVAILABLE, and the second one for one of two jobs.",
            "Each is repeated within the grace of 1 s for what failed; both jobs are acked once.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "1"), ("RINGQ_LEASE", "10")]),
        play: |gym| Box::pin(failed_extend(gym)),
    },
    Scenario {
        name: "half_dead_stream",
        is_essential: false,
        text: [
            "Heartbeats of 0.3 s stop, but the connection stays open.",
            "After three intervals the worker takes the stream for dead and opens another one.",
        ],
        kind: Kind::Worker(&[("RINGQ_LEASE", "10")]),
        play: |gym| Box::pin(half_dead_stream(gym)),
    },
    Scenario {
        name: "draining",
        is_essential: false,
        text: [
            "The server announces that it drains, and ends the stream with OK.",
            "The next stream comes at once and continues the former one; the job in hand is acked once.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(draining(gym)),
    },
    Scenario {
        name: "stream_ends_ok",
        is_essential: false,
        text: [
            "The stream ends with OK without notice.",
            "OK is not the end of the work: the next stream comes at once and continues the former one.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(stream_ends_ok(gym)),
    },
];

/// Checks that a stream continues another one of the same worker.
fn continues(gym: &Gym, next: &Source, former: &Source) -> Check<()> {
    let named = &next.request.continues_stream_id;
    let sentence = format!("the new stream continues {}, not {named:?}", former.id());
    gym.check(sentence, named == former.id())?;
    gym.check("the new stream has the same worker_id", next.request.worker_id == WORKER_ID)
}

/// Waits for an Extend of all these jobs after a time.
pub(super) async fn extended_after(
    gym: &Gym,
    at: Duration,
    within: Duration,
    ids: &[&str],
) -> Check<()> {
    let sentence = format!("one Extend names {}", ids.join(" and "));
    let named = |log: &Log| {
        let mut calls = log.calls(Method::Extend).into_iter();
        calls.any(|call| call.at >= at && ids.iter().all(|id| call.item(id).is_some()))
    };
    let left = (at + within).saturating_sub(gym.now());
    gym.expect(left.as_secs_f64(), &sentence, named).await
}

async fn cut_stream(gym: Gym) -> Check<()> {
    let mut stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(1, 9_500), job("b")])?;
    let mut pauses = Vec::new();
    for round in 0..6 {
        // The worker has the jobs once it reads the heartbeats that follow them.
        pause(0.5).await;
        let at = gym.now();
        // A stream that breaks on an open connection shows the pause alone, without the time to connect.
        if round < 2 {
            stream.cut();
        } else {
            stream.fail(bare(Code::Unavailable))?;
        }
        let next = gym.stream(3.0).await?;
        continues(&gym, &next, &stream)?;
        pauses.push(next.opened_at.saturating_sub(at));
        extended_after(&gym, at, ORPHAN_GRACE, &["a", "b"]).await?;
        let at = gym.now();
        next.info()?;
        // A stream that brings jobs works: the next pause may be short again.
        next.deliver([job(format!("c{round}"))])?;
        extended_after(&gym, at, secs(1.5), &["a", "b"]).await?;
        stream = next;
    }
    let longest = pauses.iter().max().copied().unwrap_or_default();
    let sentence = format!("pauses before a new stream are below 1 s: {pauses:?}");
    gym.check(sentence, longest < secs(1.0))?;
    let mut pauses = pauses.split_off(2);
    let sentence =
        format!("pauses before a new stream are random, neither 0 nor equal: {pauses:?}");
    pauses.sort();
    // Two of them: one may be a moment in which this machine did nothing.
    let is_long = pauses[3] > secs(0.03) && pauses[2] > secs(0.01);
    gym.check(sentence, is_long && pauses[3] - pauses[0] > secs(0.003))?;
    gym.expect_acked(10.0, &["a", "b"]).await?;
    let once = gym.read(|log| log.settles("a") == 1 && log.settles("b") == 1);
    gym.check("each job is settled once", once)?;
    gym.check("each job runs once", gym.done("a") == 1 && gym.done("b") == 1)
}

async fn failed_extend(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(1, 2_500), job("b")])?;
    pause(0.5).await;
    let mut extends = 0;
    gym.answer(Method::Extend, move |call| {
        extends += usize::from(call.item("b").is_some());
        match extends {
            1 => Answer::Fail(bare(Code::Unavailable)),
            2 => Answer::Items(vec![("b", SettleError::Unavailable)]),
            _ => Answer::Normal,
        }
    });
    let at = gym.now();
    stream.fail(bare(Code::Unavailable))?;
    let next = gym.stream(3.0).await?;
    let until = (at + ORPHAN_GRACE).saturating_sub(gym.now()).as_secs_f64();
    let named =
        |log: &Log, id| log.with(Method::Extend, id).iter().filter(|it| it.at >= at).count();
    let repeated = |log: &Log| named(log, "a") >= 2 && named(log, "b") >= 3;
    gym.expect(until, "a is extended twice and b three times", repeated).await?;
    continues(&gym, &next, &stream)?;
    next.info()?;
    gym.expect_acked(6.0, &["a", "b"]).await?;
    let once = gym.read(|log| log.settles("a") == 1 && log.settles("b") == 1);
    gym.check("each job is settled once", once)?;
    gym.check("each job runs once", gym.done("a") == 1 && gym.done("b") == 1)
}

async fn half_dead_stream(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(1, 2_500)])?;
    pause(1.5).await;
    gym.check("a stream with heartbeats stays open", stream.ended_at().is_none())?;
    let at = gym.now();
    stream.fall_silent();
    let next = gym.stream(4.0).await?;
    continues(&gym, &next, &stream)?;
    // The last heartbeat came up to one interval before.
    let silence = next.opened_at.saturating_sub(at);
    let sentence =
        format!("a new stream comes after three silent intervals, not after {silence:?}");
    gym.check(sentence, silence >= HEARTBEAT * 2 - secs(0.1) && silence <= secs(2.5))?;
    let ended = |log: &Log| log.cancelled.iter().any(|(id, _)| id == stream.id());
    gym.expect(2.0, "the silent stream is cancelled", ended).await?;
    next.info()?;
    gym.expect_acked(6.0, &["a"]).await?;
    gym.check("a is settled once", gym.read(|log| log.settles("a") == 1))
}

async fn draining(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(1, 2_000)])?;
    stream.draining()?;
    pause(0.3).await;
    let at = gym.now();
    stream.end_ok()?;
    next_at_once(&gym, &stream, at).await?;
    gym.expect_acked(6.0, &["a"]).await?;
    gym.check("a is settled once", gym.read(|log| log.settles("a") == 1))
}

/// Waits for the stream after one that has ended with OK, and uses it.
async fn next_at_once(gym: &Gym, former: &Source, at: Duration) -> Check<()> {
    let next = gym.stream(3.0).await?;
    let pause = next.opened_at.saturating_sub(at);
    gym.check(format!("the next stream comes at once, not after {pause:?}"), pause < secs(0.5))?;
    continues(gym, &next, former)?;
    next.info()?;
    next.deliver([job("next")])?;
    gym.expect_acked(3.0, &["next"]).await
}

async fn stream_ends_ok(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(1, 1_000)])?;
    let at = gym.now();
    stream.end_ok()?;
    next_at_once(&gym, &stream, at).await?;
    gym.expect_acked(6.0, &["a"]).await?;
    gym.check("a is settled once", gym.read(|log| log.settles("a") == 1))
}
