//! Ends of leases whose jobs did not succeed: writes and counts what follows. A worker ends a lease by a nack, which
//! is in [`super::settle`]; a lease that runs out or whose stream breaks ends here.

use rand::Rng as _;

use crate::domain::engine::Unacked;
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::{JobKey, RetryOverrides, State, Time};
use crate::shards::{self, Shard};
use crate::store::{
    LeaseEvent, LeaseRef, LeaseSettlement, RequestResult, RevokeReason, RunningLease, SettleAction,
};

use super::Scheduler;

/// Result of ending leases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndLeasesResult {
    /// Number of leases that are over: every replica looks for them, and another one may have been first.
    pub ended: usize,
    /// Number of leases that this call has ended.
    pub ended_here: usize,
    /// Leases that could not be ended because of their own jobs; they are unchanged.
    pub not_ended: Vec<RunningLease>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Ends leases that their workers did not settle: expired ones, and those of broken streams. Each ends only if
    /// its deadline is still the one that was read. A lease that cannot be ended because of its own job does not hold
    /// up the others.
    ///
    /// # Errors
    /// Errors of the store that concern the shard as a whole.
    pub async fn end_leases(
        &self,
        shard: &Shard,
        leases: &[RunningLease],
        cause: &LeaseEndCause,
    ) -> shards::Result<EndLeasesResult> {
        let settle = |lease: &RunningLease| {
            let named = lease.stream_lease_ref().lease;
            self.settle_unacked(named, lease.owner, cause.clone(), Some(lease.deadline))
        };
        let results = shard.settle(leases.iter().map(settle).collect()).await;
        let (mut ended, mut failed) = (EndLeasesResult::default(), None);
        for (lease, result) in leases.iter().zip(results) {
            match result {
                Ok(applied) => self.after_lease_end(shard, lease, cause, &applied, &mut ended),
                Err(error) if error.error.is_shard_failure() => failed = failed.or(Some(error)),
                // The health monitor has logged and counted it.
                Err(_) => ended.not_ended.push(lease.clone()),
            }
        }
        failed.map_or(Ok(ended), Err)
    }

    /// Counts and logs the end of a lease, and notifies its stream.
    fn after_lease_end(
        &self,
        shard: &Shard,
        lease: &RunningLease,
        cause: &LeaseEndCause,
        applied: &RequestResult,
        ended: &mut EndLeasesResult,
    ) {
        let Ok(settled) = applied.settle_result() else { return };
        ended.ended += 1;
        ended.ended_here += usize::from(!settled.repeated);
        if *cause == LeaseEndCause::Expired && !settled.repeated {
            self.log_lease_expired(shard, lease);
        }
        let is_failure = cause.counts(&self.retry_policy(&lease.key.topic, &lease.attempt.retry));
        self.count_end(&lease.key, cause, is_failure, applied);
        let (tokens, reason) = (vec![lease.token], RevokeReason::LeaseExpired);
        let hint = LeaseEvent::Revoked { stream: lease.stream, tokens, reason };
        self.notify_stream(shard, lease.owner, hint);
    }

    /// Builds the settlement that ends a lease for `cause`; the shard decides what follows for the job.
    pub(super) fn settle_unacked(
        &self,
        lease: LeaseRef,
        owner: u32,
        cause: LeaseEndCause,
        deadline: Option<Time>,
    ) -> LeaseSettlement {
        let topic = &lease.key.topic;
        let end = SettleAction::Unacked(Unacked {
            cause,
            policy: self.retry_policy(topic, &RetryOverrides::default()),
            entropy: rand::rng().random(),
            dead_retention: self.dead_retention(topic),
        });
        LeaseSettlement { lease, owner, action: end, deadline }
    }

    /// Counts an end without an ack, unless it was a repeat or refused.
    pub(super) fn count_end(
        &self,
        key: &JobKey,
        cause: &LeaseEndCause,
        is_failure: bool,
        applied: &RequestResult,
    ) {
        let state = match applied.settle_result() {
            Ok(settled) if !settled.repeated => settled.state,
            Ok(_) | Err(_) => return,
        };
        let outcome = match (state, cause) {
            (State::Dead, _) => "dead",
            (_, LeaseEndCause::Failed { .. } | LeaseEndCause::DeadLettered { .. }) => "retried",
            (_, LeaseEndCause::Released { .. }) => "released",
            (_, LeaseEndCause::Expired) => "lease_expired",
            (
                _,
                LeaseEndCause::StreamBroken
                | LeaseEndCause::WorkerCrashed
                | LeaseEndCause::Unserved,
            ) => "orphaned",
        };
        if let (State::Dead, Some(record)) = (state, &applied.record) {
            self.log_dead_letter(key, record, cause);
        }
        self.inner.metrics.settled(key.topic.as_str(), outcome, 1);
        if is_failure {
            self.inner.rates.failed(&key.topic, 1, self.now());
        }
    }
}
