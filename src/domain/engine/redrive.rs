//! Commands that let a job wait once more, or for another time: reschedule, redrive.

use crate::domain::{State, Time, When};

use super::command::{Command, CommandReply, Redrive};
use super::{
    CurrentRecord, Decision, DecisionBuilder, IdHistory, IdLookup, RecordChange, RecordTime, apply,
};

/// Decides a redrive to another topic, where `target` was found under the id: the job moves only if the id is free
/// there once the changes that are due by the clock are applied. Returns the decision about the job, and the one about
/// the id in the target, which is written before it. The window of the first is that of both.
#[must_use]
pub fn redrive_to(
    found: IdLookup,
    target: IdLookup,
    redrive: &Redrive,
    now: Time,
) -> (Decision, Decision) {
    let is_taken = matches!(target, IdLookup::Record(_));
    let elapsed = apply(target, &Command::Prune, now);
    let mut decision = if is_taken && elapsed.change != RecordChange::Remove {
        apply(IdLookup::Absent(IdHistory::Free), &Command::Prune, now)
    } else {
        apply(found, &Command::Redrive(redrive.clone()), now)
    };
    decision.window = decision.window.intersect(elapsed.window);
    (decision, elapsed)
}

impl DecisionBuilder {
    pub(super) fn reschedule(
        &mut self,
        elapsed: CurrentRecord,
        due: Option<When>,
        priority: Option<u8>,
    ) -> (RecordChange, CommandReply) {
        let found = elapsed.record();
        let state = found.as_ref().and_then(|record| record.state(self.clock.time()));
        let (Some(mut record), Some(state)) = (found, state) else {
            return (RecordChange::Keep, CommandReply::Rescheduled(Ok(false)));
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
                self.make_waiting_again(record)
            }
            refused => return (RecordChange::Keep, CommandReply::Rescheduled(Err(refused))),
        };
        (RecordChange::Write(Box::new(record)), CommandReply::Rescheduled(Ok(true)))
    }

    pub(super) fn redrive(
        &mut self,
        elapsed: CurrentRecord,
        redrive: &Redrive,
    ) -> (RecordChange, CommandReply) {
        let left = (RecordChange::Keep, CommandReply::Applied(false));
        let found = elapsed.record();
        let state = found.as_ref().and_then(|record| record.state(self.clock.time()));
        let (Some(mut record), Some(state)) = (found, state) else { return left };
        let is_meant = state.is_terminal() && redrive.states.contains(&state);
        if !is_meant || record.is_tombstone() {
            return left;
        }
        record.due = self.clock.now().plus(redrive.delay);
        let done = CommandReply::Applied(true);
        if let Some(expire) = record.expire {
            // The job would have expired by its new due time.
            let latest = RecordTime { at: expire.at.minus(redrive.delay), ..expire };
            if self.clock.is_reached(latest) {
                let Some(ttl) = redrive.ttl else { return left };
                record.expire = Some(record.due.plus(ttl));
            }
        }
        if redrive.dry_run {
            return (RecordChange::Keep, done);
        }
        let record = Box::new(self.make_waiting_again(record));
        match &redrive.target {
            None => (RecordChange::Write(record), done),
            Some(target) => {
                self.effects.final_state = Some(state);
                self.effects.moved_to = Some(target.clone());
                (RecordChange::Insert(record), done)
            }
        }
    }
}
