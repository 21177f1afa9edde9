//! A record of the reference, and the effect of each transition on it.

use std::time::Duration;

use crate::store_calls::{LeaseSettlement, TestJob};
use ringq::domain::conflict::ExistingJob;
use ringq::domain::engine::{CrashMove, Unacked};
use ringq::domain::lifecycle::{AfterLease, AttemptContext, KeepsError, LeaseEnd, lease_end};
use ringq::domain::{
    Attempt, AttemptOutcome, Job, RetentionRule, ShardName, Spec, State, Time, Token, limit,
};
use ringq::store::{
    LeaseRefusal, LeasedJob, RunningLease, SettleAction, SettleCommandReply, StreamDemand,
};

use super::table::Transition;

/// A record. `job.deliveries` counts finished ones; a waiting job's `job.state` is any waiting one.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) job: Job,
    pub(super) arrival: u64,
    pub(super) keep: RetentionRule,
    pub(super) request: Option<u64>,
    pub(super) forget: Option<Time>,
    pub(super) first_start: Option<Time>,
    pub(super) lease: Option<Holder>,
    /// Ends of its leases, newest first: token, outcome, whether it was dead-lettered by that end.
    pub(super) ended: Vec<(Token, AttemptOutcome, bool)>,
    pub(super) next: Option<Box<Held>>,
}

#[derive(Clone)]
pub(super) struct Holder {
    pub(super) token: Token,
    pub(super) deadline: Time,
    pub(super) duration: Duration,
    pub(super) started: Time,
    pub(super) extended: Option<Time>,
    pub(super) owner: u32,
    pub(super) stream: u32,
    pub(super) grace: Option<Duration>,
    /// First start and last holder before the current lease.
    pub(super) before: (Option<Time>, String),
}

/// The end of an attempt.
pub(super) struct Ending<'a> {
    pub(super) outcome: AttemptOutcome,
    pub(super) counted: bool,
    pub(super) crashed: bool,
    pub(super) error: &'a str,
    pub(super) keeps_error: KeepsError,
    pub(super) dead_lettered: bool,
}

// === impl Ending ===

impl Ending<'_> {
    /// Returns an end that counts nothing and leaves no error.
    pub(super) fn plain(outcome: AttemptOutcome) -> Self {
        let (counted, crashed, dead_lettered) = (false, false, false);
        let keeps_error = KeepsError::Never;
        Ending { outcome, counted, crashed, error: "", keeps_error, dead_lettered }
    }
}

// === impl Held ===

impl Held {
    pub(super) fn new(new: &TestJob, now: Time, arrival: u64, shard: &ShardName) -> Held {
        let job = Job {
            key: new.key.clone(),
            spec: new.spec.clone(),
            priority: new.priority.unwrap_or(0),
            expire_time: new.expire.map(|expire| expire.at(now)),
            state: State::Ready,
            failures: 0,
            deliveries: 0,
            crashes: 0,
            generation: 1,
            create_time: now,
            due_time: new.due.due(now),
            lease_expire_time: None,
            worker_id: String::new(),
            finish_time: None,
            result: None,
            last_error: new.history.as_ref().map_or_else(String::new, |it| it.last_error.clone()),
            attempts: Vec::new(),
            progress: String::new(),
            checkpoint: None,
            shard: shard.clone(),
        };
        Held {
            job,
            arrival,
            keep: new.retention,
            request: new.request_code,
            forget: None,
            first_start: None,
            lease: None,
            ended: Vec::new(),
            next: None,
        }
    }

    pub(super) fn waits(&self) -> bool {
        self.job.state.is_waiting()
    }

    pub(super) fn state(&self, now: Time) -> State {
        let job = &self.job;
        if self.waits() { State::waiting(job.due_time, job.failures, now) } else { job.state }
    }

    pub(super) fn found(&self, now: Time) -> ExistingJob {
        if self.next.is_some() {
            ExistingJob::RunningWithNext
        } else {
            ExistingJob::Job(self.state(now))
        }
    }

    /// Returns the due time that an enqueue returns which changes nothing.
    pub(super) fn answer_due(&self) -> Time {
        self.next.as_ref().map_or(&self.job, |next| &next.job).due_time
    }

    pub(super) fn read(&self, now: Time, full: bool) -> Job {
        let mut job = self.job.clone();
        job.state = self.state(now);
        job.deliveries += u32::from(self.lease.is_some());
        job.lease_expire_time = self.lease.as_ref().map(|lease| lease.deadline);
        if !full {
            (job.spec.payload, job.result, job.checkpoint) = (None, None, None);
            job.attempts.clear();
        }
        job
    }

    /// Returns its attempt context while its lease runs.
    fn standing(&self) -> AttemptContext {
        AttemptContext {
            failures: self.job.failures,
            deliveries: self.job.deliveries,
            crashes: self.job.crashes,
            is_replaced: self.next.is_some(),
            first_start: self.first_start.unwrap(),
            retry: self.job.spec.retry.clone(),
        }
    }

