//! What became of leases of which nothing was heard: the message may have been lost on its way from another
//! replica.

use std::time::Duration;

use crate::domain::{Time, limit};
use crate::shards::{self, Shard};
use crate::store::{End, Lease, LeaseRef, Refused, Settle};

use super::Scheduler;

/// How it stands with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs, and this is left of it: nothing, if it is overdue and nobody has ended it yet.
    Runs(Duration),
    /// It was acknowledged, or its job is gone: nobody works on it, or nothing hangs on that.
    Done,
    /// It ran out, was given back or settled otherwise: whoever still works on it must stop.
    Lost,
}

// === impl Scheduler ===

impl Scheduler {
    /// What became of these leases.
    ///
    /// # Errors
    /// As the store's.
    pub async fn fates(&self, shard: &Shard, refs: &[LeaseRef]) -> shards::Result<Vec<Fate>> {
        let mut fates = Vec::with_capacity(refs.len());
        for part in refs.chunks(limit::CALL_JOBS_MAX) {
            fates.extend(self.fates_of(shard, part).await?);
        }
        Ok(fates)
    }

    async fn fates_of(&self, shard: &Shard, refs: &[LeaseRef]) -> shards::Result<Vec<Fate>> {
        let leases = shard.leases(refs.to_vec()).await?;
        let of = |lease: Result<Lease, Refused>| match lease {
            Ok(lease) => Fate::Runs(lease.deadline.since(lease.now)),
            Err(Refused::NotFound) => Fate::Done,
            Err(Refused::Stale) => Fate::Lost,
        };
        let mut fates: Vec<Fate> = leases.into_iter().map(of).collect();
        let over: Vec<usize> =
            (0..fates.len()).filter(|&index| fates[index] == Fate::Lost).collect();
        if over.is_empty() {
            return Ok(fates);
        }
        let acks = over.iter().map(|&index| repeated_ack(&refs[index])).collect();
        for (index, ack) in over.into_iter().zip(shard.settle(acks).await) {
            match ack {
                Ok(ack) if ack.settled() != Err(Refused::Stale) => fates[index] = Fate::Done,
                Err(error) if error.error.is_of_shard() => return Err(error),
                // Of one whose job cannot be read nobody knows; its lease is over.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(fates)
    }
}

/// An ack that the store can recognize as a repeat, and never applies: no lease has this deadline.
fn repeated_ack(lease: &LeaseRef) -> Settle {
    let end = End::Ack { result: None, follow_ups: Vec::new() };
    // Whoever has it: nothing ends that anybody would have to hear of.
    Settle { lease: lease.clone(), owner: 0, end, deadline: Some(Time(0)) }
}
