//! What became of leases of which nothing was heard: the message may have been lost on its way from another
//! replica.

use std::time::Duration;

use crate::domain::{Time, limit};
use crate::shards::{self, Shard};
use crate::store::{LeaseRef, LeaseRefusal, LeaseSettlement, RunningLease, SettleAction};

use super::Scheduler;

/// How it stands with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// It runs, and this is left of it: nothing, if it is overdue and nobody has ended it yet.
    Running(Duration),
    /// It was acknowledged, or its job is gone: nobody works on it, or nothing hangs on that.
    Settled,
    /// It ran out, was given back or settled otherwise: whoever still works on it must stop.
    Revoked,
}

// === impl Scheduler ===

impl Scheduler {
    /// What became of these leases.
    ///
    /// # Errors
    /// As the store's.
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
        for (index, ack) in over.into_iter().zip(shard.settle(acks).await) {
            match ack {
                Ok(ack) if ack.settle_result() != Err(LeaseRefusal::Stale) => {
                    fates[index] = LeaseStatus::Settled
                }
                Err(error) if error.error.is_shard_failure() => return Err(error),
                // Of one whose job cannot be read nobody knows; its lease is over.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(fates)
    }
}

/// An ack that the store can recognize as a repeat, and never applies: no lease has this deadline.
fn ack_probe(lease: &LeaseRef) -> LeaseSettlement {
    let end = SettleAction::Ack { result: None, follow_ups: Vec::new() };
    // Whoever has it: nothing ends that anybody would have to hear of.
    LeaseSettlement { lease: lease.clone(), owner: 0, action: end, deadline: Some(Time(0)) }
}
