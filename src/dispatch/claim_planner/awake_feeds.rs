//! Record of the feeds that may have jobs, shared by all feeds.

use std::sync::atomic::{AtomicBool, Ordering};

use super::ClaimPlanner;

/// Flags of the feeds that may have jobs. The credit of a stream is split among these only: a shard without a ready
/// job does not make the claims of the others smaller. An estimate, made before a claim; the jobs that streams hold
/// are in their ledgers.
pub(in crate::dispatch) struct AwakeFeeds(Box<[AtomicBool]>);

// === impl ClaimPlanner ===

impl ClaimPlanner {
    /// Marks the feed asleep: its shard gives no jobs for a while, and the others need not leave credit to it.
    pub(in crate::dispatch) fn mark_feed_asleep(&self) {
        self.awake_feeds.set(self.feed, false);
    }

    /// Marks the feed awake if it has awake topics.
    pub(in crate::dispatch) fn update_feed_awake(&self) {
        self.awake_feeds.set(self.feed, self.awake_topics > 0);
    }

    /// Counts the feed as claimed for every stream that waits for its first claims: no jobs can be had now.
    pub(in crate::dispatch) fn finish_first_claims(&mut self) {
        for id in self.unclaimed_streams.drain() {
            if let Some(sub) = self.streams.get_mut(&id) {
                sub.unclaimed.clear();
                sub.stream.count_claimed_feed();
            }
        }
    }
}

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

    pub(super) fn set(&self, feed: usize, awake: bool) {
        self.0[feed].store(awake, Ordering::Relaxed);
    }

    /// Number of feeds that may have jobs; at least 1, for the calling feed.
    pub(super) fn count(&self) -> usize {
        self.0.iter().filter(|awake| awake.load(Ordering::Relaxed)).count().max(1)
    }
}
