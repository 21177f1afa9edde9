//! Order in which ready topics are claimed from: the one with the least cost of jobs served, from all shards together, comes
//! first, and among equals the one that was served the longest time ago. A topic whose streams have no credit keeps
//! its place. A topic that had no jobs for a while gets no more later for that, so no backlog waits for another topic
//! to catch up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::domain::TopicName;

use super::served_counts::{ServedCounter, ServedCounts};

/// Number of topics whose turns are kept when no stream subscribes to them: pulls of the same topics follow each
/// other, and each starts where the last one stopped. About 3 MB per shard.
const KEPT_TURNS_MAX: usize = 16_384;

/// Turn of a topic.
pub(super) struct TopicTurn {
    place: TurnPosition,
    /// Cost of the jobs served by now; more than in its place when another shard has served it since.
    count: ServedCounter,
}

/// Position in the order; the smallest one is next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TurnPosition {
    /// Cost of the jobs that the topic had been served when it took this place.
    served: u64,
    /// Stamp of the last service; unique.
    since: u64,
}

/// Topics by their turns, the next one first.
pub(super) type ParkedTopics = BTreeMap<TurnPosition, TopicName>;

/// Ready topics in order, and the kept turns of dropped topics.
pub(super) struct TopicOrder {
    ready: BTreeMap<TurnPosition, TopicName>,
    served: Arc<ServedCounts>,
    /// Last value of [`TurnPosition::since`] and of the keys of `kept_order`.
    next: u64,
    kept: HashMap<TopicName, (TopicTurn, u64)>,
    /// Names in `kept`, in the order in which the planner dropped them.
    kept_order: BTreeMap<u64, TopicName>,
}

// === impl TurnPosition ===

impl TurnPosition {
    pub(super) fn served(self) -> u64 {
        self.served
    }
}

// === impl TopicTurn ===

impl TopicTurn {
    pub(super) fn place(&self) -> TurnPosition {
        self.place
    }

    /// Returns whether another shard has served the topic since it took its place.
    pub(super) fn is_served(&self) -> bool {
        self.count.load(Relaxed) > self.place.served
    }
}

// === impl TopicOrder ===

impl TopicOrder {
    /// Creates an order without ready topics.
    pub(super) fn new(served: Arc<ServedCounts>) -> TopicOrder {
        TopicOrder {
            ready: BTreeMap::new(),
            served,
            next: 0,
            kept: HashMap::new(),
            kept_order: BTreeMap::new(),
        }
    }

    /// Returns the turn of a topic that the planner did not track: its kept turn, or else one behind all topics that
    /// are ready, or parked up to `parked`.
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

    /// Adds a ready topic at its place.
    pub(super) fn insert(&mut self, turn: &mut TopicTurn, name: TopicName) {
        let floor = self.served.floor();
        let got = turn.count.fetch_max(floor, Relaxed);
        if got > turn.place.served {
            turn.place.since = self.next_stamp();
        }
        turn.place.served = got.max(floor);
        self.ready.insert(turn.place, name);
    }

    /// Removes a topic that is no longer ready.
    pub(super) fn remove(&mut self, turn: &TopicTurn) {
        self.ready.remove(&turn.place);
    }

    /// Removes and returns the next ready topic.
    pub(super) fn pop(&mut self) -> Option<TopicName> {
        self.ready.pop_first().map(|(_, name)| name)
    }

    /// Number of ready topics.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Records that the topic was served jobs of this cost, in a claim whose topics had been served at least `floor`.
    pub(super) fn add_served(&mut self, turn: &mut TopicTurn, cost: u64, floor: u64) {
        if cost > 0 {
            self.served.raise_floor(floor);
            let before = turn.count.fetch_add(cost, Relaxed);
            turn.place = TurnPosition { served: before + cost, since: self.next_stamp() };
        }
    }

    /// Keeps the turn of a topic that the planner drops, for a while.
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

    /// Returns whether kept turns may have been evicted, so that an untracked topic may have had a turn.
    pub(super) fn has_evicted(&self) -> bool {
        self.kept_order.len() == KEPT_TURNS_MAX
    }

    fn next_stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
