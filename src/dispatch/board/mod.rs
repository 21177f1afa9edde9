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

mod awake;
mod chores;
mod groups;
mod plan;
mod served;
mod sleepers;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rand::seq::SliceRandom as _;

use crate::domain::credit::Share;
use crate::domain::{Time, TopicName};

use super::TopicPattern;
use super::ledger::Mode;
use super::stream::Stream;

use chores::Chore;
use groups::{Group, distinct};
use sleepers::Sleepers;
use turns::{Turn, Turns};

pub(super) use awake::Awake;
pub(super) use plan::{Asked, Outcome, Plan};
pub(super) use served::Served;

/// Topics of one claim at most: with a handful of jobs each the call is full.
const ASKS_MAX: usize = 64;
/// Takers of the first claim after a topic woke; each further one that finds more asks for more, so
/// that a trickle of jobs does not cost a look at every idle stream.
const WIDTH_MIN: usize = 16;

/// See the module.
pub(super) struct Board {
    /// The index of this feed.
    feed: usize,
    /// Which feeds may have something.
    awakeness: Arc<Awake>,
    /// How many topics are awake.
    awake: usize,
    topics: BTreeMap<TopicName, Topic>,
    groups: HashMap<u32, Group>,
    by_pattern: HashMap<TopicPattern, u32>,
    /// The groups of globs.
    globbing: HashSet<u32>,
    next_group: u32,
    subs: HashMap<u32, Sub>,
    /// How many of them are hungry.
    hungry: usize,
    /// Streams that have not heard that everything was asked for.
    fresh: HashSet<u32>,
    /// Awake topics that may have takers.
    turns: Turns,
    /// Topics that wake by themselves.
    due: BTreeSet<(Time, TopicName)>,
    /// Claims planned.
    round: u64,
    /// Wake-ups heard.
    wakes: u64,
    /// How often wake-ups were missed: each may have been of any topic.
    missed: u64,
    /// Topics that nobody names are remembered: some stream has asked for a glob.
    globs: bool,
    /// Wake-ups can be lost: topics that sleep are asked about, and none is forgotten.
    lossy: bool,
    sleepers: Sleepers,
    chores: VecDeque<Chore>,
    /// Groups whose parked topics are getting another chance, in turn.
    unparking: VecDeque<u32>,
    /// The last plan has not looked at all topics that are ready.
    is_cut: bool,
}

struct Topic {
    status: Status,
    position: Position,
    turn: Turn,
    /// The number of its last wake-up.
    wakes: u64,
    groups: Vec<u32>,
    /// Takers of the next claim at most.
    width: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Awake,
    Asleep(Option<Time>),
}

/// Where an awake topic is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Nowhere,
    Ready,
    Asked,
    Parked,
}

struct Sub {
    stream: Arc<Stream>,
    groups: Vec<u32>,
    hungry: bool,
    /// Its next ask is for this topic alone and with all its bytes: it got nothing there though
    /// there was more, so its share may have been too small for the next job.
    solo: Option<TopicName>,
    /// Topics whose next job does not fit even so, until credit comes back.
    blocked: HashSet<TopicName>,
    /// Topics that were awake when it came and were not found empty since.
    unasked: HashSet<TopicName>,
    /// Of so many of its globs these are not all noted yet.
    gathering: usize,
    /// The round in which `split` was computed.
    round: u64,
    /// The share of each of its topics.
    split: Share,
}

// === impl Board ===

impl Board {
    /// The board of feed number `feed`.
    pub(super) fn new(feed: usize, awakeness: Arc<Awake>, served: Arc<Served>) -> Board {
        Board {
            feed,
            awakeness,
            awake: 0,
            topics: BTreeMap::new(),
            groups: HashMap::new(),
            by_pattern: HashMap::new(),
            globbing: HashSet::new(),
            next_group: 0,
            subs: HashMap::new(),
            hungry: 0,
            fresh: HashSet::new(),
            turns: Turns::new(served),
            due: BTreeSet::new(),
            round: 0,
            wakes: 0,
            missed: 0,
            globs: false,
            lossy: false,
            sleepers: Sleepers::default(),
            chores: VecDeque::new(),
            unparking: VecDeque::new(),
            is_cut: false,
        }
    }

    /// Whether topics that nobody names are remembered.
    pub(super) fn knows_globs(&self) -> bool {
        self.globs
    }

    /// From now on they are; whoever says so names those that exist, by [`Board::wake`].
    pub(super) fn learn_globs(&mut self) {
        self.globs = true;
    }

    /// Whether the stream is subscribed.
    pub(super) fn serves(&self, stream: u32) -> bool {
        self.subs.contains_key(&stream)
    }

    /// A letter about `stream`: it has opened, closed, or has credit again.
    pub(super) fn hear(&mut self, stream: &Arc<Stream>) {
        let id = stream.id();
        if stream.is_closed() {
            self.unsubscribe(id);
        } else if self.subs.contains_key(&id) {
            self.feed_again(id);
        } else {
            self.subscribe(Arc::clone(stream));
        }
    }

    /// The topic has something from `at` on, for whoever's clock says `now`.
    pub(super) fn wake(&mut self, name: &TopicName, at: Time, now: Time) {
        if !self.topics.contains_key(name) {
            if !self.globs {
                return;
            }
            self.add_topic(name);
        }
        let Some(topic) = self.topics.get_mut(name) else { return };
        self.wakes += 1;
        topic.wakes = self.wakes;
        match topic.status {
            Status::Awake => {}
            Status::Asleep(_) if at <= now => self.set(name, Status::Awake),
            Status::Asleep(until) if until.is_none_or(|until| at < until) => {
                self.set(name, Status::Asleep(Some(at)));
            }
            Status::Asleep(_) => {}
        }
    }

