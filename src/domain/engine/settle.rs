//! Commands on a lease: settle, unclaim, extend, detach, adopt.

use crate::domain::lifecycle::{AfterLease, lease_end};
use crate::domain::{AttemptOutcome, Payload, State, StreamId, Time, Token};

use super::command::{
    Adopt, CommandReply, CrashMove, Extend, LeaseRefusal, NewJob, Settle, SettleAction,
    SettleCommandReply, Unacked,
};
use super::finish::{AttemptEnd, settled_code, write_or_remove};
use super::record::{Finish, Lease, Phase, Record};
use super::{CurrentRecord, DecisionBuilder, LeaseChange, RecordChange, RecordTime};

/// Reason why there is no lease with the given token.
enum MissingLease {
    /// The lease cannot be settled or extended.
    Refused(LeaseRefusal),
    /// The lease has already ended in the requested way; the job is in this state.
    Repeated(State),
}

impl DecisionBuilder {
    pub(super) fn settle(
        &mut self,
        elapsed: CurrentRecord,
        settle: &Settle,
    ) -> (RecordChange, CommandReply) {
        let code = match &settle.action {
            SettleAction::Ack { .. } => AttemptEnd::plain(AttemptOutcome::Succeeded).code(),
            SettleAction::Unacked(Unacked { cause, .. }) => {
                settled_code(cause.outcome(), cause.is_dead_letter())
            }
        };
        let (record, lease) = match self.find_lease(elapsed, settle.token, code) {
            Ok(leased) => leased,
            Err(MissingLease::Refused(refused)) => return refuse(refused),
            Err(MissingLease::Repeated(state)) => {
                return (
                    RecordChange::Keep,
                    CommandReply::Settled(Ok(SettleCommandReply { repeated: true, state })),
                );
            }
        };
        if settle.deadline.is_some_and(|deadline| deadline != lease.deadline.at) {
            return refuse(LeaseRefusal::Stale);
        }
        let by_worker = settle.deadline.is_none();
        self.notify(&lease, if by_worker { LeaseChange::Settled } else { LeaseChange::Expired });
        let (record, gone) = match &settle.action {
            SettleAction::Ack { result, follow_ups } => {
                (self.ack(record, lease, result.as_ref(), follow_ups), State::Succeeded)
            }
            SettleAction::Unacked(unacked) => {
                let record = self.end_unacked(record, lease, unacked);
                // No record: the job has moved to its crash topic, or has expired while it ran and is not kept.
                (record, self.effects.final_state.unwrap_or(State::Expired))
            }
        };
        let state = record.as_ref().and_then(|record| record.state(self.clock.time()));
        let settled = SettleCommandReply { repeated: false, state: state.unwrap_or(gone) };
        (write_or_remove(record), CommandReply::Settled(Ok(settled)))
    }

    fn ack(
        &mut self,
        mut record: Record,
        lease: Lease,
        result: Option<&Payload>,
        follow_ups: &[NewJob],
    ) -> Option<Record> {
        self.effects.counters.succeeded += 1;
        self.effects.follow_ups = follow_ups.to_vec();
        let ended = AttemptEnd::plain(AttemptOutcome::Succeeded);
        if record.next.is_some() {
            return self.replace_by_next(record, &lease, &ended);
        }
        self.end_attempt(&mut record, lease, &ended);
        self.drop_checkpoint(&mut record);
        let now = self.clock.now();
        self.finish(record, State::Succeeded, now, result)
    }

    /// Ends a lease without success.
    fn end_unacked(
        &mut self,
        mut record: Record,
        lease: Lease,
        unacked: &Unacked,
    ) -> Option<Record> {
        let attempt = record.attempt_context(&lease);
        let policy = unacked.policy.clone().merge(attempt.retry.as_deref());
        let (cause, now) = (unacked.cause.clone(), self.clock.time());
        if let Some(longest) = policy.max_retry_duration {
            // Narrows the window: the decision changes when the time for retries is used up.
            self.clock.is_reached(attempt.first_start.plus(longest).into());
        }
        let mut end = lease_end(cause, &attempt, &policy, now, unacked.entropy);
        if let (CrashMove::Rejected(reason), true) = (&unacked.crash_move, end.crashes_used) {
            end.error = format!("{}; {reason}", end.error);
        }
        let ended = AttemptEnd::from(&end);
        if record.next.is_some() {
            return self.replace_by_next(record, &lease, &ended);
        }
        self.end_attempt(&mut record, lease, &ended);
        match end.step {
            AfterLease::Wait(delay) => {
                if let Some(delay) = delay {
                    record.due = self.clock.now().plus(delay);
                }
                self.make_waiting(record)
            }
            AfterLease::DeadLetter => {
                if unacked.crash_move == CrashMove::Copied && end.crashes_used {
                    self.remove_finished(State::Dead);
                    return None;
                }
                self.effects.counters.dead += 1;
                let at = self.clock.now();
                let finish =
                    Finish { state: State::Dead, at, until: at.plus(unacked.dead_retention) };
                Some(self.keep_finished(record, finish, None))
            }
        }
    }

    /// Begins the waiting generation. Of the old one only the end of its lease is kept, to recognize a repeat of its
    /// settle.
    pub(super) fn replace_by_next(
        &mut self,
        mut record: Record,
        lease: &Lease,
        ended: &AttemptEnd<'_>,
    ) -> Option<Record> {
        record.history.lease_ends.push(lease.token, ended.code());
        match record.next.take() {
            Some(next) => self.start_next_generation(record, *next),
            None => self.make_waiting(record),
        }
    }

