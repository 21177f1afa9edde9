//! How a lease ends when its job did not succeed: what follows is decided, written and counted. A worker says so in
//! a nack, which is in [`super::settle`]; nobody does when the lease runs out or its stream breaks, and it ends here.

use rand::Rng as _;

use crate::domain::lifecycle::{Cause, lease_end};
use crate::domain::{State, Time, limit};
use crate::shards::{self, Shard};
use crate::store::{End, Hint, Lease, LeaseRef, Revoked, Settle, Settled};

use super::Scheduler;

/// What became of leases that were to be ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Those that are over: every replica looks for them, and another one may have been first.
    pub over: usize,
    /// Those that this call has ended.
    pub here: usize,
}

// === impl Scheduler ===

impl Scheduler {
    /// Ends leases that their workers did not settle: expired ones, and those of broken streams.
    /// Each only if its deadline is still the one that was read.
    ///
    /// # Errors
    /// As the store's.
    pub async fn end_leases(
        &self,
        shard: &Shard,
        leases: &[Lease],
        cause: &Cause,
    ) -> shards::Result<Ended> {
        let decide = |lease: &Lease| self.decide(lease, cause.clone(), Some(lease.deadline));
        let settles: Vec<Settle> = leases.iter().map(decide).collect();
        let failures: Vec<bool> = settles.iter().map(is_failure).collect();
        let results = shard.settle(settles).await?;
        let mut ended = Ended::default();
        for ((lease, is_failure), result) in leases.iter().zip(failures).zip(results) {
            if let Ok(settled) = result {
                ended.over += 1;
                ended.here += usize::from(!settled.repeated);
                if *cause == Cause::Expired && !settled.repeated {
                    self.notice_lapse(shard, lease);
                }
                self.count_end(lease, cause, is_failure, settled);
                let (tokens, reason) = (vec![lease.token], Revoked::LeaseExpired);
                let hint = Hint::Revoked { stream: lease.stream, tokens, reason };
                self.hint(shard, lease.owner, hint);
            }
        }
        Ok(ended)
    }

    /// What ends `lease` for `cause`.
    pub(super) fn decide(&self, lease: &Lease, cause: Cause, deadline: Option<Time>) -> Settle {
        let policy = self.retry_policy(&lease.standing.retry);
        let entropy = rand::rng().random();
        let end = lease_end(cause, &lease.standing, &policy, lease.now, entropy);
        Settle {
            lease: LeaseRef { key: lease.key.clone(), token: lease.token },
            owner: lease.owner,
            end: End::Decided { end, dead_retention: limit::DEAD_RETENTION },
            deadline,
        }
    }

    /// Counts an end that was decided so, unless it was a repeat.
    pub(super) fn count_end(
        &self,
        lease: &Lease,
        cause: &Cause,
        is_failure: bool,
        settled: Settled,
    ) {
        if settled.repeated {
            return;
        }
        let outcome = match (settled.state, cause) {
            (State::Dead, _) => "dead",
            (_, Cause::Failed { .. } | Cause::DeadLettered { .. }) => "retried",
            (_, Cause::Released { .. }) => "released",
            (_, Cause::Expired) => "lease_expired",
            (_, Cause::Broken | Cause::Unserved) => "orphaned",
        };
        if settled.state == State::Dead {
            self.notice_death(lease, cause, is_failure);
        }
        let topic = &lease.key.topic;
        self.inner.metrics.settled(topic.as_str(), outcome, 1);
        if is_failure {
            self.inner.rates.failed(topic, 1, self.now());
        }
    }
}

/// Whether this end counts as a failure of the job, as it was decided.
pub(super) fn is_failure(settle: &Settle) -> bool {
    matches!(&settle.end, End::Decided { end, .. } if end.counted)
}
