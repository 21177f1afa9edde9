//! Record of the feeds that may have jobs, shared by all feeds.

use std::sync::atomic::{AtomicBool, Ordering};

/// Flags of the feeds that may have jobs. The credit of a stream is split among these only: a shard without a ready
/// job does not make the claims of the others smaller. An estimate, made before a claim; the jobs that streams hold
/// are in their ledgers.
pub(in crate::dispatch) struct AwakeFeeds(Box<[AtomicBool]>);

// === impl AwakeFeeds ===

impl AwakeFeeds {
    /// Creates flags for this many feeds, all asleep.
    pub(in crate::dispatch) fn new(feeds: usize) -> AwakeFeeds {
        AwakeFeeds((0..feeds).map(|_| AtomicBool::new(false)).collect())
    }

    /// Marks all feeds awake: a stream has opened, and every feed is about to claim for it.
    pub(in crate::dispatch) fn set_all(&self) {
        (0..self.0.len()).for_each(|feed| self.set(feed, true));
    }

    pub(in crate::dispatch) fn set(&self, feed: usize, awake: bool) {
        self.0[feed].store(awake, Ordering::Relaxed);
    }

    /// Number of feeds that may have jobs; at least 1, for the calling feed.
    pub(in crate::dispatch) fn count(&self) -> usize {
        self.0.iter().filter(|awake| awake.load(Ordering::Relaxed)).count().max(1)
    }
}
