//! Limits of topics: of their waiting jobs and of their bytes, and what happens beyond.

use crate::domain::engine::Enqueue;
use crate::domain::{OverflowPolicy, TopicName};
use crate::shards::Shard;

use super::Core;

/// Limits of a topic on one shard; `None`: no limit.
#[derive(Clone, Copy, Default)]
pub(super) struct TopicLimits {
    /// Number of waiting jobs.
    pub(super) max_waiting: Option<u64>,
    /// Number of bytes of all stored jobs.
    pub(super) max_bytes: Option<u64>,
}

// === impl Core ===

impl Core {
    /// Returns the limits that the topic has on the shard.
    pub(super) fn topic_limits(&self, topic: &TopicName, shard: &Shard) -> TopicLimits {
        let documents = self.inner.documents.any();
        let settings = documents.as_ref().and_then(|documents| documents.settings(topic));
        let Some(settings) = settings else { return TopicLimits::default() };
        let share = |max: Option<u64>| max.map(|max| self.inner.shards.share(shard, max));
        TopicLimits {
            max_waiting: share(settings.max_jobs),
            max_bytes: share(settings.max_stored_bytes),
        }
    }

    /// Returns [`Enqueue::max_bytes`] of a job that no limit holds back: it counts where its topic limits the bytes.
    pub(super) fn only_counted(&self, topic: &TopicName) -> Option<u64> {
        let documents = self.inner.documents.any()?;
        documents.settings(topic)?.max_stored_bytes.map(|_| u64::MAX)
    }

    /// Returns what the topic does with a job for which it has no room.
    pub(super) fn on_full(&self, topic: &TopicName) -> OverflowPolicy {
        let documents = self.inner.documents.any();
        let settings = documents.as_ref().and_then(|documents| documents.settings(topic));
        settings.map_or(OverflowPolicy::Reject, |settings| settings.on_full)
    }
}

// === impl TopicLimits ===

impl TopicLimits {
    /// Gives the limits to a job of the topic. One that no limit holds back, `is_limited` false, is only counted.
    pub(super) fn apply_to(self, job: &mut Enqueue, is_limited: bool) {
        (job.max_waiting, job.max_bytes) = (self.max_waiting, self.max_bytes);
        if !is_limited {
            job.lift_limits();
        }
    }
}
