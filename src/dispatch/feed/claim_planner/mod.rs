//! Planner of a feed's claims: topics that may have jobs, and streams that could take them. No I/O; reads and updates
//! the streams' ledgers.
//!
//! ```text
//!   stream ──subscribes──▶ group (a pattern) ──matches──▶ topic
//!                queue of hungry streams              awake: ready, claimed, or parked
//!                                                     asleep: for ever, or until a time
//! ```
//!
//! - A topic is asleep only after a claim that found nothing and that began after the last wake-up.
//! - A hungry stream has free credit. It is in the queue of each of its patterns. A stream that turns out not to be
//!   hungry is removed, and returns when its ledger has credit: busy streams are not examined.
//! - An awake topic whose groups have no hungry stream is parked until one has. A topic that is only passed over
//!   because of another topic stays ready: no event would report the end of that.
//! - Work on all topics of a glob is done in pieces; a plan made before the last piece uses the topics attached by
//!   then.
//! - A stream with weights takes from a topic only when it is its turn there: [`weighted_streams`].
//! - Ready topics are claimed from in the order of their turns, which they keep while they are parked or dropped.

mod claim_plan;
mod glob_tasks;
mod pattern_groups;
mod served_counts;
mod sleeping_topics;
#[cfg(test)]
mod tests;
mod topic_order;
mod weighted_streams;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rand::seq::SliceRandom as _;

use crate::dispatch::streams::awake_feeds::AwakeFeeds;
use crate::domain::credit::CreditShare;
use crate::domain::{Time, TopicName, TopicPattern};

use crate::dispatch::streams::ledger::StreamMode;
use crate::dispatch::streams::stream::Stream;

use glob_tasks::GlobTask;
use pattern_groups::{PatternGroup, StreamQueue, distinct};
use sleeping_topics::SleepingTopics;
use topic_order::{TopicOrder, TopicTurn};
use weighted_streams::WeightedShares;

pub(super) use claim_plan::{ClaimOutcome, ClaimPlan, TopicClaim};
pub(in crate::dispatch) use served_counts::ServedCounts;

/// Number of topics of one claim, at most: with a few jobs each the call is full.
const CLAIM_TOPICS_MAX: usize = 64;
/// Number of takers of the first claim after a topic woke. Each further claim that finds more has more takers, so
/// that a trickle of jobs does not cost a visit of every idle stream.
const TAKERS_MIN: usize = 16;

/// Planner of the claims of one feed.
pub(super) struct ClaimPlanner {
    /// Index of this feed.
    feed: usize,
    /// Flags of all feeds that may have jobs.
    awake_feeds: Arc<AwakeFeeds>,
    /// Number of awake topics.
    awake_topics: usize,
    topics: BTreeMap<TopicName, TopicEntry>,
    groups: HashMap<u32, PatternGroup>,
    by_pattern: HashMap<TopicPattern, u32>,
    /// Groups of globs.
    glob_groups: HashSet<u32>,
    next_group: u32,
    streams: HashMap<u32, StreamEntry>,
    /// Number of hungry streams.
    hungry: usize,
    /// Hungry streams with weights, in turn.
    weighted: StreamQueue,
    /// Streams for which this feed has not yet claimed from all their topics.
    unclaimed_streams: HashSet<u32>,
    /// Awake topics that may have takers.
    order: TopicOrder,
    /// Topics that wake at a time.
    due: BTreeSet<(Time, TopicName)>,
    /// Number of claims planned.
    round: u64,
    /// Number of wake-ups received.
    wakes: u64,
    /// Number of times that wake-ups were missed: each may have been for any topic.
    missed_events: u64,
    /// True once a stream has subscribed to a glob: topics that no stream names are tracked too.
    tracks_globs: bool,
    /// True if wake-ups can be lost: sleeping topics are checked, and none is dropped.
    can_miss_events: bool,
    sleeping: SleepingTopics,
    glob_tasks: VecDeque<GlobTask>,
    /// Groups whose parked topics are being unparked, in turn.
    unparking: VecDeque<u32>,
    /// True if this plan has passed over a topic without asking all streams with weights.
    passed_over: bool,
    /// True if the last plan has not examined all ready topics.
    plan_was_limited: bool,
}

