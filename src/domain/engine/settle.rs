//! Ends of leases, and what lasts until then.

use crate::domain::lifecycle::{Step as Onward, lease_end};
use crate::domain::{AttemptOutcome, JobKey, Payload, State, StreamId, Time, Token};

use super::command::{Adopt, Answer, End, Enqueue, Extend, Refused, Settle, Settled, Unacked};
use super::finish::{Ended, settled_code, written};
use super::record::{Finish, Lease, Phase, Record};
use super::{Change, Elapsed, LeaseNews, Moment, Step};

/// What is there instead of a lease: a job that was deleted is gone, any other goes on without it.
enum Instead {
    Refused(Refused),
    /// A job in this state, of which the lease has ended as is asked now.
    Repeated(State),
}

impl Step {
    pub(super) fn settle(&mut self, elapsed: Elapsed, settle: &Settle) -> (Change, Answer) {
        let code = match &settle.end {
            End::Ack { .. } => Ended::plain(AttemptOutcome::Succeeded).code(),
            End::Unacked(Unacked { cause, .. }) => {
                settled_code(cause.outcome(), cause.is_dead_letter())
            }
        };
        let (record, lease) = match self.leased(elapsed, settle.token, code) {
            Ok(leased) => leased,
            Err(Instead::Refused(refused)) => return refuse(refused),
            Err(Instead::Repeated(state)) => {
                return (Change::Keep, Answer::Settled(Ok(Settled { repeated: true, state })));
            }
        };
        if settle.deadline.is_some_and(|deadline| deadline != lease.deadline.at) {
            return refuse(Refused::Stale);
        }
        let by_worker = settle.deadline.is_none();
        self.notify(&lease, if by_worker { LeaseNews::Settled } else { LeaseNews::Expired });
        let (record, gone) = match &settle.end {
            End::Ack { result, follow_ups } => {
                (self.ack(record, lease, result.as_ref(), follow_ups), State::Succeeded)
            }
            // A job that expired while it ran and is not kept has no state any more.
            End::Unacked(unacked) => (self.end(record, lease, unacked), State::Expired),
        };
        let state = record.as_ref().and_then(|record| record.state(self.clock.time()));
        let settled = Settled { repeated: false, state: state.unwrap_or(gone) };
        (written(record), Answer::Settled(Ok(settled)))
    }

    fn ack(
        &mut self,
        mut record: Record,
        lease: Lease,
        result: Option<&Payload>,
        follow_ups: &[(JobKey, Enqueue)],
    ) -> Option<Record> {
        self.effects.counts.succeeded += 1;
        self.effects.follow_ups = follow_ups.to_vec();
        let ended = Ended::plain(AttemptOutcome::Succeeded);
        if record.next.is_some() {
            return self.hand_over(record, &lease, &ended);
        }
        self.end_attempt(&mut record, lease, &ended);
        self.drop_checkpoint(&mut record);
        let now = self.clock.now();
        self.finish(record, State::Succeeded, now, result)
    }

    /// Ends a lease without success.
    fn end(&mut self, mut record: Record, lease: Lease, unacked: &Unacked) -> Option<Record> {
        let standing = record.standing(&lease);
        let policy = unacked.policy.clone().merge(&standing.retry);
        let (cause, now) = (unacked.cause.clone(), self.clock.time());
        if let Some(longest) = policy.max_retry_duration {
            // It decides whether the time for retries is used up.
            self.clock.has_come(standing.first_start.plus(longest).into());
        }
        let end = lease_end(cause, &standing, &policy, now, unacked.entropy);
        let ended = Ended::from(&end);
        if record.next.is_some() {
            return self.hand_over(record, &lease, &ended);
        }
        self.end_attempt(&mut record, lease, &ended);
        match end.step {
            Onward::Wait(delay) => {
                if let Some(delay) = delay {
                    record.due = self.clock.now().plus(delay);
                }
                self.wait(record)
            }
            Onward::Die => {
                self.effects.counts.dead += 1;
                let at = self.clock.now();
                let finish =
                    Finish { state: State::Dead, at, until: at.plus(unacked.dead_retention) };
                Some(self.conclude(record, finish, None))
            }
        }
    }

    /// The waiting generation begins; of the old one only how its lease ended is remembered, so that a repeat of its
    /// settle is recognized.
    fn hand_over(
        &mut self,
        mut record: Record,
        lease: &Lease,
        ended: &Ended<'_>,
    ) -> Option<Record> {
        record.life.ends.push(lease.token, ended.code());
        match record.next.take() {
            Some(next) => self.begin_next(record, *next),
            None => self.wait(record),
        }
    }

