//! A job arrives: it is written, or meets what has its id.

use crate::domain::conflict::{self, Action, Found as Taken, Repeat};
use crate::domain::{EnqueueOutcome, Spec, State, Time};

use super::command::{Answer, Enqueue, Enqueued, Prior};
use super::decision::{PartChange, PayloadChange};
use super::finish::written;
use super::record::{Brought, Life, Next, Phase, Record};
use super::{Change, Elapsed, Memory, Moment, Step};

impl Enqueue {
    /// What is stored of its spec with the record: all but the payload.
    fn lasting(&self) -> Spec {
        Spec { payload: None, ..self.spec.clone() }
    }

    fn bytes(&self) -> u64 {
        self.spec.bytes() as u64
    }
}

impl Step {
    pub(super) fn enqueue(
        &mut self,
        elapsed: Elapsed,
        memory: Memory,
        new: &Enqueue,
    ) -> (Change, Answer) {
        match elapsed.record() {
            None => match memory {
                Memory::Ended(state) if new.prior == Prior::Itself => {
                    let outcome = Some(EnqueueOutcome::Unchanged);
                    keep(Enqueued { outcome, state, due: self.clock.now(), unwritten: None })
                }
                Memory::Refuses(why) if new.prior == Prior::Itself => {
                    let (outcome, due) = (Some(EnqueueOutcome::Unchanged), self.clock.now());
                    keep(Enqueued { outcome, state: State::Ready, due, unwritten: Some(why) })
                }
                _ => self.create(new),
            },
            Some(record) => {
                let state = record.state(self.clock.time()).unwrap_or(State::Expired);
                // An id that a server made is never free again.
                if new.prior == Prior::Itself && state == State::Cancelled {
                    let (outcome, due) = (Some(EnqueueOutcome::Unchanged), record.due);
                    return keep(Enqueued { outcome, state, due, unwritten: None });
                }
                self.meet(record, state, new)
            }
        }
    }

    /// Nothing has the id.
    fn create(&mut self, new: &Enqueue) -> (Change, Answer) {
        let mut record = Record {
            phase: Phase::Waiting,
            priority: new.priority.unwrap_or(0),
            due: self.clock.due(new.due),
            expire: new.expire.map(|expire| self.clock.at(expire)),
            created: self.clock.now(),
            keep: new.keep,
            request: new.request,
            bytes: new.bytes(),
            spec: new.lasting(),
            life: Life::new(1),
            next: None,
        };
        self.effects.counts.enqueued += 1;
        self.parts.payload = payload_of(new);
        if let Some(checkpoint) = &new.checkpoint {
            self.set_checkpoint(&mut record, checkpoint);
        }
        let due = record.due;
        let record = self.wait(record);
        let answer = self.made(EnqueueOutcome::Created, record.as_ref(), due);
        let change = match record {
            Some(record) => Change::Arrive(Box::new(record)),
            // It had expired when it came, and is not kept.
            None => Change::Remove,
        };
        (change, answer)
    }

    /// The id is taken by `record`, a job in this state.
    fn meet(&mut self, record: Record, state: State, new: &Enqueue) -> (Change, Answer) {
        let taken = if record.next.is_some() { Taken::RunningWithNext } else { Taken::Job(state) };
        let repeat = Repeat::of(record.request, new.request);
        let action = conflict::resolve(new.on_conflict, taken, repeat);
        match action {
            Action::Leave | Action::Refuse => {
                let due = record.next.as_ref().map_or(record.due, |next| next.due.into());
                keep(Enqueued { outcome: action.outcome(), state, due, unwritten: None })
            }
            Action::Write(outcome) => self.replace(record, new, outcome),
            Action::Move => self.relocate(record, new),
            Action::Revive => self.revive_dead(record, new),
            Action::Defer | Action::DeferSame | Action::MoveNext => self.defer(record, new, action),
        }
    }