struct TopicEntry {
    status: TopicStatus,
    position: TopicPosition,
    turn: TopicTurn,
    /// Number of its last wake-up.
    wakes: u64,
    groups: Vec<u32>,
    /// Number of takers of the next claim, at most.
    takers_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TopicStatus {
    Awake,
    Asleep(Option<Time>),
}

/// Place of an awake topic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TopicPosition {
    Unqueued,
    Ready,
    Claimed,
    Parked,
}

struct StreamEntry {
    stream: Arc<Stream>,
    groups: Vec<u32>,
    hungry: bool,
    /// Topic from which the next claim takes alone and with all bytes of the stream: it received nothing there
    /// although there was more, so its share may have been too small for the next job.
    claim_alone: Option<TopicName>,
    /// Topics whose next job does not fit even then, until credit is freed.
    blocked: HashSet<TopicName>,
    /// Topics that were awake when the stream opened and were not found empty since.
    unclaimed: HashSet<TopicName>,
    /// Number of its globs whose topics are not all in `unclaimed` yet.
    globs_pending: usize,
    /// Round in which `topic_share` was computed.
    round: u64,
    /// Share of each of its topics.
    topic_share: CreditShare,
    /// Shares of its topics, if they have weights.
    weighted: Option<Box<WeightedShares>>,
}

// === impl ClaimPlanner ===

impl ClaimPlanner {
    /// Creates the planner of feed number `feed`.
    pub(super) fn new(
        feed: usize,
        awakeness: Arc<AwakeFeeds>,
        served: Arc<ServedCounts>,
    ) -> ClaimPlanner {
        ClaimPlanner {
            feed,
            awake_feeds: awakeness,
            awake_topics: 0,
            topics: BTreeMap::new(),
            groups: HashMap::new(),
            by_pattern: HashMap::new(),
            glob_groups: HashSet::new(),
            next_group: 0,
            streams: HashMap::new(),
            hungry: 0,
            weighted: StreamQueue::default(),
            unclaimed_streams: HashSet::new(),
            order: TopicOrder::new(served),
            due: BTreeSet::new(),
            round: 0,
            wakes: 0,
            missed_events: 0,
            tracks_globs: false,
            can_miss_events: false,
            sleeping: SleepingTopics::default(),
            glob_tasks: VecDeque::new(),
            unparking: VecDeque::new(),
            passed_over: false,
            plan_was_limited: false,
        }
    }

    /// Returns whether topics that no stream names are tracked.
    pub(super) fn tracks_globs(&self) -> bool {
        self.tracks_globs
    }

    /// Starts to track topics that no stream names. The caller then reports those that exist, by
    /// [`ClaimPlanner::wake_topic`].
    pub(super) fn track_globs(&mut self) {
        self.tracks_globs = true;
    }

