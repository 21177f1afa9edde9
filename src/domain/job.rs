//! The job: its spec, states, attempts, retention and durability.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::id::JobKey;
use super::name::{GroupName, ShardName};
use super::retry::RetryOverrides;
use super::time::Time;

/// Job data, which the server never interprets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// True if `body` is UTF-8 text (shown as text by JSON tools); false: any bytes.
    pub text: bool,
    /// Bytes of the payload.
    pub body: Bytes,
    /// Media type; empty: the default for text or bytes.
    pub content_type: String,
}

/// The lasting part of a producer's request, which every attempt receives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Payload, if any.
    pub payload: Option<Payload>,
    /// Headers, sorted by name.
    pub headers: Vec<(String, String)>,
    /// Retry settings of the job itself; `None`: nothing is set, which is the usual case. Boxed, because specs are moved a
    /// lot and the settings are the largest part.
    pub retry: Option<Box<RetryOverrides>>,
    /// Duration of the lease of each attempt, if the job names one.
    pub lease: Option<Duration>,
    /// Group whose lane the job waits in; `None`: the lane of all jobs without a group.
    pub group: Option<GroupName>,
    /// Retention as requested; [`RetentionRule`] is derived from it.
    pub retention: Option<Duration>,
}

/// Public state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The due time is ahead.
    Scheduled,
    /// Waits for a worker.
    Ready,
    /// Leased to a worker.
    Running,
    /// Failed; its next attempt is ahead.
    Backoff,
    /// Acknowledged. Terminal.
    Succeeded,
    /// Out of attempts or deliveries, or dead-lettered by a worker. Terminal until redriven.
    Dead,
    /// Deleted. Terminal.
    Cancelled,
    /// Not running by its expire time. Terminal.
    Expired,
}

/// The part of a job that is kept once it is finished, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionRule {
    /// No record is kept: a late repeat runs the job again, unless it has a server-made id and comes soon enough.
    #[default]
    Nothing,
    /// State, id and request hash, for this long, so that a repeat is recognized.
    Tombstone(Duration),
    /// The whole record with its result, for this long.
    Record(Duration),
}

/// A stored job as it is read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Topic and id.
    pub key: JobKey,
    /// Spec of the job.
    pub spec: Spec,
    /// Priority, 0 (default) to 9 (first).
    pub priority: u8,
    /// Expire time: a job that is not running by then is [`State::Expired`].
    pub expire_time: Option<Time>,
    /// State at the time of the read.
    pub state: State,
    /// Number of counted failures.
    pub failures: u32,
    /// Number of deliveries, a running one included.
    pub deliveries: u32,
    /// Number of crashes of its workers.
    pub crashes: u32,
    /// Number of the generation: 1 at first, raised each time the id is enqueued over.
    pub generation: u32,
    /// Time at which this generation was enqueued.
    pub create_time: Time,
    /// Due time, next or last.
    pub due_time: Time,
    /// Deadline of the lease; present while the job runs.
    pub lease_expire_time: Option<Time>,
    /// Current or last worker.
    pub worker_id: String,
    /// Time at which the job reached a terminal state.
    pub finish_time: Option<Time>,
    /// Result from the Ack.
    pub result: Option<Payload>,
    /// Error of the last failed attempt.
    pub last_error: String,
    /// Finished runs, newest first.
    pub attempts: Vec<Attempt>,
    /// Last progress note of an Extend.
    pub progress: String,
    /// Checkpoint that a worker stored for the next delivery.
    pub checkpoint: Option<Payload>,
    /// Shard that stores the job.
    pub shard: ShardName,
}

