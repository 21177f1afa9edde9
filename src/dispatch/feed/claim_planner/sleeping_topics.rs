//! Sleeping topics. On a shard whose wake-ups can be lost they are checked periodically.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::domain::TopicName;

use super::{ClaimPlanner, TopicStatus};

/// Index of all sleeping topics, so that they are found without a scan of a million awake ones.
#[derive(Default)]
pub(super) struct SleepingTopics {
    /// Pairs of a flag, true if a stream could take jobs of the topic, and its name.
    listed: BTreeSet<(bool, TopicName)>,
    /// Topic that was checked last.
    last_checked: Option<TopicName>,
}

// === impl ClaimPlanner ===

impl ClaimPlanner {
    /// Sets whether wake-ups can be lost.
    pub(in crate::dispatch) fn with_lossy_events(self, lossy: bool) -> ClaimPlanner {
        ClaimPlanner { can_miss_events: lossy, ..self }
    }

    /// Returns whether a stream could take jobs of topics that sleep or are not tracked.
    pub(in crate::dispatch) fn has_sleeping(&self) -> bool {
        self.can_miss_events && self.hungry > 0 && (self.tracks_globs || self.sleeping_count() > 0)
    }

    /// Number of sleeping topics.
    pub(in crate::dispatch) fn sleeping_count(&self) -> usize {
        self.sleeping.listed.len()
    }

    /// Returns up to `max` sleeping topics from which a stream could take jobs, each in turn.
    pub(in crate::dispatch) fn next_sleeping(&mut self, max: usize) -> Vec<TopicName> {
        self.sleeping.next(max)
    }

    /// Updates the index after a change of the topic.
    pub(super) fn update_sleeping(&mut self, name: &TopicName) {
        let topic = self.topics.get(name).filter(|topic| topic.status != TopicStatus::Awake);
        self.sleeping.set(name, topic.map(|topic| !topic.groups.is_empty()));
    }

    /// Returns whether the planner tracks the topic.
    pub(in crate::dispatch) fn is_tracked(&self, name: &TopicName) -> bool {
        self.topics.contains_key(name)
    }
}

// === impl SleepingTopics ===

impl SleepingTopics {
    /// Records whether a stream could take jobs of the topic; `None` when it does not sleep.
    fn set(&mut self, name: &TopicName, meant: Option<bool>) {
        if let Some(meant) = meant {
            self.listed.insert((meant, name.clone()));
        }
        for other in [true, false].into_iter().filter(|is| Some(*is) != meant) {
            self.listed.remove(&(other, name.clone()));
        }
    }

    pub(super) fn names(&self) -> Vec<TopicName> {
        self.listed.iter().map(|(_, name)| name.clone()).collect()
    }

    fn next(&mut self, max: usize) -> Vec<TopicName> {
        let last = self.last_checked.take().map(|name| (true, name));
        let first = (true, TopicName::stored(""));
        let (after, until) = match &last {
            Some(last) => (Bound::Excluded(last), Bound::Included(last)),
            None => (Bound::Included(&first), Bound::Excluded(&first)),
        };
        let behind = self.listed.range((after, Bound::Unbounded));
        let in_turn = behind.chain(self.listed.range((Bound::Included(&first), until)));
        let names: Vec<_> = in_turn.map(|(_, name)| name.clone()).take(max).collect();
        self.last_checked = names.last().cloned();
        names
    }
}
