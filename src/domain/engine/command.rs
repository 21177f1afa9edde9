//! What can be asked of a job, and what is answered.

use std::time::Duration;

use crate::domain::lifecycle::Cause;
use crate::domain::retry::RetryPolicy;
use crate::domain::{
    EnqueueOutcome, JobKey, OnConflict, Payload, RetentionRule, Spec, State, StreamId, Time, Token,
    TopicName, When,
};

use super::decision_clock::RecordTime;

/// What is asked of one job.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Write it, or do to what has its id what [`conflict::resolve`](crate::domain::conflict::resolve) says.
    Enqueue(Box<Enqueue>),
    /// End its lease.
    Settle(Settle),
    /// Undo its lease, which no worker received: back to the old place, nothing counted; if a generation waits, it begins.
    Unclaim(Token),
    /// Move the deadline of its lease.
    Extend(Extend),
    /// Let its lease outlive the stream, if that one answers for it: the end of the stream does not give it back any more.
    Detach {
        /// Proof of the lease.
        token: Token,
        /// The stream.
        stream: StreamId,
    },
    /// Tie its lease to another stream.
    Adopt(Adopt),
    /// Cancel it if it waits or runs, forget it if it has finished.
    Delete {
        /// Only if it finished then: a later generation under its id stays.
        finished: Option<Time>,
    },
    /// Move it if it waits, revive it if it is dead.
    Reschedule {
        /// The new due time; absent keeps it.
        due: Option<When>,
        /// The new priority; absent keeps it.
        priority: Option<u8>,
    },
    /// Put it back with fresh counters if it has finished.
    Redrive(Redrive),
    /// What its clock has brought about: expire it, forget it. It ends no lease: that is a [`Settle`] with the deadline that
    /// has passed, and [`Cause::Expired`](crate::domain::lifecycle::Cause).
    Prune,
}

impl Command {
    /// Bytes of the bodies that it brings.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Command::Enqueue(new) => new.spec.bytes() + body(new.checkpoint.as_ref()),
            Command::Settle(Settle {
                action: SettleAction::Ack { result, follow_ups }, ..
            }) => {
                let follow_ups = follow_ups.iter().map(|(_, job)| job.spec.bytes());
                body(result.as_ref()) + follow_ups.sum::<usize>()
            }
            Command::Extend(extend) => body(extend.checkpoint.as_ref()),
            _ => 0,
        }
    }

    /// How many jobs it may write.
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

/// A job to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Enqueue {
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
}

/// What may lie under the id of a job that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePrecondition {
    /// Anything, which [`OnConflict`] decides about.
    Anything,
    /// The job itself: it may have been written before, under an id that a server made. One that has ended and left
    /// nothing is unchanged, and not written again, and so is one that was deleted; where the store cannot know, it
    /// answers [`NotWrittenReason`].
    SameJob,
}

/// Why nothing was written under an id that a server made ([`WritePrecondition::SameJob`]), of which there is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWrittenReason {
    /// It was made [`REPEAT_MAX`](crate::domain::limit::REPEAT_MAX) ago or earlier, so what has ended under it is not
    /// recalled.
    TooOld,
    /// It was made more than [`ID_AHEAD_MAX`](crate::domain::limit::ID_AHEAD_MAX) after now.
    FromFuture,
    /// The store does not recall any more what has ended under ids that were made then: it was opened since, or too many
    /// have.
    HistoryLost,
    /// Nothing was ever written under it, and the shard is to become empty.
    Draining,
}

/// Ends one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// Proof of it.
    pub token: Token,
    /// Only while its deadline is still this one: an end that no worker asked for. Whoever asks for it has seen that the
    /// deadline has passed; here it is compared for equality only.
    pub deadline: Option<Time>,
    /// How it ends.
    pub action: SettleAction,
}

/// How a lease ends.
#[derive(Clone, Debug, PartialEq)]
pub enum SettleAction {
    /// The job is done.
    Ack {
        /// Kept as long as the record is: not where a generation waits, as no record of this one is left then.
        result: Option<Payload>,
        /// Jobs that are written together with it.
        follow_ups: Vec<(JobKey, Enqueue)>,
    },
    /// The job is not done: what becomes of it is decided by
    /// [`lease_end`](crate::domain::lifecycle::lease_end), from how it stands.
    Unacked(Unacked),
}

/// The end of a lease whose job is not done.
#[derive(Clone, Debug, PartialEq)]
pub struct Unacked {
    /// Why.
    pub cause: Cause,
    /// What is in force where the job itself says nothing.
    pub policy: RetryPolicy,
    /// Uniform in `[0, 1)`, for the jitter of a wait. Drawn with the command, so that a decision that is made again is
    /// the same.
    pub entropy: f64,
    /// How long a dead letter is kept.
    pub dead_retention: Duration,
}

