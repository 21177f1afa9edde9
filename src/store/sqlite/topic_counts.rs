//! Numbers of topics: of waiting jobs, or of bytes, if the topic has a limit, and of running jobs, if jobs with and without
//! a group take turns. They are kept in memory, because counting reads the whole topic: each is read once, and adjusted
//! by every write after that. Other topics have no number here.

use std::collections::HashMap;

use crate::domain::TopicName;

/// Numbers by topic.
#[derive(Default)]
pub(super) struct TopicCounts {
    /// Waiting jobs.
    pub(super) waiting: TopicNumbers,
    /// Bytes of the stored jobs, see [`Record::counted_bytes`](crate::domain::engine::Record::counted_bytes).
    pub(super) bytes: TopicNumbers,
    /// Running jobs.
    pub(super) running: TopicNumbers,
}

/// Numbers of one kind by topic.
#[derive(Default)]
pub(super) struct TopicNumbers(HashMap<TopicName, i64>);

// === impl TopicCounts ===

impl TopicCounts {
    /// Forgets the numbers of a topic.
    pub(super) fn forget(&mut self, topic: &TopicName) {
        self.waiting.0.remove(topic);
        self.bytes.0.remove(topic);
        self.running.0.remove(topic);
    }

    /// Forgets all numbers: they are read again.
    pub(super) fn clear(&mut self) {
        self.waiting.0.clear();
        self.bytes.0.clear();
        self.running.0.clear();
    }
}

// === impl TopicNumbers ===

impl TopicNumbers {
    /// Adds to the number of a topic, if it is kept.
    pub(super) fn add(&mut self, topic: &TopicName, number: i64) {
        // Most servers have no such topic, and this is on the path of every job.
        if !self.0.is_empty()
            && let Some(count) = self.0.get_mut(topic)
        {
            *count += number;
        }
    }

    /// Returns whether the number of a topic is kept.
    pub(super) fn has(&self, topic: &TopicName) -> bool {
        !self.0.is_empty() && self.0.contains_key(topic)
    }

    /// Returns the number of a topic, if it is kept.
    pub(super) fn get(&self, topic: &TopicName) -> Option<i64> {
        self.0.get(topic).copied()
    }

    /// Keeps the number of a topic from now on.
    pub(super) fn keep(&mut self, topic: &TopicName, count: i64) {
        self.0.insert(topic.clone(), count);
    }
}
