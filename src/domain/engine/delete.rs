//! Commands that end a job by hand, or to make room: delete, purge, evict.

use crate::domain::{AttemptOutcome, RetentionRule, State, Time};

use super::command::{CommandReply, Deleted, Purge};
use super::decision::PartChange;
use super::finish::{AttemptEnd, write_or_remove};
use super::record::{Finish, NextGeneration, Phase, Record};
use super::{CurrentRecord, DecisionBuilder, LeaseChange, RecordChange};

impl DecisionBuilder {
    pub(super) fn delete(
        &mut self,
        elapsed: CurrentRecord,
        finished: Option<Time>,
    ) -> (RecordChange, CommandReply) {
        let none = (RecordChange::Keep, CommandReply::Deleted(None));
        let Some(record) = elapsed.record() else { return none };
        let is_meant = match &record.phase {
            Phase::Finished(finish) => finished.is_none_or(|at| at == finish.at.at),
            Phase::Waiting | Phase::Running(_) => finished.is_none(),
        };
        let Some(previous) = record.state(self.clock.time()).filter(|_| is_meant) else {
            return none;
        };
        self.delete_record(record, previous, None)
    }

    pub(super) fn purge(
        &mut self,
        elapsed: CurrentRecord,
        purge: &Purge,
    ) -> (RecordChange, CommandReply) {
        let found = elapsed.record();
        let state = found.as_ref().and_then(|record| record.state(self.clock.time()));
        match found.zip(state) {
            Some((record, state)) if self.is_purged(&record, state, purge) => {
                self.delete_record(record, state, Some(purge.begin))
            }
            _ => (RecordChange::Keep, CommandReply::Deleted(None)),
        }
    }

    fn is_purged(&mut self, record: &Record, state: State, purge: &Purge) -> bool {
        if record.phase == Phase::Waiting {
            // The due time keeps two states apart, so the decision holds until then.
            self.clock.is_reached(record.due);
        }
        let is_later = match &record.phase {
            Phase::Finished(finish) if state == State::Cancelled => finish.at.at > purge.begin,
            Phase::Finished(_) | Phase::Waiting | Phase::Running(_) => false,
        };
        let is_of_group = purge
            .group
            .as_ref()
            .is_none_or(|group| *group == record.spec.group && !record.is_tombstone());
        purge.states.contains(&state)
            && record.created.at <= purge.begin
            && !is_later
            && is_of_group
    }

    /// Deletes a job that is in the state `previous`. A generation that waits behind it goes, too, unless it was enqueued
    /// after `begin`: then it takes the place of the job.
    fn delete_record(
        &mut self,
        record: Record,
        previous: State,
        begin: Option<Time>,
    ) -> (RecordChange, CommandReply) {
        let (record, revoked) = match record.phase.clone() {
            Phase::Finished(Finish { state, .. }) => {
                self.remove_finished(state);
                (None, None)
            }
            Phase::Waiting => (self.cancel(record), None),
            Phase::Running(lease) => {
                self.notify(&lease, LeaseChange::Deleted);
                let revoked = (lease.owner, lease.stream, lease.token);
                let (mut record, ended) = (record, AttemptEnd::plain(AttemptOutcome::Revoked));
                let is_later = |next: &NextGeneration| begin.is_some_and(|at| next.created > at);
                if record.next.as_deref().is_some_and(is_later) {
                    (self.replace_by_next(record, &lease, &ended), Some(revoked))
                } else {
                    if record.next.take().is_some() {
                        self.parts.next_payload = PartChange::Drop;
                    }
                    if record.retention != RetentionRule::Nothing {
                        self.end_attempt(&mut record, lease, &ended);
                    }
                    (self.cancel(record), Some(revoked))
                }
            }
        };
        (write_or_remove(record), CommandReply::Deleted(Some(Deleted { previous, revoked })))
    }

    fn cancel(&mut self, record: Record) -> Option<Record> {
        let now = self.clock.now();
        self.finish(record, State::Cancelled, now, None)
    }

    pub(super) fn evict(
        &mut self,
        elapsed: CurrentRecord,
        frees_bytes: bool,
    ) -> (RecordChange, CommandReply) {
        match elapsed {
            CurrentRecord::Unchanged(mut record) if record.phase == Phase::Waiting => {
                if frees_bytes {
                    record.retention = RetentionRule::Tombstone(record.retention.duration());
                }
                let now = self.clock.now();
                let record = self.finish(*record, State::Expired, now, None);
                (write_or_remove(record), CommandReply::Applied(true))
            }
            // A job past its expire time takes room until its end is written.
            elapsed => self.prune(elapsed),
        }
    }
}
