//! What a command makes of a job.

use crate::domain::{Attempt, JobKey, Payload, State, Token, TopicName};

use super::command::{CommandReply, Enqueue};
use super::decision_clock::ValidityWindow;
use super::record::{Lease, Record};

/// What a command makes of a job: all of it is written together, or nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What becomes of its record.
    pub change: RecordChange,
    /// What becomes of its parts.
    pub parts: PartChanges,
    /// What else follows.
    pub effects: Effects,
    /// What the caller hears.
    pub reply: CommandReply,
    /// The store time in which it holds.
    pub window: ValidityWindow,
}

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordChange {
    /// It stays as it is.
    Keep,
    /// It is written in place of the one that was found, and keeps its place in the order of arrival.
    Write(Box<Record>),
    /// It is written as one that arrives now.
    Insert(Box<Record>),
    /// It goes, with all its parts.
    Remove,
}

/// What becomes of the parts of a job, which lie apart from its record: of those that were found. With
/// [`Change::Insert`] they go first, but for a job that moves to another topic, which takes along what is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartChanges {
    /// Of its payload.
    pub payload: PayloadChange,
    /// Of the payload of its waiting generation.
    pub next_payload: PartChange<Payload>,
    /// Of its result.
    pub result: PartChange<Payload>,
    /// Of its attempts.
    pub attempts: AttemptsChange,
    /// Of its checkpoint.
    pub checkpoint: PartChange<Payload>,
}

/// What becomes of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PartChange<T> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is written.
    Set(T),
    /// It goes, if there is one.
    Drop,
}

/// What becomes of a payload.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PayloadChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is written.
    Set(Payload),
    /// It goes, if there is one.
    Drop,
    /// That of the waiting generation takes its place, before anything becomes of that.
    Promote,
}

/// What becomes of the attempts of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttemptsChange {
    /// Those that were there go.
    pub cleared: bool,
    /// In front of them, newest first; of all together the newest ones are kept,
    /// [`ATTEMPTS_KEPT`](crate::domain::limit::ATTEMPTS_KEPT).
    pub added: Vec<Attempt>,
}

/// What follows from a command beside the record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// The record that was found goes, of a job that ended so: repeats under an id that a server made are recognized by
    /// that, unless another job has the id by then. If the job moves, of its id in the former topic.
    pub final_state: Option<State>,
    /// What is counted.
    pub counters: CounterIncrements,
    /// What became of a lease, for the replica whose stream answers for it.
    pub lease: Option<(LeaseHolder, LeaseChange)>,
    /// Jobs that are written together with it. The store applies each as a command of its own, after it.
    pub follow_ups: Vec<(JobKey, Enqueue)>,
    /// The job moves to this topic: its record is written there, and goes here. The store has looked before whether the id
    /// is free there, after [`Command::Prune`](super::Command::Prune); if not, nothing is done.
    pub moved_to: Option<TopicName>,
}

/// What is counted for ever, per topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterIncrements {
    /// Jobs written, waiting generations among them.
    pub enqueued: u32,
    /// Jobs acknowledged.
    pub succeeded: u32,
    /// Jobs that died.
    pub dead: u32,
}

/// A lease, and whose stream answers for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// Nonce of the replica.
    pub owner: u32,
    /// Its stream.
    pub stream: u32,
    /// Proof of the lease.
    pub token: Token,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// Its worker has settled it.
    Settled,
    /// It ran out, or was given back.
    Expired,
    /// Its job was deleted.
    Deleted,
    /// It lasts until its new deadline.
    Extended,
    /// Another stream answers for it.
    Adopted,
}

// === impl Parts ===

impl PartChanges {
    /// All parts go with the record.
    pub(super) fn drop_all() -> PartChanges {
        PartChanges {
            payload: PayloadChange::Drop,
            next_payload: PartChange::Drop,
            result: PartChange::Drop,
            attempts: AttemptsChange { cleared: true, added: Vec::new() },
            checkpoint: PartChange::Drop,
        }
    }

    /// Whether they need room in the store beside that of a record: a checkpoint is refused where there is none.
    #[must_use]
    pub fn grows(&self) -> bool {
        matches!(self.checkpoint, PartChange::Set(_))
    }

    /// These changes, and then those.
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

// === impl Holder ===

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

    /// A generation that is deferred and begins in one commit brings its payload along.
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
