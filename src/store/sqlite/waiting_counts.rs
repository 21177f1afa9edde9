//! Numbers of waiting jobs of the topics that have a limit of them. They are kept in memory, because counting reads the
//! whole topic: each is read once, and adjusted by every write after that. A topic without a limit has no number here.

use std::collections::HashMap;

use crate::domain::TopicName;

/// Numbers of waiting jobs by topic.
#[derive(Default)]
pub(super) struct WaitingCounts(HashMap<TopicName, i64>);

// === impl WaitingCounts ===

impl WaitingCounts {
    /// Adds to the number of a topic, if it is kept.
    pub(super) fn add(&mut self, topic: &TopicName, jobs: i64) {
        // Most servers have no such topic, and this is on the path of every job.
        if !self.0.is_empty()
            && let Some(count) = self.0.get_mut(topic)
        {
            *count += jobs;
        }
    }

    /// Returns the number of a topic, if it is kept.
    pub(super) fn get(&self, topic: &TopicName) -> Option<i64> {
        self.0.get(topic).copied()
    }

    /// Keeps the number of a topic from now on.
    pub(super) fn keep(&mut self, topic: &TopicName, count: i64) {
        self.0.insert(topic.clone(), count);
    }

    /// Forgets the number of a topic.
    pub(super) fn forget(&mut self, topic: &TopicName) {
        self.0.remove(topic);
    }

    /// Forgets all numbers: they are read again.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
