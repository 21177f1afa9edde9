//! Number of jobs that topics were served from all shards of this replica together. Turns are counted over shards,
//! because jobs of a topic lie on all of them, and a worker sees one order.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::domain::TopicName;

/// Cost of the jobs that one topic was served, or would have been if it had always been served in its turn:
/// [`JOB_COST`] each. Shared by the planners that track the topic.
pub(super) type ServedCounter = Arc<AtomicU64>;

/// Cost of a job of which a stream without weights takes one in each turn. A stream with weights divides it.
pub(super) const JOB_COST: u64 = 1 << 16;
/// Number of counters examined when one is added.
const SWEEP_STEP: usize = 4;

/// Counters of all topics.
#[derive(Default)]
pub(in crate::dispatch) struct ServedCounts {
    counts: Mutex<TopicCounters>,
    /// Count of the least-served topic among those that were served last.
    floor: AtomicU64,
}

#[derive(Default)]
struct TopicCounters {
    /// A tree, not a hash table that doubles: with a million topics all planners would wait for that.
    by_name: BTreeMap<TopicName, Weak<AtomicU64>>,
    /// Last name examined by the sweep.
    swept: Option<TopicName>,
}

// === impl ServedCounts ===

impl ServedCounts {
    /// Returns the counter of a topic. If no planner tracked it, it begins with `first`.
    pub(super) fn counter(&self, name: &TopicName, first: u64) -> ServedCounter {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.by_name.get(name).and_then(Weak::upgrade) {
            return count;
        }
        counts.sweep();
        let count = Arc::new(AtomicU64::new(first));
        counts.by_name.insert(name.clone(), Arc::downgrade(&count));
        count
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Relaxed)
    }

    /// Raises the floor: the topics served now have counts of at least `served`.
    pub(super) fn raise_floor(&self, served: u64) {
        self.floor.fetch_max(served, Relaxed);
    }
}

// === impl TopicCounters ===

impl TopicCounters {
    /// Drops counters that no planner uses, among the next few. Completes a pass before as many are added.
    fn sweep(&mut self) {
        let from = self.swept.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.by_name.range((from, Bound::Unbounded)).take(SWEEP_STEP);
        let known = |count: &Weak<AtomicU64>| count.strong_count() > 0;
        let next: Vec<_> = next.map(|(name, count)| (name.clone(), known(count))).collect();
        for (name, _) in next.iter().filter(|(_, known)| !known) {
            self.by_name.remove(name);
        }
        self.swept = next.into_iter().nth(SWEEP_STEP - 1).map(|(name, _)| name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(served: &ServedCounts) -> usize {
        served.counts.lock().by_name.len()
    }

    #[test]
    fn counts_that_a_board_knows_are_kept_and_the_others_are_dropped() {
        let (served, name) =
            (ServedCounts::default(), |n: usize| TopicName::stored(&format!("t{n}")));
        let kept: Vec<_> = (0..1_000).map(|n| served.counter(&name(n), n as u64)).collect();
        (1_000..100_000).for_each(|n| drop(served.counter(&name(n), 0)));
        assert!(known(&served) <= 2 * kept.len(), "{}", known(&served));
        for (n, count) in kept.iter().enumerate() {
            assert!(Arc::ptr_eq(count, &served.counter(&name(n), 0)));
        }
    }
}
