//! Looks up leases whose settle notification may have been lost on its way from another replica.

use std::time::Duration;

use crate::domain::engine::{Command, Settle};
use crate::domain::{Time, limit};
use crate::shards::{self, Shard};
use crate::store::{JobRequest, LeaseRef, LeaseRefusal, RunningLease, SettleAction};

use super::Settler;

/// Status of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// The lease is live for this long; zero if it is overdue and not ended yet.
    Running(Duration),
    /// The job was acknowledged or no longer exists; the credit of the lease can be freed.
    Settled,
    /// The lease ran out, was released or settled otherwise: a worker that still runs the job must stop.
    Revoked,
}

// === impl Settler ===

impl Settler {
    /// Returns the status of each of these leases.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn lease_statuses(
        &self,
        shard: &Shard,
        refs: &[LeaseRef],
    ) -> shards::Result<Vec<LeaseStatus>> {
        let mut fates = Vec::with_capacity(refs.len());
        for part in refs.chunks(limit::CALL_JOBS_MAX) {
            fates.extend(self.read_lease_statuses(shard, part).await?);
        }
        Ok(fates)
    }

    async fn read_lease_statuses(
        &self,
        shard: &Shard,
        refs: &[LeaseRef],
    ) -> shards::Result<Vec<LeaseStatus>> {
        let leases = shard.running_leases(refs.to_vec()).await?;
        let of = |lease: Result<RunningLease, LeaseRefusal>| match lease {
            Ok(lease) => LeaseStatus::Running(lease.deadline.since(lease.now)),
            Err(LeaseRefusal::NotFound) => LeaseStatus::Settled,
            Err(LeaseRefusal::Stale) => LeaseStatus::Revoked,
        };
        let mut fates: Vec<LeaseStatus> = leases.into_iter().map(of).collect();
        let over: Vec<usize> =
            (0..fates.len()).filter(|&index| fates[index] == LeaseStatus::Revoked).collect();
        if over.is_empty() {
            return Ok(fates);
        }
        let acks = over.iter().map(|&index| ack_probe(&refs[index])).collect();
        for (index, ack) in over.into_iter().zip(shard.apply(acks).await) {
            match ack {
                Ok(ack) if ack.settle_result() != Err(LeaseRefusal::Stale) => {
                    fates[index] = LeaseStatus::Settled
                }
                Err(error) if error.error.is_shard_failure() => return Err(error),
                // If the job cannot be read, only the end of the lease is known.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(fates)
    }
}

/// Builds an ack that the store can recognize as a repeat, and never applies: no lease has this deadline.
fn ack_probe(lease: &LeaseRef) -> JobRequest {
    let action = SettleAction::Ack { result: None, follow_ups: Vec::new() };
    let settle = Settle { token: lease.token, deadline: Some(Time(0)), action };
    // Without an owner: no lease ends, so no stream has to be notified.
    JobRequest::new(lease.key.clone(), Command::Settle(settle))
}
