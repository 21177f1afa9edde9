//! The enqueue command: writes a job, or resolves the conflict with the job that has its id.

use crate::domain::conflict::{self, ConflictAction, ExistingJob as Taken, RequestMatch};
use crate::domain::{EnqueueOutcome, Spec, State, Time};

use super::command::{CommandReply, Enqueue, EnqueueCommandReply, WritePrecondition};
use super::decision::{PartChange, PayloadChange};
use super::finish::write_or_remove;
use super::record::{JobHistory, NextGeneration, NextGenerationSpec, Phase, Record};
use super::{CurrentRecord, DecisionBuilder, IdHistory, RecordChange, RecordTime};

impl Enqueue {
    /// Returns the part of the spec that the record stores: all but the payload.
    fn spec_without_payload(&self) -> Spec {
        Spec { payload: None, ..self.spec.clone() }
    }

    fn bytes(&self) -> u64 {
        self.spec.bytes() as u64
    }
}

impl DecisionBuilder {
    pub(super) fn enqueue(
        &mut self,
        elapsed: CurrentRecord,
        memory: IdHistory,
        new: &Enqueue,
    ) -> (RecordChange, CommandReply) {
        match elapsed.record() {
            None => match memory {
                IdHistory::Ended(state) if new.precondition == WritePrecondition::SameJob => {
                    let outcome = Some(EnqueueOutcome::Unchanged);
                    unchanged(EnqueueCommandReply {
                        outcome,
                        state,
                        due: self.clock.now(),
                        not_written: None,
                    })
                }
                IdHistory::Rejected(why) if new.precondition == WritePrecondition::SameJob => {
                    let (outcome, due) = (Some(EnqueueOutcome::Unchanged), self.clock.now());
                    unchanged(EnqueueCommandReply {
                        outcome,
                        state: State::Ready,
                        due,
                        not_written: Some(why),
                    })
                }
                _ => self.create(new),
            },
            Some(record) => {
                let state = record.state(self.clock.time()).unwrap_or(State::Expired);
                // A server-made id is never free again.
                if new.precondition == WritePrecondition::SameJob && state == State::Cancelled {
                    let (outcome, due) = (Some(EnqueueOutcome::Unchanged), record.due);
                    return unchanged(EnqueueCommandReply {
                        outcome,
                        state,
                        due,
                        not_written: None,
                    });
                }
                self.resolve_conflict(record, state, new)
            }
        }
    }

    /// Creates the job: no job has the id.
    fn create(&mut self, new: &Enqueue) -> (RecordChange, CommandReply) {
        let mut record = Record {
            phase: Phase::Waiting,
            priority: new.priority.unwrap_or(0),
            due: self.clock.due(new.due),
            expire: new.expire.map(|expire| self.clock.at(expire)),
            created: self.clock.now(),
            retention: new.retention,
            request_code: new.request_code,
            bytes: new.bytes(),
            spec: new.spec_without_payload(),
            history: JobHistory::new(1),
            next: None,
        };
        self.effects.counters.enqueued += 1;
        self.parts.payload = payload_of(new);
        if let Some(history) = &new.history {
            if let Some(checkpoint) = &history.checkpoint {
                self.set_checkpoint(&mut record, checkpoint);
            }
            record.history.last_error.clone_from(&history.last_error);
        }
        let due = record.due;
        let record = self.make_waiting(record);
        let answer = self.written_reply(EnqueueOutcome::Created, record.as_ref(), due);
        let change = match record {
            Some(record) => RecordChange::Insert(Box::new(record)),
            // The job had expired on arrival and is not kept.
            None => RecordChange::Remove,
        };
        (change, answer)
    }

    /// Resolves the conflict with `record`, a job in this state that has the id.
    fn resolve_conflict(
        &mut self,
        record: Record,
        state: State,
        new: &Enqueue,
    ) -> (RecordChange, CommandReply) {
        let taken = if record.next.is_some() { Taken::RunningWithNext } else { Taken::Job(state) };
        let repeat = RequestMatch::compare(record.request_code, new.request_code);
        let action = conflict::resolve(new.on_conflict, taken, repeat);
        match action {
            ConflictAction::Keep | ConflictAction::Refuse => {
                let due = record.next.as_ref().map_or(record.due, |next| next.due.into());
                unchanged(EnqueueCommandReply {
                    outcome: action.outcome(),
                    state,
                    due,
                    not_written: None,
                })
            }
            ConflictAction::Write(outcome) => self.replace(record, new, outcome),
            ConflictAction::Reschedule => self.reschedule_waiting(record, new),
            ConflictAction::Revive => self.revive_dead(record, new),
            ConflictAction::Defer | ConflictAction::DeferSame | ConflictAction::RescheduleNext => {
                self.defer(record, new, action)
            }
        }
    }