    pub(super) fn unclaim(
        &mut self,
        elapsed: CurrentRecord,
        token: Token,
    ) -> (RecordChange, CommandReply) {
        let held = elapsed.record().filter(|record| record.lease_of(token).is_some());
        let Some(mut record) = held else {
            return (RecordChange::Keep, CommandReply::Applied(false));
        };
        record.history.lease_ends.trim_for_claim();
        let record = match record.next.take() {
            Some(next) => self.start_next_generation(record, *next),
            None => self.make_waiting(record),
        };
        (write_or_remove(record), CommandReply::Applied(true))
    }

    pub(super) fn extend(
        &mut self,
        elapsed: CurrentRecord,
        extend: &Extend,
    ) -> (RecordChange, CommandReply) {
        let (mut record, mut lease) = match self.find_lease(elapsed, extend.token, 0) {
            Ok(leased) => leased,
            Err(MissingLease::Refused(refused)) => {
                return (RecordChange::Keep, CommandReply::Extended(Err(refused)));
            }
            Err(MissingLease::Repeated(_)) => {
                return (RecordChange::Keep, CommandReply::Extended(Err(LeaseRefusal::Stale)));
            }
        };
        if extend.outage_expiry.is_some_and(|lapsed| lapsed.deadline != lease.deadline.at) {
            return (RecordChange::Keep, CommandReply::Extended(Err(LeaseRefusal::Stale)));
        }
        let from = extend
            .outage_expiry
            .map_or(self.clock.now(), |lapsed| RecordTime::fixed(lapsed.served_since));
        lease.deadline = from.plus(extend.duration.unwrap_or(lease.duration));
        lease.extended = Some(from);
        if let Some(progress) = &extend.progress {
            record.history.progress.clone_from(progress);
        }
        if let Some(checkpoint) = &extend.checkpoint {
            self.set_checkpoint(&mut record, checkpoint);
        }
        self.notify(&lease, LeaseChange::Extended);
        let answer = CommandReply::Extended(Ok(lease.deadline));
        record.phase = Phase::Running(lease);
        (RecordChange::Write(Box::new(record)), answer)
    }

    pub(super) fn detach(
        &mut self,
        elapsed: CurrentRecord,
        token: Token,
        stream: StreamId,
    ) -> (RecordChange, CommandReply) {
        match self.find_lease(elapsed, token, 0) {
            Ok((record, lease)) if lease.stream_id() == stream => {
                keep_running(record, Lease { grace: None, ..lease })
            }
            _ => (RecordChange::Keep, CommandReply::Applied(false)),
        }
    }

    pub(super) fn adopt(
        &mut self,
        elapsed: CurrentRecord,
        adopt: &Adopt,
    ) -> (RecordChange, CommandReply) {
        let Ok((record, lease)) = self.find_lease(elapsed, adopt.token, 0) else {
            return (RecordChange::Keep, CommandReply::Applied(false));
        };
        if lease.stream_id() == adopt.to {
            return (RecordChange::Keep, CommandReply::Applied(true));
        }
        let extended = lease.extended.map_or(Time(0), |extended| extended.at);
        let is_late = extended < adopt.extended_min(lease.grace.is_none());
        if lease.stream_id() != adopt.from || is_late {
            return (RecordChange::Keep, CommandReply::Applied(false));
        }
        self.notify(&lease, LeaseChange::Adopted);
        let StreamId { owner, stream } = adopt.to;
        keep_running(record, Lease { owner, stream, grace: Some(adopt.grace), ..lease })
    }

    /// Returns the job that this token leases, and its lease. `code`: the requested end, to recognize a repeat.
    fn find_lease(
        &mut self,
        elapsed: CurrentRecord,
        token: Token,
        code: u8,
    ) -> Result<(Record, Lease), MissingLease> {
        let (found, now) = (elapsed.record(), self.clock.time());
        let found = match found.map(|record| (record.lease_of(token).cloned(), record)) {
            Some((Some(lease), record)) => return Ok((record, lease)),
            Some((None, record)) => Some(record),
            None => None,
        };
        let refused = LeaseRefusal::classify(found.as_ref(), now);
        let ended = found.filter(|record| {
            record.is_repeat_of_settle(token, code) && refused == LeaseRefusal::Stale
        });
        let state = ended.and_then(|record| record.state(now));
        Err(state.map_or(MissingLease::Refused(refused), MissingLease::Repeated))
    }
}

impl LeaseRefusal {
    /// Returns the reason why `record` has no such lease at `now`: the job is gone, or it goes on without the lease.
    #[must_use]
    pub fn classify(record: Option<&Record>, now: Time) -> LeaseRefusal {
        match record.and_then(|record| record.state(now)) {
            None | Some(State::Cancelled) => LeaseRefusal::NotFound,
            Some(_) => LeaseRefusal::Stale,
        }
    }
}

/// Writes the running job with this changed lease.
fn keep_running(record: Record, lease: Lease) -> (RecordChange, CommandReply) {
    let record = Record { phase: Phase::Running(lease), ..record };
    (RecordChange::Write(Box::new(record)), CommandReply::Applied(true))
}

fn refuse(refused: LeaseRefusal) -> (RecordChange, CommandReply) {
    (RecordChange::Keep, CommandReply::Settled(Err(refused)))
}
