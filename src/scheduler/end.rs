//! How a lease ends when its job did not succeed: what follows is written and counted. A worker says so in
//! a nack, which is in [`super::settle`]; nobody does when the lease runs out or its stream breaks, and it ends here.

use rand::Rng as _;

use crate::domain::engine::Unacked;
use crate::domain::lifecycle::Cause;
use crate::domain::{JobKey, RetryOverrides, State, Time, limit};
use crate::shards::{self, Shard};
use crate::store::{Applied, End, Hint, Lease, LeaseRef, Revoked, Settle};

use super::Scheduler;

/// What became of leases that were to be ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// Those that are over: every replica looks for them, and another one may have been first.
    pub over: usize,
    /// Those that this call has ended.
    pub here: usize,
    /// Those that could not be ended because of their jobs alone: they are as they were.
    pub left: Vec<Lease>,
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
        leases: &[Lease],
        cause: &Cause,
    ) -> shards::Result<Ended> {
        let settle = |lease: &Lease| {
            let named = lease.tied().lease;
            self.unacked(named, lease.owner, cause.clone(), Some(lease.deadline))
        };
        let results = shard.settle(leases.iter().map(settle).collect()).await;
        let (mut ended, mut failed) = (Ended::default(), None);
        for (lease, result) in leases.iter().zip(results) {
            match result {
                Ok(applied) => self.end_lease(shard, lease, cause, &applied, &mut ended),
                Err(error) if error.error.is_of_shard() => failed = failed.or(Some(error)),
                // The guard has logged and counted it.
                Err(_) => ended.left.push(lease.clone()),
            }
        }
        failed.map_or(Ok(ended), Err)
    }

    /// What follows here from the end of a lease.
    fn end_lease(
        &self,
        shard: &Shard,
        lease: &Lease,
        cause: &Cause,
        applied: &Applied,
        ended: &mut Ended,
    ) {
        let Ok(settled) = applied.settled() else { return };
        ended.over += 1;
        ended.here += usize::from(!settled.repeated);
        if *cause == Cause::Expired && !settled.repeated {
            self.notice_lapse(shard, lease);
        }
        let is_failure = cause.counts(&self.retry_policy(&lease.standing.retry));
        self.count_end(&lease.key, cause, is_failure, applied);
        let (tokens, reason) = (vec![lease.token], Revoked::LeaseExpired);
        let hint = Hint::Revoked { stream: lease.stream, tokens, reason };
        self.hint(shard, lease.owner, hint);
    }

    /// Ends a lease for `cause`; what becomes of its job is decided where that lies.
    pub(super) fn unacked(
        &self,
        lease: LeaseRef,
        owner: u32,
        cause: Cause,
        deadline: Option<Time>,
    ) -> Settle {
        let end = End::Unacked(Unacked {
            cause,
            policy: self.retry_policy(&RetryOverrides::default()),
            entropy: rand::rng().random(),
            dead_retention: limit::DEAD_RETENTION,
        });
        Settle { lease, owner, end, deadline }
    }

    /// Counts an end without an ack, unless it was a repeat or refused.
    pub(super) fn count_end(
        &self,
        key: &JobKey,
        cause: &Cause,
        is_failure: bool,
        applied: &Applied,
    ) {
        let state = match applied.settled() {
            Ok(settled) if !settled.repeated => settled.state,
            Ok(_) | Err(_) => return,
        };
        let outcome = match (state, cause) {
            (State::Dead, _) => "dead",
            (_, Cause::Failed { .. } | Cause::DeadLettered { .. }) => "retried",
            (_, Cause::Released { .. }) => "released",
            (_, Cause::Expired) => "lease_expired",
            (_, Cause::Broken | Cause::Unserved) => "orphaned",
        };
        if let (State::Dead, Some(record)) = (state, &applied.record) {
            self.notice_death(key, record, cause);
        }
        self.inner.metrics.settled(key.topic.as_str(), outcome, 1);
        if is_failure {
            self.inner.rates.failed(&key.topic, 1, self.now());
        }
    }
}
