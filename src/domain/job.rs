//! What a job is.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::id::JobKey;
use super::name::ShardName;
use super::retry::RetryOverrides;
use super::time::Time;

/// Job data. The server never looks inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Whether `body` is UTF-8 text (shown as such by JSON tools) or anything else.
    pub text: bool,
    /// The bytes.
    pub body: Bytes,
    /// Media type; empty means the default of its kind.
    pub content_type: String,
}

/// The lasting part of what a producer asked for: what every attempt sees again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// The data, if any.
    pub payload: Option<Payload>,
    /// Headers, sorted by name.
    pub headers: Vec<(String, String)>,
    /// What the job itself says about retries.
    pub retry: RetryOverrides,
    /// Time-to-run per attempt, when the job names it.
    pub lease: Option<Duration>,
    /// Retention as asked for; [`Keep`] is what follows from it.
    pub retention: Option<Duration>,
}

/// The state of a job as the world sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its due time is ahead.
    Scheduled,
    /// Waits for a worker.
    Ready,
    /// Leased to a worker.
    Running,
    /// Failed; its next attempt is ahead.
    Backoff,
    /// Acknowledged. Terminal.
    Succeeded,
    /// Gave up, or dead-lettered by hand. Terminal until redriven.
    Dead,
    /// Deleted. Terminal.
    Cancelled,
    /// Was not running by its expire time. Terminal.
    Expired,
}

/// What stays of a job once it is finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionRule {
    /// Nothing: a late repeat runs again, unless it names the id that a server made, soon enough.
    #[default]
    Nothing,
    /// State, id and request hash for this long, so that a repeat finds them.
    Tombstone(Duration),
    /// The whole record and its result for this long.
    Record(Duration),
}

/// A stored job as it is read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its identity.
    pub key: JobKey,
    /// What was asked for.
    pub spec: Spec,
    /// 0 (default) to 9 (first).
    pub priority: u8,
    /// Not running by then: [`State::Expired`].
    pub expire_time: Option<Time>,
    /// Its state at the time of reading.
    pub state: State,
    /// Counted failures.
    pub failures: u32,
    /// Hand-overs, a running one included.
    pub deliveries: u32,
    /// Raised each time the id is enqueued over; 1 at first.
    pub generation: u32,
    /// When this generation was enqueued.
    pub create_time: Time,
    /// Next time it becomes ready, or the last.
    pub due_time: Time,
    /// While running: the deadline of the lease.
    pub lease_expire_time: Option<Time>,
    /// Current or last holder.
    pub worker_id: String,
    /// When it reached a terminal state.
    pub finish_time: Option<Time>,
    /// From the Ack.
    pub result: Option<Payload>,
    /// Of the last failed attempt.
    pub last_error: String,
    /// Finished runs, newest first.
    pub attempts: Vec<Attempt>,
    /// Last note of an Extend.
    pub progress: String,
    /// What a worker has kept for the next delivery.
    pub checkpoint: Option<Payload>,
    /// Where it lies.
    pub shard: ShardName,
}

/// One finished run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The delivery it was; 1 is the first.
    pub number: u32,
    /// When it was handed over.
    pub start_time: Time,
    /// When it ended.
    pub finish_time: Time,
    /// Who ran it.
    pub worker_id: String,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// What the worker said.
    pub error: String,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// Acknowledged.
    Succeeded,
    /// Nack.
    Failed,
    /// Nobody settled it in time.
    LeaseExpired,
    /// Handed back, not counted as a failure.
    Released,
    /// The job was deleted while it ran.
    Revoked,
}

/// How safe an accepted job is. Ordered: each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Held by the store's process.
    Memory,
    /// On the store's disk.
    Fsynced,
    /// On its disk, and received by a replica.
    Replicated,
}

// === impl AttemptOutcome ===

