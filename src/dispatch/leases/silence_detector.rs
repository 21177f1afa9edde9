//! Detection of silent replicas, as far as one replica can judge.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::{Time, limit};
use crate::shards::Shard;
use crate::store::SharedState;

/// Shortest contact with the shard before this replica judges others.
const OBSERVED_MIN: Duration = Duration::from_secs(5);
/// Longest time between two reads of the shared state that still counts as contact.
const READ_GAP_MAX: Duration = limit::REPLICA_HEARTBEAT.saturating_mul(2);

/// Silent replicas, and the last heartbeat of each on the store's clock. A replica with another last heartbeat has
/// been alive in between.
pub(in crate::dispatch) type SilentReplicas = BTreeMap<u32, Time>;

/// Observation of the other replicas on one shard.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct SilenceDetector {
    /// Begin of the current contact, on the store's clock.
    connected_since: Time,
    last_state: Time,
}

/// Replicas that went silent at the same time.
pub(in crate::dispatch) struct SilentGroup {
    pub(in crate::dispatch) replicas: SilentReplicas,
    /// All replicas that are silent now.
    pub(in crate::dispatch) silent_now: watch::Receiver<SilentReplicas>,
}

// === impl SilenceDetector ===

impl SilenceDetector {
    /// Returns the replicas that are silent by this state and those before it.
    pub(in crate::dispatch) fn silent_replicas(
        &mut self,
        shared_state: &SharedState,
    ) -> SilentReplicas {
        if shared_state.now.since(self.last_state) > READ_GAP_MAX {
            self.connected_since = shared_state.now;
        }
        self.last_state = shared_state.now;
        if shared_state.now.since(self.connected_since) < OBSERVED_MIN {
            return SilentReplicas::new();
        }
        let silent = shared_state.replicas.iter().filter(|sign| !sign.is_alive(shared_state.now));
        silent.map(|sign| (sign.owner, sign.time)).collect()
    }
}

// === impl SilentGroup ===

impl SilentGroup {
    /// Returns the last heartbeat of the replica, if it is in this group.
    pub(in crate::dispatch) fn last_heartbeat(&self, owner: u32) -> Option<Time> {
        self.replicas.get(&owner).copied()
    }

    /// Reads the shared state once more and removes the replicas that have sent a heartbeat. `None` when the watcher
    /// has stopped.
    pub(in crate::dispatch) async fn recheck(&mut self, shard: &Shard) -> Option<()> {
        self.silent_now.borrow_and_update();
        // Reports no replica, but makes the shard read the shared state at once.
        shard.report_replicas(&[]);
        self.silent_now.changed().await.ok()?;
        self.drop_alive();
        Some(())
    }

    pub(in crate::dispatch) fn drop_alive(&mut self) {
        let now = self.silent_now.borrow_and_update();
        self.replicas.retain(|owner, at| now.get(owner) == Some(at));
    }
}
