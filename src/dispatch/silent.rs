//! Who is silent, as far as a replica can judge.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::{Time, limit};
use crate::shards::Shard;
use crate::store::Census;

/// A replica judges others when it has been in touch with the shard for so long.
const WATCHED_MIN: Duration = Duration::from_secs(5);
/// It is in touch as long as no more time than this lies between two censuses.
const CENSUSES_APART_MAX: Duration = limit::REPLICA_HEARTBEAT.saturating_mul(2);

/// Replicas that are silent, and the last sign of each on the store's clock. One with another last sign
/// has been alive in between.
pub(super) type Silent = BTreeMap<u32, Time>;

/// What a replica sees of the others on one shard.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// On the store's clock: in touch since then, and the last census.
    since: Time,
    last: Time,
}

/// Replicas that went silent at one time.
pub(super) struct Silence {
    pub(super) replicas: Silent,
    /// All that are silent now.
    pub(super) now: watch::Receiver<Silent>,
}

// === impl Sight ===

impl Sight {
    /// Who is silent by this census and those before it.
    pub(super) fn look(&mut self, census: &Census) -> Silent {
        if census.now.since(self.last) > CENSUSES_APART_MAX {
            self.since = census.now;
        }
        self.last = census.now;
        if census.now.since(self.since) < WATCHED_MIN {
            return Silent::new();
        }
        let silent = census.replicas.iter().filter(|sign| !sign.is_living(census.now));
        silent.map(|sign| (sign.owner, sign.at)).collect()
    }
}

// === impl Silence ===

impl Silence {
    /// The last sign of the replica, if it is one of these.
    pub(super) fn last_sign(&self, owner: u32) -> Option<Time> {
        self.replicas.get(&owner).copied()
    }

    /// Asks the shard once more, and forgets those that have shown themselves. `None` when nobody
    /// watches any more.
    pub(super) async fn look_again(&mut self, shard: &Shard) -> Option<()> {
        self.now.borrow_and_update();
        // Nobody is met by this, but the shard is asked at once.
        shard.meet(&[]);
        self.now.changed().await.ok()?;
        self.recall();
        Some(())
    }

    pub(super) fn recall(&mut self) {
        let now = self.now.borrow_and_update();
        self.replicas.retain(|owner, at| now.get(owner) == Some(at));
    }
}
