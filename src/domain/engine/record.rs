//! The record of a job: all that a store keeps of it, but for the parts that lie apart.

use std::time::Duration;

use crate::domain::lifecycle::AttemptContext;
use crate::domain::{RetentionRule, Spec, State, StreamId, Time, Token, limit};

use super::decision_clock::RecordTime;

/// The record of a job. Its payload, its result, its attempts, its checkpoint and the payload of its waiting generation
/// are parts, which are read only for whoever asks for them: see [`PartChanges`](super::Parts).
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What waits, runs or has finished.
    pub phase: Phase,
    /// 0 (default) to 9 (first).
    pub priority: u8,
    /// When it becomes ready, or became.
    pub due: RecordTime,
    /// Not running by then: EXPIRED.
    pub expire: Option<RecordTime>,
    /// When this generation was enqueued.
    pub created: RecordTime,
    /// What stays of the job once it is finished.
    pub retention: RetentionRule,
    /// The request that was applied last, see [`conflict::request`](crate::domain::conflict::request).
    pub request_code: Option<u64>,
    /// Bytes of payload, headers and checkpoint: what a claim counts.
    pub bytes: u64,
    /// What was asked for, without the payload.
    pub spec: Spec,
    /// What became of the job so far.
    pub history: JobHistory,
    /// The generation that waits for the end of the running lease.
    pub next: Option<Box<NextGeneration>>,
}

/// What a job is doing.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// It waits for its due time or for a worker: SCHEDULED, READY or BACKOFF, by clock and failures.
    Waiting,
    /// A worker has it.
    Running(Lease),
    /// It has ended.
    Finished(Finish),
}

/// The lease of a running job.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Proof of it.
    pub token: Token,
    /// When it began.
    pub started: Time,
    /// When it ends.
    pub deadline: RecordTime,
    /// When it was last extended.
    pub extended: Option<RecordTime>,
    /// Nonce of the replica whose stream answers for it.
    pub owner: u32,
    /// That stream.
    pub stream: u32,
    /// Give-back after the stream breaks; `None`: it outlives its stream.
    pub grace: Option<Duration>,
    /// How long it lasts from each extension on that names no duration.
    pub duration: Duration,
    /// The worker that has it.
    pub worker: String,
}

// === impl Lease ===

impl Lease {
    /// The stream that answers for it.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        StreamId { owner: self.owner, stream: self.stream }
    }
}

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// In which state; a terminal one.
    pub state: State,
    /// When.
    pub at: RecordTime,
    /// Until when the record is kept.
    pub until: RecordTime,
}

/// What became of a job so far. Of a job that was never leased all is empty but for its generation, and what a job that
/// moved or was enqueued over brought along: how leases ended, and a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHistory {
    /// Raised each time the job under the id is replaced, or another generation is to follow; 1 at first.
    pub generation: u32,
    /// Counted failures.
    pub failures: u32,
    /// Finished hand-overs.
    pub deliveries: u32,
    /// When the first lease began that was not undone.
    pub first_start: Option<Time>,
    /// Last holder.
    pub worker: String,
    /// Of the last failed attempt.
    pub last_error: String,
    /// Last note of an Extend.
    pub progress: String,
    /// Bytes of its checkpoint, which lies apart; 0: there is none.
    pub checkpoint: u32,
    /// How its leases ended.
    pub lease_ends: LeaseEndHistory,
    /// Stored bytes of each attempt that is kept, newest first. Only the store that encodes them fills it.
    pub attempts: Vec<u32>,
}

/// How the leases of a job ended, newest first: by that a repeat of a settle is recognized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseEndHistory(pub Vec<(Token, u8)>);

/// A generation that waits for the end of a running lease.
#[derive(Clone, Debug, PartialEq)]
pub struct NextGeneration {
    /// Its priority.
    pub priority: u8,
    /// When it becomes ready.
    pub due: Time,
    /// When it expires.
    pub expire: Option<Time>,
    /// When it was enqueued.
    pub created: Time,
    /// What it brings; `None`: what the running one has.
    pub replacement: Option<NextGenerationSpec>,
}

/// What a generation brings that is not the same as the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct NextGenerationSpec {
    /// What stays of it once it is finished.
    pub keep: RetentionRule,
    /// Bytes of payload and headers.
    pub bytes: u64,
    /// What is asked for, without the payload.
    pub spec: Spec,
    /// Whether it has a payload, which lies apart.
    pub has_payload: bool,
}

