//! How jobs end, wait again and begin anew: the steps that several commands share.

use crate::domain::lifecycle::LeaseEnd;
use crate::domain::{Attempt, AttemptOutcome, Payload, State};

use super::clock::Moment;
use super::decision::{AttemptsChange, PartChange, Parts, PayloadChange};
use super::record::{Brought, Finish, Lease, Life, Next, Phase, Record};
use super::{Change, Holder, LeaseNews, Step};

/// How an attempt ended, as it is remembered.
pub(super) struct Ended<'a> {
    pub(super) outcome: AttemptOutcome,
    /// Whether it counts as a failure.
    pub(super) counted: bool,
    /// Whether its worker asked for a dead letter.
    pub(super) dead_lettered: bool,
    pub(super) error: &'a str,
}

// === impl Ended ===

impl<'a> Ended<'a> {
    /// An end that counts no failure and leaves no error.
    pub(super) fn plain(outcome: AttemptOutcome) -> Ended<'a> {
        Ended { outcome, counted: false, dead_lettered: false, error: "" }
    }

    /// By what a repeat of the settle that brought this end is recognized: each way to settle has its own.
    pub(super) fn code(&self) -> u8 {
        settled_code(self.outcome, self.dead_lettered)
    }
}

impl<'a> From<&'a LeaseEnd> for Ended<'a> {
    fn from(end: &'a LeaseEnd) -> Ended<'a> {
        let LeaseEnd { step: _, outcome, counted, dead_lettered, error } = end;
        let (outcome, counted, dead_lettered) = (*outcome, *counted, *dead_lettered);
        Ended { outcome, counted, dead_lettered, error }
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
pub(super) fn written(record: Option<Record>) -> Change {
    record.map_or(Change::Remove, |record| Change::Write(Box::new(record)))
}

impl Step {
    /// No record is left of a job that ended in this state.
    pub(super) fn forget(&mut self, state: State) {
        self.effects.ended = Some(state);
        self.parts = Parts::drop_all();
    }

    /// What became of a lease, for the replica whose stream answers for it.
    pub(super) fn notify(&mut self, lease: &Lease, news: LeaseNews) {
        self.effects.lease = Some((Holder::from(lease), news));
    }

    /// The lease of the job has ended: the attempt is counted and remembered.
    pub(super) fn end_attempt(&mut self, record: &mut Record, lease: Lease, ended: &Ended<'_>) {
        let life = &mut record.life;
        life.deliveries += 1;
        life.failures += u32::from(ended.counted);
        life.first_start.get_or_insert(lease.started);
        if ended.counted && !ended.error.is_empty() {
            ended.error.clone_into(&mut life.last_error);
        }
        life.ends.push(lease.token, ended.code());
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
            record.life.checkpoint = u32::try_from(checkpoint.body.len()).unwrap_or(u32::MAX);
            record.bytes += u64::from(record.life.checkpoint);
            self.parts.checkpoint = PartChange::Set(checkpoint.clone());
        }
    }

    /// The job has no checkpoint any more.
    pub(super) fn drop_checkpoint(&mut self, record: &mut Record) {
        if record.life.checkpoint > 0 {
            record.bytes = record.bytes.saturating_sub(record.life.checkpoint.into());
            record.life.checkpoint = 0;
            self.parts.checkpoint = PartChange::Drop;
        }
    }

    /// The job has finished in `state`; how long its record stays is its own word. `None`: nothing stays.
    pub(super) fn finish(
        &mut self,
        record: Record,
        state: State,
        at: Moment,
        result: Option<&Payload>,
    ) -> Option<Record> {
        let lasts = record.keep.lasts();
        let until = at.plus(lasts);
        if lasts.is_zero() || self.clock.has_come(until) {
            self.forget(state);
            return None;
        }
        Some(self.conclude(record, Finish { state, at, until }, result))
    }

    /// The job has finished and its record stays. Of a tombstone nothing is left but how it ended.
    pub(super) fn conclude(
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
            record.life.last_error.clear();
            record.life.progress.clear();
            record.life.attempts.clear();
            record.life.first_start = None;
            self.parts = Parts::drop_all();
        } else if let Some(result) = result {
            self.parts.result = PartChange::Set(result.clone());
        }
        record
    }

    /// The job waits from now on, unless its expire time has passed: then it has finished, and is kept from now on.
    pub(super) fn wait(&mut self, mut record: Record) -> Option<Record> {
        record.phase = Phase::Waiting;
        if record.expire.is_some_and(|expire| self.clock.has_come(expire)) {
            let now = self.clock.now();
            return self.finish(record, State::Expired, now, None);
        }
        Some(record)
    }

    /// The waiting generation takes the place of the one whose lease has just ended. Of that one only its place in the
    /// order of arrival stays, and how its leases ended. Its generation was counted when it was deferred.
    pub(super) fn begin_next(&mut self, mut record: Record, next: Next) -> Option<Record> {
        let Next { priority, due, expire, created, own } = next;
        self.drop_checkpoint(&mut record);
        (record.priority, record.due, record.created) = (priority, due.into(), created.into());
        record.expire = expire.map(Moment::fixed);
        self.parts.payload = match &own {
            None => PayloadChange::Keep,
            Some(Brought { has_payload: false, .. }) => PayloadChange::Drop,
            Some(_) => PayloadChange::Promote,
        };
        if let Some(Brought { keep, bytes, spec, has_payload: _ }) = own {
            (record.keep, record.bytes, record.spec) = (keep, bytes, spec);
        }
        self.parts.next_payload = PartChange::Drop;
        self.begin(record)
    }

    /// A generation begins in the place of another one, whose checkpoint is gone by now: fresh counters, no past.
    pub(super) fn begin(&mut self, mut record: Record) -> Option<Record> {
        let ends = std::mem::take(&mut record.life.ends);
        record.life = Life { ends, ..Life::new(record.life.generation) };
        record.next = None;
        self.parts.result = PartChange::Drop;
        self.parts.attempts = AttemptsChange { cleared: true, added: Vec::new() };
        self.wait(record)
    }

    /// A finished job waits again with fresh counters; its attempts stay for people to read, its checkpoint for the next
    /// worker. An expire time that has
    /// passed has had its say: whoever revives the job wants it run.
    pub(super) fn revive(&mut self, mut record: Record) -> Record {
        record.phase = Phase::Waiting;
        record.life.restart();
        let expire = record.expire.take();
        record.expire = expire.filter(|&expire| !self.clock.has_come(expire));
        self.parts.result = PartChange::Drop;
        record
    }
}
