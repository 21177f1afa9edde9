//! Commands on a job, and their replies.

use std::time::Duration;

use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::retry::RetryPolicy;
use crate::domain::{
    EnqueueOutcome, GroupName, JobKey, OnConflict, Payload, RetentionRule, Spec, State, StreamId,
    Time, Token, TopicName, When,
};

use super::decision_clock::RecordTime;

/// A command on one job.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Writes a job. If its id is taken, [`conflict::resolve`](crate::domain::conflict::resolve) decides what happens.
    Enqueue(Box<Enqueue>),
    /// Ends the lease of the job.
    Settle(Settle),
    /// Undoes a lease that no worker received: the job returns to its old place and nothing is counted. If a generation
    /// waits, that one begins.
    Unclaim(Token),
    /// Moves the deadline of the lease.
    Extend(Extend),
    /// Detaches the lease from a stream that holds it: the end of the stream no longer releases the lease.
    Detach {
        /// Token of the lease.
        token: Token,
        /// Stream that must hold the lease.
        stream: StreamId,
    },
    /// Moves the lease to another stream.
    Adopt(Adopt),
    /// Cancels the job if it waits or runs; removes its record if it has finished.
    Delete {
        /// Finish time that the job must have, so that a later generation under its id stays. `None`: any job.
        finished: Option<Time>,
    },
    /// Deletes the job, as [`Command::Delete`] does, if it is one that a purge means.
    Purge(Purge),
    /// Moves the job if it waits; revives it if it is dead.
    Reschedule {
        /// The new due time; absent keeps it.
        due: Option<When>,
        /// The new priority; absent keeps it.
        priority: Option<u8>,
    },
    /// Makes a finished job wait again with fresh counters.
    Redrive(Redrive),
    /// Makes a waiting job EXPIRED before its time, because its topic needs the room for newer ones.
    Evict {
        /// True: of a record that stays only a tombstone is left, which takes no bytes of the topic.
        frees_bytes: bool,
    },
    /// Applies what is due by the clock: expires the job, or removes its record. Prune ends no lease: that takes a
    /// [`Settle`] with the deadline that has passed, and [`LeaseEndCause::Expired`](crate::domain::lifecycle::LeaseEndCause).
    Prune,
}

impl Command {
    /// Bytes of the bodies in the command.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Command::Enqueue(new) => {
                let history = new.history.as_deref();
                new.spec.bytes() + body(history.and_then(|history| history.checkpoint.as_ref()))
            }
            Command::Settle(Settle {
                action: SettleAction::Ack { result, follow_ups }, ..
            }) => {
                let follow_ups = follow_ups.iter().map(|job| job.enqueue.spec.bytes());
                body(result.as_ref()) + follow_ups.sum::<usize>()
            }
            Command::Extend(extend) => body(extend.checkpoint.as_ref()),
            _ => 0,
        }
    }

    /// Number of jobs that the command may write.
    #[must_use]
    pub fn jobs(&self) -> usize {
        1 + match self {
            Command::Settle(Settle { action: SettleAction::Ack { follow_ups, .. }, .. }) => {
                follow_ups.len()
            }
            Command::Redrive(Redrive { target: Some(_), .. }) => 1,
            _ => 0,
        }
    }
}

fn body(payload: Option<&Payload>) -> usize {
    payload.map_or(0, |payload| payload.body.len())
}

/// A job to write under its key.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Key of the job.
    pub key: JobKey,
    /// The rest. Boxed, because jobs are moved a lot on their way.
    pub enqueue: Box<Enqueue>,
}

