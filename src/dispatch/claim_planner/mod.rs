//! What a feed knows: which topics may have something, and which streams could take it. Pure but for
//! the books of the streams themselves.
//!
//! ```text
//!   stream ──wants──▶ group (a pattern) ──matches──▶ topic
//!             line of hungry streams         awake: ready, asked, or parked
//!                                            asleep: for ever, or until a time
//! ```
//!
//! - A topic is asleep only after a claim that found nothing and that began after the last wake-up.
//! - Streams stand in the line of each of their patterns while they are hungry. One that is found not
//!   to be steps out, and back in when its books say so: nobody looks at streams that are busy.
//! - An awake topic whose groups have no hungry stream is parked until one of them has. One that is
//!   only passed over for the sake of another topic stays ready: nobody would tell when that is over.
//! - What concerns all topics of a glob is done in pieces; a plan that comes before the last one asks for what is known by then.
//! - Ready topics are asked in the order of their turns, which they keep while they are parked or forgotten.

mod awake_feeds;
mod claim_plan;
mod glob_tasks;
mod pattern_groups;
mod served_counts;
mod sleeping_topics;
#[cfg(test)]
mod tests;
mod topic_order;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rand::seq::SliceRandom as _;

use crate::domain::credit::CreditShare;
use crate::domain::{Time, TopicName};

use super::TopicPattern;
use super::stream::Stream;
use super::stream_ledger::StreamMode;

use glob_tasks::GlobTask;
use pattern_groups::{PatternGroup, distinct};
use sleeping_topics::SleepingTopics;
use topic_order::{TopicOrder, TopicTurn};

pub(super) use awake_feeds::AwakeFeeds;
pub(super) use claim_plan::{ClaimOutcome, ClaimPlan, TopicClaim};
pub(super) use served_counts::ServedCounts;

/// Topics of one claim at most: with a handful of jobs each the call is full.
const CLAIM_TOPICS_MAX: usize = 64;
/// Takers of the first claim after a topic woke; each further one that finds more asks for more, so
/// that a trickle of jobs does not cost a look at every idle stream.
const TAKERS_MIN: usize = 16;

/// See the module.
pub(super) struct ClaimPlanner {
    /// The index of this feed.
    feed: usize,
    /// Which feeds may have something.
    awake_feeds: Arc<AwakeFeeds>,
    /// How many topics are awake.
    awake_topics: usize,
    topics: BTreeMap<TopicName, TopicEntry>,
    groups: HashMap<u32, PatternGroup>,
    by_pattern: HashMap<TopicPattern, u32>,
    /// The groups of globs.
    glob_groups: HashSet<u32>,
    next_group: u32,
    streams: HashMap<u32, StreamEntry>,
    /// How many of them are hungry.
    hungry: usize,
    /// Streams that have not heard that everything was asked for.
    unclaimed_streams: HashSet<u32>,
    /// Awake topics that may have takers.
    order: TopicOrder,
    /// Topics that wake by themselves.
    due: BTreeSet<(Time, TopicName)>,
    /// Claims planned.
    round: u64,
    /// Wake-ups heard.
    wakes: u64,
    /// How often wake-ups were missed: each may have been of any topic.
    missed_events: u64,
    /// Topics that nobody names are remembered: some stream has asked for a glob.
    tracks_globs: bool,
    /// Wake-ups can be lost: topics that sleep are asked about, and none is forgotten.
    can_miss_events: bool,
    sleeping: SleepingTopics,
    glob_tasks: VecDeque<GlobTask>,
    /// Groups whose parked topics are getting another chance, in turn.
    unparking: VecDeque<u32>,
    /// The last plan has not looked at all topics that are ready.
    plan_was_limited: bool,
}

struct TopicEntry {
    status: TopicStatus,
    position: TopicPosition,
    turn: TopicTurn,
    /// The number of its last wake-up.
    wakes: u64,
    groups: Vec<u32>,
    /// Takers of the next claim at most.
    takers_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TopicStatus {
    Awake,
    Asleep(Option<Time>),
}

/// Where an awake topic is.
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
    /// Its next ask is for this topic alone and with all its bytes: it got nothing there though
    /// there was more, so its share may have been too small for the next job.
    claim_alone: Option<TopicName>,
    /// Topics whose next job does not fit even so, until credit comes back.
    blocked: HashSet<TopicName>,
    /// Topics that were awake when it came and were not found empty since.
    unclaimed: HashSet<TopicName>,
    /// Of so many of its globs these are not all noted yet.
    globs_pending: usize,
    /// The round in which `split` was computed.
    round: u64,
    /// The share of each of its topics.
    topic_share: CreditShare,
}

