//! Commands of this server on one job take turns: they are decided one after the other, so that two of them are never
//! faster than each other.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::domain::JobKey;

/// See the module. Jobs share turns by their ids.
pub(super) struct JobLocks(Box<[Arc<Mutex<()>>]>);

/// How many turns there are: enough that commands on different jobs seldom wait for each other.
const LOCKS: usize = 256;

// === impl Turns ===

impl JobLocks {
    pub(super) fn new() -> JobLocks {
        JobLocks((0..LOCKS).map(|_| Arc::default()).collect())
    }

    /// Waits until it is the turn of all these jobs. Turns are taken in their order, so that no two calls wait for each
    /// other.
    pub(super) async fn lock<'a>(
        &self,
        keys: impl Iterator<Item = &'a JobKey>,
    ) -> Vec<OwnedMutexGuard<()>> {
        let place = |key: &JobKey| {
            let hash = xxhash_rust::xxh3::xxh3_64(key.id.as_str().as_bytes());
            usize::try_from(hash % LOCKS as u64).unwrap_or(0)
        };
        let mut places: Vec<usize> = keys.map(place).collect();
        places.sort_unstable();
        places.dedup();
        let mut turns = Vec::with_capacity(places.len());
        for place in places {
            turns.push(Arc::clone(&self.0[place]).lock_owned().await);
        }
        turns
    }
}
