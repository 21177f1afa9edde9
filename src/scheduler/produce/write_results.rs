//! Results of a write of a batch, from those of its shard.

use crate::domain::engine::{CommandReply, EnqueueCommandReply, NewJob};
use crate::domain::{Durability, EnqueueOutcome, OnConflict, ShardName};
use crate::scheduler::{AcceptedJob, EnqueueError};
use crate::shards::{self, Shard, ShardError};
use crate::store::{self, NotWrittenReason, RequestResult};

/// Outcome of one write of a batch.
pub(super) enum WriteOutcome {
    /// The shard has answered for each job.
    Answered(WriteResults),
    /// The jobs may have been written: this write, or one before it, got no definite answer.
    Unknown(ShardError),
    Refused(WriteRefusal),
}

/// Results of the jobs of a batch, in their order.
pub(super) type WriteResults = Vec<shards::Result<RequestResult>>;

/// Reason why a shard has not taken a batch.
pub(super) enum WriteRefusal {
    Unsupported {
        shard: ShardName,
        asked: Durability,
        reached: Durability,
    },
    /// The outcome of the write is unknown, which is less than was requested.
    Unconfirmed {
        asked: Durability,
    },
    Failed(ShardError),
    /// The topics have no room for the jobs.
    TopicFull,
}

/// Results of a batch, with their indexes in the call.
pub(super) type BatchResults = (Vec<usize>, Vec<Result<AcceptedJob, EnqueueError>>);

// === impl WriteRefusal ===

impl WriteRefusal {
    /// Returns whether nothing was written, for a reason that another shard need not have.
    pub(super) fn is_shard_specific(&self) -> bool {
        match self {
            WriteRefusal::Unsupported { .. } | WriteRefusal::TopicFull => true,
            WriteRefusal::Unconfirmed { .. } => false,
            WriteRefusal::Failed(failed) => match failed.error {
                store::Error::Unavailable(_)
                | store::Error::Overloaded(_)
                | store::Error::Full(_) => true,
                store::Error::DeadlineExceeded(_)
                | store::Error::Contention(_)
                | store::Error::OutcomeUnknown(_)
                | store::Error::Corrupt(_) => false,
            },
        }
    }

    pub(super) fn error(&self, job: NewJob, made: bool) -> EnqueueError {
        match self {
            WriteRefusal::Unsupported { shard, asked, reached } => {
                let (shard, asked, reached) = (shard.clone(), *asked, *reached);
                EnqueueError::DurabilityUnsupported { shard, asked, reached }
            }
            &WriteRefusal::Unconfirmed { asked } => {
                EnqueueError::DurabilityNotReached { asked, id: job.key.id }
            }
            WriteRefusal::TopicFull => EnqueueError::TopicFull(job.into()),
            WriteRefusal::Failed(error) => {
                let id = (!made || error.outcome_unknown()).then_some(job.key.id);
                EnqueueError::Store { error: error.clone(), id }
            }
        }
    }
}

/// Returns a result per job, or one error for all: that of a job with unknown outcome, an unknown outcome if the
/// shard failed after a part was written, or the first error if none was written.
pub(super) fn shard_result(shard: &Shard, written: WriteResults) -> shards::Result<WriteResults> {
    let errors = || written.iter().filter_map(|written| written.as_ref().err());
    let (of_shard, is_written) =
        (errors().find(|error| error.error.is_shard_failure()), written.iter().any(Result::is_ok));
    let unknown = errors().find(|error| error.outcome_unknown());
    match (unknown, of_shard.or(errors().next())) {
        (Some(unknown), _) => Err(unknown.clone()),
        (None, Some(error)) if !is_written => Err(error.clone()),
        (None, Some(error)) if error.error.is_shard_failure() => {
            Err(ShardError::unknown(shard.name(), format!("a part was written: {}", error.error)))
        }
        (None, _) => Ok(written),
    }
}

/// Returns whether nothing was written because the topic has no room on the shard.
pub(super) fn is_topic_full(written: &shards::Result<RequestResult>) -> bool {
    let is_full = |reason| reason == Some(NotWrittenReason::TopicFull);
    written.as_ref().is_ok_and(|written| is_full(written.enqueue_result().not_written))
}

/// Returns whether a retry found nothing, and no new job is written there any more.
pub(super) fn is_rejected_by_drain(written: &RequestResult) -> bool {
    written.enqueue_result().not_written == Some(NotWrittenReason::Draining)
}

/// Reports CREATED, not UNCHANGED: a retry found the job that an earlier attempt of this call created.
pub(super) fn report_as_created(written: &mut RequestResult) {
    let enqueued = written.enqueue_result();
    if enqueued.outcome == Some(EnqueueOutcome::Unchanged) && enqueued.not_written.is_none() {
        let outcome = Some(EnqueueOutcome::Created);
        written.reply = CommandReply::Enqueued(EnqueueCommandReply { outcome, ..enqueued });
    }
}

/// Converts the result of a write on `shard`; `made`: the server made the id, which the caller does not have yet; `asked`:
/// the durability that the caller requests.
pub(super) fn accepted_job(
    (shard, made, asked): (&Shard, bool, Option<Durability>),
    job: NewJob,
    result: &RequestResult,
) -> Result<AcceptedJob, EnqueueError> {
    let written = result.enqueue_result();
    match written.not_written {
        None => {}
        Some(NotWrittenReason::Draining) if made => {
            let error = ShardError::unavailable(shard.name(), "the shard is draining");
            return Err(EnqueueError::Store { error, id: None });
        }
        Some(NotWrittenReason::TopicFull) => return Err(EnqueueError::TopicFull(job.into())),
        Some(why) => {
            // The clock of this server is wrong, which is no fault of the caller.
            let why = if made { NotWrittenReason::HistoryLost } else { why };
            let (key, shard) = (job.key, shard.name().clone());
            return Err(EnqueueError::NotWritten { key, shard, why });
        }
    }
    let key = job.key;
    let Some(outcome) = written.outcome else {
        let other_job = job.enqueue.on_conflict != OnConflict::Reject;
        return Err(EnqueueError::AlreadyExists { key, state: written.state, other_job });
    };
    if let Some(asked) = asked.filter(|&asked| asked > result.durability) {
        return Err(EnqueueError::DurabilityNotReached { asked, id: key.id });
    }
    Ok(AcceptedJob {
        id: key.id,
        outcome,
        due: written.due.at,
        durability: result.durability,
        shard: shard.name().clone(),
        state: written.state,
    })
}
