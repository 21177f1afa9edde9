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
//! attempt; unless it has expired by then, the waiting generation takes its place with fresh counters (`finish.rs`, `begin_next`). Only a delete removes
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

pub mod clock;
pub mod command;
pub mod decision;
pub mod placement;
pub mod record;

mod change;
mod enqueue;
mod finish;
mod settle;
mod view;

use crate::domain::{State, Time};

use clock::Clock;

pub use clock::{Moment, Window};
pub use command::{
    Adopt, Answer, Command, Deleted, End, Enqueue, Enqueued, Extend, Lapsed, Prior, Redrive,
    Refused, Settle, Settled, Unacked, Unwritten,
};
pub use decision::{
    AttemptsChange, Change, Counts, Decision, Effects, Holder, LeaseNews, PartChange, Parts,
    PayloadChange,
};
pub use finish::settled_code;
pub use placement::{Place, Placement, placement};
pub use record::{Brought, Ends, Finish, Lease, Life, Next, Phase, Record};
pub use view::Bodies;

/// What a store found under an id.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Its record.
    Record(Box<Record>),
    /// No record; what is known of an id that a server made matters to [`Prior::Itself`] only.
    Nothing(Memory),
}

/// What a store knows of an id of which it has no record, by the first of these that it finds: how the job ended, that
/// the id is too old, ahead of time or forgotten, that the shard drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// No job was ever written under it, or one may be written again.
    Free,
    /// A job under it ended so and left nothing.
    Ended(State),
    /// Nothing may be written under it.
    Refuses(Unwritten),
}

/// A decision in the making.
struct Step {
    clock: Clock,
    parts: Parts,
    effects: Effects,
}

/// Decides what `command` makes of what was `found` under its id, at the store's time `now`.
#[must_use]
pub fn apply(found: Found, command: &Command, now: Time) -> Decision {
    let mut step =
        Step { clock: Clock::new(now), parts: Parts::default(), effects: Effects::default() };
    let (record, memory) = step.elapse(found);
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
    let unchanged = matches!(change, Change::Keep);
    // What the clock has brought about is written by a prune, or with a change.
    let (parts, effects) = if unchanged { Default::default() } else { (step.parts, step.effects) };
    Decision { change, parts, effects, answer, window }
}

/// The record after all that its clock has brought about.
enum Elapsed {
    /// Nothing is left, or never was anything.
    Gone,
    /// It is as it was found.
    Same(Box<Record>),
    /// It has expired.
    Expired(Box<Record>),
}

impl Step {
    /// Lets the clock do its work: a job that waited until its expire time has expired then, one that was kept for long
    /// enough is forgotten.
    fn elapse(&mut self, found: Found) -> (Elapsed, Memory) {
        let record = match found {
            Found::Nothing(memory) => return (Elapsed::Gone, memory),
            Found::Record(record) => record,
        };
        let elapsed = match (&record.phase, record.expire) {
            (Phase::Finished(finish), _) if self.clock.has_come(finish.until) => {
                self.forget(finish.state);
                Elapsed::Gone
            }
            (Phase::Waiting, Some(expire)) if self.clock.has_come(expire) => {
                match self.finish(*record, State::Expired, expire, None) {
                    Some(record) => Elapsed::Expired(Box::new(record)),
                    None => Elapsed::Gone,
                }
            }
            _ => Elapsed::Same(record),
        };
        let memory = self.effects.ended.map_or(Memory::Free, Memory::Ended);
        (elapsed, memory)
    }

    fn prune(&mut self, elapsed: Elapsed) -> (Change, Answer) {
        match elapsed {
            Elapsed::Expired(record) => (Change::Write(record), Answer::Done(true)),
            Elapsed::Gone if self.effects.ended.is_some() => (Change::Remove, Answer::Done(true)),
            Elapsed::Gone | Elapsed::Same(_) => (Change::Keep, Answer::Done(false)),
        }
    }
}

impl Elapsed {
    fn record(self) -> Option<Record> {
        match self {
            Elapsed::Gone => None,
            Elapsed::Same(record) | Elapsed::Expired(record) => Some(*record),
        }
    }
}

#[cfg(test)]
mod tests;