/// A job to write, without its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Enqueue {
    /// The lasting part of the request.
    pub spec: Spec,
    /// Due time.
    pub due: When,
    /// Priority, 0 to 9; absent: 0, or unchanged under [`OnConflict::Reschedule`].
    pub priority: Option<u8>,
    /// Expire time: a job that is not running by then is EXPIRED. Never [`When::Now`].
    pub expire: Option<When>,
    /// Retention of the job once it is finished.
    pub retention: RetentionRule,
    /// Policy for a taken id.
    pub on_conflict: OnConflict,
    /// Code of the request, see [`conflict::request_code`](crate::domain::conflict::request_code). A call with the code
    /// of the last request that was applied is a repeat.
    pub request_code: Option<u64>,
    /// Condition on what is stored under the id.
    pub precondition: WritePrecondition,
    /// Number of waiting jobs that the topic may have on the shard. The store writes nothing that would make it more, see
    /// [`Decision::adds_waiting`](super::Decision::adds_waiting). `None`: no limit.
    pub max_waiting: Option<u64>,
    /// Number of bytes that the stored jobs of the topic may have on the shard, see
    /// [`Record::counted_bytes`](super::Record::counted_bytes). The store counts the job, and writes nothing that would
    /// make them more; [`u64::MAX`]: it only counts. `None`: no limit.
    pub max_bytes: Option<u64>,
    /// History of a job that comes from another shard or topic, which the fast paths do not write. Boxed, because hardly
    /// any job has it and all are moved a lot.
    pub history: Option<Box<CarriedHistory>>,
}

/// Part of its history that a job brings along from another shard or topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CarriedHistory {
    /// Checkpoint. Ignored if a job has the id.
    pub checkpoint: Option<Payload>,
    /// Last error; empty: none. Ignored if a job that has the id stays.
    pub last_error: String,
}

// === impl Enqueue, CarriedHistory ===

impl Enqueue {
    /// Makes the job one that is written in a full topic, too. Its bytes count as before.
    pub fn lift_limits(&mut self) {
        self.max_waiting = None;
        self.max_bytes = self.max_bytes.map(|_| u64::MAX);
    }

    /// Returns whether the topic may have no room for the job.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.max_waiting.is_some() || self.max_bytes.is_some_and(|max| max < u64::MAX)
    }
}

impl CarriedHistory {
    /// Returns the history as a new job has it: `None` if there is nothing in it.
    #[must_use]
    pub fn boxed(self) -> Option<Box<CarriedHistory>> {
        (self != CarriedHistory::default()).then(|| Box::new(self))
    }
}

/// Condition on what is stored under the id of a job to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePrecondition {
    /// No condition; [`OnConflict`] decides.
    Anything,
    /// Only the job itself, which may have been written before under a server-made id. A job that ended without a
    /// record, or was deleted, is unchanged and not written again. Where the store cannot decide that, it returns a
    /// [`NotWrittenReason`].
    SameJob,
}

/// Reason why nothing was written: no record has the server-made id, see [`WritePrecondition::SameJob`], or the topic is
/// full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotWrittenReason {
    /// The id was made [`REPEAT_MAX`](crate::domain::limit::REPEAT_MAX) ago or earlier: the store has no history of it.
    #[error("the id was made too long ago")]
    TooOld,
    /// The id was made more than [`ID_AHEAD_MAX`](crate::domain::limit::ID_AHEAD_MAX) after now.
    #[error("the id was made in the future of the shard's clock")]
    FromFuture,
    /// The store has lost the history of ids that were made then: it was opened since, or too many jobs have ended.
    #[error("the shard has no history of ids from that time")]
    HistoryLost,
    /// No job was ever written under the id, and the shard is draining.
    #[error("the shard is draining")]
    Draining,
    /// The topic has as many waiting jobs as [`Enqueue::max_waiting`] allows, or would have more bytes than
    /// [`Enqueue::max_bytes`] allows.
    #[error("the topic has no room for the job on the shard")]
    TopicFull,
}

/// Ends one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// Token of the lease.
    pub token: Token,
    /// Deadline that the lease must still have, for an end that no worker requested. The caller has checked that it has
    /// passed; here it is compared for equality only. `None`: the worker settles.
    pub deadline: Option<Time>,
    /// Way in which the lease ends.
    pub action: SettleAction,
}

/// Way in which a lease ends.
#[derive(Clone, Debug, PartialEq)]
pub enum SettleAction {
    /// The job succeeded.
    Ack {
        /// Result, kept as long as the record. Not kept if a generation waits: then no record of this one is left.
        result: Option<Payload>,
        /// Jobs to enqueue in the same write.
        follow_ups: Vec<NewJob>,
    },
    /// The job is not done: [`lease_end`](crate::domain::lifecycle::lease_end) decides its next step.
    Unacked(Unacked),
}

