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

// === impl ReplicaHeartbeat ===

impl ReplicaHeartbeat {
    /// Returns whether the replica is alive at `now`, a time of the store.
    #[must_use]
    pub fn is_alive(&self, now: Time) -> bool {
        now.since(self.time) < limit::REPLICA_SILENCE_MAX
    }
}
