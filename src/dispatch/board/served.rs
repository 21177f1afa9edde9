//! How many jobs topics got from all shards of this replica together: turns are counted over shards, because jobs of a
//! topic lie on all of them, and in what order they come is one order for a worker.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::domain::TopicName;

/// What one topic got, or would have got if it had always been served in its turn. Boards that know the topic share it.
pub(super) type Count = Arc<AtomicU64>;

/// See the module.
#[derive(Default)]
pub(in crate::dispatch) struct Served {
    counts: Mutex<Counts>,
    /// What the topic that had got the least had got, of those that were served last.
    floor: AtomicU64,
}

#[derive(Default)]
struct Counts {
    by_name: HashMap<TopicName, Weak<AtomicU64>>,
    /// With so many, those that no board knows any more are dropped.
    full: usize,
}

// === impl Served ===

impl Served {
    /// The count of a topic. If no board knew it, it begins with `first`.
    pub(super) fn count(&self, name: &TopicName, first: u64) -> Count {
        let mut counts = self.counts();
        if let Some(count) = counts.by_name.get(name).and_then(Weak::upgrade) {
            return count;
        }
        if counts.by_name.len() >= counts.full {
            counts.by_name.retain(|_, count| count.strong_count() > 0);
            counts.full = 2 * counts.by_name.len() + 1_024;
        }
        let count = Arc::new(AtomicU64::new(first));
        counts.by_name.insert(name.clone(), Arc::downgrade(&count));
        count
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Relaxed)
    }

    /// Topics are served that had got so many at least.
    pub(super) fn raise_floor(&self, served: u64) {
        self.floor.fetch_max(served, Relaxed);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