/// The end of a lease whose job is not done.
#[derive(Clone, Debug, PartialEq)]
pub struct Unacked {
    /// Cause of the end.
    pub cause: LeaseEndCause,
    /// Retry policy for the fields that the job itself does not set.
    pub policy: RetryPolicy,
    /// Random number, uniform in `[0, 1)`, for the jitter of a wait. Drawn with the command, so that a repeated
    /// decision is the same.
    pub entropy: f64,
    /// Retention of a dead letter.
    pub dead_retention: Duration,
    /// Move of the job to its crash topic, where this end is the last crash that it may have.
    pub crash_move: CrashMove,
}

/// Move of a job to its crash topic. The job is written there before its lease ends here, so that it is never lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CrashMove {
    /// The job has no crash topic, or another generation takes its place: it stays in its topic.
    #[default]
    None,
    /// The crash topic has the job: it is removed here.
    Copied,
    /// The crash topic could not take the job, for this reason: it becomes a dead letter.
    Rejected(String),
}

/// Moves the deadline of one lease to now plus a duration, and stores its worker's progress and checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Extend {
    /// Token of the lease.
    pub token: Token,
    /// Time from now to the new deadline; absent: the lease's own duration.
    pub duration: Option<Duration>,
    /// Note for people; absent keeps the last one.
    pub progress: Option<String>,
    /// Checkpoint for the next delivery; an empty one clears it, absent keeps the last one.
    pub checkpoint: Option<Payload>,
    /// Present for a lease that expired while no server served its shard and that waits for its worker.
    pub outage_expiry: Option<OutageExpiry>,
}

impl Extend {
    /// Returns whether the command needs room in the store.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.body.is_empty())
    }
}

/// Moves a lease to another stream, which holds it from then on. A repeat changes nothing and gets the same reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopt {
    /// Token of the lease.
    pub token: Token,
    /// Stream that must hold the lease now; a lease of another stream stays there.
    pub from: StreamId,
    /// Stream that takes the lease over.
    pub to: StreamId,
    /// Time from the end of that stream to the release of the lease.
    pub grace: Duration,
    /// Time since which the lease must have been extended, unless it is detached. `None`: no such condition.
    pub since: Option<Time>,
}

impl Adopt {
    /// Returns the time since which the lease must have been extended. A detached one has no stream that would release
    /// it.
    #[must_use]
    pub fn extended_min(&self, is_detached: bool) -> Time {
        self.since.filter(|_| !is_detached).unwrap_or(Time(0))
    }
}

/// Expiry of a lease while no server served its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutageExpiry {
    /// Deadline that the lease must still have.
    pub deadline: Time,
    /// Time at which the shard was served again; the extension counts from it.
    pub served_since: Time,
}

/// Deletes the jobs that were in some states when a call began. The states of a job are compared at the time of the
/// decision, so that one which has left them meanwhile stays.
#[derive(Clone, Debug, PartialEq)]
pub struct Purge {
    /// States of the jobs to delete.
    pub states: Vec<State>,
    /// Time at which the call began, by the clock of the store. A generation that was enqueued after it stays, so that
    /// a purge comes to its end while jobs arrive. A job that was cancelled after it stays CANCELLED: a purge would
    /// count the record that it has left of a job a second time.
    pub begin: Time,
    /// Group of the jobs; `Some(None)`: those without one. A tombstone has no group that is known, and stays. `None`: all
    /// jobs.
    pub group: Option<Option<GroupName>>,
}

/// Makes a finished job wait again.
#[derive(Clone, Debug, PartialEq)]
pub struct Redrive {
    /// Terminal states of the jobs to redrive. A tombstone, which has no payload, stays.
    pub states: Vec<State>,
    /// Delay from now to the new due time.
    pub delay: Duration,
    /// Delay that each further redriven job of a call adds to its due time.
    pub spacing: Duration,
    /// Time from the new due time to the new expire time, if the old expire time is not after the new due time. `None`:
    /// such a job stays.
    pub ttl: Option<Duration>,
    /// Topic to move the job to, if its id is free there.
    pub target: Option<TopicName>,
    /// True: only replies whether the job would be redriven.
    pub dry_run: bool,
}

