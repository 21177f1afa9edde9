//! Producers: which calls and results are repeated, and under which ids.

use std::collections::HashSet;

use tonic::Code;

use super::super::answers::{Answer, bare, error, item_error};
use super::super::call::{Call, Method};
use super::super::handle::{Gym, secs};
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "outcome_unknown",
    is_essential: true,
    text: [
        "A producer meets a call that fails, results that are unknown or unavailable, and one that is refused.",
        "Calls are repeated with the same ids or request_id, results alone by their ids; each job has its own traceparent.",
    ],
    kind: Kind::Producer,
    play: |gym| Box::pin(outcome_unknown(gym)),
}];

async fn outcome_unknown(gym: Gym) -> Check<()> {
    with_ids(&gym).await?;
    without_ids(&gym).await?;
    refused(&gym).await
}

/// Returns the calls of the producer that has just run.
fn batches(gym: &Gym, before: usize) -> Vec<Call> {
    let calls = |log: &Log| -> Vec<Call> {
        log.calls(Method::BatchEnqueue).into_iter().skip(before).cloned().collect()
    };
    gym.read(calls)
}

async fn with_ids(gym: &Gym) -> Check<()> {
    gym.answer(Method::BatchEnqueue, |call| match call.number {
        1 => Answer::Fail(error(Code::Unavailable, "DRAINING", Some(0.3))),
        2 => Answer::Results(vec![
            (2, item_error(Code::Unavailable, "OUTCOME_UNKNOWN")),
            (3, item_error(Code::ResourceExhausted, "RATE_LIMITED")),
        ]),
        _ => Answer::Normal,
    });
    let exit = gym.produce(5, &[("RINGQ_PREFIX", "p")]).await?;
    let calls = batches(gym, 0);
    gym.check(
        format!("BatchEnqueue is called: the program ended before ({exit})"),
        !calls.is_empty(),
    )?;
    let all = ["p-0", "p-1", "p-2", "p-3", "p-4"];
    gym.check("the failed call is repeated with the same ids", {
        calls.len() >= 3 && calls[0].job_ids() == all && calls[1].job_ids() == all
    })?;
    let request = |call: &Call| call.batch.clone().unwrap_or_default().request_id;
    gym.check("the repeat has the same request_id", request(&calls[0]) == request(&calls[1]))?;
    let pause = calls[1].at.saturating_sub(calls[0].at);
    gym.check(format!("the pause is at least 0.3 s, not {pause:?}"), pause >= secs(0.29))?;
    let repeated: Vec<_> = calls[2..].iter().flat_map(Call::job_ids).collect();
    let sentence = format!("p-2 and p-3 are repeated alone, by their ids, not {repeated:?}");
    gym.check(sentence, HashSet::from_iter(repeated.clone()) == HashSet::from(["p-2", "p-3"]))?;
    let enqueued = gym.read(|log| log.enqueued.len());
    gym.check(format!("5 jobs are stored, not {enqueued}"), enqueued == 5)?;
    summary(gym, 5, 0, exit)?;
    traces(gym, &calls[0])
}

/// Checks the last line of stdout and the exit code. A job that was stored before its repeat may count as unchanged.
fn summary(gym: &Gym, count: u64, failed: u64, exit: i32) -> Check<()> {
    let line = gym.read(|log| log.stdout.last().cloned()).unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let mut fields = line.split_whitespace().filter_map(|field| field.split_once('='));
        fields.find(|(field, _)| *field == name)?.1.parse().ok()
    };
    let stored = field("enqueued").zip(field("unchanged")).map(|(new, old)| new + old);
    let sentence = format!("stdout counts {count} jobs, {failed} of them failed: {line:?}");
    gym.check(sentence, stored == Some(count - failed) && field("failed") == Some(failed))?;
    let wanted = i32::from(failed > 0);
    gym.check(format!("the exit code is {wanted}, not {exit}"), exit == wanted)
}

/// Checks the header of each job.
fn traces(gym: &Gym, call: &Call) -> Check<()> {
    let jobs = call.batch.clone().unwrap_or_default().jobs;
    let trace = |header: &String| -> Option<String> {
        let parts: Vec<_> = header.split('-').collect();
        let is_hex = |part: &str, length| {
            part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let [version, trace, span, flags] = parts[..] else { return None };
        let is_valid = version == "00" && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
        is_valid.then(|| trace.to_owned())
    };
    let found: HashSet<_> =
        jobs.iter().filter_map(|job| job.headers.get("traceparent").and_then(trace)).collect();
    let sentence = format!("each job has a traceparent with a trace id of its own: {found:?}");
    gym.check(sentence, found.len() == jobs.len())
}

async fn without_ids(gym: &Gym) -> Check<()> {
    let before = gym.read(|log| log.calls(Method::BatchEnqueue).len());
    let stored = gym.read(|log| log.enqueued.len());
    gym.answer(Method::BatchEnqueue, move |call| match call.number - before {
        1 => Answer::Applied(bare(Code::Unknown)),
        2 => Answer::Results(vec![
            (1, item_error(Code::Unavailable, "OUTCOME_UNKNOWN")),
            (2, item_error(Code::Unavailable, "DURABILITY_NOT_REACHED")),
        ]),
        _ => Answer::Normal,
    });
    let exit = gym.produce(4, &[("RINGQ_PREFIX", "-")]).await?;
    let calls = batches(gym, before);
    gym.check("the failed call is repeated", calls.len() >= 3)?;
    let (first, second) = (calls[0].batch.clone().unwrap(), calls[1].batch.clone().unwrap());
    gym.check("jobs are sent without ids", calls[0].job_ids().iter().all(|id| id.is_empty()))?;
    gym.check("a call without ids has a request_id", !first.request_id.is_empty())?;
    let is_same = first.request_id == second.request_id && calls[1].job_ids() == ["", "", "", ""];
    gym.check("the failed call is repeated with the same request_id", is_same)?;
    let repeated: HashSet<String> = calls[2..]
        .iter()
        .flat_map(Call::job_ids)
        .map(|id| id.rsplit_once('=').map_or("", |(_, index)| index).to_owned())
        .collect();
    let sentence =
        format!("jobs 1 and 2 are repeated alone, with the ids of their results: {repeated:?}");
    gym.check(sentence, repeated == HashSet::from(["1".to_owned(), "2".to_owned()]))?;
    let count = gym.read(|log| log.enqueued.len()) - stored;
    gym.check(format!("4 jobs are stored, not {count}"), count == 4)?;
    summary(gym, 4, 0, exit)
}

async fn refused(gym: &Gym) -> Check<()> {
    let before = gym.read(|log| log.calls(Method::BatchEnqueue).len());
    gym.answer(Method::BatchEnqueue, move |call| match call.number - before {
        1 => Answer::Results(vec![(1, item_error(Code::InvalidArgument, "INVALID_FIELD"))]),
        _ => Answer::Normal,
    });
    let settings = [("RINGQ_PREFIX", "q"), ("RINGQ_BATCH", "2")];
    let exit = gym.produce(5, &settings).await?;
    let calls = batches(gym, before);
    let sizes: Vec<_> = calls.iter().map(|call| call.job_ids().len()).collect();
    let sentence = format!("5 jobs in calls of up to 2 are 3 calls, no repeat: {sizes:?}");
    gym.check(sentence, sizes.len() == 3 && sizes.iter().max() == Some(&2))?;
    summary(gym, 5, 1, exit)
}