/// A finished run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Number of the delivery; 1 is the first.
    pub number: u32,
    /// Time of the delivery.
    pub start_time: Time,
    /// Time of the end.
    pub finish_time: Time,
    /// Worker that ran it.
    pub worker_id: String,
    /// Outcome of the attempt.
    pub outcome: AttemptOutcome,
    /// Error text of the worker.
    pub error: String,
}

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// Settled by an Ack.
    Succeeded,
    /// Settled by a Nack with RETRY or DEAD_LETTER.
    Failed,
    /// Not settled before the deadline of the lease.
    LeaseExpired,
    /// Released, not counted as a failure.
    Released,
    /// The job was deleted while it ran.
    Revoked,
}

/// Durability of an accepted job. Ordered: each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Held in the memory of the store's process.
    Memory,
    /// Synced to the store's disk.
    Fsynced,
    /// Synced to the store's disk, and received by a replica of the store.
    Replicated,
}

// === impl AttemptOutcome ===

impl AttemptOutcome {
    /// Returns the stored code. It helps to identify a repeated settle, so each way to settle has its own.
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

    /// Returns the outcome with this code; an unknown code is a failure.
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
    /// Formats the level as in the proto enum, without its prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Memory => "MEMORY",
            Durability::Fsynced => "FSYNCED",
            Durability::Replicated => "REPLICATED",
        })
    }
}

// === impl RetentionRule ===

impl RetentionRule {
    /// Returns the rule for a requested retention, see [`Spec::retention_rule`].
    #[must_use]
    pub fn of(requested: Option<Duration>, repeatable: bool, tombstone: Duration) -> RetentionRule {
        match requested {
            Some(Duration::ZERO) => RetentionRule::Nothing,
            Some(retention) => RetentionRule::Record(retention),
            None if repeatable => RetentionRule::Tombstone(tombstone),
            None => RetentionRule::Nothing,
        }
    }

    /// Returns the time until which the rest of a job that finished at `finish` is kept; `None`: nothing is kept.
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
    /// Returns the bytes of payload and headers, which count against a stream's byte credit.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // Names all fields, so that a new field does not compile until it is handled here.
        let Spec { payload, headers, retry: _, lease: _, group: _, retention: _ } = self;
        let headers: usize = headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        headers + payload.as_ref().map_or(0, |payload| payload.body.len())
    }

    /// Returns the bytes of all that a client may fill, about as they are stored: beside payload and headers the media
    /// type, the group and the retry settings.
    #[must_use]
    pub fn filled_bytes(&self) -> usize {
        let Spec { payload, headers: _, retry, lease: _, group, retention: _ } = self;
        self.bytes()
            + payload.as_ref().map_or(0, |payload| payload.content_type.len())
            + retry.as_ref().map_or(0, |retry| retry.filled_bytes())
            + GroupName::text(group.as_ref()).len()
    }

    /// Returns the part of the spec that a tombstone keeps.
    #[must_use]
    pub fn of_tombstone(&self) -> Spec {
        Spec { lease: self.lease, ..Spec::default() }
    }

    /// Returns the retention rule of the job: the requested retention, or else a tombstone for ids that a client may
    /// repeat (`repeatable`: chosen by a client, or derived from a request id).
    #[must_use]
    pub fn retention_rule(&self, repeatable: bool, tombstone: Duration) -> RetentionRule {
        RetentionRule::of(self.retention, repeatable, tombstone)
    }
}

// === impl RetentionRule ===

impl RetentionRule {
    /// Returns the time for which a finished job is found by its id, at least.
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

    /// Returns the state of a job that waits for its due time or for a worker.
    #[must_use]
    pub fn waiting(due: Time, failures: u32, now: Time) -> State {
        match (due <= now, failures) {
            (true, _) => State::Ready,
            (false, 0) => State::Scheduled,
            (false, _) => State::Backoff,
        }
    }

    /// Returns whether the job waits (for its due time, or for a worker).
    #[must_use]
    pub fn is_waiting(self) -> bool {
        matches!(self, State::Scheduled | State::Ready | State::Backoff)
    }

    /// Returns whether the job has ended and changes no more by itself.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !self.is_waiting() && self != State::Running
    }

    /// Returns the lowercase name, as in metrics and logs.
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
