//! The life of a job, decided in one place: [`apply`] takes the stored state of a job and a command, and returns what
//! the store has to write. The engine does no IO and draws no random numbers: the time and the stored state are
//! arguments, so every store comes to the same decision.
//!
//! ```text
//!              enqueue                     claim                 ack
//!   (nothing) ─────────▶ SCHEDULED ─due─▶ READY ─────▶ RUNNING ──────▶ SUCCEEDED
//!                                          ▲  ▲  release │ │
//!                                          │  └──────────┘ │ retry
//!                                     due  │               ▼
//!                                          └─────────── BACKOFF
//!   SCHEDULED, READY, BACKOFF ──expire──▶ EXPIRED        RUNNING ──used up, dead-letter──▶ DEAD
//!   SCHEDULED, READY, BACKOFF, RUNNING ──delete──▶ CANCELLED       RUNNING ──not acked by its expire time──▶ EXPIRED
//!   SUCCEEDED, DEAD, CANCELLED, EXPIRED ──redrive──▶ SCHEDULED     DEAD ──reschedule──▶ SCHEDULED
//! ```
//!
//! Waiting is one phase with three names: the clock and the failure count distinguish SCHEDULED, READY and BACKOFF, not
//! a stored flag, so a job becomes ready on time whether or not a server checks it.
//!
//! A running job may have a **waiting generation**: an enqueue with REPLACE or RESCHEDULE arrived while it ran. Every
//! end of the lease then ends the old generation too, without a retry, a dead letter or a kept record, even at its last
//! attempt. Unless it has expired by then, the waiting generation takes its place with fresh counters (`finish.rs`,
//! `start_next_generation`). Only a delete removes both.
//!
//! - [`record`]: stored state of a job; [`command`]: commands and their replies; [`decision`]: their results
//! - `enqueue`, `settle`, `redrive`, `delete`: one function for each command; `finish`: ends and restarts of jobs
//! - [`placement()`]: index of a record, and the time of its next event
//! - `job_view`, [`Record::job`]: public view of a record
//! - [`decision_clock`]: times that are counted from the commit, and the span in which a decision is valid
//!
//! The one step that is not decided here is the claim, which stores do by themselves: it takes ready jobs by
//! [`placement()`] and writes a [`record::Lease`].

pub mod command;
pub mod decision;
pub mod decision_clock;
pub mod placement;
pub mod record;

mod delete;
mod enqueue;
mod finish;
mod job_view;
mod redrive;
mod settle;

use crate::domain::{State, Time};

use decision_clock::DecisionClock;

pub use command::{
    Adopt, CarriedHistory, Command, CommandReply, CrashMove, Deleted, Enqueue, EnqueueCommandReply,
    Extend, LeaseRefusal, NewJob, NotWrittenReason, OutageExpiry, Purge, Redrive, Settle,
    SettleAction, SettleCommandReply, Unacked, WritePrecondition,
};
pub use decision::{
    AttemptsChange, CounterIncrements, Decision, Effects, LeaseChange, LeaseHolder, PartChange,
    PartChanges, PayloadChange, RecordChange,
};
pub use decision_clock::{RecordTime, ValidityWindow};
pub use finish::settled_code;
pub use job_view::JobParts;
pub use placement::{JobIndex, Placement, placement};
pub use record::{
    Finish, JobHistory, Lease, LeaseEndHistory, NextGeneration, NextGenerationSpec, Phase, Record,
};
pub use redrive::redrive_to;

/// Content that a store found under an id.
#[derive(Clone, Debug, PartialEq)]
pub enum IdLookup {
    /// Record of the job.
    Record(Box<Record>),
    /// No record. The history of a server-made id matters to [`WritePrecondition::SameJob`] only.
    Absent(IdHistory),
}

/// History of an id without a record. The store returns the first that applies: the state in which the job ended; the
/// id is too old, from the future, or its history is lost; the shard is draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdHistory {
    /// No job was ever written under the id, or one may be written again.
    Free,
    /// A job under the id ended in this state and left no record.
    Ended(State),
    /// No job may be written under the id, for this reason.
    Rejected(NotWrittenReason),
}

