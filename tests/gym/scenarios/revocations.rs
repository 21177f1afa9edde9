//! Jobs that are taken from their worker.

use super::super::call::Method;
use super::super::handle::{Gym, secs};
use super::super::jobs::job;
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};
use super::super::source::pause;
use super::streams::extended_after;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "revoked_running",
        is_essential: false,
        text: [
            "A running job is revoked.",
            "Its handler stops and the next job begins; nothing is settled or written for it.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "1"), ("RINGQ_LEASE", "10")]),
        play: |gym| Box::pin(revoked_running(gym)),
    },
    Scenario {
        name: "revoked_waiting",
        is_essential: false,
        text: [
            "A job that waits in the worker is revoked.",
            "It never starts, and nothing is settled for it; the jobs around it are acked.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "1"), ("RINGQ_LEASE", "10")]),
        play: |gym| Box::pin(revoked_waiting(gym)),
    },
    Scenario {
        name: "missed_revocation",
        is_essential: false,
        text: [
            "A job is deleted between two streams, so that its revocation never comes.",
            "An Extend after the first message of the new stream is answered STALE, and the job stops.",
        ],
        kind: Kind::Worker(&[("RINGQ_LEASE", "20")]),
        play: |gym| Box::pin(missed_revocation(gym)),
    },
];

/// Checks that nothing is settled or written for a job until so many seconds after its delivery.
async fn never_done(gym: &Gym, id: &str, seconds: f64) -> Check<()> {
    let until = gym.read(|log| log.delivered_at(id)).unwrap_or_default() + secs(seconds);
    let sentence = format!("nothing is settled for {id}, which was revoked");
    gym.holds(until, &sentence, |log| log.settles(id) == 0).await?;
    gym.check(format!("{id} is not written to the ledger"), gym.done(id) == 0)
}

/// Ends the worker and checks that one job counts as lost.
async fn one_lost(gym: &Gym, acked: u64) -> Check<()> {
    gym.terminate().await;
    let stopped = gym.stopped(5.0).await?;
    let sentence = format!("{acked} jobs count as acked and one as lost: {stopped:?}");
    gym.check(sentence, (stopped.acked, stopped.lost) == (acked, 1))
}

async fn revoked_running(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(10, 300), job("b")])?;
    let runs = |log: &Log| log.items(Method::Extend, "a").iter().any(|it| it.checkpoint.is_some());
    gym.expect(5.0, "a saves its first step", runs).await?;
    stream.revoke("a")?;
    gym.expect_acked(1.5, &["b"]).await?;
    never_done(&gym, "a", 3.5).await?;
    one_lost(&gym, 1).await
}

async fn revoked_waiting(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(3, 400), job("b"), job("c")])?;
    let runs = |log: &Log| log.items(Method::Extend, "a").iter().any(|it| it.checkpoint.is_some());
    gym.expect(5.0, "a saves its first step", runs).await?;
    stream.revoke("b")?;
    gym.expect_acked(5.0, &["a", "c"]).await?;
    never_done(&gym, "b", 2.5).await?;
    one_lost(&gym, 2).await
}

async fn missed_revocation(gym: Gym) -> Check<()> {
    let stream = gym.source().await?;
    stream.info()?;
    stream.deliver([job("a").steps(1, 4_000), job("b").steps(1, 3_000)])?;
    pause(0.5).await;
    let cut_at = gym.now();
    stream.cut();
    let next = gym.stream(3.0).await?;
    extended_after(&gym, cut_at, secs(1.0), &["a", "b"]).await?;
    gym.lose("a");
    let at = gym.now();
    next.info()?;
    extended_after(&gym, at, secs(1.5), &["a", "b"]).await?;
    gym.expect_acked(6.0, &["b"]).await?;
    never_done(&gym, "a", 4.5).await?;
    one_lost(&gym, 1).await
}