    /// Events were missed: anything may have come, and a claim under way may have come before it.
    pub(super) fn miss_events(&mut self) {
        self.missed += 1;
    }

    /// Wakes all that sleep.
    pub(super) fn wake_all(&mut self) {
        for name in self.sleepers.names() {
            self.wake(&name, Time(i64::MIN), Time(i64::MIN));
        }
    }

    /// Wakes what is due.
    pub(super) fn wake_due(&mut self, now: Time) {
        while let Some((at, name)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            self.wake(&name, at, now);
        }
    }

    /// When the next topic wakes by itself; `None` also when nobody could take anything.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at).filter(|_| self.hungry > 0)
    }

    fn subscribe(&mut self, stream: Arc<Stream>) {
        let id = stream.id();
        let mut sub = Sub::new(stream);
        let mut patterns = distinct(&sub.stream.options().topics);
        if self.turns.has_forgotten() {
            // What is not remembered is served in this order, which is to favour none of them.
            patterns.shuffle(&mut rand::rng());
        }
        for pattern in patterns {
            let group = self.join(&pattern);
            sub.groups.push(group);
            match &pattern {
                TopicPattern::Exact(name) => {
                    // What is asleep was found empty, but by whom? A first ask costs little.
                    self.wake(name, Time(i64::MIN), Time(i64::MIN));
                    sub.unasked.insert(name.clone());
                }
                TopicPattern::Prefix(prefix) if sub.stream.mode() == Mode::Pull => {
                    sub.gathering += 1;
                    let prefix = prefix.clone();
                    self.chores.push_back(Chore::Gather { stream: id, prefix, after: None });
                }
                TopicPattern::Prefix(_) => {}
            }
        }
        self.fresh.insert(id);
        self.subs.insert(id, sub);
        self.answered_if_asked(id);
        self.feed_again(id);
    }

    fn unsubscribe(&mut self, id: u32) {
        let Some(sub) = self.subs.remove(&id) else { return };
        self.hungry -= usize::from(sub.hungry);
        self.fresh.remove(&id);
        for group in sub.groups {
            self.leave(group);
        }
    }

    /// The stream may take something again: it steps into its lines, and parked topics get another
    /// chance.
    fn feed_again(&mut self, id: u32) {
        let Some(sub) = self.subs.get_mut(&id) else { return };
        self.hungry += usize::from(!std::mem::replace(&mut sub.hungry, true));
        sub.blocked.clear();
        for id_of_group in sub.groups.clone() {
            let Some(group) = self.groups.get_mut(&id_of_group) else { continue };
            group.line.push(id);
            self.unpark_soon(id_of_group);
        }
    }

    fn set(&mut self, name: &TopicName, status: Status) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        let before = std::mem::replace(&mut topic.status, status);
        if let Status::Asleep(Some(until)) = before {
            self.due.remove(&(until, name.clone()));
        }
        if let Status::Asleep(Some(until)) = status {
            self.due.insert((until, name.clone()));
        }
        let (was, is) = (before == Status::Awake, status == Status::Awake);
        if was == is {
            return;
        }
        let place = topic.turn.place();
        self.awake = if is { self.awake + 1 } else { self.awake.saturating_sub(1) };
        self.awakeness.set(self.feed, self.awake > 0);
        for id in &topic.groups {
            if let Some(group) = self.groups.get_mut(id) {
                group.awake = if is { group.awake + 1 } else { group.awake.saturating_sub(1) };
                group.parked.remove(&place);
            }
        }
        topic.width = WIDTH_MIN;
        topic.leave(&mut self.turns);
        if is {
            self.enter(name.clone());
        }
        self.list_sleeper(name);
    }

    /// The topic is awake. It takes its place among those that are ready only if a stream stands in line for it: plans
    /// do not look at topics that no stream can take.
    fn enter(&mut self, name: TopicName) {
        let Some(topic) = self.topics.get_mut(&name) else { return };
        let groups = &self.groups;
        if topic.groups.iter().any(|id| groups.get(id).is_some_and(|group| group.line.len() > 0)) {
            topic.enter(&mut self.turns, name);
        } else {
            self.park(name);
        }
    }

    /// No stream takes jobs of the topic until one of its groups has a hungry stream again.
    fn park(&mut self, name: TopicName) {
        let Some(topic) = self.topics.get_mut(&name) else { return };
        topic.position = Position::Parked;
        for id in &topic.groups {
            if let Some(group) = self.groups.get_mut(id) {
                group.parked.insert(topic.turn.place(), name.clone());
            }
        }
    }
}

// === impl Topic, Sub ===

impl Topic {
    /// It becomes awake when it has its groups.
    fn new(turn: Turn) -> Topic {
        let (status, position) = (Status::Asleep(None), Position::Nowhere);
        Topic { status, position, turn, wakes: 0, groups: Vec::new(), width: WIDTH_MIN }
    }

    /// It may have takers.
    fn enter(&mut self, turns: &mut Turns, name: TopicName) {
        self.position = Position::Ready;
        turns.enter(&mut self.turn, name);
    }

    /// It is not awake any more.
    fn leave(&mut self, turns: &mut Turns) {
        if self.position == Position::Ready {
            turns.leave(&self.turn);
        }
        self.position = Position::Nowhere;
    }
}

impl Sub {
    fn new(stream: Arc<Stream>) -> Sub {
        Sub {
            stream,
            groups: Vec::new(),
            hungry: false,
            solo: None,
            blocked: HashSet::new(),
            unasked: HashSet::new(),
            gathering: 0,
            round: 0,
            split: Share::default(),
        }
    }
}
