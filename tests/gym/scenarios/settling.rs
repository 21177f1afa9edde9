//! Acks: what goes into them, and which failures are repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringq::pb::SettleError;
use tonic::Code;

use super::super::answers::{Answer, bare, error};
use super::super::call::Method;
use super::super::handle::{Gym, WORKER_ID, secs};
use super::super::jobs::{TOPIC, job};
use super::super::record::{Check, Failure, Log};
use super::super::scenario::{Kind, Scenario};

/// Calls that may name a bad item: with the others, in parts of these, alone, and without its result.
const BAD_ITEM_CALLS: usize = 5;
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "first_job",
        is_essential: true,
        text: [
            "A job of two steps is delivered to a worker with a token, an id, a topic and a credit.",
            "It is written to the ledger, then acked once with a result; the request has the settings.",
        ],
        kind: Kind::Worker(&[("RINGQ_CREDIT", "5")]),
        play: |gym| Box::pin(first_job(gym)),
    },
    Scenario {
        name: "unavailable_items",
        is_essential: true,
        text: [
            "Ack answers OK, but twice with the failure UNAVAILABLE for one of three jobs.",
            "That job alone is acked again, with the same receipt, until it succeeds.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(unavailable_items(gym)),
    },
    Scenario {
        name: "unavailable_call",
        is_essential: true,
        text: [
            "Ack fails with UNAVAILABLE and a RetryInfo of 0.5 s.",
            "The worker repeats it with the same receipt, not before 0.5 s.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(unavailable_call(gym)),
    },
    Scenario {
        name: "unknown_error",
        is_essential: true,
        text: [
            "Ack fails with UNKNOWN, then with INTERNAL, both without details, as libraries and proxies do.",
            "The worker repeats it: nothing shows that the server has refused it.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(unknown_error(gym)),
    },
    Scenario {
        name: "ack_not_found",
        is_essential: false,
        text: [
            "The answer of an Ack is lost, and its repeat is answered NOT_FOUND.",
            "The job is done: no further repeat, and it counts as acked.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(ack_not_found(gym)),
    },
    Scenario {
        name: "bad_item",
        is_essential: true,
        text: [
            "Ack fails with INVALID_ARGUMENT, later with PERMISSION_DENIED, whenever it names one of three jobs.",
            "The others are acked without it, and it is given up after a few calls.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(bad_item(gym)),
    },
    Scenario {
        name: "body_limit",
        is_essential: false,
        text: [
            "Ack fails with UNKNOWN, without details, for more than two jobs, and for one as long as it has its result.",
            "All are acked in smaller calls with their results; that one without, once it has failed alone for a whole lease.",
        ],
        kind: Kind::Worker(&[("RINGQ_CONCURRENCY", "16")]),
        play: |gym| Box::pin(body_limit(gym)),
    },
    Scenario {
        name: "malformed",
        is_essential: false,
        text: [
            "Ack answers MALFORMED for one job, and fails with INVALID_ARGUMENT and a reason for another.",
            "The former is not repeated, the latter once, without its result; the worker goes on with a third.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(malformed(gym)),
    },
];

async fn first_job(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    let request = &source.request;
    gym.check("the request has the topic", request.topics == [TOPIC])?;
    gym.check("the request has the worker_id", request.worker_id == WORKER_ID)?;
    let credit = request.max_in_flight;
    gym.check(
        format!("the request has the credit 5, not {credit}"),
        credit == 5 || (source.id().is_empty() && (1..=5).contains(&credit)),
    )?;
    let lease = request.lease_duration.map(|lease| lease.seconds);
    gym.check(format!("the request has the lease 2 s, not {lease:?}"), lease == Some(2))?;

    let (seen, ledger) = (Arc::new(AtomicBool::new(false)), gym.clone());
    let was_written = Arc::clone(&seen);
    gym.answer(Method::Ack, move |_| {
        was_written.store(ledger.done("a") == 1, Ordering::SeqCst);
        Answer::Normal
    });
    source.info()?;
    source.deliver([job("a").steps(2, 20)])?;
    gym.expect_acked(5.0, &["a"]).await?;
    let result = gym.read(|log| log.items(Method::Ack, "a")[0].result.clone());
    let parsed =
        result.as_deref().and_then(|it| serde_json::from_str::<serde_json::Value>(it).ok());
    let steps = parsed.as_ref().and_then(|it| it.get("steps")?.as_u64());
    let sentence = format!(r#"the Ack has the result {{"steps":2,…}}, not {result:?}"#);
    gym.check(sentence, steps == Some(2))?;
    gym.check("the ledger is written before the Ack", seen.load(Ordering::SeqCst))?;
    let line = gym.ledger().first().cloned();
    let line = line.ok_or_else(|| Failure("the ledger has a line".to_owned()))?;
    let is_right = line.topic == TOPIC
        && line.fence == 1_000_001
        && (line.attempt, line.steps, line.from) == (1, 2, 0)
        && !line.by.is_empty();
    gym.check(
        format!("the ledger has topic, fence, attempt, steps, from and by: {line:?}"),
        is_right,
    )?;
    gym.terminate().await;
    let stopped = gym.stopped(5.0).await?;
    gym.check(format!("the last line counts one acked job: {stopped:?}"), stopped.acked == 1)?;
    gym.check("the job is acked once", gym.read(|log| log.settles("a") == 1))
}

async fn unavailable_items(gym: Gym) -> Check<()> {
    let mut failures = 0;
    gym.answer(Method::Ack, move |call| match call.item("b") {
        Some(_) if failures < 2 => {
            failures += 1;
            Answer::Items(vec![("b", SettleError::Unavailable)])
        }
        _ => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver(["a", "b", "c"].map(job))?;
    gym.expect_acked(8.0, &["a", "b", "c"]).await?;
    let acks = |id: &str| gym.read(|log| log.items(Method::Ack, id).len());
    gym.check(format!("b is acked three times, not {}", acks("b")), acks("b") == 3)?;
    gym.check("a and c are acked once", acks("a") == 1 && acks("c") == 1)?;
    gym.check("b runs once", gym.done("b") == 1)
}

async fn unavailable_call(gym: Gym) -> Check<()> {
    gym.answer(Method::Ack, |call| match call.number {
        1 => Answer::Fail(error(Code::Unavailable, "SHARD_UNAVAILABLE", Some(0.5))),
        _ => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a")])?;
    gym.expect_acked(8.0, &["a"]).await?;
    let times: Vec<_> = gym.read(|log| log.calls(Method::Ack).iter().map(|it| it.at).collect());
    let pause = times[1].saturating_sub(times[0]);
    gym.check(format!("the pause is at least 0.5 s, not {pause:?}"), pause >= secs(0.49))?;
    gym.check(format!("the pause is at most 3 s, not {pause:?}"), pause <= secs(3.0))?;
    gym.check("the Ack is repeated once", times.len() == 2)?;
    gym.check("the job runs once", gym.done("a") == 1)
}

async fn unknown_error(gym: Gym) -> Check<()> {
    gym.answer(Method::Ack, |call| match call.number {
        1 => Answer::Fail(bare(Code::Unknown)),
        2 => Answer::Fail(bare(Code::Internal)),
        _ => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a")])?;
    gym.expect_acked(10.0, &["a"]).await?;
    let kept = gym.read(|log| log.items(Method::Ack, "a").iter().all(|item| item.result.is_some()));
    gym.check("the Ack keeps its result", kept)?;
    gym.check("the job runs once", gym.done("a") == 1)
}

async fn ack_not_found(gym: Gym) -> Check<()> {
    gym.answer(Method::Ack, |call| match call.number {
        1 => Answer::Applied(bare(Code::Unavailable)),
        _ => Answer::Items(vec![("a", SettleError::NotFound)]),
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a")])?;
    let repeated = |log: &Log| log.calls(Method::Ack).get(1).map(|call| call.at);
    let at = gym.expect(8.0, "the Ack is repeated", repeated).await?;
    let once = |log: &Log| log.items(Method::Ack, "a").len() == 2;
    gym.holds(at + secs(1.5), "the Ack is not repeated after NOT_FOUND", once).await?;
    gym.terminate().await;
    let stopped = gym.stopped(5.0).await?;
    let counted = (stopped.acked, stopped.lost) == (1, 0);
    gym.check(format!("the job counts as acked: {stopped:?}"), counted)
}

async fn malformed(gym: Gym) -> Check<()> {
    gym.answer(Method::Ack, |call| match (call.item("a"), call.item("b")) {
        (Some(_), _) => Answer::Items(vec![("a", SettleError::Malformed)]),
        (_, Some(_)) => Answer::Fail(error(Code::InvalidArgument, "INVALID_FIELD", None)),
        _ => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    for id in ["a", "b"] {
        source.deliver([job(id)])?;
        let tried = |log: &Log| !log.items(Method::Ack, id).is_empty();
        gym.expect(5.0, "the job is acked", tried).await?;
    }
    source.deliver([job("c")])?;
    gym.expect_acked(5.0, &["c"]).await?;
    let once = |log: &Log| {
        let acks = |id: &str| log.items(Method::Ack, id).len();
        acks("a") == 1 && acks("b") <= 2 && log.items(Method::Nack, "b").is_empty()
    };
    let until = gym.now() + secs(1.5);
    gym.holds(until, "an Ack that was refused for good is not repeated, nor nacked", once).await?;
    let last = gym.read(|log| log.items(Method::Ack, "b").last().map(|item| item.result.is_some()));
    gym.check("the last Ack of b has no result", last == Some(false))?;
    gym.lose("a");
    gym.lose("b");
    Ok(())
}

async fn bad_item(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    for (code, reason, ids) in [
        (Code::InvalidArgument, "INVALID_FIELD", ["a", "b", "c"]),
        (Code::PermissionDenied, "PERMISSION_DENIED", ["d", "e", "f"]),
    ] {
        let bad = ids[1];
        gym.answer(Method::Ack, move |call| match call.item(bad) {
            Some(_) => Answer::Fail(error(code, reason, None)),
            None => Answer::Normal,
        });
        // They end at once, so that their Acks share a call.
        source.deliver(ids.map(job))?;
        gym.expect_acked(5.0, &[ids[0], ids[2]]).await?;
        gym.lose(bad);
        let few = move |log: &Log| log.items(Method::Ack, bad).len() <= BAD_ITEM_CALLS;
        let until = gym.now() + secs(1.0);
        gym.holds(until, "an Ack that is refused for good is given up", few).await?;
    }
    Ok(())
}

async fn body_limit(gym: Gym) -> Check<()> {
    gym.answer(Method::Ack, |call| {
        let has_large = call.item("large").is_some_and(|item| item.result.is_some());
        let is_refused = call.items.len() > 2 || has_large;
        if is_refused { Answer::Fail(bare(Code::Unknown)) } else { Answer::Normal }
    });
    let source = gym.source().await?;
    source.info()?;
    let small: Vec<String> = (0..10).map(|number| format!("small{number}")).collect();
    let ids = small.iter().map(String::as_str).chain(["large"]);
    source.deliver(ids.map(job))?;
    let all = |log: &Log| log.all_acked(small.iter().map(String::as_str));
    gym.expect(15.0, "the jobs are acked that the proxy does not refuse", all).await?;
    let results = |log: &Log, id: &str| {
        log.with(Method::Ack, id).into_iter().all(|it| it.item(id).unwrap().result.is_some())
    };
    let kept = gym.read(|log| small.iter().all(|id| results(log, id)));
    gym.check("they keep their results", kept)?;
    gym.expect_acked(15.0, &["large"]).await?;
    let alone: Vec<_> = gym.read(|log| {
        let calls = log.with(Method::Ack, "large").into_iter();
        calls
            .filter(|it| it.items.len() == 1)
            .map(|it| (it.at, it.items[0].result.is_some()))
            .collect()
    });
    let first = |has: bool| alone.iter().find(|call| call.1 == has).map(|call| call.0);
    let time = first(false).unwrap_or_default().saturating_sub(first(true).unwrap_or_default());
    let sentence = format!("its result is tried for the lease of 2 s, not for {time:?}");
    // The worker counts from when it sends the first one.
    gym.check(sentence, time >= secs(1.5))?;
    gym.check("each job runs once", gym.ledger().len() == small.len() + 1)
}
