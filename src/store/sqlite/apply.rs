//! [`Store::apply`](crate::store::Store::apply): a call is one transaction. Three fast paths do by themselves what the
//! engine would do where there is nothing to decide.

use std::ops::Range;
use std::sync::Arc;

use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::engine::{self, Answer, Command, End, Record};
use crate::domain::{Durability, JobKey};
use crate::store::{Applied, Error, Request, Result};

use super::decide::{apply, find};
use super::fault::Done;
use super::session::{Reused, Session};
use super::write::StoredJob;
use super::writer::{Sync, Writer};
use super::{enqueue, leases, settle};

/// A request whose blobs are encoded, which happens before it reaches the writer.
struct Prepared {
    key: JobKey,
    command: Command,
    /// Of an enqueue.
    stored: Option<StoredJob>,
    until: Option<Instant>,
}

/// Some of the requests of a call.
struct Part {
    requests: Arc<Vec<Prepared>>,
    range: Range<usize>,
}

// === impl Prepared ===

impl Prepared {
    fn new(request: Request) -> Prepared {
        let Request { key, command, until, .. } = request;
        let stored = match &command {
            Command::Enqueue(new) => Some(StoredJob::new(&new.spec)),
            _ => None,
        };
        Prepared { key, command, stored, until }
    }

    /// How much it must survive.
    fn sync(&self) -> Sync {
        match &self.command {
            Command::Enqueue(_) => Sync::Grow,
            // Follow-ups and checkpoints take room; one that is refused leaves its lease as it is.
            Command::Settle(settle) => match &settle.end {
                End::Ack { follow_ups, .. } if !follow_ups.is_empty() => Sync::Grow,
                End::Ack { .. } | End::Unacked(_) => Sync::Full,
            },
            Command::Extend(extend) if extend.grows() => Sync::Grow,
            Command::Unclaim(_) | Command::Prune | Command::Detach { .. } | Command::Adopt(_) => {
                Sync::Lazy
            }
            _ => Sync::Full,
        }
    }
}

// === impl Part ===

impl Part {
    fn requests(&self) -> &[Prepared] {
        &self.requests[self.range.clone()]
    }

    fn until(&self) -> Option<Instant> {
        self.requests().iter().filter_map(|request| request.until).min()
    }

    fn sync(&self) -> Sync {
        let syncs = || self.requests().iter().map(Prepared::sync);
        [Sync::Grow, Sync::Full]
            .into_iter()
            .find(|&most| syncs().any(|sync| sync == most))
            .unwrap_or(Sync::Lazy)
    }
}

/// Applies a call in one transaction. If something in it fails, its commands come as calls of their own, so that what is
/// wrong with one does not fail the others: the writer takes them together again, but for those that fail.
pub(super) async fn apply_all(
    writer: &Writer,
    requests: Vec<Request>,
    durability: Durability,
) -> Vec<Result<Applied>> {
    let count = requests.len();
    let requests: Arc<Vec<_>> = Arc::new(requests.into_iter().map(Prepared::new).collect());
    let run = async |range: Range<usize>| {
        let part = Part { requests: Arc::clone(&requests), range };
        writer.call_until(part.until(), part.sync(), part.range.len(), part, apply_part).await
    };
    let alone = async |at: usize| run(at..at + 1).await.and_then(one);
    let mut results: Vec<Result<Applied>> = match run(0..count).await {
        Ok(applied) => applied.into_iter().map(Ok).collect(),
        // They stay in order: each is in the queue of the writer before the next one is polled.
        Err(error) if count > 1 && !error.is_of_shard() => join_all((0..count).map(alone)).await,
        Err(error) => vec![Err(error); count],
    };
    let applied = results.iter_mut().flatten();
    applied.for_each(|applied: &mut Applied| applied.durability = durability);
    results
}

fn one(applied: Vec<Applied>) -> Result<Applied> {
    let none = || Error::Unavailable("the store has not answered".into());
    applied.into_iter().next().ok_or_else(none)
}

fn apply_part(session: &mut Session<'_>, part: &Part) -> Done<Vec<Applied>> {
    let mut insert = Reused::new(enqueue::INSERT);
    let mut ack = Reused::new(settle::PLAIN);
    let mut extend = Reused::new(leases::EXTEND);
    let (mut applied, mut redriven) = (Vec::with_capacity(part.range.len()), 0);
    for request in part.requests() {
        let fast = match &request.command {
            Command::Enqueue(new) => match &request.stored {
                Some(stored) => enqueue::create(session, &mut insert, &request.key, new, stored)?,
                None => None,
            },
            Command::Settle(settle) => settle::ack(session, &mut ack, &request.key, settle)?,
            Command::Extend(item) => leases::patch(session, &mut extend, &request.key, item)?,
            _ => None,
        };
        let (answer, record) = match (fast, &request.command) {
            (Some(answer), _) => (answer, None),
            (None, Command::Redrive(redrive)) => {
                let done = redrive_one(session, &request.key, redrive.after(redriven))?;
                redriven += u32::from(done.1.is_some());
                done
            }
            (None, command) => apply(session, &request.key, command)?,
        };
        let (record, now) = (record.map(Box::new), session.now);
        applied.push(Applied { answer, record, now, durability: Durability::Memory });
    }
    Ok(applied)
}

/// A job that moves to another topic needs its id free there, after all that the clock has brought about.
fn redrive_one(
    session: &mut Session<'_>,
    key: &JobKey,
    redrive: engine::Redrive,
) -> Done<(Answer, Option<Record>)> {
    if let Some(topic) = &redrive.target {
        let target = JobKey { topic: topic.clone(), id: key.id.clone() };
        apply(session, &target, &Command::Prune)?;
        if find(session, &target)?.is_some() {
            return Ok((Answer::Done(false), None));
        }
    }
    apply(session, key, &Command::Redrive(redrive))
}
