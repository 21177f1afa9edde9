//! Requests and results of writes of jobs.

use tokio::time::Instant;

use crate::domain::engine::{self, CarriedHistory, Command, NotWrittenReason, WritePrecondition};
use crate::domain::{
    Durability, EnqueueOutcome, JobId, JobKey, OnConflict, RetentionRule, Spec, State, Time, When,
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

/// Number of some jobs, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobSum {
    /// Number of jobs.
    pub jobs: u64,
    /// Their bytes, as [`NewJob::max_bytes`] counts them.
    pub bytes: u64,
}

/// New jobs for which the oldest waiting jobs of their topic leave a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomQuery {
    /// The new jobs, at most half of [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX), which fit into an empty topic.
    pub new: JobSum,
    /// Number of waiting jobs that the topic may have. `None`: no limit.
    pub max_waiting: Option<u64>,
    /// Number of bytes that the stored jobs of the topic may have. `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Jobs of other callers, for which room is made as well where the topic comes down to its limits.
    pub others: JobSum,
}

/// Waiting jobs that leave a topic for new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeavingJobs {
    /// Their ids.
    pub ids: Vec<JobId>,
    /// True if the topic is over its limits without them, too: the new jobs take their places.
    pub is_over: bool,
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

// === impl JobSum ===

impl JobSum {
    /// Adds other jobs.
    #[must_use]
    pub fn plus(self, other: JobSum) -> JobSum {
        JobSum { jobs: self.jobs + other.jobs, bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// Takes away some of the jobs.
    #[must_use]
    pub fn minus(self, other: JobSum) -> JobSum {
        JobSum { jobs: self.jobs - other.jobs, bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

// === impl RoomQuery ===

impl RoomQuery {
    /// Returns what has to leave at least, and what leaves if it is there, of a topic that would be over its limits by
    /// `excess` with the new jobs. A topic that comes down to its limits by that has room for the jobs of others, too. One
    /// that does not loses twice as much as comes, so that it comes down step by step; where it has less, as much as
    /// comes will do.
    #[must_use]
    pub fn goals(&self, excess: JobSum) -> [JobSum; 2] {
        let goals = |excess: u64, new: u64, others: u64| match excess {
            0 => [0, 0],
            _ if excess > new.saturating_mul(2) => [new, new.saturating_mul(2)],
            _ => [excess.min(new), excess.saturating_add(others)],
        };
        let jobs = goals(excess.jobs, self.new.jobs, self.others.jobs);
        let bytes = goals(excess.bytes, self.new.bytes, self.others.bytes);
        [0, 1].map(|goal| JobSum { jobs: jobs[goal], bytes: bytes[goal] })
    }
}

// === impl NewJob ===

impl NewJob {
    /// Makes the job one that is written in a full topic, too. Its bytes count as before.
    pub fn lift_limits(&mut self) {
        self.max_waiting = None;
        self.max_bytes = self.max_bytes.map(|_| u64::MAX);
    }

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
