//! Steps that several commands share: a job ends, waits again, or begins anew.

use crate::domain::lifecycle::{KeepsError, LeaseEnd};
use crate::domain::{Attempt, AttemptOutcome, Payload, State};

use super::decision::{AttemptsChange, PartChange, PartChanges, PayloadChange};
use super::decision_clock::RecordTime;
use super::record::{Finish, JobHistory, Lease, NextGeneration, NextGenerationSpec, Phase, Record};
use super::{DecisionBuilder, LeaseChange, LeaseHolder, RecordChange};

/// End of an attempt, as the history stores it.
pub(super) struct AttemptEnd<'a> {
    pub(super) outcome: AttemptOutcome,
    /// True if the attempt counts as a failure.
    pub(super) counted: bool,
    /// True if the attempt counts as a crash.
    pub(super) crashed: bool,
    /// True if the worker requested a dead letter.
    pub(super) dead_lettered: bool,
    pub(super) error: &'a str,
    pub(super) keeps_error: KeepsError,
}

// === impl AttemptEnd ===

impl<'a> AttemptEnd<'a> {
    /// Returns an end that counts no failure and leaves no error.
    pub(super) fn plain(outcome: AttemptOutcome) -> AttemptEnd<'a> {
        AttemptEnd {
            outcome,
            counted: false,
            crashed: false,
            dead_lettered: false,
            error: "",
            keeps_error: KeepsError::Never,
        }
    }

    /// Returns the code that identifies a repeat of the settle: each way to settle has its own.
    pub(super) fn code(&self) -> u8 {
        settled_code(self.outcome, self.dead_lettered)
    }
}

impl<'a> From<&'a LeaseEnd> for AttemptEnd<'a> {
    fn from(end: &'a LeaseEnd) -> AttemptEnd<'a> {
        let LeaseEnd { outcome, counted, crashed, dead_lettered, error, keeps_error, .. } = end;
        AttemptEnd {
            outcome: *outcome,
            counted: *counted,
            crashed: *crashed,
            dead_lettered: *dead_lettered,
            error,
            keeps_error: *keeps_error,
        }
    }
}

/// Returns the stored code of the way in which a lease ended. It identifies a repeat of the settle.
#[must_use]
pub fn settled_code(outcome: AttemptOutcome, dead_lettered: bool) -> u8 {
    // Above every code of an `AttemptOutcome`.
    const DEAD_LETTERED: u8 = 8;
    outcome.code() + if dead_lettered { DEAD_LETTERED } else { 0 }
}

/// Returns the change that writes the record, or removes it if nothing is left.
pub(super) fn write_or_remove(record: Option<Record>) -> RecordChange {
    record.map_or(RecordChange::Remove, |record| RecordChange::Write(Box::new(record)))
}

impl DecisionBuilder {
    /// Removes the record of a job that ended in this state.
    pub(super) fn remove_finished(&mut self, state: State) {
        self.effects.final_state = Some(state);
        self.parts = PartChanges::drop_all();
    }

    /// Notifies the replica whose stream holds the lease.
    pub(super) fn notify(&mut self, lease: &Lease, change: LeaseChange) {
        self.effects.lease = Some((LeaseHolder::from(lease), change));
    }

    /// Counts and stores the attempt whose lease has ended.
    pub(super) fn end_attempt(
        &mut self,
        record: &mut Record,
        lease: Lease,
        ended: &AttemptEnd<'_>,
    ) {
        let life = &mut record.history;
        life.deliveries += 1;
        life.failures += u32::from(ended.counted);
        life.first_start.get_or_insert(lease.started);
        life.crashes += u32::from(ended.crashed);
        if ended.keeps_error.replaces(&life.last_error, ended.error) {
            ended.error.clone_into(&mut life.last_error);
        }
        life.lease_ends.push(lease.token, ended.code());
        life.worker.clone_from(&lease.worker);
        self.parts.attempts.added.insert(
            0,
            Attempt {
                number: life.deliveries,
                start_time: lease.started,
                finish_time: self.clock.time(),
                worker_id: lease.worker,
                outcome: ended.outcome,
                error: ended.error.to_owned(),
            },
        );
    }

