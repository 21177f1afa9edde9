//! Log lines about jobs that need an operator: expired leases and dead letters. Each has the id of the job and never
//! its payload. Limited per topic, with the number of suppressed lines.

use std::time::Duration;

use crate::domain::engine::Record;
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::{JobKey, State};
use crate::log_limiter::LogLimiter;
use crate::shards::Shard;
use crate::store::RunningLease;

use super::Settler;

/// Shortest time between two such lines about one topic.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Log limiter of these lines, by topic.
#[derive(Debug)]
pub(in crate::scheduler) struct JobLogLimiter(LogLimiter);

// === impl JobLogLimiter ===

impl JobLogLimiter {
    pub(in crate::scheduler) fn new() -> JobLogLimiter {
        JobLogLimiter(LogLimiter::new("jobs", LOG_EVERY))
    }
}

// === impl Settler ===

impl Settler {
    /// Logs that the worker of this lease neither settled nor extended it in time.
    pub(in crate::scheduler) fn log_lease_expired(&self, shard: &Shard, lease: &RunningLease) {
        let topic = lease.key.topic.as_str();
        let Some(passed) = self.inner.job_log_limiter.0.allow(&["lapse", topic]) else { return };
        tracing::warn!(
            shard = %shard.name(),
            topic,
            job = %lease.key.id,
            worker = lease.worker,
            credit = self.credit_of(lease),
            age_s = lease.now.since(lease.start_time).as_secs_f64(),
            suppressed = passed.suppressed(),
            "a lease expired before its job was settled: the worker must extend it in time, or ask for less credit \
             (max_in_flight), as jobs that wait in a worker use up their leases"
        );
    }

    /// Logs that the job of this key is dead.
    pub(in crate::scheduler) fn log_dead_letter(
        &self,
        key: &JobKey,
        record: &Record,
        cause: &LeaseEndCause,
    ) {
        let (topic, life) = (key.topic.as_str(), &record.history);
        let cause = match cause {
            LeaseEndCause::Failed { .. } => "FAILED",
            LeaseEndCause::DeadLettered { .. } => "DEAD_LETTERED",
            LeaseEndCause::Expired => "LEASE_EXPIRED",
            LeaseEndCause::WorkerCrashed => "WORKER_CRASHED",
            LeaseEndCause::Released { .. }
            | LeaseEndCause::StreamBroken
            | LeaseEndCause::Unserved => "RELEASED",
        };
        let Some(passed) = self.inner.job_log_limiter.0.allow(&["death", topic, cause]) else {
            return;
        };
        tracing::warn!(
            topic,
            job = %key.id,
            attempts = life.failures,
            deliveries = life.deliveries,
            crashes = life.crashes,
            cause,
            worker = life.worker,
            suppressed = passed.suppressed(),
            state = State::Dead.name(),
            "a job became a dead letter: it does not run again unless it is redriven"
        );
    }

    /// Logs that a job has crashed as often as it may: it has moved to its crash topic, or could not for this reason.
    pub(in crate::scheduler) fn log_crashed_job(
        &self,
        lease: &RunningLease,
        rejected: Option<&str>,
    ) {
        let topic = lease.key.topic.as_str();
        let kind = if rejected.is_none() { "crash moved" } else { "crash rejected" };
        let Some(passed) = self.inner.job_log_limiter.0.allow(&[kind, topic]) else { return };
        let (crashes, suppressed) = (lease.attempt.crashes + 1, passed.suppressed());
        let (job, worker) = (&lease.key.id, &lease.worker);
        match rejected {
            None => tracing::warn!(
                topic, %job, crashes, worker, suppressed,
                "a job has crashed as often as it may and has moved to its crash topic"
            ),
            Some(reason) => tracing::error!(
                topic, %job, crashes, worker, suppressed, reason,
                "a job could not move to its crash topic: it is a dead letter here; redrive it there with a target topic"
            ),
        }
    }

    /// Returns the credit of the stream that has the lease, if that is one of this server.
    fn credit_of(&self, lease: &RunningLease) -> Option<u32> {
        let listener = self.inner.listener.get().filter(|_| lease.owner == self.replica().nonce)?;
        (listener.credit)(lease.stream)
    }
}
