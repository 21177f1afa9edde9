//! Who is silent, as far as a replica can judge.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::{Time, limit};
use crate::shards::Shard;
use crate::store::SharedState;

/// A replica judges others when it has been in touch with the shard for so long.
const OBSERVED_MIN: Duration = Duration::from_secs(5);
/// It is in touch as long as no more time than this lies between two censuses.
const READ_GAP_MAX: Duration = limit::REPLICA_HEARTBEAT.saturating_mul(2);

/// Replicas that are silent, and the last sign of each on the store's clock. One with another last sign
/// has been alive in between.
pub(super) type SilentReplicas = BTreeMap<u32, Time>;

/// What a replica sees of the others on one shard.
#[derive(Debug, Default)]
pub(super) struct SilenceDetector {
    /// On the store's clock: in touch since then, and the last census.
    connected_since: Time,
    last_state: Time,
}

/// Replicas that went silent at one time.
pub(super) struct SilentGroup {
    pub(super) replicas: SilentReplicas,
    /// All that are silent now.
    pub(super) silent_now: watch::Receiver<SilentReplicas>,
}

// === impl Sight ===

impl SilenceDetector {
    /// Who is silent by this census and those before it.
    pub(super) fn silent_replicas(&mut self, census: &SharedState) -> SilentReplicas {
        if census.now.since(self.last_state) > READ_GAP_MAX {
            self.connected_since = census.now;
        }
        self.last_state = census.now;
        if census.now.since(self.connected_since) < OBSERVED_MIN {
            return SilentReplicas::new();
        }
        let silent = census.replicas.iter().filter(|sign| !sign.is_alive(census.now));
        silent.map(|sign| (sign.owner, sign.time)).collect()
    }
}

// === impl Silence ===

impl SilentGroup {
    /// The last sign of the replica, if it is one of these.
    pub(super) fn last_heartbeat(&self, owner: u32) -> Option<Time> {
        self.replicas.get(&owner).copied()
    }

    /// Asks the shard once more, and forgets those that have shown themselves. `None` when nobody
    /// watches any more.
    pub(super) async fn recheck(&mut self, shard: &Shard) -> Option<()> {
        self.silent_now.borrow_and_update();
        // Nobody is met by this, but the shard is asked at once.
        shard.report_replicas(&[]);
        self.silent_now.changed().await.ok()?;
        self.drop_alive();
        Some(())
    }

    pub(super) fn drop_alive(&mut self) {
        let now = self.silent_now.borrow_and_update();
        self.replicas.retain(|owner, at| now.get(owner) == Some(at));
    }
}