    /// Replaces a job that does not run by the new generation.
    fn replace(
        &mut self,
        mut record: Record,
        new: &Enqueue,
        outcome: EnqueueOutcome,
    ) -> (RecordChange, CommandReply) {
        self.drop_checkpoint(&mut record);
        record.priority = new.priority.unwrap_or(0);
        record.due = self.clock.due(new.due);
        record.expire = new.expire.map(|expire| self.clock.at(expire));
        record.created = self.clock.now();
        record.retention = new.retention;
        record.request_code = new.request_code.or(record.request_code);
        record.bytes = new.bytes();
        record.spec = new.spec_without_payload();
        record.history.generation += 1;
        self.effects.counters.enqueued += 1;
        self.parts.payload = payload_of(new);
        let due = record.due;
        let mut record = self.start_generation(record);
        if let (Some(record), Some(history)) = (&mut record, &new.history)
            && !record.is_tombstone()
        {
            record.history.last_error.clone_from(&history.last_error);
        }
        let answer = self.written_reply(outcome, record.as_ref(), due);
        (write_or_remove(record), answer)
    }

    /// Moves a waiting job.
    fn reschedule_waiting(
        &mut self,
        mut record: Record,
        new: &Enqueue,
    ) -> (RecordChange, CommandReply) {
        self.set_schedule(&mut record, new);
        rescheduled(self.clock.time(), record)
    }

    /// Makes a dead job wait again.
    fn revive_dead(&mut self, mut record: Record, new: &Enqueue) -> (RecordChange, CommandReply) {
        self.set_schedule(&mut record, new);
        let record = self.make_waiting_again(record);
        rescheduled(self.clock.time(), record)
    }

    fn set_schedule(&mut self, record: &mut Record, new: &Enqueue) {
        record.due = self.clock.due(new.due);
        record.priority = new.priority.unwrap_or(record.priority);
        record.request_code = new.request_code.or(record.request_code);
    }

    /// Stores the enqueue as the next generation of a running job; it waits for the end of the lease.
    fn defer(
        &mut self,
        mut record: Record,
        new: &Enqueue,
        action: ConflictAction,
    ) -> (RecordChange, CommandReply) {
        let (now, due) = (self.clock.time(), self.clock.due(new.due).at);
        let next = match record.next.take() {
            Some(next) if action == ConflictAction::RescheduleNext => {
                NextGeneration { due, priority: new.priority.unwrap_or(next.priority), ..*next }
            }
            _ if action == ConflictAction::DeferSame => {
                let priority = new.priority.unwrap_or(record.priority);
                self.parts.next_payload = PartChange::Drop;
                NextGeneration { priority, due, expire: None, created: now, replacement: None }
            }
            _ => {
                let payload = new.spec.payload.clone();
                let own = NextGenerationSpec {
                    keep: new.retention,
                    bytes: new.bytes(),
                    spec: new.spec_without_payload(),
                    has_payload: payload.is_some(),
                };
                self.parts.next_payload = payload.map_or(PartChange::Drop, PartChange::Set);
                let expire = new.expire.map(|expire| self.clock.at(expire).at);
                let priority = new.priority.unwrap_or(0);
                NextGeneration { priority, due, expire, created: now, replacement: Some(own) }
            }
        };
        record.next = Some(Box::new(next));
        record.history.generation += 1;
        record.request_code = new.request_code.or(record.request_code);
        self.effects.counters.enqueued += 1;
        let (outcome, due) = (action.outcome(), RecordTime::fixed(due));
        let answer = EnqueueCommandReply { outcome, state: State::Running, due, not_written: None };
        (RecordChange::Write(Box::new(record)), CommandReply::Enqueued(answer))
    }

    /// Returns the reply for a job that was just written. `record` is `None` if the job had expired on arrival and is
    /// not kept.
    fn written_reply(
        &self,
        outcome: EnqueueOutcome,
        record: Option<&Record>,
        due: RecordTime,
    ) -> CommandReply {
        let state = record.and_then(|record| record.state(self.clock.time()));
        let state = state.unwrap_or(State::Expired);
        CommandReply::Enqueued(EnqueueCommandReply {
            outcome: Some(outcome),
            state,
            due,
            not_written: None,
        })
    }
}

fn payload_of(new: &Enqueue) -> PayloadChange {
    new.spec.payload.clone().map_or(PayloadChange::Drop, PayloadChange::Set)
}

fn unchanged(answer: EnqueueCommandReply) -> (RecordChange, CommandReply) {
    (RecordChange::Keep, CommandReply::Enqueued(answer))
}

fn rescheduled(now: Time, record: Record) -> (RecordChange, CommandReply) {
    let state = State::waiting(record.due.at, record.history.failures, now);
    let outcome = Some(EnqueueOutcome::Rescheduled);
    let answer = EnqueueCommandReply { outcome, state, due: record.due, not_written: None };
    (RecordChange::Write(Box::new(record)), CommandReply::Enqueued(answer))
}