/// Builds a [`Decision`].
struct DecisionBuilder {
    clock: DecisionClock,
    parts: PartChanges,
    effects: Effects,
}

/// Decides the result of `command` on the content `found` under its id, at the store's time `now`.
#[must_use]
pub fn apply(found: IdLookup, command: &Command, now: Time) -> Decision {
    let mut step = DecisionBuilder {
        clock: DecisionClock::new(now),
        parts: PartChanges::default(),
        effects: Effects::default(),
    };
    let (change, answer) = step.decide(found, command);
    let window = step.clock.window();
    let unchanged = matches!(change, RecordChange::Keep);
    // Changes that are due by the clock alone are written by a prune, or together with another change.
    let (parts, effects) = if unchanged { Default::default() } else { (step.parts, step.effects) };
    Decision { change, parts, effects, reply: answer, window }
}

/// Record after the changes that are due by the clock.
enum CurrentRecord {
    /// There is no record, or no longer.
    Gone,
    /// The record is as it was found.
    Unchanged(Box<Record>),
    /// The job has expired.
    Expired(Box<Record>),
}

impl DecisionBuilder {
    fn decide(&mut self, found: IdLookup, command: &Command) -> (RecordChange, CommandReply) {
        let (record, memory) = self.apply_clock(found);
        match command {
            Command::Enqueue(new) => self.enqueue(record, memory, new),
            Command::Settle(settle) => self.settle(record, settle),
            Command::Unclaim(token) => self.unclaim(record, *token),
            Command::Extend(extend) => self.extend(record, extend),
            Command::Detach { token, stream } => self.detach(record, *token, *stream),
            Command::Adopt(adopt) => self.adopt(record, adopt),
            Command::Delete { finished } => self.delete(record, *finished),
            Command::Purge(purge) => self.purge(record, purge),
            Command::Reschedule { due, priority } => self.reschedule(record, *due, *priority),
            Command::Redrive(redrive) => self.redrive(record, redrive),
            Command::Prune => self.prune(record),
            Command::Evict { frees_bytes } => self.evict(record, *frees_bytes),
        }
    }

    /// Applies the changes that are due by the clock: a job that waited until its expire time expires, and a record
    /// past its retention is removed.
    fn apply_clock(&mut self, found: IdLookup) -> (CurrentRecord, IdHistory) {
        let record = match found {
            IdLookup::Absent(memory) => return (CurrentRecord::Gone, memory),
            IdLookup::Record(record) => record,
        };
        let elapsed = match (&record.phase, record.expire) {
            (Phase::Finished(finish), _) if self.clock.is_reached(finish.until) => {
                self.remove_finished(finish.state);
                CurrentRecord::Gone
            }
            (Phase::Waiting, Some(expire)) if self.clock.is_reached(expire) => {
                match self.finish(*record, State::Expired, expire, None) {
                    Some(record) => CurrentRecord::Expired(Box::new(record)),
                    None => CurrentRecord::Gone,
                }
            }
            _ => CurrentRecord::Unchanged(record),
        };
        let memory = self.effects.final_state.map_or(IdHistory::Free, IdHistory::Ended);
        (elapsed, memory)
    }

    fn prune(&mut self, elapsed: CurrentRecord) -> (RecordChange, CommandReply) {
        match elapsed {
            CurrentRecord::Expired(record) => {
                (RecordChange::Write(record), CommandReply::Applied(true))
            }
            CurrentRecord::Gone if self.effects.final_state.is_some() => {
                (RecordChange::Remove, CommandReply::Applied(true))
            }
            CurrentRecord::Gone | CurrentRecord::Unchanged(_) => {
                (RecordChange::Keep, CommandReply::Applied(false))
            }
        }
    }
}

impl CurrentRecord {
    fn record(self) -> Option<Record> {
        match self {
            CurrentRecord::Gone => None,
            CurrentRecord::Unchanged(record) | CurrentRecord::Expired(record) => Some(*record),
        }
    }
}

#[cfg(test)]
mod tests;