    pub(super) fn read_lease(&self, now: Time) -> Option<RunningLease> {
        let lease = self.lease.as_ref()?;
        let standing = self.standing();
        Some(RunningLease {
            key: self.job.key.clone(),
            token: lease.token,
            deadline: lease.deadline,
            start_time: lease.started,
            extend_time: lease.extended,
            worker: self.job.worker_id.clone(),
            owner: lease.owner,
            stream: lease.stream,
            grace: lease.grace,
            bytes: self.bytes(),
            attempt: standing,
            now,
        })
    }

    /// Returns its size for the byte limit of a claim.
    pub(super) fn bytes(&self) -> u64 {
        let checkpoint = self.job.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.body.len());
        (self.job.spec.bytes() + checkpoint) as u64
    }

    /// Returns the refusal of a receipt that holds no lease here.
    pub(super) fn refuse(&self) -> LeaseRefusal {
        if self.job.state == State::Cancelled {
            LeaseRefusal::NotFound
        } else {
            LeaseRefusal::Stale
        }
    }

    pub(super) fn repeat(
        &self,
        settle: &LeaseSettlement,
        now: Time,
    ) -> Result<SettleCommandReply, LeaseRefusal> {
        let (outcome, dead_lettered) = match &settle.action {
            SettleAction::Ack { .. } => (AttemptOutcome::Succeeded, false),
            SettleAction::Unacked(unacked) => {
                (unacked.cause.outcome(), unacked.cause.is_dead_letter())
            }
        };
        let applied = (settle.lease.token, outcome, dead_lettered);
        if self.job.state == State::Cancelled || !self.ended.contains(&applied) {
            return Err(self.refuse());
        }
        Ok(SettleCommandReply { repeated: true, state: self.state(now) })
    }

    /// Returns whether this lease ended before the current or last one.
    pub(super) fn is_past(&self, token: Token) -> bool {
        let last = if self.lease.is_some() { 0 } else { 1 };
        self.ended.iter().skip(last).any(|ended| ended.0 == token)
    }

    /// Leases the job. `started`: the start of the lease in the store, later than every one before.
    pub(super) fn lease(
        &mut self,
        now: Time,
        started: Time,
        owner: u32,
        taker: &StreamDemand,
        token: Token,
    ) -> LeasedJob {
        let job = &mut self.job;
        let duration = job.spec.lease.unwrap_or(taker.lease);
        let deadline = now.plus(duration);
        let (stream, grace) = (taker.stream, taker.grace);
        let extended = None;
        let before = (self.first_start, job.worker_id.clone());
        self.lease = Some(Holder {
            token,
            deadline,
            duration,
            started,
            extended,
            owner,
            stream,
            grace,
            before,
        });
        self.first_start = self.first_start.or(Some(started));
        self.ended.truncate(limit::ATTEMPTS_KEPT);
        job.state = State::Running;
        job.worker_id = taker.worker_id.to_string();
        LeasedJob {
            key: job.key.clone(),
            token,
            fence: started,
            deadline,
            spec: job.spec.clone(),
            priority: job.priority,
            failures: job.failures,
            deliveries: job.deliveries,
            crashes: job.crashes,
            due: job.due_time,
            create_time: job.create_time,
            last_error: job.last_error.clone(),
            checkpoint: job.checkpoint.clone(),
        }
    }

    pub(super) fn unclaim(&mut self) {
        let lease = self.lease.take().unwrap();
        self.job.state = State::Ready;
        (self.first_start, self.job.worker_id) = lease.before;
        if let Some(next) = self.next.take() {
            self.replace(*next, 0);
        }
    }

    /// Returns the consequence when its lease ends without an Ack.
    fn end_of(&self, unacked: &Unacked, now: Time) -> LeaseEnd {
        let standing = self.standing();
        let policy = unacked.policy.clone().merge(standing.retry.as_deref());
        let mut end = lease_end(unacked.cause.clone(), &standing, &policy, now, unacked.entropy);
        if let (CrashMove::Rejected(reason), true) = (&unacked.crash_move, end.crashes_used) {
            end.error = format!("{}; {reason}", end.error);
        }
        end
    }

    /// Ends its lease; returns the transition in its table and the outcome in its history.
    pub(super) fn settle(&mut self, end: &SettleAction, now: Time) -> (Transition, AttemptOutcome) {
        let decided = match end {
            SettleAction::Ack { .. } => None,
            SettleAction::Unacked(unacked) => Some(self.end_of(unacked, now)),
        };
        let ending = decided.as_ref().map_or(Ending::plain(AttemptOutcome::Succeeded), |end| {
            let LeaseEnd { outcome, counted, crashed, error, keeps_error, dead_lettered, .. } = end;
            let (outcome, counted, crashed) = (*outcome, *counted, *crashed);
            let (keeps_error, dead_lettered) = (*keeps_error, *dead_lettered);
            Ending { outcome, counted, crashed, error, keeps_error, dead_lettered }
        });
        let outcome = ending.outcome;
        self.end_attempt(now, &ending);
        let transition = transition_of(decided.as_ref());
        if let Some(next) = self.next.take() {
            self.replace(*next, 0);
        } else {
            self.finish_lease(end, decided.as_ref(), now);
        }
        (transition, outcome)
    }

    fn finish_lease(&mut self, end: &SettleAction, decided: Option<&LeaseEnd>, now: Time) {
        let dead_retention = match end {
            SettleAction::Unacked(unacked) if !has_moved(unacked, decided) => {
                unacked.dead_retention
            }
            SettleAction::Ack { .. } | SettleAction::Unacked(_) => Duration::ZERO,
        };
        match (end, decided.map(|end| end.step)) {
            (SettleAction::Ack { result, .. }, _) => {
                self.job.result.clone_from(result);
                self.job.checkpoint = None;
                self.finish(State::Succeeded, now);
            }
            (_, Some(AfterLease::Wait(delay))) => {
                self.job.state = State::Ready;
                let due = delay.map(|delay| now.plus(delay));
                self.job.due_time = due.unwrap_or(self.job.due_time);
            }
            (_, Some(AfterLease::DeadLetter)) => {
                self.finish(State::Dead, now);
                self.forget = Some(now.plus(dead_retention));
            }
            (SettleAction::Unacked(_), None) => unreachable!("it was decided"),
        }
    }

    pub(super) fn end_attempt(&mut self, now: Time, ending: &Ending<'_>) {
        let lease = self.lease.take().unwrap();
        let job = &mut self.job;
        job.deliveries += 1;
        job.failures += u32::from(ending.counted);
        job.crashes += u32::from(ending.crashed);
        if ending.keeps_error.replaces(&job.last_error, ending.error) {
            job.last_error = ending.error.to_owned();
        }
        let attempt = Attempt {
            number: job.deliveries,
            start_time: lease.started,
            finish_time: now,
            worker_id: job.worker_id.clone(),
            outcome: ending.outcome,
            error: ending.error.to_owned(),
        };
        job.attempts.insert(0, attempt);
        job.attempts.truncate(limit::ATTEMPTS_KEPT);
        self.ended.insert(0, (lease.token, ending.outcome, ending.dead_lettered));
    }

    pub(super) fn is_tombstone(&self) -> bool {
        matches!(self.keep, RetentionRule::Tombstone(_)) && self.job.state != State::Dead
    }

    pub(super) fn finish(&mut self, state: State, at: Time) {
        let job = &mut self.job;
        (job.state, job.finish_time) = (state, Some(at));
        self.forget = Some(match self.keep {
            RetentionRule::Nothing => at,
            RetentionRule::Tombstone(keep) | RetentionRule::Record(keep) => at.plus(keep),
        });
        if self.is_tombstone() {
            let job = &mut self.job;
            let Spec { lease, .. } = std::mem::take(&mut job.spec);
            job.spec = Spec { lease, ..Spec::default() };
            (job.result, job.last_error, job.progress) = Default::default();
            job.attempts.clear();
            job.checkpoint = None;
        }
    }

    pub(super) fn shift(&mut self, due: Time, priority: Option<u8>) {
        self.job.due_time = due;
        self.job.priority = priority.unwrap_or(self.job.priority);
    }

    /// Makes it wait again with fresh counters; an expire time that has passed no longer counts.
    pub(super) fn revive(&mut self, due: Time, priority: Option<u8>, now: Time) {
        self.shift(due, priority);
        let job = &mut self.job;
        (job.state, job.failures, job.deliveries, job.crashes) = (State::Ready, 0, 0, 0);
        job.finish_time = None;
        job.expire_time = job.expire_time.filter(|&expire| expire > now);
        (self.first_start, self.forget) = (None, None);
    }

    /// Replaces the job by `fresh`; the record and the ends of its leases stay.
    pub(super) fn replace(&mut self, fresh: Held, raise: u32) {
        let generation = self.job.generation + raise;
        let Held { arrival, request, .. } = *self;
        let ended = std::mem::take(&mut self.ended);
        *self = Held { arrival, request, ended, ..fresh };
        self.job.generation = generation;
    }
}

/// Returns whether the job is in its crash topic after this end.
fn has_moved(unacked: &Unacked, end: Option<&LeaseEnd>) -> bool {
    unacked.crash_move == CrashMove::Copied && end.is_some_and(|end| end.crashes_used)
}

/// Returns the transition of an end: an Ack, or the decided end.
fn transition_of(end: Option<&LeaseEnd>) -> Transition {
    match end {
        None => Transition::Ack,
        Some(end) => match (end.step, end.outcome) {
            (AfterLease::DeadLetter, _) => Transition::DeadLetter,
            (AfterLease::Wait(_), AttemptOutcome::Released) => Transition::Release,
            (AfterLease::Wait(_), AttemptOutcome::Failed | AttemptOutcome::LeaseExpired) => {
                Transition::Retry
            }
            (AfterLease::Wait(_), AttemptOutcome::Succeeded | AttemptOutcome::Revoked) => {
                panic!("{end:?} ends no lease like that")
            }
        },
    }
}
