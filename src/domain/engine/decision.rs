//! The result of a command: changes of the job's record and parts, side effects, and the reply.

use crate::domain::{Attempt, Payload, State, Time, Token, TopicName};

use super::command::{CommandReply, NewJob};
use super::decision_clock::ValidityWindow;
use super::record::{Lease, Phase, Record};

/// Result of a command on a job. All of it is written together, or nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Change of the job's record.
    pub change: RecordChange,
    /// Changes of the job's parts.
    pub parts: PartChanges,
    /// Side effects: counters, notification, follow-up jobs.
    pub effects: Effects,
    /// Reply to the caller.
    pub reply: CommandReply,
    /// Span of store time in which the decision is valid.
    pub window: ValidityWindow,
}

// === impl Decision ===

impl Decision {
    /// Returns whether one more job waits after this decision, made at `now`, about the record `before`. A job past its
    /// expire time waits no longer, also where its end is not written yet.
    #[must_use]
    pub fn adds_waiting(&self, before: Option<&Record>, now: Time) -> bool {
        let waits = |record: &Record| record.phase == Phase::Waiting;
        let waited = |record: &Record| record.state(now).is_some_and(State::is_waiting);
        match &self.change {
            RecordChange::Write(after) | RecordChange::Insert(after) => {
                waits(after) && !before.is_some_and(waited)
            }
            RecordChange::Keep | RecordChange::Remove => false,
        }
    }

    /// Returns by how many bytes the topic grows by this decision, where the job has taken `before` of them.
    #[must_use]
    pub fn added_bytes(&self, before: u64) -> u64 {
        match &self.change {
            RecordChange::Write(after) | RecordChange::Insert(after) => {
                after.counted_bytes().saturating_sub(before)
            }
            RecordChange::Keep | RecordChange::Remove => 0,
        }
    }
}

/// Change of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordChange {
    /// Keeps the record as it is.
    Keep,
    /// Overwrites the record that was found, which keeps its place in the order of arrival.
    Write(Box<Record>),
    /// Writes the record as one that arrives now.
    Insert(Box<Record>),
    /// Removes the record with all its parts.
    Remove,
}

/// Changes of the parts of a job, which are stored apart from its record. They apply to the parts that were found.
/// [`RecordChange::Insert`] removes those first, unless the job moves to another topic: then it takes along each part
/// that is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartChanges {
    /// Change of the payload.
    pub payload: PayloadChange,
    /// Change of the waiting generation's payload.
    pub next_payload: PartChange<Payload>,
    /// Change of the result.
    pub result: PartChange<Payload>,
    /// Change of the attempts.
    pub attempts: AttemptsChange,
    /// Change of the checkpoint.
    pub checkpoint: PartChange<Payload>,
}

/// Change of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PartChange<T> {
    /// Keeps the part as it is.
    #[default]
    Keep,
    /// Writes the part.
    Set(T),
    /// Removes the part, if there is one.
    Drop,
}

/// Change of a payload.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PayloadChange {
    /// Keeps the payload as it is.
    #[default]
    Keep,
    /// Writes the payload.
    Set(Payload),
    /// Removes the payload, if there is one.
    Drop,
    /// Replaces the payload by the waiting generation's, before `next_payload` is applied.
    Promote,
}

/// Change of the attempts of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttemptsChange {
    /// True: the attempts that were found are removed.
    pub cleared: bool,
    /// Attempts to add in front, newest first. Of all together the newest
    /// [`ATTEMPTS_KEPT`](crate::domain::limit::ATTEMPTS_KEPT) are kept.
    pub added: Vec<Attempt>,
}

/// Side effects of a command, beside the change of the record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Final state of a job whose record is removed; `None`: no record of a finished job is removed. It identifies a
    /// repeated enqueue under a server-made id, unless another job has the id by then. If the job moves, it belongs to
    /// the id in the former topic.
    pub final_state: Option<State>,
    /// Increments of the topic's counters.
    pub counters: CounterIncrements,
    /// Change of a lease, to notify the replica whose stream holds it.
    pub lease: Option<(LeaseHolder, LeaseChange)>,
    /// Jobs to enqueue in the same write. The store applies each as a command of its own, after this one.
    pub follow_ups: Vec<NewJob>,
    /// Topic to which the job moves: its record is written there and removed here. The store has checked before that
    /// the id is free there, after [`Command::Prune`](super::Command::Prune); if it is not, nothing is done.
    pub moved_to: Option<TopicName>,
}