/// Moves the deadline of one lease to now plus a duration, and keeps what its worker has reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Extend {
    /// Proof of it.
    pub token: Token,
    /// From now; absent: the lease's own duration.
    pub duration: Option<Duration>,
    /// Note for people; absent keeps the last one.
    pub progress: Option<String>,
    /// What the next delivery brings along; an empty one clears it, absent keeps the last one.
    pub checkpoint: Option<Payload>,
    /// It ran out while no server served its shard, and waits for its worker.
    pub outage_expiry: Option<OutageExpiry>,
}

impl Extend {
    /// Whether it needs room in the store.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.body.is_empty())
    }
}

/// Ties a lease to another stream, which answers for it from then on. A repeat changes nothing and is answered the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopt {
    /// Proof of the lease.
    pub token: Token,
    /// The stream that answers for it now; another one keeps it.
    pub from: StreamId,
    /// The stream that takes it over.
    pub to: StreamId,
    /// How long after the end of that stream the lease is given back.
    pub grace: Duration,
    /// Unless it was detached: only if it was extended then or later. `None`: in any case.
    pub since: Option<Time>,
}

/// A lease that ran out while no server served its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutageExpiry {
    /// Only while its deadline is still this one.
    pub deadline: Time,
    /// When the shard was served again: as if it had been extended then.
    pub served_since: Time,
}

/// Puts a finished job back.
#[derive(Clone, Debug, PartialEq)]
pub struct Redrive {
    /// Only from one of these states, which are terminal; a tombstone, which has no payload, stays.
    pub states: Vec<State>,
    /// Its new due time, from now.
    pub delay: Duration,
    /// How much later each further job of a call is due that is put back.
    pub spacing: Duration,
    /// How long after its new due time it expires if its expire time is not after that; none: it stays.
    pub ttl: Option<Duration>,
    /// Move it to this topic, where its id is free.
    pub target: Option<TopicName>,
    /// Only answer whether that would be done.
    pub dry_run: bool,
}

impl Redrive {
    /// The command for a job before which so many of its call were put back.
    #[must_use]
    pub fn after(&self, redriven: u32) -> Redrive {
        let delay = self.delay.saturating_add(self.spacing.saturating_mul(redriven));
        Redrive { delay, ..self.clone() }
    }
}

/// What a command answers. Times that are counted from now are those of the decision.
#[derive(Clone, Debug, PartialEq)]
pub enum CommandReply {
    /// Of [`Command::Enqueue`].
    Enqueued(EnqueueCommandReply),
    /// Of [`Command::Settle`].
    Settled(Result<SettleCommandReply, LeaseRefusal>),
    /// Of [`Command::Extend`]: the new deadline.
    Extended(Result<RecordTime, LeaseRefusal>),
    /// Of [`Command::Delete`]; nothing where there is no such job.
    Deleted(Option<Deleted>),
    /// Of [`Command::Reschedule`]: whether there is such a job, or the state that refuses it.
    Rescheduled(Result<bool, State>),
    /// Of [`Command::Unclaim`], [`Command::Redrive`] and [`Command::Prune`]: whether that was done.
    Applied(bool),
}

impl CommandReply {
    /// The answer of a decision that was made at `decided` and is written at `committed`.
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

/// What an enqueue found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnqueueCommandReply {
    /// What it did; `None`: the id is taken and the policy is [`OnConflict::Reject`].
    pub outcome: Option<EnqueueOutcome>,
    /// The state found (unchanged, deferred, refused) or made.
    pub state: State,
    /// When the job (or, deferred, its next generation) becomes ready.
    pub due: RecordTime,
    /// Nothing was written, for this reason, and the rest means nothing.
    pub not_written: Option<NotWrittenReason>,
}

/// A lease that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleCommandReply {
    /// The settle was applied before and this is a repeat, which changes nothing.
    pub repeated: bool,
    /// The state that the job, or the generation that has begun, is in now. Where no record is left: SUCCEEDED after an
    /// ack, EXPIRED after any other end.
    pub state: State,
}

/// Why a lease could not be settled or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// No such job: deleted, or finished and forgotten.
    #[error("the job is gone: deleted, or finished without retention")]
    NotFound,
    /// Another lease, or none.
    #[error("the lease is gone: it ran out or was revoked")]
    Stale,
}

/// What a delete found.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// The state before.
    pub previous: State,
    /// Whose lease was revoked: owner, stream and token.
    pub revoked: Option<(u32, u32, Token)>,
}
