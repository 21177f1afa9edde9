//! How jobs end, wait again and begin anew: the steps that several commands share.

use crate::domain::lifecycle::LeaseEnd;
use crate::domain::{Attempt, AttemptOutcome, Payload, State};

use super::decision::{AttemptsChange, PartChange, PartChanges, PayloadChange};
use super::decision_clock::RecordTime;
use super::record::{Finish, JobHistory, Lease, NextGeneration, NextGenerationSpec, Phase, Record};
use super::{DecisionBuilder, LeaseChange, LeaseHolder, RecordChange};

/// How an attempt ended, as it is remembered.
pub(super) struct AttemptEnd<'a> {
    pub(super) outcome: AttemptOutcome,
    /// Whether it counts as a failure.
    pub(super) counted: bool,
    /// Whether its worker asked for a dead letter.
    pub(super) dead_lettered: bool,
    pub(super) error: &'a str,
}

// === impl Ended ===

impl<'a> AttemptEnd<'a> {
    /// An end that counts no failure and leaves no error.
    pub(super) fn plain(outcome: AttemptOutcome) -> AttemptEnd<'a> {
        AttemptEnd { outcome, counted: false, dead_lettered: false, error: "" }
    }

    /// By what a repeat of the settle that brought this end is recognized: each way to settle has its own.
    pub(super) fn code(&self) -> u8 {
        settled_code(self.outcome, self.dead_lettered)
    }
}

impl<'a> From<&'a LeaseEnd> for AttemptEnd<'a> {
    fn from(end: &'a LeaseEnd) -> AttemptEnd<'a> {
        let LeaseEnd { step: _, outcome, counted, dead_lettered, error } = end;
        let (outcome, counted, dead_lettered) = (*outcome, *counted, *dead_lettered);
        AttemptEnd { outcome, counted, dead_lettered, error }
    }
}

/// The stored number of the way in which a lease ended, by which a repeat of its settle is recognized.
#[must_use]
pub fn settled_code(outcome: AttemptOutcome, dead_lettered: bool) -> u8 {
    // Above every code of an outcome.
    const DEAD_LETTERED: u8 = 8;
    outcome.code() + if dead_lettered { DEAD_LETTERED } else { 0 }
}

/// What becomes of a record from which nothing may be left.
pub(super) fn write_or_remove(record: Option<Record>) -> RecordChange {
    record.map_or(RecordChange::Remove, |record| RecordChange::Write(Box::new(record)))
}

impl DecisionBuilder {
    /// No record is left of a job that ended in this state.
    pub(super) fn remove_finished(&mut self, state: State) {
        self.effects.final_state = Some(state);
        self.parts = PartChanges::drop_all();
    }

    /// What became of a lease, for the replica whose stream answers for it.
    pub(super) fn notify(&mut self, lease: &Lease, news: LeaseChange) {
        self.effects.lease = Some((LeaseHolder::from(lease), news));
    }

    /// The lease of the job has ended: the attempt is counted and remembered.
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
        if ended.counted && !ended.error.is_empty() {
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

    /// The job has this checkpoint from now on; an empty one is none.
    pub(super) fn set_checkpoint(&mut self, record: &mut Record, checkpoint: &Payload) {
        self.drop_checkpoint(record);
        if !checkpoint.body.is_empty() {
            record.history.checkpoint = u32::try_from(checkpoint.body.len()).unwrap_or(u32::MAX);
            record.bytes += u64::from(record.history.checkpoint);
            self.parts.checkpoint = PartChange::Set(checkpoint.clone());
        }
    }

    /// The job has no checkpoint any more.
    pub(super) fn drop_checkpoint(&mut self, record: &mut Record) {
        if record.history.checkpoint > 0 {
            record.bytes = record.bytes.saturating_sub(record.history.checkpoint.into());
            record.history.checkpoint = 0;
            self.parts.checkpoint = PartChange::Drop;
        }
    }

    /// The job has finished in `state`; how long its record stays is its own word. `None`: nothing stays.
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

    /// The job has finished and its record stays. Of a tombstone nothing is left but how it ended.
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

    /// The job waits from now on, unless its expire time has passed: then it has finished, and is kept from now on.
    pub(super) fn make_waiting(&mut self, mut record: Record) -> Option<Record> {
        record.phase = Phase::Waiting;
        if record.expire.is_some_and(|expire| self.clock.is_reached(expire)) {
            let now = self.clock.now();
            return self.finish(record, State::Expired, now, None);
        }
        Some(record)
    }

    /// The waiting generation takes the place of the one whose lease has just ended. Of that one only its place in the
    /// order of arrival stays, and how its leases ended. Its generation was counted when it was deferred.
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

    /// A generation begins in the place of another one, whose checkpoint is gone by now: fresh counters, no past.
    pub(super) fn start_generation(&mut self, mut record: Record) -> Option<Record> {
        let ends = std::mem::take(&mut record.history.lease_ends);
        record.history =
            JobHistory { lease_ends: ends, ..JobHistory::new(record.history.generation) };
        record.next = None;
        self.parts.result = PartChange::Drop;
        self.parts.attempts = AttemptsChange { cleared: true, added: Vec::new() };
        self.make_waiting(record)
    }

    /// A finished job waits again with fresh counters; its attempts stay for people to read, its checkpoint for the next
    /// worker. An expire time that has
    /// passed has had its say: whoever revives the job wants it run.
    pub(super) fn make_waiting_again(&mut self, mut record: Record) -> Record {
        record.phase = Phase::Waiting;
        record.history.restart();
        let expire = record.expire.take();
        record.expire = expire.filter(|&expire| !self.clock.is_reached(expire));
        self.parts.result = PartChange::Drop;
        record
    }
}