    pub(super) fn unclaim(&mut self, elapsed: Elapsed, token: Token) -> (Change, Answer) {
        let held = elapsed.record().filter(|record| record.lease_of(token).is_some());
        let Some(mut record) = held else { return (Change::Keep, Answer::Done(false)) };
        record.life.ends.claimed();
        let record = match record.next.take() {
            Some(next) => self.begin_next(record, *next),
            None => self.wait(record),
        };
        (written(record), Answer::Done(true))
    }

    pub(super) fn extend(&mut self, elapsed: Elapsed, extend: &Extend) -> (Change, Answer) {
        let (mut record, mut lease) = match self.leased(elapsed, extend.token, 0) {
            Ok(leased) => leased,
            Err(Instead::Refused(refused)) => {
                return (Change::Keep, Answer::Extended(Err(refused)));
            }
            Err(Instead::Repeated(_)) => {
                return (Change::Keep, Answer::Extended(Err(Refused::Stale)));
            }
        };
        if extend.lapsed.is_some_and(|lapsed| lapsed.deadline != lease.deadline.at) {
            return (Change::Keep, Answer::Extended(Err(Refused::Stale)));
        }
        let from = extend.lapsed.map_or(self.clock.now(), |lapsed| Moment::fixed(lapsed.served));
        lease.deadline = from.plus(extend.duration.unwrap_or(lease.duration));
        lease.extended = Some(from);
        if let Some(progress) = &extend.progress {
            record.life.progress.clone_from(progress);
        }
        if let Some(checkpoint) = &extend.checkpoint {
            self.set_checkpoint(&mut record, checkpoint);
        }
        self.notify(&lease, LeaseNews::Extended);
        let answer = Answer::Extended(Ok(lease.deadline));
        record.phase = Phase::Running(lease);
        (Change::Write(Box::new(record)), answer)
    }

    pub(super) fn detach(
        &mut self,
        elapsed: Elapsed,
        token: Token,
        stream: StreamId,
    ) -> (Change, Answer) {
        match self.leased(elapsed, token, 0) {
            Ok((record, lease)) if lease.stream_id() == stream => {
                runs_under(record, Lease { grace: None, ..lease })
            }
            _ => (Change::Keep, Answer::Done(false)),
        }
    }

    pub(super) fn adopt(&mut self, elapsed: Elapsed, adopt: &Adopt) -> (Change, Answer) {
        let Ok((record, lease)) = self.leased(elapsed, adopt.token, 0) else {
            return (Change::Keep, Answer::Done(false));
        };
        if lease.stream_id() == adopt.to {
            return (Change::Keep, Answer::Done(true));
        }
        let is_extended = |since| lease.extended.is_some_and(|extended| extended.at >= since);
        let is_free = lease.grace.is_none() || adopt.since.is_none_or(is_extended);
        if lease.stream_id() != adopt.from || !is_free {
            return (Change::Keep, Answer::Done(false));
        }
        self.notify(&lease, LeaseNews::Adopted);
        let StreamId { owner, stream } = adopt.to;
        runs_under(record, Lease { owner, stream, grace: Some(adopt.grace), ..lease })
    }

    /// The job that this token leases and its lease, or what is there instead; `code`: how the lease is asked to end.
    fn leased(
        &mut self,
        elapsed: Elapsed,
        token: Token,
        code: u8,
    ) -> Result<(Record, Lease), Instead> {
        let (found, now) = (elapsed.record(), self.clock.time());
        let found = match found.map(|record| (record.lease_of(token).cloned(), record)) {
            Some((Some(lease), record)) => return Ok((record, lease)),
            Some((None, record)) => Some(record),
            None => None,
        };
        let refused = Refused::of(found.as_ref(), now);
        let ended =
            found.filter(|record| record.has_ended(token, code) && refused == Refused::Stale);
        let state = ended.and_then(|record| record.state(now));
        Err(state.map_or(Instead::Refused(refused), Instead::Repeated))
    }
}

impl Refused {
    /// Why there is no such lease in this record at `now`: a job that was deleted is gone, any other goes on without it.
    #[must_use]
    pub fn of(record: Option<&Record>, now: Time) -> Refused {
        match record.and_then(|record| record.state(now)) {
            None | Some(State::Cancelled) => Refused::NotFound,
            Some(_) => Refused::Stale,
        }
    }
}

/// The job goes on running, under the same lease, which says so now.
fn runs_under(record: Record, lease: Lease) -> (Change, Answer) {
    let record = Record { phase: Phase::Running(lease), ..record };
    (Change::Write(Box::new(record)), Answer::Done(true))
}

fn refuse(refused: Refused) -> (Change, Answer) {
    (Change::Keep, Answer::Settled(Err(refused)))
}
