//! Requests and results of writes of jobs.

use tokio::time::Instant;

use crate::domain::engine::{self, CarriedHistory, Command, NotWrittenReason, WritePrecondition};
use crate::domain::{
    Durability, EnqueueOutcome, JobKey, OnConflict, RetentionRule, Spec, State, Time, When,
};

use super::JobRequest;

/// A job to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Identity of the job.
    pub key: JobKey,
    /// The lasting part of the request.
    pub spec: Spec,
    /// Time at which the job becomes ready.
    pub due: When,
    /// Priority, 0 to 9; absent is 0, or unchanged under [`OnConflict::Reschedule`].
    pub priority: Option<u8>,
    /// Expire time: a job that is not running by then becomes EXPIRED. Never [`When::Now`].
    pub expire: Option<When>,
    /// The part of the job that is kept after it is finished.
    pub retention: RetentionRule,
    /// The action when the id is taken.
    pub on_conflict: OnConflict,
    /// Code of the request, see [`conflict::request_code`](crate::domain::conflict::request_code). A call with the code of the
    /// last applied request is a retry.
    pub request_code: Option<u64>,
    /// Condition on the record under the id.
    pub precondition: WritePrecondition,
    /// Number of waiting jobs that the topic may have on the shard: a job that would make it more is not written.
    /// `None`: no limit.
    pub max_waiting: Option<u64>,
    /// Number of bytes that the stored jobs of the topic may have on the shard: a job that would make them more is not
    /// written. [`u64::MAX`]: the job is counted, and always written. `None`: no limit; a store that counts job by job does
    /// not count this one.
    pub max_bytes: Option<u64>,
    /// History of a job that comes from another shard or topic.
    pub history: Option<Box<CarriedHistory>>,
    /// The durability to wait for after the write, also if nothing has to be written: the record found may be only a
    /// moment old. `None`: does not wait.
    pub durability: Option<Durability>,
    /// Deadline of the caller: after it the job is not written any more. `None`: no deadline.
    pub deadline: Option<Instant>,
}

/// Room that a topic is to have on a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomQuery {
    /// Number of jobs to make room for, at most [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX).
    pub jobs: usize,
    /// Number of waiting jobs that the topic may have. `None`: no limit.
    pub max_waiting: Option<u64>,
    /// Bytes of the jobs to make room for, at most `max_bytes`.
    pub bytes: u64,
    /// Number of bytes that the stored jobs of the topic may have. `None`: no limit.
    pub max_bytes: Option<u64>,
}

/// Result of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteResult {
    /// The outcome; `None`: the id is taken and the policy is [`OnConflict::Reject`].
    pub outcome: Option<EnqueueOutcome>,
    /// The state found (unchanged, deferred, refused) or made.
    pub state: State,
    /// Time at which the job (or, deferred, its next generation) becomes ready.
    pub due: Time,
    /// Durability that the write has reached.
    pub durability: Durability,
    /// Reason for which nothing was written; the other fields then have no meaning.
    pub not_written: Option<NotWrittenReason>,
}

// === impl NewJob ===

impl NewJob {
    /// Returns the key of the job and the command for the engine.
    #[must_use]
    pub fn into_command(self) -> (JobKey, engine::Enqueue) {
        let NewJob {
            key,
            spec,
            due,
            priority,
            expire,
            retention: keep,
            on_conflict,
            request_code: request,
            ..
        } = self;
        let NewJob { precondition: prior, max_waiting, max_bytes, history, .. } = self;
        let new = engine::Enqueue {
            spec,
            due,
            priority,
            expire,
            retention: keep,
            on_conflict,
            request_code: request,
            precondition: prior,
            max_waiting,
            max_bytes,
            history,
        };
        (key, new)
    }
}

impl From<NewJob> for JobRequest {
    fn from(job: NewJob) -> JobRequest {
        let (durability, until) = (job.durability, job.deadline);
        let (key, new) = job.into_command();
        JobRequest {
            durability,
            deadline: until,
            ..JobRequest::new(key, Command::Enqueue(Box::new(new)))
        }
    }
}

impl From<(JobKey, engine::Enqueue)> for NewJob {
    fn from((key, new): (JobKey, engine::Enqueue)) -> NewJob {
        let engine::Enqueue {
            spec,
            due,
            priority,
            expire,
            retention: keep,
            on_conflict,
            request_code: request,
            ..
        } = new;
        let engine::Enqueue { precondition: prior, max_waiting, max_bytes, history, .. } = new;
        let (durability, until) = (None, None);
        NewJob {
            key,
            spec,
            due,
            priority,
            expire,
            retention: keep,
            on_conflict,
            request_code: request,
            precondition: prior,
            max_waiting,
            max_bytes,
            history,
            durability,
            deadline: until,
        }
    }
}

// === impl WriteResult ===

impl WriteResult {
    /// Builds the result from the engine's reply, the due time as written and the durability reached.
    #[must_use]
    pub fn from_reply(
        answer: engine::EnqueueCommandReply,
        due: Time,
        durability: Durability,
    ) -> WriteResult {
        let engine::EnqueueCommandReply { outcome, state, due: _, not_written: unwritten } = answer;
        WriteResult { outcome, state, due, durability, not_written: unwritten }
    }
}
