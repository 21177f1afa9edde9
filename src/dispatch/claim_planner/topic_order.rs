//! The order in which ready topics are asked: the one that got the fewest jobs, from all shards together, comes first,
//! and among equals the one that was served the longest time ago. A topic whose streams have no credit keeps its place;
//! a topic that could have had nothing meanwhile gets no more later for that, so no backlog waits for another one to
//! catch up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::domain::TopicName;

use super::served_counts::{ServedCounter, ServedCounts};

/// Topics that are remembered once no stream asks for them: pulls of the same topics follow each other, and each of
/// them starts where the last one stopped. About 3 MB per shard.
const KEPT_TURNS_MAX: usize = 16_384;

/// The turn of a topic.
pub(super) struct TopicTurn {
    place: TurnPosition,
    /// What it got by now; more than its place says when another shard has served it since.
    count: ServedCounter,
}

/// Where a topic stands; the smallest one is next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TurnPosition {
    /// What the topic had got when it took this place.
    served: u64,
    /// When it was served last; no two topics have the same.
    since: u64,
}

/// Topics by their turns, the next one first.
pub(super) type ParkedTopics = BTreeMap<TurnPosition, TopicName>;

/// See the module.
pub(super) struct TopicOrder {
    ready: BTreeMap<TurnPosition, TopicName>,
    served: Arc<ServedCounts>,
    /// The next value of [`Place::since`], and of the keys of `forgotten`.
    next: u64,
    kept: HashMap<TopicName, (TopicTurn, u64)>,
    /// The names in `remembered`, in the order in which they were forgotten by the board.
    kept_order: BTreeMap<u64, TopicName>,
}

// === impl Place ===

impl TurnPosition {
    pub(super) fn served(self) -> u64 {
        self.served
    }
}

// === impl Turn ===

impl TopicTurn {
    pub(super) fn place(&self) -> TurnPosition {
        self.place
    }

    /// Whether another shard has served the topic since it took its place.
    pub(super) fn is_served(&self) -> bool {
        self.count.load(Relaxed) > self.place.served
    }
}

// === impl Turns ===

impl TopicOrder {
    /// Nothing is ready.
    pub(super) fn new(served: Arc<ServedCounts>) -> TopicOrder {
        TopicOrder {
            ready: BTreeMap::new(),
            served,
            next: 0,
            kept: HashMap::new(),
            kept_order: BTreeMap::new(),
        }
    }

    /// The turn of a topic that the board did not know: where it was when it was forgotten, or else behind all that
    /// are ready, or parked up to that place.
    pub(super) fn turn_of(&mut self, name: &TopicName, parked: Option<TurnPosition>) -> TopicTurn {
        if let Some((turn, at)) = self.kept.remove(name) {
            self.kept_order.remove(&at);
            return turn;
        }
        let last = self.ready.last_key_value().map(|(place, _)| *place).max(parked);
        let count =
            self.served.counter(name, last.map_or(self.served.floor(), TurnPosition::served));
        TopicTurn {
            place: TurnPosition { served: count.load(Relaxed), since: self.next_stamp() },
            count,
        }
    }

    /// The topic is ready, and takes its place.
    pub(super) fn insert(&mut self, turn: &mut TopicTurn, name: TopicName) {
        let floor = self.served.floor();
        let got = turn.count.fetch_max(floor, Relaxed);
        if got > turn.place.served {
            turn.place.since = self.next_stamp();
        }
        turn.place.served = got.max(floor);
        self.ready.insert(turn.place, name);
    }

    /// The topic is not ready any more.
    pub(super) fn remove(&mut self, turn: &TopicTurn) {
        self.ready.remove(&turn.place);
    }

    /// The next ready topic, which is not ready any more.
    pub(super) fn pop(&mut self) -> Option<TopicName> {
        self.ready.pop_first().map(|(_, name)| name)
    }

    /// How many topics are ready.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    /// The topic got so many jobs, in a claim whose topics had got `floor` at least.
    pub(super) fn add_served(&mut self, turn: &mut TopicTurn, jobs: u64, floor: u64) {
        if jobs > 0 {
            self.served.raise_floor(floor);
            let before = turn.count.fetch_add(jobs, Relaxed);
            turn.place = TurnPosition { served: before + jobs, since: self.next_stamp() };
        }
    }

    /// The board forgets the topic; its turn is kept for a while.
    pub(super) fn keep_turn(&mut self, name: TopicName, turn: TopicTurn) {
        let at = self.next_stamp();
        if let Some((_, before)) = self.kept.insert(name.clone(), (turn, at)) {
            self.kept_order.remove(&before);
        }
        self.kept_order.insert(at, name);
        if self.kept_order.len() > KEPT_TURNS_MAX
            && let Some((_, oldest)) = self.kept_order.pop_first()
        {
            self.kept.remove(&oldest);
        }
    }

    /// Whether topics have been forgotten for good, so that an unknown one may have had a turn.
    pub(super) fn has_evicted(&self) -> bool {
        self.kept_order.len() == KEPT_TURNS_MAX
    }

    fn next_stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