impl AttemptOutcome {
    /// Its stored number. Part of what recognizes the repeat of a settle: each way to settle has its own.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            AttemptOutcome::Succeeded => 1,
            AttemptOutcome::Failed => 2,
            AttemptOutcome::LeaseExpired => 3,
            AttemptOutcome::Released => 4,
            AttemptOutcome::Revoked => 5,
        }
    }

    /// The outcome with this number; one that is not known is a failure.
    #[must_use]
    pub fn of(code: u8) -> AttemptOutcome {
        match code {
            1 => AttemptOutcome::Succeeded,
            3 => AttemptOutcome::LeaseExpired,
            4 => AttemptOutcome::Released,
            5 => AttemptOutcome::Revoked,
            _ => AttemptOutcome::Failed,
        }
    }
}

// === impl Durability ===

impl fmt::Display for Durability {
    /// As in the contract, without its prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Memory => "MEMORY",
            Durability::Fsynced => "FSYNCED",
            Durability::Replicated => "REPLICATED",
        })
    }
}

// === impl Keep ===

impl RetentionRule {
    /// Until when it stays of a job that finished at `finish`; `None`: nothing does.
    #[must_use]
    pub fn until(self, finish: Time) -> Option<Time> {
        match self {
            RetentionRule::Nothing => None,
            RetentionRule::Tombstone(duration) | RetentionRule::Record(duration) => {
                Some(finish.plus(duration))
            }
        }
    }
}

// === impl Spec ===

impl Spec {
    /// Bytes of payload and headers: what a stream's byte credit counts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // All fields, so that a new one is thought of here.
        let Spec { payload, headers, retry: _, lease: _, retention: _ } = self;
        let headers: usize = headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        headers + payload.as_ref().map_or(0, |payload| payload.body.len())
    }

    /// What a tombstone keeps of it.
    #[must_use]
    pub fn of_tombstone(&self) -> Spec {
        Spec { lease: self.lease, ..Spec::default() }
    }

    /// What stays of the job: what it asks for, or else a tombstone for ids that somebody may
    /// repeat (`repeatable`: chosen by a client, or made from a request id).
    #[must_use]
    pub fn retention_rule(&self, repeatable: bool, tombstone: Duration) -> RetentionRule {
        match self.retention {
            Some(Duration::ZERO) => RetentionRule::Nothing,
            Some(retention) => RetentionRule::Record(retention),
            None if repeatable => RetentionRule::Tombstone(tombstone),
            None => RetentionRule::Nothing,
        }
    }
}

// === impl Keep ===

impl RetentionRule {
    /// For how long a finished job is found by its id, at least.
    #[must_use]
    pub fn duration(self) -> Duration {
        match self {
            RetentionRule::Nothing => Duration::ZERO,
            RetentionRule::Tombstone(time) | RetentionRule::Record(time) => time,
        }
    }
}

// === impl State ===

impl State {
    /// Every state, in the order of the life cycle.
    pub const ALL: [State; 8] = [
        State::Scheduled,
        State::Ready,
        State::Running,
        State::Backoff,
        State::Succeeded,
        State::Dead,
        State::Cancelled,
        State::Expired,
    ];

    /// The state of a job that waits for its due time or for a worker.
    #[must_use]
    pub fn waiting(due: Time, failures: u32, now: Time) -> State {
        match (due <= now, failures) {
            (true, _) => State::Ready,
            (false, 0) => State::Scheduled,
            (false, _) => State::Backoff,
        }
    }

    /// Whether the job waits (for its time, or for a worker).
    #[must_use]
    pub fn is_waiting(self) -> bool {
        matches!(self, State::Scheduled | State::Ready | State::Backoff)
    }

    /// Whether nothing more happens to the job by itself.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !self.is_waiting() && self != State::Running
    }

    /// Lowercase name, as in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Running => "running",
            State::Backoff => "backoff",
            State::Succeeded => "succeeded",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
            State::Expired => "expired",
        }
    }
}
