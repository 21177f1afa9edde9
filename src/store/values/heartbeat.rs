//! What the replicas of a shard tell each other by it.

use crate::domain::open_rings::RingRecords;
use crate::domain::ring::ShardState;
use crate::domain::{Time, limit};

/// A replica's sign of life, and what it brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Nonce of the replica.
    pub owner: u32,
    /// Fingerprint of the ring that it serves.
    pub ring: u64,
    /// Written where no state is yet.
    pub state: ShardState,
    /// Written where what is there has a lower version.
    pub rings: RingRecords,
    /// Replicas that somebody has met leases of; one that the shard does not know is taken to have shown
    /// itself now.
    pub seen_owners: Vec<u32>,
    /// Replicas to be forgotten, because nothing of them is left.
    pub removed_owners: Vec<u32>,
}

/// What all replicas of a shard share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedState {
    /// The store's time.
    pub now: Time,
    /// Whether the shard takes new jobs.
    pub state: ShardState,
    /// What the shard knows of rings.
    pub rings: RingRecords,
    /// Who has shown itself, the caller included. Where nobody else can be there, the caller alone.
    pub replicas: Vec<ReplicaHeartbeat>,
}

/// The last sign of life of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaHeartbeat {
    /// Its nonce.
    pub owner: u32,
    /// Fingerprint of the ring that it serves; 0 when it has not said so itself.
    pub ring: u64,
    /// When, on the store's clock.
    pub time: Time,
}

// === impl Sign ===

impl ReplicaHeartbeat {
    /// Whether the replica lives, at that time of the store.
    #[must_use]
    pub fn is_alive(&self, now: Time) -> bool {
        now.since(self.time) < limit::REPLICA_SILENCE_MAX
    }
}
