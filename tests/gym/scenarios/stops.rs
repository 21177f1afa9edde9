//! The end of a worker.

use std::time::Duration;

use ringq::pb::NackAction;
use tokio_util::sync::CancellationToken;

use super::super::answers::Answer;
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
            "SIGTERM comes while one job runs, three wait and one more is on its way.",
            "No other begins. The stream is cancelled after 0.2 s, then the four are released; what runs is extended, and acked; exit code 0.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "2"), ("RINGQ_CREDIT", "6")]),
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
    // The answer to its checkpoint decides when "ends" does.
    let ends = CancellationToken::new();
    let event = ends.clone();
    gym.answer(Method::Extend, move |call| match call.item("ends") {
        Some(_) => Answer::After(event.clone()),
        None => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source
        .deliver([job("runs").lease(20.0).steps(2, 1_200), job("ends").lease(20.0).steps(2, 10)])?;
    source.deliver(["b", "c", "d"].map(job))?;
    let saved =
        |log: &Log, id| log.items(Method::Extend, id).iter().any(|it| it.checkpoint.is_some());
    let begun = |log: &Log| saved(log, "runs") && saved(log, "ends");
    gym.expect(5.0, "two jobs save their first step", begun).await?;
    let at = gym.now();
    gym.terminate().await;
    let by_stream = !source.id().is_empty();
    let mut back = vec!["b", "c", "d"];
    if by_stream {
        deliver_one_more(&gym, &source).await?;
        back.push("e");
    } else {
        // Pull calls may have left them here: then the worker never had them.
        back.retain(|id| gym.read(|log| log.delivered_at(id).is_some()));
    }
    ends.cancel();
    let sentence = "the jobs that do not run are nacked with RELEASE at once";
    gym.expect(1.0, sentence, |log| back.iter().all(|id| released(log, id))).await?;
    gym.expect_acked(1.0, &["ends"]).await?;
    gym.check("the other one still runs", gym.read(|log| log.settles("runs") == 0))?;
    if by_stream {
        check_stream_end(&gym, &source, &back).await?;
        let sentence = "a worker that cancels its stream while a job runs extends that job";
        let extended = |log: &Log| log.with(Method::Extend, "runs").iter().any(|it| it.at >= at);
        gym.expect(0.5, sentence, extended).await?;
    }
    gym.expect_acked(5.0, &["runs"]).await?;
    let stopped = gym.stopped(5.0).await?;
    let counted = (stopped.acked, stopped.released, stopped.nacked, stopped.lost);
    let count = back.len() as u64;
    let sentence = format!("the last line counts two acked and {count} released: {stopped:?}");
    gym.check(sentence, counted == (2, count, 0, 0))?;
    let done = (gym.done("runs"), gym.done("ends"), gym.ledger().len());
    gym.check("no other job runs", done == (1, 1, 2))
}

/// Time at which the worker cancelled this stream.
fn ended(log: &Log, source: &Source) -> Option<Duration> {
    log.cancelled.iter().find(|it| it.0 == source.id()).map(|it| it.1)
}

/// Delivers a job that was on its way at SIGTERM: a worker that has cancelled its stream never gets it.
async fn deliver_one_more(gym: &Gym, source: &Source) -> Check<()> {
    let sentence = "a stopped worker reads on for 0.2 s: jobs may be on their way";
    gym.holds(gym.now() + secs(0.03), sentence, |log| ended(log, source).is_none()).await?;
    source.deliver([job("e")])
}

/// Nothing may be settled before the stream has ended, which is noticed beside the calls.
async fn check_stream_end(gym: &Gym, source: &Source, back: &[&str]) -> Check<()> {
    let sentence = "nothing is settled before the stream has ended: it would bring another job";
    let ended = gym.expect(0.5, sentence, |log| ended(log, source)).await?;
    let first = gym.read(|log| {
        let nacks = back.iter().flat_map(|id| log.with(Method::Nack, id));
        nacks.chain(log.with(Method::Ack, "ends")).map(|call| call.at).min()
    });
    gym.check(sentence, ended <= first.unwrap_or_default() + secs(0.05))
}

async fn stop_after_grace(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(20, 500)])?;
    let runs = |log: &Log| log.items(Method::Extend, "a").iter().any(|it| it.checkpoint.is_some());
    gym.expect(5.0, "a saves its first step", runs).await?;
    let at = gym.now();
    gym.terminate().await;
    gym.expect(4.0, "a is nacked with RELEASE", |log| released(log, "a")).await?;
    let after = gym.now().saturating_sub(at);
    let sentence = format!("a may run for the grace of 1 s, not for {after:?}");
    gym.check(sentence, after >= secs(0.8))?;
    let stopped = gym.stopped(5.0).await?;
    gym.check(format!("one job is released: {stopped:?}"), stopped.released == 1)?;
    gym.check("a is not written to the ledger", gym.done("a") == 0)
}
