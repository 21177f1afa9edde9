//! The record of a job: all that a store keeps of it, except the parts, which are stored apart.

use std::time::Duration;

use crate::domain::lifecycle::AttemptContext;
use crate::domain::{RetentionRule, Spec, State, StreamId, Time, Token, limit};

use super::decision_clock::RecordTime;

/// The record of a job. Its payload, its result, its attempts, its checkpoint and the payload of its waiting generation
/// are parts, which are read only on request: see [`PartChanges`](super::PartChanges).
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Phase of the job: waiting, running or finished.
    pub phase: Phase,
    /// Priority, 0 (default) to 9 (first).
    pub priority: u8,
    /// Due time: the job becomes ready then, or became.
    pub due: RecordTime,
    /// Expire time: a job that is not running by then is EXPIRED.
    pub expire: Option<RecordTime>,
    /// Time at which this generation was enqueued.
    pub created: RecordTime,
    /// Retention of the job once it is finished.
    pub retention: RetentionRule,
    /// Code of the last request that was applied, see
    /// [`conflict::request_code`](crate::domain::conflict::request_code).
    pub request_code: Option<u64>,
    /// Bytes of payload, headers and checkpoint, as a claim counts them.
    pub bytes: u64,
    /// Spec of the job, without the payload.
    pub spec: Spec,
    /// History of the job.
    pub history: JobHistory,
    /// Generation that waits for the end of the running lease.
    pub next: Option<Box<NextGeneration>>,
}

/// Phase of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// The job waits for its due time or for a worker: SCHEDULED, READY or BACKOFF, by clock and failures.
    Waiting,
    /// A worker has the job.
    Running(Lease),
    /// The job has ended.
    Finished(Finish),
}

/// The lease of a running job.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Token that proves the lease.
    pub token: Token,
    /// Start of the lease.
    pub started: Time,
    /// End of the lease, unless it is extended.
    pub deadline: RecordTime,
    /// Time of the last extension.
    pub extended: Option<RecordTime>,
    /// Nonce of the replica whose stream holds the lease.
    pub owner: u32,
    /// Number of that stream.
    pub stream: u32,
    /// Time from the break of the stream to the release of the lease; `None`: the lease outlives its stream.
    pub grace: Option<Duration>,
    /// Duration of an extension that names none.
    pub duration: Duration,
    /// Worker that has the job.
    pub worker: String,
}

// === impl Lease ===

impl Lease {
    /// Returns the stream that holds the lease.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        StreamId { owner: self.owner, stream: self.stream }
    }
}

/// End of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Terminal state of the job.
    pub state: State,
    /// Time of the end.
    pub at: RecordTime,
    /// Time until which the record is kept.
    pub until: RecordTime,
}

/// History of a job. For a job that was never leased all fields are empty, except its generation and what a job that
/// moved or was enqueued over keeps: the ends of its leases, and a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHistory {
    /// Number of the generation: 1 at first, raised each time the job is replaced or a next generation is stored.
    pub generation: u32,
    /// Number of counted failures.
    pub failures: u32,
    /// Number of finished deliveries.
    pub deliveries: u32,
    /// Number of crashes: expired leases, and streams that the worker broke.
    pub crashes: u32,
    /// Start of the first lease that was not undone.
    pub first_start: Option<Time>,
    /// Last worker.
    pub worker: String,
    /// Error of the last failed attempt.
    pub last_error: String,
    /// Last progress note of an Extend.
    pub progress: String,
    /// Bytes of the checkpoint, which is stored apart; 0: none.
    pub checkpoint: u32,
    /// Ends of the job's leases.
    pub lease_ends: LeaseEndHistory,
    /// Stored bytes of each attempt that is kept, newest first. Only the store that encodes them sets it.
    pub attempts: Vec<u32>,
}

/// Ends of the leases of a job, newest first. They identify a repeated settle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseEndHistory(pub Vec<(Token, u8)>);

