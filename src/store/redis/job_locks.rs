//! Locks per job: commands of this server on one job are decided one after the other, so that none of them makes
//! another one's commit fail.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::domain::JobKey;

/// A fixed number of locks; jobs share them by their ids.
pub(super) struct JobLocks(Box<[Arc<Mutex<()>>]>);

/// Number of locks: enough that commands on different jobs seldom wait for each other.
const LOCKS: usize = 256;

// === impl JobLocks ===

impl JobLocks {
    pub(super) fn new() -> JobLocks {
        JobLocks((0..LOCKS).map(|_| Arc::default()).collect())
    }

    /// Acquires the locks of all these jobs, in the order of the locks, so that no two calls wait for each other.
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