// === impl Board ===

impl ClaimPlanner {
    /// The board of feed number `feed`.
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
            plan_was_limited: false,
        }
    }

    /// Whether topics that nobody names are remembered.
    pub(super) fn tracks_globs(&self) -> bool {
        self.tracks_globs
    }

    /// From now on they are; whoever says so names those that exist, by [`ClaimPlanner::wake`].
    pub(super) fn track_globs(&mut self) {
        self.tracks_globs = true;
    }

    /// Whether the stream is subscribed.
    pub(super) fn serves(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// A letter about `stream`: it has opened, closed, or has credit again.
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

    /// The topic has something from `at` on, for whoever's clock says `now`.
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

    /// Events were missed: anything may have come, and a claim under way may have come before it.
    pub(super) fn mark_events_missed(&mut self) {
        self.missed_events += 1;
    }

    /// Wakes all that sleep.
    pub(super) fn wake_all(&mut self) {
        for name in self.sleeping.names() {
            self.wake_topic(&name, Time(i64::MIN), Time(i64::MIN));
        }
    }

    /// Wakes what is due.
    pub(super) fn wake_due(&mut self, now: Time) {
        while let Some((at, name)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            self.wake_topic(&name, at, now);
        }
    }

    /// When the next topic wakes by itself; `None` also when nobody could take anything.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at).filter(|_| self.hungry > 0)
    }

    fn subscribe(&mut self, stream: Arc<Stream>) {
        let id = stream.id();
        let mut sub = StreamEntry::new(stream);
        let mut patterns = distinct(&sub.stream.options().topics);
        if self.order.has_evicted() {
            // What is not remembered is served in this order, which is to favour none of them.
            patterns.shuffle(&mut rand::rng());
        }
        for pattern in patterns {
            let group = self.join_group(&pattern);
            sub.groups.push(group);
            match &pattern {
                TopicPattern::Exact(name) => {
                    // What is asleep was found empty, but by whom? A first ask costs little.
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

    /// The stream may take something again: it steps into its lines, and parked topics get another
    /// chance.
    fn mark_hungry(&mut self, id: u32) {
        let Some(sub) = self.streams.get_mut(&id) else { return };
        self.hungry += usize::from(!std::mem::replace(&mut sub.hungry, true));
        sub.blocked.clear();
        for id_of_group in sub.groups.clone() {
            let Some(group) = self.groups.get_mut(&id_of_group) else { continue };
            group.queue.push(id);
            self.unpark_soon(id_of_group);
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

    /// The topic is awake. It takes its place among those that are ready only if a stream stands in line for it: plans
    /// do not look at topics that no stream can take.
    fn make_ready(&mut self, name: TopicName) {
        let Some(topic) = self.topics.get_mut(&name) else { return };
        let groups = &self.groups;
        if topic.groups.iter().any(|id| groups.get(id).is_some_and(|group| group.queue.len() > 0)) {
            topic.queue(&mut self.order, name);
        } else {
            self.park_topic(name);
        }
    }

    /// No stream takes jobs of the topic until one of its groups has a hungry stream again.
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

// === impl Topic, Sub ===

impl TopicEntry {
    /// It becomes awake when it has its groups.
    fn new(turn: TopicTurn) -> TopicEntry {
        let (status, position) = (TopicStatus::Asleep(None), TopicPosition::Unqueued);
        TopicEntry { status, position, turn, wakes: 0, groups: Vec::new(), takers_max: TAKERS_MIN }
    }

    /// It may have takers.
    fn queue(&mut self, turns: &mut TopicOrder, name: TopicName) {
        self.position = TopicPosition::Ready;
        turns.insert(&mut self.turn, name);
    }

    /// It is not awake any more.
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
