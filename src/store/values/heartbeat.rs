//! Heartbeats: the state that the replicas of a shard share.

use crate::domain::open_rings::RingRecords;
use crate::domain::ring::ShardState;
use crate::domain::{Time, limit};

/// Heartbeat of a replica, with the state that it publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Nonce of the replica.
    pub owner: u32,
    /// Fingerprint of the ring that the replica serves.
    pub ring: u64,
    /// State of the shard, written if the shard has none yet.
    pub state: ShardState,
    /// Ring records, written where the stored ones have a lower version.
    pub rings: RingRecords,
    /// Replicas that have leases on the shard. A replica without a heartbeat gets one with the current time.
    pub seen_owners: Vec<u32>,
    /// Replicas to remove, because nothing of them is left.
    pub removed_owners: Vec<u32>,
}

/// State that all replicas of a shard share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedState {
    /// The store's time.
    pub now: Time,
    /// State of the shard: takes new jobs or drains.
    pub state: ShardState,
    /// True if the shard had no state before: it is new, or has lost what was on it.
    pub is_new: bool,
    /// Time of the caller's heartbeat before this one, as the shard has it. `None`: it has none, or cannot go back to an
    /// older copy of its data.
    pub last_heartbeat: Option<Time>,
    /// Ring records of the shard.
    pub rings: RingRecords,
    /// Last heartbeats of the replicas, the caller included. Only the caller on a shard that cannot be shared.
    pub replicas: Vec<ReplicaHeartbeat>,
}

/// Last heartbeat of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaHeartbeat {
    /// Nonce of the replica.
    pub owner: u32,
    /// Fingerprint of the ring that the replica serves; 0: the replica has not sent a heartbeat itself.
    pub ring: u64,
    /// Time of the heartbeat, by the store's clock.
    pub time: Time,
}

/// Loss of data that a shard accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLoss {
    /// The shard is empty.
    All,
    /// The shard has an older copy: writes from this time on are gone.
    Since(Time),
}

// === impl SharedState ===

impl SharedState {
    /// Returns what the shard has lost since `earlier`, the answer to an earlier heartbeat of the same caller. Answers of
    /// heartbeats that were under way at once may arrive in any order: then it is not known.
    #[must_use]
    pub fn lost_since(&self, earlier: &SharedState) -> Option<DataLoss> {
        if self.is_new {
            return Some(DataLoss::All);
        }
        let last = self.last_heartbeat.filter(|_| self.now > earlier.now)?;
        (last < earlier.now).then_some(DataLoss::Since(last))
    }
}

// === impl ReplicaHeartbeat ===

impl ReplicaHeartbeat {
    /// Returns whether the replica is alive at `now`, a time of the store.
    #[must_use]
    pub fn is_alive(&self, now: Time) -> bool {
        now.since(self.time) < limit::REPLICA_SILENCE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(now: i64, is_new: bool, last: Option<i64>) -> SharedState {
        SharedState {
            now: Time(now),
            state: ShardState::Active,
            is_new,
            last_heartbeat: last.map(Time),
            rings: RingRecords::new(),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn a_loss_is_found_whatever_the_order_of_answers() {
        let lost = |now, last| answer(now, false, last).lost_since(&answer(20, false, Some(10)));
        assert_eq!(lost(30, Some(20)), None);
        assert_eq!(lost(30, Some(25)), None, "an answer between them was lost");
        assert_eq!(lost(30, None), None, "another server has removed this one");
        assert_eq!(lost(15, Some(10)), None, "it was sent before the earlier one");
        assert_eq!(lost(30, Some(10)), Some(DataLoss::Since(Time(10))));
        assert_eq!(
            answer(30, true, None).lost_since(&answer(20, false, None)),
            Some(DataLoss::All)
        );
    }
}