// === impl Record ===

impl Record {
    /// The running lease, if `token` proves it.
    #[must_use]
    pub fn lease_of(&self, token: Token) -> Option<&Lease> {
        match &self.phase {
            Phase::Running(lease) if lease.token == token => Some(lease),
            _ => None,
        }
    }

    /// The state that the world sees at `now`; `None`: the record is not kept any more.
    #[must_use]
    pub fn state(&self, now: Time) -> Option<State> {
        match &self.phase {
            Phase::Running(_) => Some(State::Running),
            Phase::Finished(finish) => (now < finish.until.at).then_some(finish.state),
            Phase::Waiting => match self.expire.filter(|expire| expire.at <= now) {
                None => Some(State::waiting(self.due.at, self.history.failures, now)),
                Some(expire) => {
                    let until = self.retention.until(expire.at).filter(|&until| now < until);
                    until.map(|_| State::Expired)
                }
            },
        }
    }

    /// The record as it lies in a store that committed at `committed` what was decided at `decided`.
    #[must_use]
    pub fn committed(mut self, decided: Time, committed: Time) -> Record {
        let fix = |moment: &mut RecordTime| *moment = moment.at_commit(decided, committed).into();
        fix(&mut self.due);
        fix(&mut self.created);
        self.expire.as_mut().map(fix);
        match &mut self.phase {
            Phase::Waiting => {}
            Phase::Running(lease) => {
                fix(&mut lease.deadline);
                lease.extended.as_mut().map(fix);
            }
            Phase::Finished(finish) => {
                fix(&mut finish.at);
                fix(&mut finish.until);
            }
        }
        self
    }

    /// Whether only a tombstone is left: the state under the id, with neither payload nor result.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        let Phase::Finished(Finish { state, .. }) = self.phase else { return false };
        state != State::Dead && matches!(self.retention, RetentionRule::Tombstone(_))
    }

    /// What a decision about the end of its lease needs to know.
    #[must_use]
    pub fn attempt_context(&self, lease: &Lease) -> AttemptContext {
        AttemptContext {
            failures: self.history.failures,
            deliveries: self.history.deliveries,
            first_start: self.history.first_start.unwrap_or(lease.started),
            retry: self.spec.retry.clone(),
        }
    }
}

// === impl Life ===

impl JobHistory {
    /// The life of a job that was just enqueued.
    #[must_use]
    pub fn new(generation: u32) -> JobHistory {
        JobHistory {
            generation,
            failures: 0,
            deliveries: 0,
            first_start: None,
            worker: String::new(),
            last_error: String::new(),
            progress: String::new(),
            checkpoint: 0,
            lease_ends: LeaseEndHistory::default(),
            attempts: Vec::new(),
        }
    }

    /// The same job with fresh counters, which keeps what people read.
    pub(super) fn restart(&mut self) {
        (self.failures, self.deliveries, self.first_start) = (0, 0, None);
    }
}

// === impl Ends ===

impl LeaseEndHistory {
    /// Ends that are remembered of a job that does not run: as many as attempts are kept, and the last one.
    const MAX: usize = limit::ATTEMPTS_KEPT + 1;

    /// Remembers that the lease of `token` ended so, as the newest.
    pub(super) fn push(&mut self, token: Token, code: u8) {
        self.0.insert(0, (token, code));
        self.0.truncate(LeaseEndHistory::MAX);
    }

    /// Forgets what a claim makes a job forget.
    pub(super) fn trim_for_claim(&mut self) {
        self.0.truncate(limit::ATTEMPTS_KEPT);
    }

    /// How the lease of `token` ended, as far back as that is remembered.
    fn code_of(&self, token: Token, runs: bool) -> Option<u8> {
        let remembered = if runs { limit::ATTEMPTS_KEPT } else { LeaseEndHistory::MAX };
        let found = self.0.iter().take(remembered).find(|(ended, _)| *ended == token);
        found.map(|&(_, code)| code)
    }
}

impl Record {
    /// Whether the lease of `token` has ended in the way of this code: the settle is a repeat.
    pub(super) fn is_repeat_of_settle(&self, token: Token, code: u8) -> bool {
        let runs = matches!(self.phase, Phase::Running(_));
        self.history.lease_ends.code_of(token, runs) == Some(code)
    }
}