    /// Returns whether the stream is subscribed.
    pub(super) fn serves(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Updates the planner for a stream that has opened, closed, or has credit again.
    pub(super) fn update_stream(&mut self, stream: &Arc<Stream>) {
        let id = stream.id();
        if stream.is_closed() {
            self.unsubscribe(id);
        } else if self.streams.contains_key(&id) {
            self.mark_hungry(id);
        } else {
            self.subscribe(Arc::clone(stream));
        }
    }

    /// Wakes the topic: it has jobs from `at` on, on the clock that shows `now`.
    pub(super) fn wake_topic(&mut self, name: &TopicName, at: Time, now: Time) {
        if !self.topics.contains_key(name) {
            if !self.tracks_globs {
                return;
            }
            self.add_topic(name);
        }
        let Some(topic) = self.topics.get_mut(name) else { return };
        self.wakes += 1;
        topic.wakes = self.wakes;
        match topic.status {
            TopicStatus::Awake => {}
            TopicStatus::Asleep(_) if at <= now => self.set_status(name, TopicStatus::Awake),
            TopicStatus::Asleep(until) if until.is_none_or(|until| at < until) => {
                self.set_status(name, TopicStatus::Asleep(Some(at)));
            }
            TopicStatus::Asleep(_) => {}
        }
    }

    /// Records that events were missed: any topic may have jobs, and a claim in flight may be older than the event.
    pub(super) fn mark_events_missed(&mut self) {
        self.missed_events += 1;
    }

    /// Wakes all sleeping topics.
    pub(super) fn wake_all(&mut self) {
        for name in self.sleeping.names() {
            self.wake_topic(&name, Time(i64::MIN), Time(i64::MIN));
        }
    }

    /// Wakes all topics that are due.
    pub(super) fn wake_due(&mut self, now: Time) {
        while let Some((at, name)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            self.wake_topic(&name, at, now);
        }
    }

    /// Returns the time at which the next topic wakes; `None` also when no stream could take jobs.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at).filter(|_| self.hungry > 0)
    }

    fn subscribe(&mut self, stream: Arc<Stream>) {
        let id = stream.id();
        let mut sub = StreamEntry::new(stream);
        let mut patterns = match sub.stream.turns() {
            Some(turns) => turns.patterns().cloned().collect(),
            None => distinct(&sub.stream.options().topics),
        };
        if self.order.has_evicted() && sub.weighted.is_none() {
            // Topics without a kept turn are served in this order, which must not favour any of them.
            patterns.shuffle(&mut rand::rng());
        }
        for pattern in patterns {
            let group = self.join_group(&pattern);
            sub.groups.push(group);
            match &pattern {
                TopicPattern::Exact(name) => {
                    // A sleeping topic was found empty, but maybe only for other streams. A first claim costs little.
                    self.wake_topic(name, Time(i64::MIN), Time(i64::MIN));
                    sub.unclaimed.insert(name.clone());
                }
                TopicPattern::Prefix(prefix) if sub.stream.mode() == StreamMode::Pull => {
                    sub.globs_pending += 1;
                    let prefix = prefix.clone();
                    self.glob_tasks.push_back(GlobTask::Gather { stream: id, prefix, after: None });
                }
                TopicPattern::Prefix(_) => {}
            }
        }
        self.unclaimed_streams.insert(id);
        self.streams.insert(id, sub);
        self.finish_if_claimed(id);
        self.mark_hungry(id);
    }

    fn unsubscribe(&mut self, id: u32) {
        let Some(sub) = self.streams.remove(&id) else { return };
        self.hungry -= usize::from(sub.hungry);
        self.unclaimed_streams.remove(&id);
        for group in sub.groups {
            self.leave_group(group);
        }
    }

    /// Marks the feed asleep: its shard gives no jobs for a while, and the others need not leave credit to it.
    pub(in crate::dispatch) fn mark_feed_asleep(&self) {
        self.awake_feeds.set(self.feed, false);
    }

    /// Marks the feed awake if it has awake topics.
    pub(in crate::dispatch) fn update_feed_awake(&self) {
        self.awake_feeds.set(self.feed, self.awake_topics > 0);
    }

    /// Counts the feed as claimed for every stream that waits for its first claims: no jobs can be had now.
    pub(in crate::dispatch) fn finish_first_claims(&mut self) {
        for id in self.unclaimed_streams.drain() {
            if let Some(sub) = self.streams.get_mut(&id) {
                sub.unclaimed.clear();
                sub.stream.count_claimed_feed();
            }
        }
    }

