//! The life of a job, decided in one place: [`apply`] takes what a store has of a job and what is asked of it, and
//! answers what the store has to write. It reads nothing and draws nothing: the time and what it found are arguments, so
//! every store comes to the same decision.
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
//! Waiting is one phase with three names: what distinguishes SCHEDULED, READY and BACKOFF is the clock and the failure
//! count, not a stored flag, so a job becomes ready on time whether or not a server looks.
//!
//! A running job may have a **waiting generation**: an enqueue with REPLACE or RESCHEDULE arrived while it ran. Whatever
//! ends the lease then ends the old generation too, without a retry, a dead letter or a kept record, even at its last
//! attempt; unless it has expired by then, the waiting generation takes its place with fresh counters (`finish.rs`, `start_next_generation`). Only a delete removes
//! both.
//!
//! - [`record`]: what is kept of a job; [`command`]: what can be asked of one; [`decision`]: what follows
//! - `enqueue`, `settle`, `change`: what each command does; `finish`: how jobs end and begin again
//! - [`placement()`]: in which orders and indexes a record stands
//! - [`view`](Record::job): how a record reads to the world
//! - [`clock`]: times that are counted from the commit, and the span in which a decision holds
//!
//! The one step that is not decided here is the claim, which stores do by themselves: it takes what is ready by
//! [`placement()`] and writes a [`record::Lease`].

pub mod command;
pub mod decision;
pub mod decision_clock;
pub mod placement;
pub mod record;

mod enqueue;
mod finish;
mod job_view;
mod manage;
mod settle;

use crate::domain::{State, Time};

use decision_clock::DecisionClock;

pub use command::{
    Adopt, Command, CommandReply, Deleted, Enqueue, EnqueueCommandReply, Extend, LeaseRefusal,
    NotWrittenReason, OutageExpiry, Redrive, Settle, SettleAction, SettleCommandReply, Unacked,
    WritePrecondition,
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

/// What a store found under an id.
#[derive(Clone, Debug, PartialEq)]
pub enum IdLookup {
    /// Its record.
    Record(Box<Record>),
    /// No record; what is known of an id that a server made matters to [`WritePrecondition::SameJob`] only.
    Absent(IdHistory),
}

/// What a store knows of an id of which it has no record, by the first of these that it finds: how the job ended, that
/// the id is too old, ahead of time or forgotten, that the shard drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdHistory {
    /// No job was ever written under it, or one may be written again.
    Free,
    /// A job under it ended so and left nothing.
    Ended(State),
    /// Nothing may be written under it.
    Rejected(NotWrittenReason),
}

/// A decision in the making.
struct DecisionBuilder {
    clock: DecisionClock,
    parts: PartChanges,
    effects: Effects,
}

/// Decides what `command` makes of what was `found` under its id, at the store's time `now`.
#[must_use]
pub fn apply(found: IdLookup, command: &Command, now: Time) -> Decision {
    let mut step = DecisionBuilder {
        clock: DecisionClock::new(now),
        parts: PartChanges::default(),
        effects: Effects::default(),
    };
    let (record, memory) = step.apply_clock(found);
    let (change, answer) = match command {
        Command::Enqueue(new) => step.enqueue(record, memory, new),
        Command::Settle(settle) => step.settle(record, settle),
        Command::Unclaim(token) => step.unclaim(record, *token),
        Command::Extend(extend) => step.extend(record, extend),
        Command::Detach { token, stream } => step.detach(record, *token, *stream),
        Command::Adopt(adopt) => step.adopt(record, adopt),
        Command::Delete { finished } => step.delete(record, *finished),
        Command::Reschedule { due, priority } => step.reschedule(record, *due, *priority),
        Command::Redrive(redrive) => step.redrive(record, redrive),
        Command::Prune => step.prune(record),
    };
    let window = step.clock.window();
    let unchanged = matches!(change, RecordChange::Keep);
    // What the clock has brought about is written by a prune, or with a change.
    let (parts, effects) = if unchanged { Default::default() } else { (step.parts, step.effects) };
    Decision { change, parts, effects, reply: answer, window }
}

/// The record after all that its clock has brought about.
enum CurrentRecord {
    /// Nothing is left, or never was anything.
    Gone,
    /// It is as it was found.
    Unchanged(Box<Record>),
    /// It has expired.
    Expired(Box<Record>),
}

impl DecisionBuilder {
    /// Lets the clock do its work: a job that waited until its expire time has expired then, one that was kept for long
    /// enough is forgotten.
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
