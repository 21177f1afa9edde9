//! How a lease ends when its job did not succeed: what follows is written and counted. A worker says so in
//! a nack, which is in [`super::settle`]; nobody does when the lease runs out or its stream breaks, and it ends here.

use rand::Rng as _;

use crate::domain::engine::Unacked;
use crate::domain::lifecycle::Cause;
use crate::domain::{JobKey, RetryOverrides, State, Time, limit};
use crate::shards::{self, Shard};
use crate::store::{
    LeaseEvent, LeaseRef, LeaseSettlement, RequestResult, RevokeReason, RunningLease, SettleAction,
};

use super::Scheduler;

/// What became of leases that were to be ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndLeasesResult {
    /// Those that are over: every replica looks for them, and another one may have been first.
    pub ended: usize,
    /// Those that this call has ended.
    pub ended_here: usize,
    /// Those that could not be ended because of their jobs alone: they are as they were.
    pub not_ended: Vec<RunningLease>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Ends leases that their workers did not settle: expired ones, and those of broken streams.
    /// Each only if its deadline is still the one that was read. One that cannot be ended because of its job alone keeps
    /// none of the others.
    ///
    /// # Errors
    /// As the store's, when one of them is of the shard as a whole.
    pub async fn end_leases(
        &self,
        shard: &Shard,
        leases: &[RunningLease],
        cause: &Cause,
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
                // The guard has logged and counted it.
                Err(_) => ended.not_ended.push(lease.clone()),
            }
        }
        failed.map_or(Ok(ended), Err)
    }

    /// What follows here from the end of a lease.
    fn after_lease_end(
        &self,
        shard: &Shard,
        lease: &RunningLease,
        cause: &Cause,
        applied: &RequestResult,
        ended: &mut EndLeasesResult,
    ) {
        let Ok(settled) = applied.settle_result() else { return };
        ended.ended += 1;
        ended.ended_here += usize::from(!settled.repeated);
        if *cause == Cause::Expired && !settled.repeated {
            self.log_lease_expired(shard, lease);
        }
        let is_failure = cause.counts(&self.retry_policy(&lease.attempt.retry));
        self.count_end(&lease.key, cause, is_failure, applied);
        let (tokens, reason) = (vec![lease.token], RevokeReason::LeaseExpired);
        let hint = LeaseEvent::Revoked { stream: lease.stream, tokens, reason };
        self.notify_stream(shard, lease.owner, hint);
    }

    /// Ends a lease for `cause`; what becomes of its job is decided where that lies.
    pub(super) fn settle_unacked(
        &self,
        lease: LeaseRef,
        owner: u32,
        cause: Cause,
        deadline: Option<Time>,
    ) -> LeaseSettlement {
        let end = SettleAction::Unacked(Unacked {
            cause,
            policy: self.retry_policy(&RetryOverrides::default()),
            entropy: rand::rng().random(),
            dead_retention: limit::DEAD_RETENTION,
        });
        LeaseSettlement { lease, owner, action: end, deadline }
    }

    /// Counts an end without an ack, unless it was a repeat or refused.
    pub(super) fn count_end(
        &self,
        key: &JobKey,
        cause: &Cause,
        is_failure: bool,
        applied: &RequestResult,
    ) {
        let state = match applied.settle_result() {
            Ok(settled) if !settled.repeated => settled.state,
            Ok(_) | Err(_) => return,
        };
        let outcome = match (state, cause) {
            (State::Dead, _) => "dead",
            (_, Cause::Failed { .. } | Cause::DeadLettered { .. }) => "retried",
            (_, Cause::Released { .. }) => "released",
            (_, Cause::Expired) => "lease_expired",
            (_, Cause::StreamBroken | Cause::Unserved) => "orphaned",
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