    /// Marks the stream hungry: enters it in its queues, and unparks topics of its groups.
    fn mark_hungry(&mut self, id: u32) {
        let Some(sub) = self.streams.get_mut(&id) else { return };
        self.hungry += usize::from(!std::mem::replace(&mut sub.hungry, true));
        sub.blocked.clear();
        let is_weighted = sub.weighted.is_some();
        if is_weighted {
            self.weighted.push(id);
        }
        for id_of_group in sub.groups.clone() {
            let Some(group) = self.groups.get_mut(&id_of_group) else { continue };
            group.queue.push(id);
            // The next plan unparks the topics whose turn it is at a stream with weights.
            if !is_weighted {
                self.unpark_soon(id_of_group);
            }
        }
    }

    fn set_status(&mut self, name: &TopicName, status: TopicStatus) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        let before = std::mem::replace(&mut topic.status, status);
        if let TopicStatus::Asleep(Some(until)) = before {
            self.due.remove(&(until, name.clone()));
        }
        if let TopicStatus::Asleep(Some(until)) = status {
            self.due.insert((until, name.clone()));
        }
        let (was, is) = (before == TopicStatus::Awake, status == TopicStatus::Awake);
        if was == is {
            return;
        }
        let place = topic.turn.place();
        self.awake_topics =
            if is { self.awake_topics + 1 } else { self.awake_topics.saturating_sub(1) };
        self.awake_feeds.set(self.feed, self.awake_topics > 0);
        for id in &topic.groups {
            if let Some(group) = self.groups.get_mut(id) {
                group.awake = if is { group.awake + 1 } else { group.awake.saturating_sub(1) };
                group.parked.remove(&place);
            }
        }
        topic.takers_max = TAKERS_MIN;
        topic.unqueue(&mut self.order);
        if is {
            self.make_ready(name.clone());
        }
        self.update_sleeping(name);
    }

    /// Makes an awake topic ready if a stream is in a queue for it; parks it otherwise: plans do not examine topics
    /// that no stream can take.
    fn make_ready(&mut self, name: TopicName) {
        let Some(topic) = self.topics.get_mut(&name) else { return };
        let groups = &self.groups;
        if topic.groups.iter().any(|id| groups.get(id).is_some_and(|group| group.queue.len() > 0)) {
            topic.queue(&mut self.order, name);
        } else {
            self.park_topic(name);
        }
    }

    /// Parks the topic until one of its groups has a hungry stream again.
    fn park_topic(&mut self, name: TopicName) {
        let Some(topic) = self.topics.get_mut(&name) else { return };
        topic.position = TopicPosition::Parked;
        for id in &topic.groups {
            if let Some(group) = self.groups.get_mut(id) {
                group.parked.insert(topic.turn.place(), name.clone());
            }
        }
    }
}

// === impl TopicEntry, StreamEntry ===

impl TopicEntry {
    /// Creates a sleeping topic; it becomes awake when it has its groups.
    fn new(turn: TopicTurn) -> TopicEntry {
        let (status, position) = (TopicStatus::Asleep(None), TopicPosition::Unqueued);
        TopicEntry { status, position, turn, wakes: 0, groups: Vec::new(), takers_max: TAKERS_MIN }
    }

    /// Queues the topic as ready.
    fn queue(&mut self, turns: &mut TopicOrder, name: TopicName) {
        self.position = TopicPosition::Ready;
        turns.insert(&mut self.turn, name);
    }

    /// Removes the topic from the ready order: it is no longer awake.
    fn unqueue(&mut self, turns: &mut TopicOrder) {
        if self.position == TopicPosition::Ready {
            turns.remove(&self.turn);
        }
        self.position = TopicPosition::Unqueued;
    }
}

impl StreamEntry {
    fn new(stream: Arc<Stream>) -> StreamEntry {
        StreamEntry {
            weighted: WeightedShares::of(&stream),
            stream,
            groups: Vec::new(),
            hungry: false,
            claim_alone: None,
            blocked: HashSet::new(),
            unclaimed: HashSet::new(),
            globs_pending: 0,
            round: 0,
            topic_share: CreditShare::default(),
        }
    }
}
