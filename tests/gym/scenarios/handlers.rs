//! Outcomes of the demo handler, and its checkpoints.

use ringq::pb::{NackAction, SettleError};

use super::super::answers::Answer;
use super::super::call::Method;
use super::super::handle::{Gym, secs};
use super::super::jobs::{job, trace_id};
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "failed_job",
        is_essential: true,
        text: [
            "Handlers fail, refuse for good, and get payloads that are no JSON, JSON in bytes, or absent.",
            "Nack RETRY with the error and a log line with its trace id, DEAD_LETTER with the error; the others are acked.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(failed_job(gym)),
    },
    Scenario {
        name: "checkpoint",
        is_essential: false,
        text: [
            "A job comes with a checkpoint, others save theirs while the store is full or the lease is gone.",
            "The first goes on from there and saves each step; a full store stops nothing, STALE stops the job.",
        ],
        kind: Kind::Worker(&[("RINGQ_LEASE", "10")]),
        play: |gym| Box::pin(checkpoint(gym)),
    },
];

/// Waits for the Nack of a job, and checks its action and error.
async fn expect_nack(gym: &Gym, id: &str, action: NackAction) -> Check<String> {
    let sentence = format!("{id} is nacked");
    let nack = |log: &Log| log.items(Method::Nack, id).first().map(|item| (*item).clone());
    let item = gym.expect(5.0, &sentence, nack).await?;
    let found = item.action.unwrap_or_default().as_str_name();
    // RETRY is the default.
    let is_right = item.action == Some(action)
        || (action, item.action) == (NackAction::Retry, Some(NackAction::Unspecified));
    gym.check(format!("{id} is nacked with {}, not {found}", action.as_str_name()), is_right)?;
    gym.check(format!("the Nack of {id} has an error"), !item.error.is_empty())?;
    Ok(item.error)
}

async fn failed_job(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    let failing = r#"{"steps":2,"step_ms":10,"fail_until":1}"#;
    source.deliver([job("fails").text(failing)])?;
    source.deliver([job("dead").text(r#"{"steps":1,"dead":true}"#)])?;
    source.deliver([job("text").text("no JSON {")])?;
    source.deliver([job("bytes").data(r#"{"steps":2,"step_ms":1}"#), job("empty")])?;
    expect_nack(&gym, "fails", NackAction::Retry).await?;
    expect_nack(&gym, "dead", NackAction::DeadLetter).await?;
    expect_nack(&gym, "text", NackAction::DeadLetter).await?;
    gym.expect_acked(5.0, &["bytes", "empty"]).await?;
    source.deliver([job("fails").text(failing).attempt(2)])?;
    gym.expect_acked(5.0, &["fails"]).await?;
    let trace = trace_id("fails");
    let logged = |log: &Log| log.stderr.iter().any(|line| line.contains(&trace));
    gym.expect(2.0, "the log line of a failed job has the trace id", logged).await?;
    gym.check(
        "each job is settled once",
        gym.read(|log| {
            log.settles("fails") == 2
                && ["dead", "text", "bytes", "empty"].iter().all(|id| log.settles(id) == 1)
        }),
    )?;
    let lines: Vec<_> = gym.ledger().into_iter().map(|line| (line.id, line.steps)).collect();
    let is_right = lines.len() == 3 && lines.contains(&("bytes".to_owned(), 2));
    gym.check(format!("the ledger has the three jobs that were done: {lines:?}"), is_right)
}

/// Returns the steps that a job has saved.
fn saved(log: &Log, id: &str) -> Vec<u64> {
    let step = |text: &String| -> Option<u64> {
        serde_json::from_str::<serde_json::Value>(text).ok()?.get("step")?.as_u64()
    };
    let items = log.items(Method::Extend, id).into_iter();
    items.filter_map(|item| item.checkpoint.as_ref().and_then(step)).collect()
}

async fn checkpoint(gym: Gym) -> Check<()> {
    gym.answer(Method::Extend, |call| {
        let saves = |id: &str| call.item(id).is_some_and(|item| item.checkpoint.is_some());
        let mut failing = Vec::new();
        if saves("full") {
            failing.push(("full", SettleError::Unavailable));
        }
        if saves("gone") {
            failing.push(("gone", SettleError::Stale));
        }
        Answer::Items(failing)
    });
    let source = gym.source().await?;
    source.info()?;
    let jobs = [
        job("begun").steps(5, 50).checkpoint(r#"{"step":2}"#),
        job("fresh").steps(3, 50),
        job("full").steps(3, 50),
        job("gone").steps(3, 500),
    ];
    source.deliver(jobs)?;
    gym.expect_acked(10.0, &["begun", "fresh", "full"]).await?;
    let (begun, fresh) = gym.read(|log| (saved(log, "begun"), saved(log, "fresh")));
    gym.check(format!("begun saves the steps 3 and 4, not {begun:?}"), begun == [3, 4])?;
    gym.check(format!("fresh saves the steps 1 and 2, not {fresh:?}"), fresh == [1, 2])?;
    let lines = gym.ledger();
    let from = |id: &str| lines.iter().find(|line| line.id == id).map(|it| (it.from, it.steps));
    let sentence = format!("the ledger shows from which step a job went on: {lines:?}");
    gym.check(sentence, from("begun") == Some((2, 5)) && from("fresh") == Some((0, 3)))?;
    let tried = |log: &Log| !saved(log, "gone").is_empty();
    gym.expect(5.0, "gone saves its first step", tried).await?;
    gym.lose("gone");
    let until = gym.read(|log| log.delivered_at("gone")).unwrap_or_default() + secs(2.2);
    let nothing = |log: &Log| log.settles("gone") == 0;
    gym.holds(until, "nothing is settled for gone, whose save is STALE", nothing).await?;
    gym.check("gone is not written to the ledger", gym.done("gone") == 0)
}
