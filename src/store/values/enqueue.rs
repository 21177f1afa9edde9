//! What a write of jobs asks for and answers.

use tokio::time::Instant;

use crate::domain::engine::{self, Command, NotWrittenReason, WritePrecondition};
use crate::domain::{
    Durability, EnqueueOutcome, JobKey, OnConflict, Payload, RetentionRule, Spec, State, Time, When,
};

use super::JobRequest;

/// A job to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its identity.
    pub key: JobKey,
    /// The lasting part of what is asked for.
    pub spec: Spec,
    /// When it becomes ready.
    pub due: When,
    /// 0 to 9; absent is 0, or unchanged under [`OnConflict::Reschedule`].
    pub priority: Option<u8>,
    /// Not running by then: EXPIRED. Never [`When::Now`].
    pub expire: Option<When>,
    /// What stays of it once it is finished.
    pub retention: RetentionRule,
    /// What to do when the id is taken.
    pub on_conflict: OnConflict,
    /// The request, see [`conflict::request`](crate::domain::conflict::request); the last one applied makes a call a
    /// repeat.
    pub request_code: Option<u64>,
    /// What may lie under the id.
    pub precondition: WritePrecondition,
    /// The checkpoint of a job that comes from another shard; it counts only where nothing has the id.
    pub checkpoint: Option<Payload>,
    /// What to wait for once it is written, also where nothing has to be: what is there may have been
    /// written a moment ago. `None`: nothing is waited for.
    pub durability: Option<Durability>,
    /// Until when its caller waits: from then on it is not written any more. `None`: there is no such time.
    pub deadline: Option<Instant>,
}

/// What an enqueue found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteResult {
    /// What it did; `None`: the id is taken and the policy is [`OnConflict::Reject`].
    pub outcome: Option<EnqueueOutcome>,
    /// The state found (unchanged, deferred, refused) or made.
    pub state: State,
    /// When the job (or, deferred, its next generation) becomes ready.
    pub due: Time,
    /// What the write has reached.
    pub durability: Durability,
    /// Nothing was written, for this reason, and the rest says nothing.
    pub not_written: Option<NotWrittenReason>,
}

// === impl NewJob ===

impl NewJob {
    /// What is asked of the engine about which job.
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
        let NewJob { precondition: prior, checkpoint, durability: _, deadline: _, .. } = self;
        let new = engine::Enqueue {
            spec,
            due,
            priority,
            expire,
            retention: keep,
            on_conflict,
            request_code: request,
            precondition: prior,
            checkpoint,
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
        let engine::Enqueue { precondition: prior, checkpoint, .. } = new;
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
            checkpoint,
            durability,
            deadline: until,
        }
    }
}

// === impl Enqueue ===

impl WriteResult {
    /// The answer of the engine, with the due time as it was written and what that has reached.
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
