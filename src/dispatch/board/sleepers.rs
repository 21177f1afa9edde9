//! Topics that sleep. On a shard whose wake-ups can be lost they are asked about now and then.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::domain::TopicName;

use super::{Board, Status};

/// All topics that sleep, so that they are found without a look at a million that are awake.
#[derive(Default)]
pub(super) struct Sleepers {
    /// Whether a stream could take from the topic, and which it is.
    listed: BTreeSet<(bool, TopicName)>,
    /// The one that was asked about last.
    asked_last: Option<TopicName>,
}

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
        self.sleepers.listed.len()
    }

    /// Up to `max` topics that sleep and somebody could take from, each in turn.
    pub(in crate::dispatch) fn sleepers(&mut self, max: usize) -> Vec<TopicName> {
        self.sleepers.next(max)
    }

    /// Lists the topic as it is after a change of it.
    pub(super) fn list_sleeper(&mut self, name: &TopicName) {
        let topic = self.topics.get(name).filter(|topic| topic.status != Status::Awake);
        self.sleepers.list(name, topic.map(|topic| !topic.groups.is_empty()));
    }

    /// Whether there is anything to remember of the topic.
    pub(in crate::dispatch) fn knows(&self, name: &TopicName) -> bool {
        self.topics.contains_key(name)
    }
}

// === impl Sleepers ===

impl Sleepers {
    /// Notes whether a stream could take from the topic; `None` when it does not sleep.
    fn list(&mut self, name: &TopicName, meant: Option<bool>) {
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
        let last = self.asked_last.take().map(|name| (true, name));
        let first = (true, TopicName::stored(""));
        let (after, until) = match &last {
            Some(last) => (Bound::Excluded(last), Bound::Included(last)),
            None => (Bound::Included(&first), Bound::Excluded(&first)),
        };
        let behind = self.listed.range((after, Bound::Unbounded));
        let in_turn = behind.chain(self.listed.range((Bound::Included(&first), until)));
        let names: Vec<_> = in_turn.map(|(_, name)| name.clone()).take(max).collect();
        self.asked_last = names.last().cloned();
        names
    }
}