/// Increments of a topic's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterIncrements {
    /// Jobs written, waiting generations included.
    pub enqueued: u32,
    /// Jobs acknowledged.
    pub succeeded: u32,
    /// Jobs that died.
    pub dead: u32,
}

/// A lease and the stream that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// Nonce of the replica.
    pub owner: u32,
    /// Number of the stream.
    pub stream: u32,
    /// Token of the lease.
    pub token: Token,
}

/// Change of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// The worker settled the lease.
    Settled,
    /// The lease ended without its worker: it expired or was released.
    Expired,
    /// The job was deleted.
    Deleted,
    /// The lease has a new deadline.
    Extended,
    /// Another stream holds the lease.
    Adopted,
}

// === impl PartChanges ===

impl PartChanges {
    /// Removal of all parts, together with the record.
    pub(super) fn drop_all() -> PartChanges {
        PartChanges {
            payload: PayloadChange::Drop,
            next_payload: PartChange::Drop,
            result: PartChange::Drop,
            attempts: AttemptsChange { cleared: true, added: Vec::new() },
            checkpoint: PartChange::Drop,
        }
    }

    /// Returns whether the changes need more room than the record: a checkpoint is rejected where the store is full.
    #[must_use]
    pub fn grows(&self) -> bool {
        matches!(self.checkpoint, PartChange::Set(_))
    }

    /// Returns these changes followed by the `later` ones.
    #[must_use]
    pub fn then(self, later: PartChanges) -> PartChanges {
        let payload = match (later.payload, &self.next_payload) {
            (PayloadChange::Keep, _) => self.payload,
            (PayloadChange::Promote, PartChange::Set(next)) => PayloadChange::Set(next.clone()),
            (PayloadChange::Promote, PartChange::Drop) => PayloadChange::Drop,
            (later, _) => later,
        };
        PartChanges {
            payload,
            next_payload: self.next_payload.then(later.next_payload),
            result: self.result.then(later.result),
            attempts: self.attempts.then(later.attempts),
            checkpoint: self.checkpoint.then(later.checkpoint),
        }
    }
}

impl<T> PartChange<T> {
    fn then(self, later: PartChange<T>) -> PartChange<T> {
        match later {
            PartChange::Keep => self,
            later => later,
        }
    }
}

impl AttemptsChange {
    fn then(self, mut later: AttemptsChange) -> AttemptsChange {
        if later.cleared {
            return later;
        }
        later.added.extend(self.added);
        AttemptsChange { cleared: self.cleared, ..later }
    }
}

// === impl LeaseHolder ===

impl From<&Lease> for LeaseHolder {
    fn from(lease: &Lease) -> LeaseHolder {
        LeaseHolder { owner: lease.owner, stream: lease.stream, token: lease.token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(body: &'static str) -> Payload {
        Payload { text: true, body: body.into(), content_type: String::new() }
    }

    /// A generation that is deferred and begins in one commit keeps its payload.
    #[test]
    fn a_payload_that_is_set_and_promoted_is_set() {
        let set = |body| PartChanges {
            next_payload: PartChange::Set(payload(body)),
            ..PartChanges::default()
        };
        let promote = PartChanges {
            payload: PayloadChange::Promote,
            next_payload: PartChange::Drop,
            ..PartChanges::default()
        };
        let both = set("a").then(set("b")).then(promote.clone());
        assert_eq!(both.payload, PayloadChange::Set(payload("b")));
        assert_eq!(both.next_payload, PartChange::Drop);
        assert_eq!(promote.clone().then(set("c")).payload, PayloadChange::Promote);
        let dropped = PartChanges { next_payload: PartChange::Drop, ..PartChanges::default() };
        assert_eq!(dropped.then(promote).payload, PayloadChange::Drop);
    }

    #[test]
    fn attempts_add_up_until_they_are_cleared() {
        let attempt = |number| Attempt {
            number,
            start_time: Default::default(),
            finish_time: Default::default(),
            worker_id: String::new(),
            outcome: crate::domain::AttemptOutcome::Failed,
            error: String::new(),
        };
        let add = |number| AttemptsChange { cleared: false, added: vec![attempt(number)] };
        let both = add(1).then(add(2));
        assert_eq!(both.added.iter().map(|a| a.number).collect::<Vec<_>>(), [2, 1]);
        let clear = AttemptsChange { cleared: true, added: Vec::new() };
        assert_eq!(both.clone().then(clear.clone()), clear);
        assert_eq!(clear.then(both).added.len(), 2);
    }
}
