//! Writes a job in another topic, on the shard that owns its id there, before it ends where it is, so that it is
//! never lost. If a server stops in between, the job is found where it was and transferred again: the shard recognizes
//! its copy by the request code, and the job ends.

use tokio::time::Instant;

use crate::domain::engine::{Enqueue, NewJob};
use crate::domain::{EnqueueOutcome, Job, JobKey, OnConflict, When, limit};
use crate::shards::{self, Shard, ShardError};
use crate::store::{CarriedHistory, JobRequest, RequestResult, WritePrecondition};

use super::Core;

/// Result of the first half of a transfer.
pub(super) enum Transfer {
    /// The copy is there, written now or by an earlier transfer: the job is to end where it is.
    Copied,
    /// Another job has the key.
    Taken,
    /// The copy was not written, or is not known to be.
    Failed(ShardError),
}

// === impl Core ===

impl Core {
    /// Builds the copy of a job under another key: due now, with fresh counters, and without an expire time.
    pub(super) fn copy(&self, job: Job, key: JobKey, request_code: u64) -> NewJob {
        let enqueue = Enqueue {
            retention: job.spec.retention_rule(true, limit::TOMBSTONE),
            spec: job.spec,
            due: When::Now,
            priority: Some(job.priority),
            expire: None,
            on_conflict: OnConflict::Reject,
            request_code: Some(request_code),
            precondition: WritePrecondition::Anything,
            max_waiting: None,
            max_bytes: self.only_counted(&key.topic),
            history: CarriedHistory { checkpoint: job.checkpoint, last_error: job.last_error }
                .boxed(),
        };
        NewJob { key, enqueue: Box::new(enqueue) }
    }
}

/// Writes copies to the shard that owns their ids; each result is for the copy of its index.
pub(super) async fn write_copies(
    owner: &Shard,
    copies: Vec<NewJob>,
    deadline: Option<Instant>,
) -> Vec<Transfer> {
    let request = |copy| JobRequest { deadline, ..JobRequest::from(copy) };
    let written = owner.apply(copies.into_iter().map(request).collect()).await;
    let transfer = |written: shards::Result<RequestResult>| match written {
        Ok(written) => match written.enqueue_result().outcome {
            Some(EnqueueOutcome::Created | EnqueueOutcome::Unchanged) => Transfer::Copied,
            _ => Transfer::Taken,
        },
        Err(error) => Transfer::Failed(error),
    };
    written.into_iter().map(transfer).collect()
}