    /// The new generation takes the place of a job that does not run.
    fn replace(
        &mut self,
        mut record: Record,
        new: &Enqueue,
        outcome: EnqueueOutcome,
    ) -> (Change, Answer) {
        self.drop_checkpoint(&mut record);
        record.priority = new.priority.unwrap_or(0);
        record.due = self.clock.due(new.due);
        record.expire = new.expire.map(|expire| self.clock.at(expire));
        record.created = self.clock.now();
        record.keep = new.keep;
        record.request = new.request.or(record.request);
        record.bytes = new.bytes();
        record.spec = new.lasting();
        record.life.generation += 1;
        self.effects.counts.enqueued += 1;
        self.parts.payload = payload_of(new);
        let due = record.due;
        let record = self.begin(record);
        let answer = self.made(outcome, record.as_ref(), due);
        (written(record), answer)
    }

    /// A waiting job moves.
    fn relocate(&mut self, mut record: Record, new: &Enqueue) -> (Change, Answer) {
        self.reorder(&mut record, new);
        moved(self.clock.time(), record)
    }

    /// A dead job waits again.
    fn revive_dead(&mut self, mut record: Record, new: &Enqueue) -> (Change, Answer) {
        self.reorder(&mut record, new);
        let record = self.revive(record);
        moved(self.clock.time(), record)
    }

    fn reorder(&mut self, record: &mut Record, new: &Enqueue) {
        record.due = self.clock.due(new.due);
        record.priority = new.priority.unwrap_or(record.priority);
        record.request = new.request.or(record.request);
    }

    /// The job runs: what was enqueued waits for the end of its lease.
    fn defer(&mut self, mut record: Record, new: &Enqueue, action: Action) -> (Change, Answer) {
        let (now, due) = (self.clock.time(), self.clock.due(new.due).at);
        let next = match record.next.take() {
            Some(next) if action == Action::MoveNext => {
                Next { due, priority: new.priority.unwrap_or(next.priority), ..*next }
            }
            _ if action == Action::DeferSame => {
                let priority = new.priority.unwrap_or(record.priority);
                self.parts.next_payload = PartChange::Drop;
                Next { priority, due, expire: None, created: now, own: None }
            }
            _ => {
                let payload = new.spec.payload.clone();
                let own = Brought {
                    keep: new.keep,
                    bytes: new.bytes(),
                    spec: new.lasting(),
                    has_payload: payload.is_some(),
                };
                self.parts.next_payload = payload.map_or(PartChange::Drop, PartChange::Set);
                let expire = new.expire.map(|expire| self.clock.at(expire).at);
                let priority = new.priority.unwrap_or(0);
                Next { priority, due, expire, created: now, own: Some(own) }
            }
        };
        record.next = Some(Box::new(next));
        record.life.generation += 1;
        record.request = new.request.or(record.request);
        self.effects.counts.enqueued += 1;
        let (outcome, due) = (action.outcome(), Moment::fixed(due));
        let answer = Enqueued { outcome, state: State::Running, due, unwritten: None };
        (Change::Write(Box::new(record)), Answer::Enqueued(answer))
    }

    /// The answer for a job that was just written; nothing is left of one that had expired when it came.
    fn made(&self, outcome: EnqueueOutcome, record: Option<&Record>, due: Moment) -> Answer {
        let state = record.and_then(|record| record.state(self.clock.time()));
        let state = state.unwrap_or(State::Expired);
        Answer::Enqueued(Enqueued { outcome: Some(outcome), state, due, unwritten: None })
    }
}

fn payload_of(new: &Enqueue) -> PayloadChange {
    new.spec.payload.clone().map_or(PayloadChange::Drop, PayloadChange::Set)
}

fn keep(answer: Enqueued) -> (Change, Answer) {
    (Change::Keep, Answer::Enqueued(answer))
}

fn moved(now: Time, record: Record) -> (Change, Answer) {
    let state = State::waiting(record.due.at, record.life.failures, now);
    let outcome = Some(EnqueueOutcome::Rescheduled);
    let answer = Enqueued { outcome, state, due: record.due, unwritten: None };
    (Change::Write(Box::new(record)), Answer::Enqueued(answer))
}
