//! The order in which ready topics are asked: the one that got the fewest jobs comes first, and among equals the one
//! that was served the longest time ago. A topic whose streams have no credit keeps its place; a topic that could have
//! had nothing meanwhile gets no more later for that, so no backlog waits for another one to catch up.

use std::collections::{BTreeMap, HashMap};

use crate::domain::TopicName;

/// Topics that are remembered once no stream asks for them: pulls of the same topics follow each other, and each of
/// them starts where the last one stopped. About 3 MB per shard.
const REMEMBERED_MAX: usize = 16_384;

/// The place of a topic; the smallest one is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// Jobs that it got, or would have got if it had always been served in its turn.
    served: u64,
    /// When it was served last; no two topics have the same.
    since: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Turns {
    ready: BTreeMap<Turn, TopicName>,
    /// What the topic that was served last had got before that.
    floor: u64,
    /// The next value of [`Turn::since`], and of the keys of `forgotten`.
    next: u64,
    remembered: HashMap<TopicName, (Turn, u64)>,
    /// The names in `remembered`, in the order in which they were forgotten by the board.
    forgotten: BTreeMap<u64, TopicName>,
}

// === impl Turns ===

impl Turns {
    /// The turn of a topic that the board did not know: where it was when it was forgotten, or else behind all that
    /// are ready.
    pub(super) fn of(&mut self, name: &TopicName) -> Turn {
        if let Some((turn, at)) = self.remembered.remove(name) {
            self.forgotten.remove(&at);
            return turn;
        }
        let last = self.ready.last_key_value().map_or(self.floor, |(turn, _)| turn.served);
        Turn { served: last, since: self.stamp() }
    }

    /// The topic is ready; answers its turn from now on.
    pub(super) fn enter(&mut self, turn: Turn, name: TopicName) -> Turn {
        let turn = Turn { served: turn.served.max(self.floor), ..turn };
        self.ready.insert(turn, name);
        turn
    }

    /// The topic with that turn is not ready any more.
    pub(super) fn leave(&mut self, turn: Turn) {
        self.ready.remove(&turn);
    }

    /// The next ready topic, which is not ready any more.
    pub(super) fn pop(&mut self) -> Option<TopicName> {
        self.ready.pop_first().map(|(_, name)| name)
    }

    /// How many topics are ready.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    /// The turn of a topic that had `turn` and got so many jobs.
    pub(super) fn served(&mut self, turn: Turn, jobs: u64) -> Turn {
        if jobs == 0 {
            return turn;
        }
        self.floor = self.floor.max(turn.served);
        Turn { served: turn.served + jobs, since: self.stamp() }
    }

    /// The board forgets the topic; its turn is kept for a while.
    pub(super) fn remember(&mut self, name: TopicName, turn: Turn) {
        let at = self.stamp();
        if let Some((_, before)) = self.remembered.insert(name.clone(), (turn, at)) {
            self.forgotten.remove(&before);
        }
        self.forgotten.insert(at, name);
        if self.forgotten.len() > REMEMBERED_MAX
            && let Some((_, oldest)) = self.forgotten.pop_first()
        {
            self.remembered.remove(&oldest);
        }
    }

    /// Whether topics have been forgotten for good, so that an unknown one may have had a turn.
    pub(super) fn has_forgotten(&self) -> bool {
        self.forgotten.len() == REMEMBERED_MAX
    }

    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