impl Redrive {
    /// Returns the command for the next job of a call that has redriven so many.
    #[must_use]
    pub fn after(&self, redriven: u32) -> Redrive {
        let delay = self.delay.saturating_add(self.spacing.saturating_mul(redriven));
        Redrive { delay, ..self.clone() }
    }
}

/// Reply of a command. Times that are counted from now are counted from the time of the decision.
#[derive(Clone, Debug, PartialEq)]
pub enum CommandReply {
    /// Reply of [`Command::Enqueue`].
    Enqueued(EnqueueCommandReply),
    /// Reply of [`Command::Settle`].
    Settled(Result<SettleCommandReply, LeaseRefusal>),
    /// Reply of [`Command::Extend`]: the new deadline.
    Extended(Result<RecordTime, LeaseRefusal>),
    /// Reply of [`Command::Delete`] and [`Command::Purge`]; `None`: there is no such job.
    Deleted(Option<Deleted>),
    /// Reply of [`Command::Reschedule`]: whether there is such a job, or the state that does not allow it.
    Rescheduled(Result<bool, State>),
    /// Reply of all other commands: whether the command was applied.
    Applied(bool),
}

impl CommandReply {
    /// Returns whether it is the reply of a command that was applied and returns nothing else.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        *self == CommandReply::Applied(true)
    }

    /// Returns the reply of a decision that was made at `decided` and is written at `committed`.
    #[must_use]
    pub fn committed(self, decided: Time, committed: Time) -> CommandReply {
        let fixed = |moment: RecordTime| RecordTime::fixed(moment.at_commit(decided, committed));
        match self {
            CommandReply::Enqueued(enqueued) => {
                CommandReply::Enqueued(EnqueueCommandReply { due: fixed(enqueued.due), ..enqueued })
            }
            CommandReply::Extended(extended) => CommandReply::Extended(extended.map(fixed)),
            CommandReply::Settled(_)
            | CommandReply::Deleted(_)
            | CommandReply::Rescheduled(_)
            | CommandReply::Applied(_) => self,
        }
    }
}

/// Reply of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnqueueCommandReply {
    /// Outcome; `None`: the id is taken and the enqueue is rejected.
    pub outcome: Option<EnqueueOutcome>,
    /// State of the job: found (unchanged, deferred, rejected) or written.
    pub state: State,
    /// Due time of the job or, if deferred, of its next generation.
    pub due: RecordTime,
    /// Reason why nothing was written; if present, the other fields mean nothing.
    pub not_written: Option<NotWrittenReason>,
}

// === impl EnqueueCommandReply ===

impl EnqueueCommandReply {
    /// Returns the reply of an enqueue for which the topic has no room.
    #[must_use]
    pub fn topic_full(now: Time) -> EnqueueCommandReply {
        EnqueueCommandReply {
            outcome: None,
            state: State::Ready,
            due: RecordTime::fixed(now),
            not_written: Some(NotWrittenReason::TopicFull),
        }
    }
}

/// Reply of a settle whose lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleCommandReply {
    /// True: the settle was applied before, and this repeat changes nothing.
    pub repeated: bool,
    /// State of the job, or of the generation that has begun. If no record is left: SUCCEEDED after an Ack, EXPIRED
    /// after any other end.
    pub state: State,
}

/// Reason why a lease could not be settled or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// No such job: deleted, or finished and its record removed.
    #[error("the job is gone: deleted, or finished without retention")]
    NotFound,
    /// The job has another lease, or none.
    #[error("the lease is gone: it ran out or was revoked")]
    Stale,
}

/// Reply of a delete that found a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// State before the delete.
    pub previous: State,
    /// Revoked lease: owner, stream and token.
    pub revoked: Option<(u32, u32, Token)>,
}