    /// Sets the checkpoint of the job; an empty one removes it.
    pub(super) fn set_checkpoint(&mut self, record: &mut Record, checkpoint: &Payload) {
        self.drop_checkpoint(record);
        if !checkpoint.body.is_empty() {
            record.history.checkpoint = u32::try_from(checkpoint.body.len()).unwrap_or(u32::MAX);
            record.bytes += u64::from(record.history.checkpoint);
            self.parts.checkpoint = PartChange::Set(checkpoint.clone());
        }
    }

    /// Removes the checkpoint of the job.
    pub(super) fn drop_checkpoint(&mut self, record: &mut Record) {
        if record.history.checkpoint > 0 {
            record.bytes = record.bytes.saturating_sub(record.history.checkpoint.into());
            record.history.checkpoint = 0;
            self.parts.checkpoint = PartChange::Drop;
        }
    }

    /// Finishes the job in `state`. Its retention decides how long its record stays; `None`: no record stays.
    pub(super) fn finish(
        &mut self,
        record: Record,
        state: State,
        at: RecordTime,
        result: Option<&Payload>,
    ) -> Option<Record> {
        let lasts = record.retention.duration();
        let until = at.plus(lasts);
        if lasts.is_zero() || self.clock.is_reached(until) {
            self.remove_finished(state);
            return None;
        }
        Some(self.keep_finished(record, Finish { state, at, until }, result))
    }

    /// Finishes a job whose record stays. A tombstone keeps only the way in which the job ended.
    pub(super) fn keep_finished(
        &mut self,
        mut record: Record,
        finish: Finish,
        result: Option<&Payload>,
    ) -> Record {
        record.phase = Phase::Finished(finish);
        record.next = None;
        if record.is_tombstone() {
            self.drop_checkpoint(&mut record);
            record.spec = record.spec.of_tombstone();
            record.history.last_error.clear();
            record.history.progress.clear();
            record.history.attempts.clear();
            record.history.first_start = None;
            self.parts = PartChanges::drop_all();
        } else if let Some(result) = result {
            self.parts.result = PartChange::Set(result.clone());
        }
        record
    }

    /// Makes the job wait. If its expire time has passed, the job finishes instead and its retention begins now.
    pub(super) fn make_waiting(&mut self, mut record: Record) -> Option<Record> {
        record.phase = Phase::Waiting;
        if record.expire.is_some_and(|expire| self.clock.is_reached(expire)) {
            let now = self.clock.now();
            return self.finish(record, State::Expired, now, None);
        }
        Some(record)
    }

    /// Replaces the generation whose lease has just ended by the waiting one. Only the place in the order of arrival
    /// and the ends of the leases stay. The waiting generation was counted when it was deferred.
    pub(super) fn start_next_generation(
        &mut self,
        mut record: Record,
        next: NextGeneration,
    ) -> Option<Record> {
        let NextGeneration { priority, due, expire, created, replacement: own } = next;
        self.drop_checkpoint(&mut record);
        (record.priority, record.due, record.created) = (priority, due.into(), created.into());
        record.expire = expire.map(RecordTime::fixed);
        self.parts.payload = match &own {
            None => PayloadChange::Keep,
            Some(NextGenerationSpec { has_payload: false, .. }) => PayloadChange::Drop,
            Some(_) => PayloadChange::Promote,
        };
        if let Some(NextGenerationSpec { keep, bytes, spec, has_payload: _ }) = own {
            (record.retention, record.bytes, record.spec) = (keep, bytes, spec);
        }
        self.parts.next_payload = PartChange::Drop;
        self.start_generation(record)
    }

    /// Begins a generation in the place of another one, with fresh counters and no history. The caller has removed the
    /// checkpoint.
    pub(super) fn start_generation(&mut self, mut record: Record) -> Option<Record> {
        let ends = std::mem::take(&mut record.history.lease_ends);
        record.history =
            JobHistory { lease_ends: ends, ..JobHistory::new(record.history.generation) };
        record.next = None;
        self.parts.result = PartChange::Drop;
        self.parts.attempts = AttemptsChange { cleared: true, added: Vec::new() };
        self.make_waiting(record)
    }

    /// Makes a finished job wait again with fresh counters. Its attempts stay for people to read, its checkpoint for
    /// the next worker. An expire time that has passed is removed: a job that is revived is meant to run.
    pub(super) fn make_waiting_again(&mut self, mut record: Record) -> Record {
        record.phase = Phase::Waiting;
        record.history.restart();
        let expire = record.expire.take();
        record.expire = expire.filter(|&expire| !self.clock.is_reached(expire));
        self.parts.result = PartChange::Drop;
        record
    }
}
