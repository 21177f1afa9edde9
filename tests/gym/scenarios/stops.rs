//! The end of a worker.

use std::time::Duration;

use ringq::pb::NackAction;

use super::super::call::Method;
use super::super::handle::{Gym, secs};
use super::super::jobs::job;
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};
use super::super::source::Source;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "graceful_stop",
        is_essential: true,
        text: [
            "SIGTERM comes while one job runs and three wait; one more is delivered after it.",
            "Those that wait are released at once, the late one at the end of the stream; the running one is acked; exit code 0.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "1"), ("RINGQ_CREDIT", "4")]),
        play: |gym| Box::pin(graceful_stop(gym)),
    },
    Scenario {
        name: "stop_after_grace",
        is_essential: false,
        text: [
            "SIGTERM comes while a job runs that takes longer than RINGQ_GRACE, 1 s.",
            "Its handler is cancelled after the grace, the job released, and the exit code is 0.",
        ],
        kind: Kind::Worker(&[("RINGQ_GRACE", "1")]),
        play: |gym| Box::pin(stop_after_grace(gym)),
    },
];

fn released(log: &Log, id: &str) -> bool {
    let items = log.items(Method::Nack, id);
    items.len() == 1 && items[0].action == Some(NackAction::Release)
}

async fn graceful_stop(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(3, 500)])?;
    source.deliver(["b", "c", "d"].map(job))?;
    let runs = |log: &Log| log.items(Method::Extend, "a").iter().any(|it| it.checkpoint.is_some());
    gym.expect(5.0, "a saves its first step", runs).await?;
    let at = gym.now();
    gym.terminate().await;
    // Pull calls may have left them here: then the worker never had them.
    let taken = gym.read(|log| {
        let ids = ["b", "c", "d"].into_iter();
        ids.filter(|id| log.delivered_at(id).is_some()).collect::<Vec<_>>()
    });
    let sentence = "the jobs that wait are nacked with RELEASE at once";
    gym.expect(0.8, sentence, |log| taken.iter().all(|id| released(log, id))).await?;
    gym.check("a still runs", gym.read(|log| log.settles("a") == 0))?;
    let late = u64::from(one_more(&gym, &source, at).await?);
    gym.expect_acked(5.0, &["a"]).await?;
    let stopped = gym.stopped(5.0).await?;
    let released = taken.len() as u64 + late;
    let counted = (stopped.acked, stopped.released, stopped.nacked, stopped.lost);
    let sentence = format!("the last line counts one acked and {released} released: {stopped:?}");
    gym.check(sentence, counted == (1, released, 0, 0))?;
    gym.check("only a runs", gym.ledger().len() == 1 && gym.done("a") == 1)
}

/// Delivers one more job after SIGTERM, whose lease ends before the running job. It must be extended, and come back when
/// the stream has ended: before, the server would send the next one. Returns false if the worker has cancelled its stream before:
/// then it must have extended what it holds.
async fn one_more(gym: &Gym, source: &Source, terminated: Duration) -> Check<bool> {
    if source.id().is_empty() {
        return Ok(false);
    }
    let ended = |log: &Log| log.cancelled.iter().find(|it| it.0 == source.id()).map(|it| it.1);
    let is_over = gym.expect(0.15, "the stream ends", ended).await.is_ok();
    if is_over || source.deliver([job("e").lease(0.8)]).is_err() {
        let sentence = "a worker that cancels its stream while a job runs extends that job first";
        let extended =
            |log: &Log| log.with(Method::Extend, "a").iter().any(|it| it.at >= terminated);
        gym.expect(0.5, sentence, extended).await?;
        return Ok(false);
    }
    let sentence = "a job that comes after SIGTERM is extended while it is held";
    let extended = |log: &Log| !log.items(Method::Extend, "e").is_empty();
    gym.expect(0.8, sentence, extended).await?;
    gym.expect(1.5, "a job that comes after SIGTERM is released", |log| released(log, "e")).await?;
    let sentence = "a job that comes after SIGTERM is not released before the stream has ended";
    let ended = gym.expect(1.0, sentence, ended).await?;
    let released = gym.read(|log| log.with(Method::Nack, "e").first().map(|call| call.at));
    // The end of the stream is noticed beside the calls.
    gym.check(sentence, ended <= released.unwrap_or_default() + secs(0.02))?;
    Ok(true)
}

async fn stop_after_grace(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(20, 500)])?;
    let runs = |log: &Log| log.items(Method::Extend, "a").iter().any(|it| it.checkpoint.is_some());
    gym.expect(5.0, "a saves its first step", runs).await?;
    gym.terminate().await;
    let at = gym.now();
    gym.expect(4.0, "a is nacked with RELEASE", |log| released(log, "a")).await?;
    let after = gym.now().saturating_sub(at);
    let sentence = format!("a may run for the grace of 1 s, not for {after:?}");
    gym.check(sentence, after >= secs(0.8))?;
    let stopped = gym.stopped(5.0).await?;
    gym.check(format!("one job is released: {stopped:?}"), stopped.released == 1)?;
    gym.check("a is not written to the ledger", gym.done("a") == 0)
}