/// A generation that waits for the end of a running lease.
#[derive(Clone, Debug, PartialEq)]
pub struct NextGeneration {
    /// Priority of the generation.
    pub priority: u8,
    /// Due time.
    pub due: Time,
    /// Expire time.
    pub expire: Option<Time>,
    /// Time of the enqueue.
    pub created: Time,
    /// Spec and retention of its own; `None`: those of the running generation.
    pub replacement: Option<NextGenerationSpec>,
}

/// Spec and retention of a generation that differs from the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct NextGenerationSpec {
    /// Retention of the job once it is finished.
    pub keep: RetentionRule,
    /// Bytes of payload and headers.
    pub bytes: u64,
    /// Spec, without the payload.
    pub spec: Spec,
    /// True if the generation has a payload, which is stored apart.
    pub has_payload: bool,
}

// === impl Record ===

impl Record {
    /// Returns the running lease, if `token` proves it.
    #[must_use]
    pub fn lease_of(&self, token: Token) -> Option<&Lease> {
        match &self.phase {
            Phase::Running(lease) if lease.token == token => Some(lease),
            _ => None,
        }
    }

    /// Returns the public state at `now`; `None`: the record is no longer kept.
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

    /// Returns the record as stored when a decision made at `decided` was committed at `committed`.
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

    /// Returns whether only a tombstone is left: the state under the id, with neither payload nor result.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        let Phase::Finished(Finish { state, .. }) = self.phase else { return false };
        state != State::Dead && matches!(self.retention, RetentionRule::Tombstone(_))
    }

    /// Returns the bytes that the job takes of those of its topic: payload, headers and checkpoint, in any state.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        if self.is_tombstone() { 0 } else { self.bytes }
    }

    /// Returns the input of a decision about the end of `lease`.
    #[must_use]
    pub fn attempt_context(&self, lease: &Lease) -> AttemptContext {
        AttemptContext {
            failures: self.history.failures,
            deliveries: self.history.deliveries,
            crashes: self.history.crashes,
            is_replaced: self.next.is_some(),
            first_start: self.history.first_start.unwrap_or(lease.started),
            retry: self.spec.retry.clone(),
        }
    }
}

// === impl JobHistory ===

impl JobHistory {
    /// Returns the history of a job that was just enqueued.
    #[must_use]
    pub fn new(generation: u32) -> JobHistory {
        JobHistory {
            generation,
            failures: 0,
            deliveries: 0,
            crashes: 0,
            first_start: None,
            worker: String::new(),
            last_error: String::new(),
            progress: String::new(),
            checkpoint: 0,
            lease_ends: LeaseEndHistory::default(),
            attempts: Vec::new(),
        }
    }

    /// Resets the counters; worker, last error, progress and attempts stay for people to read.
    pub(super) fn restart(&mut self) {
        (self.failures, self.deliveries, self.crashes, self.first_start) = (0, 0, 0, None);
    }
}

// === impl LeaseEndHistory ===

impl LeaseEndHistory {
    /// Number of ends kept for a job that does not run: as many as attempts are kept, plus the last one.
    const MAX: usize = limit::ATTEMPTS_KEPT + 1;

    /// Adds the end of the lease of `token` as the newest.
    pub(super) fn push(&mut self, token: Token, code: u8) {
        self.0.insert(0, (token, code));
        self.0.truncate(LeaseEndHistory::MAX);
    }

    /// Removes the oldest end if there are more than a running job keeps.
    pub(super) fn trim_for_claim(&mut self) {
        self.0.truncate(limit::ATTEMPTS_KEPT);
    }

    /// Returns the code of the end of the lease of `token`, if it is still kept.
    fn code_of(&self, token: Token, runs: bool) -> Option<u8> {
        let kept = if runs { limit::ATTEMPTS_KEPT } else { LeaseEndHistory::MAX };
        let found = self.0.iter().take(kept).find(|(ended, _)| *ended == token);
        found.map(|&(_, code)| code)
    }
}

impl Record {
    /// Returns whether the lease of `token` has ended with this code: then the settle is a repeat.
    pub(super) fn is_repeat_of_settle(&self, token: Token, code: u8) -> bool {
        let runs = matches!(self.phase, Phase::Running(_));
        self.history.lease_ends.code_of(token, runs) == Some(code)
    }
}
