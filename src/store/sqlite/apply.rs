//! [`Store::apply`](crate::store::Store::apply): a call is one transaction. Three fast paths do the work of the
//! engine where there is nothing to decide.

use std::ops::Range;
use std::sync::Arc;

use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::engine::{Command, SettleAction};
use crate::domain::{Durability, JobKey};
use crate::store::{Error, JobRequest, RequestResult, Result};

use super::error_mapping::SqliteResult;
use super::run_engine::{apply, redrive_job};
use super::transaction::{ReusedStatement, WriteTransaction};
use super::write_job::StoredJob;
use super::writer::{SqliteWriter, SyncLevel};
use super::{enqueue, leases, settle};

/// A request with encoded blobs; encoding happens before the request reaches the writer.
struct PreparedRequest {
    key: JobKey,
    command: Command,
    /// Encoded parts of an enqueue.
    stored: Option<StoredJob>,
    until: Option<Instant>,
}

/// A range of the requests of a call.
struct RequestRange {
    requests: Arc<Vec<PreparedRequest>>,
    range: Range<usize>,
}

// === impl PreparedRequest ===

impl PreparedRequest {
    fn new(request: JobRequest) -> PreparedRequest {
        let JobRequest { key, command, deadline: until, .. } = request;
        let stored = match &command {
            Command::Enqueue(new) => Some(StoredJob::new(&new.spec)),
            _ => None,
        };
        PreparedRequest { key, command, stored, until }
    }

    /// Returns the sync level that the request needs.
    fn sync(&self) -> SyncLevel {
        match &self.command {
            Command::Enqueue(_) => SyncLevel::FullGrowing,
            // Follow-ups and checkpoints take disk space; a request that is rejected leaves its lease unchanged.
            Command::Settle(settle) => match &settle.action {
                SettleAction::Ack { follow_ups, .. } if !follow_ups.is_empty() => {
                    SyncLevel::FullGrowing
                }
                SettleAction::Ack { .. } | SettleAction::Unacked(_) => SyncLevel::Full,
            },
            Command::Extend(extend) if extend.grows() => SyncLevel::FullGrowing,
            Command::Unclaim(_) | Command::Prune | Command::Detach { .. } | Command::Adopt(_) => {
                SyncLevel::Lazy
            }
            _ => SyncLevel::Full,
        }
    }
}

// === impl RequestRange ===

impl RequestRange {
    fn requests(&self) -> &[PreparedRequest] {
        &self.requests[self.range.clone()]
    }

    fn until(&self) -> Option<Instant> {
        self.requests().iter().filter_map(|request| request.until).min()
    }

    fn sync(&self) -> SyncLevel {
        let syncs = || self.requests().iter().map(PreparedRequest::sync);
        [SyncLevel::FullGrowing, SyncLevel::Full]
            .into_iter()
            .find(|&most| syncs().any(|sync| sync == most))
            .unwrap_or(SyncLevel::Lazy)
    }
}

/// Applies a call in one transaction. If a command fails, all are sent again as calls of their own, so that one
/// failure does not fail the others: the writer groups those that succeed again.
pub(super) async fn apply_all(
    writer: &SqliteWriter,
    requests: Vec<JobRequest>,
    durability: Durability,
) -> Vec<Result<RequestResult>> {
    let count = requests.len();
    let requests: Arc<Vec<_>> = Arc::new(requests.into_iter().map(PreparedRequest::new).collect());
    let run = async |range: Range<usize>| {
        let part = RequestRange { requests: Arc::clone(&requests), range };
        writer.call_until(part.until(), part.sync(), part.range.len(), part, apply_part).await
    };
    let alone = async |at: usize| run(at..at + 1).await.and_then(single_result);
    let mut results: Vec<Result<RequestResult>> = match run(0..count).await {
        Ok(applied) => applied.into_iter().map(Ok).collect(),
        // Order is kept: each call is in the queue of the writer before the next one is polled.
        Err(error) if count > 1 && !error.is_shard_failure() => {
            join_all((0..count).map(alone)).await
        }
        Err(error) => vec![Err(error); count],
    };
    let applied = results.iter_mut().flatten();
    applied.for_each(|applied: &mut RequestResult| applied.durability = durability);
    results
}

fn single_result(applied: Vec<RequestResult>) -> Result<RequestResult> {
    let none = || Error::Unavailable("the store returned no result".into());
    applied.into_iter().next().ok_or_else(none)
}

fn apply_part(
    session: &mut WriteTransaction<'_>,
    part: &RequestRange,
) -> SqliteResult<Vec<RequestResult>> {
    let mut insert = ReusedStatement::new(enqueue::INSERT);
    let mut ack = ReusedStatement::new(settle::PLAIN);
    let mut extend = ReusedStatement::new(leases::EXTEND);
    let (mut applied, mut redriven) = (Vec::with_capacity(part.range.len()), 0);
    for request in part.requests() {
        let fast = match &request.command {
            Command::Enqueue(new) => match &request.stored {
                Some(stored) => enqueue::create(session, &mut insert, &request.key, new, stored)?,
                None => None,
            },
            Command::Settle(settle) => settle::ack(session, &mut ack, &request.key, settle)?,
            Command::Extend(item) => {
                leases::extend_deadline(session, &mut extend, &request.key, item)?
            }
            _ => None,
        };
        let (answer, record) = match (fast, &request.command) {
            (Some(answer), _) => (answer, None),
            (None, Command::Redrive(redrive)) => {
                let done = redrive_job(session, &request.key, &redrive.after(redriven))?;
                // One that is only asked for counts, too: the due times of the others depend on it.
                redriven += u32::from(done.0.is_applied());
                done
            }
            (None, command) => apply(session, &request.key, command)?,
        };
        let (record, now) = (record.map(Box::new), session.now);
        applied.push(RequestResult { reply: answer, record, now, durability: Durability::Memory });
    }
    Ok(applied)
}
