//! Topics that sleep on a shard whose wake-ups can be lost: they are asked about now and then.

use std::ops::Bound;

use crate::domain::TopicName;

use super::{Board, Status, Topic};

// === impl Board ===

impl Board {
    /// Says that wake-ups can be lost.
    pub(in crate::dispatch) fn lossy(self, lossy: bool) -> Board {
        Board { lossy, ..self }
    }

    /// Whether somebody could take jobs of topics that sleep, or are not known.
    pub(in crate::dispatch) fn has_sleepers(&self) -> bool {
        self.lossy && self.hungry > 0 && (self.globs || self.asleep() > 0)
    }

    /// How many topics sleep.
    pub(in crate::dispatch) fn asleep(&self) -> usize {
        self.topics.len() - self.awake
    }

    /// Up to `max` topics that sleep and somebody could take from, each in turn.
    pub(in crate::dispatch) fn sleepers(&mut self, max: usize) -> Vec<TopicName> {
        let after = self.asked_last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let until = match &after {
            Bound::Excluded(name) => Bound::Included(name.clone()),
            _ => Bound::Excluded(TopicName::stored("")),
        };
        let behind = self.topics.range((after, Bound::Unbounded));
        let in_turn = behind.chain(self.topics.range((Bound::Unbounded, until)));
        let asleep = |topic: &Topic| topic.status != Status::Awake && !topic.groups.is_empty();
        let names = in_turn.filter(|(_, topic)| asleep(topic)).map(|(name, _)| name.clone());
        let names: Vec<TopicName> = names.take(max).collect();
        self.asked_last = names.last().cloned();
        names
    }

    /// Whether there is anything to remember of the topic.
    pub(in crate::dispatch) fn knows(&self, name: &TopicName) -> bool {
        self.topics.contains_key(name)
    }
}
