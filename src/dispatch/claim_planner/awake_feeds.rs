//! Which feeds may have something to give, as all of them see it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::ClaimPlanner;

/// See the module. The credit of a stream is split among these only: a shard without a ready job does
/// not make the claims of the others smaller. It is a guess, made before jobs are asked for; what
/// streams hold is in their own books.
pub(in crate::dispatch) struct AwakeFeeds(Box<[AtomicBool]>);

// === impl Board ===

impl ClaimPlanner {
    /// The shard gives nothing for a while: the others need not leave anything to it.
    pub(in crate::dispatch) fn mark_feed_asleep(&self) {
        self.awake_feeds.set(self.feed, false);
    }

    /// It gives what it has.
    pub(in crate::dispatch) fn update_feed_awake(&self) {
        self.awake_feeds.set(self.feed, self.awake_topics > 0);
    }

    /// Tells every stream that waits to hear that it was asked for: there is nothing to be had now.
    pub(in crate::dispatch) fn finish_first_claims(&mut self) {
        for id in self.unclaimed_streams.drain() {
            if let Some(sub) = self.streams.get_mut(&id) {
                sub.unclaimed.clear();
                sub.stream.count_claimed_feed();
            }
        }
    }
}

// === impl Awake ===

impl AwakeFeeds {
    /// So many feeds, all asleep.
    pub(in crate::dispatch) fn new(feeds: usize) -> AwakeFeeds {
        AwakeFeeds((0..feeds).map(|_| AtomicBool::new(false)).collect())
    }

    /// All of them: a stream has opened, and every feed is about to ask for it.
    pub(in crate::dispatch) fn set_all(&self) {
        (0..self.0.len()).for_each(|feed| self.set(feed, true));
    }

    pub(super) fn set(&self, feed: usize, awake: bool) {
        self.0[feed].store(awake, Ordering::Relaxed);
    }

    /// How many feeds may have something, at least the one that asks.
    pub(super) fn count(&self) -> usize {
        self.0.iter().filter(|awake| awake.load(Ordering::Relaxed)).count().max(1)
    }
}
