//! What people do to single jobs: delete, reschedule, redrive.

use crate::domain::{AttemptOutcome, Keep, State, Time, When};

use super::command::{Answer, Deleted, Redrive};
use super::decision::PartChange;
use super::finish::{Ended, written};
use super::record::{Finish, Phase, Record};
use super::{Change, Elapsed, LeaseNews, Step};

impl Step {
    pub(super) fn delete(&mut self, elapsed: Elapsed, finished: Option<Time>) -> (Change, Answer) {
        let none = (Change::Keep, Answer::Deleted(None));
        let Some(record) = elapsed.record() else { return none };
        let is_meant = match &record.phase {
            Phase::Finished(finish) => finished.is_none_or(|at| at == finish.at.at),
            Phase::Waiting | Phase::Running(_) => finished.is_none(),
        };
        let Some(previous) = record.state(self.clock.time()).filter(|_| is_meant) else {
            return none;
        };
        let (record, revoked) = match record.phase.clone() {
            Phase::Finished(Finish { state, .. }) => {
                self.forget(state);
                (None, None)
            }
            Phase::Waiting => (self.cancel(record), None),
            Phase::Running(lease) => {
                self.notify(&lease, LeaseNews::Deleted);
                let revoked = (lease.owner, lease.stream, lease.token);
                let mut record = record;
                if record.next.take().is_some() {
                    self.parts.next_payload = PartChange::Drop;
                }
                if record.keep != Keep::Nothing {
                    self.end_attempt(&mut record, lease, &Ended::plain(AttemptOutcome::Revoked));
                }
                (self.cancel(record), Some(revoked))
            }
        };
        (written(record), Answer::Deleted(Some(Deleted { previous, revoked })))
    }

    fn cancel(&mut self, record: Record) -> Option<Record> {
        let now = self.clock.now();
        self.finish(record, State::Cancelled, now, None)
    }

    pub(super) fn reschedule(
        &mut self,
        elapsed: Elapsed,
        due: Option<When>,
        priority: Option<u8>,
    ) -> (Change, Answer) {
        let found = elapsed.record();
        let state = found.as_ref().and_then(|record| record.state(self.clock.time()));
        let (Some(mut record), Some(state)) = (found, state) else {
            return (Change::Keep, Answer::Rescheduled(Ok(false)));
        };
        record.priority = priority.unwrap_or(record.priority);
        if let Some(when) = due {
            record.due = self.clock.due(when);
        }
        let record = match state {
            State::Scheduled | State::Ready | State::Backoff => record,
            State::Dead => {
                if due.is_none() {
                    record.due = self.clock.now();
                }
                self.revive(record)
            }
            refused => return (Change::Keep, Answer::Rescheduled(Err(refused))),
        };
        (Change::Write(Box::new(record)), Answer::Rescheduled(Ok(true)))
    }

    pub(super) fn redrive(&mut self, elapsed: Elapsed, redrive: &Redrive) -> (Change, Answer) {
        let left = (Change::Keep, Answer::Done(false));
        let found = elapsed.record();
        let state = found.as_ref().and_then(|record| record.state(self.clock.time()));
        let (Some(mut record), Some(state)) = (found, state) else { return left };
        let is_meant = state.is_terminal() && redrive.states.contains(&state);
        if !is_meant || record.is_tombstone() {
            return left;
        }
        record.due = self.clock.now().plus(redrive.delay);
        let done = Answer::Done(true);
        if let Some(expire) = record.expire {
            // It would have expired by then.
            let latest = super::Moment { at: expire.at.minus(redrive.delay), ..expire };
            if self.clock.has_come(latest) {
                let Some(ttl) = redrive.ttl else { return left };
                record.expire = Some(record.due.plus(ttl));
            }
        }
        if redrive.dry_run {
            return (Change::Keep, done);
        }
        let record = Box::new(self.revive(record));
        match &redrive.target {
            None => (Change::Write(record), done),
            Some(target) => {
                self.effects.ended = Some(state);
                self.effects.moved_to = Some(target.clone());
                (Change::Arrive(record), done)
            }
        }
    }
}
