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
//! - An awake topic whose groups have no hungry stream is parked until one of them has.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::domain::{Time, TopicName};

use super::TopicPattern;
use super::stream::Stream;

pub(super) use plan::{Asked, Outcome, Plan};

/// Takers of the first claim after a topic woke; each further one that finds more asks for more, so
/// that a trickle of jobs does not cost a look at every idle stream.
const WIDTH_MIN: usize = 16;

/// See the module.
pub(super) struct Board {
    /// The index of this feed, and how many there are.
    feed: usize,
    feeds: usize,
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
    ready: VecDeque<TopicName>,
    /// Topics that wake by themselves.
    due: BTreeSet<(Time, TopicName)>,
    /// Claims planned.
    round: u64,
    /// Wake-ups heard.
    wakes: u64,
    /// Topics that nobody names are remembered: some stream has asked for a glob.
    globs: bool,
}

struct Topic {
    status: Status,
    place: Place,
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
enum Place {
    Nowhere,
    Ready,
    Asked,
    Parked,
}

/// The streams that share a pattern, and the topics that match it.
struct Group {
    pattern: TopicPattern,
    members: usize,
    line: Line,
    parked: HashSet<TopicName>,
    awake: usize,
}

/// Streams in turn, each once.
#[derive(Default)]
struct Line {
    order: VecDeque<u32>,
    present: HashSet<u32>,
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
    /// The round in which `split` was computed: the share of each of its topics.
    round: u64,
    split: (u32, u64),
}

// === impl Board ===

impl Board {
    /// The board of feed number `feed` of `feeds`.
    pub(super) fn new(feed: usize, feeds: usize) -> Board {
        Board {
            feed,
            feeds,
            topics: BTreeMap::new(),
            groups: HashMap::new(),
            by_pattern: HashMap::new(),
            globbing: HashSet::new(),
            next_group: 0,
            subs: HashMap::new(),
            hungry: 0,
            fresh: HashSet::new(),
            ready: VecDeque::new(),
            due: BTreeSet::new(),
            round: 0,
            wakes: 0,
            globs: false,
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

    /// Events were missed: anything may have come.
    pub(super) fn wake_all(&mut self) {
        let names: Vec<TopicName> = self.topics.keys().cloned().collect();
        names.iter().for_each(|name| self.wake(name, Time(i64::MIN), Time(i64::MIN)));
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
        for pattern in distinct(&sub.stream.options().topics) {
            let group = self.join(&pattern);
            sub.groups.push(group);
            match &pattern {
                TopicPattern::Exact(name) => {
                    // What is asleep was found empty, but by whom? A first ask costs little.
                    self.wake(name, Time(i64::MIN), Time(i64::MIN));
                    sub.unasked.insert(name.clone());
                }
                TopicPattern::Prefix(_) => sub.unasked.extend(self.awake_of(group)),
            }
        }
        if sub.unasked.is_empty() {
            sub.stream.answered();
        } else {
            self.fresh.insert(id);
        }
        self.subs.insert(id, sub);
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
        for group in &sub.groups {
            let Some(group) = self.groups.get_mut(group) else { continue };
            group.line.push(id);
            for name in group.parked.drain() {
                if let Some(topic) = self.topics.get_mut(&name)
                    && topic.place == Place::Parked
                {
                    topic.place = Place::Ready;
                    self.ready.push_back(name);
                }
            }
        }
    }

    /// One more stream asks for this pattern.
    fn join(&mut self, pattern: &TopicPattern) -> u32 {
        let id = match self.by_pattern.get(pattern) {
            Some(&id) => id,
            None => self.add_group(pattern),
        };
        if let Some(group) = self.groups.get_mut(&id) {
            group.members += 1;
        }
        id
    }

    fn add_group(&mut self, pattern: &TopicPattern) -> u32 {
        while self.groups.contains_key(&self.next_group) {
            self.next_group = self.next_group.wrapping_add(1);
        }
        let id = self.next_group;
        self.next_group = self.next_group.wrapping_add(1);
        self.groups.insert(id, Group::new(pattern.clone()));
        self.by_pattern.insert(pattern.clone(), id);
        match pattern {
            TopicPattern::Exact(name) if !self.topics.contains_key(name) => self.add_topic(name),
            TopicPattern::Exact(name) => self.attach(name, id),
            TopicPattern::Prefix(prefix) => {
                self.globbing.insert(id);
                for name in self.names(prefix) {
                    self.attach(&name, id);
                }
            }
        }
        id
    }

    /// One stream less asks for this group's pattern.
    fn leave(&mut self, id: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.members -= 1;
        if group.members > 0 {
            let subs = &self.subs;
            group.line.compact(group.members, |id| subs.contains_key(&id));
            return;
        }
        let Some(group) = self.groups.remove(&id) else { return };
        self.by_pattern.remove(&group.pattern);
        self.globbing.remove(&id);
        let names = match &group.pattern {
            TopicPattern::Exact(name) => vec![name.clone()],
            TopicPattern::Prefix(prefix) => self.names(prefix),
        };
        for name in names {
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.groups.retain(|&other| other != id);
            }
            self.forget_if_unneeded(&name);
        }
    }

    /// A topic that was not known, in the groups that match it; awake.
    fn add_topic(&mut self, name: &TopicName) {
        self.topics.insert(name.clone(), Topic::new());
        let globs = self.globbing.iter().filter(|id| {
            self.groups.get(id).is_some_and(|group| group.pattern.matches(name))
        });
        let exact = self.by_pattern.get(&TopicPattern::Exact(name.clone()));
        let matching: Vec<u32> = globs.chain(exact).copied().collect();
        matching.into_iter().for_each(|group| self.attach(name, group));
        self.set(name, Status::Awake);
    }

    fn attach(&mut self, name: &TopicName, id: u32) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        topic.groups.push(id);
        if topic.status != Status::Awake {
            return;
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.awake += 1;
        }
        if topic.place == Place::Parked {
            topic.place = Place::Ready;
            self.ready.push_back(name.clone());
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
        for id in &topic.groups {
            if let Some(group) = self.groups.get_mut(id) {
                group.awake = if is { group.awake + 1 } else { group.awake.saturating_sub(1) };
                group.parked.remove(name);
            }
        }
        topic.width = WIDTH_MIN;
        topic.place = if is { Place::Ready } else { Place::Nowhere };
        if is {
            self.ready.push_back(name.clone());
        }
    }

    /// Drops a topic of which a wake-up would tell all there is to know: asleep without an end, or
    /// with nobody who could ask for it.
    fn forget_if_unneeded(&mut self, name: &TopicName) {
        let Some(topic) = self.topics.get(name) else { return };
        let named = self.by_pattern.contains_key(&TopicPattern::Exact(name.clone()));
        let empty = topic.status == Status::Asleep(None);
        if named || !empty && (self.globs || !topic.groups.is_empty()) {
            return;
        }
        self.set(name, Status::Asleep(None));
        self.ready.retain(|other| other != name);
        self.topics.remove(name);
    }

    fn names(&self, prefix: &str) -> Vec<TopicName> {
        let from = self.topics.range(TopicName::stored(prefix)..);
        from.map(|(name, _)| name).take_while(|n| n.as_str().starts_with(prefix)).cloned().collect()
    }

    fn awake_of(&self, group: u32) -> Vec<TopicName> {
        let Some(Group { pattern: TopicPattern::Prefix(prefix), .. }) = self.groups.get(&group)
        else {
            return Vec::new();
        };
        let mut names = self.names(prefix);
        names.retain(|name| self.topics.get(name).is_some_and(|t| t.status == Status::Awake));
        names
    }
}

// === impl Topic, Group, Sub ===

impl Topic {
    /// It becomes awake when it has its groups.
    fn new() -> Topic {
        let (status, place) = (Status::Asleep(None), Place::Nowhere);
        Topic { status, place, wakes: 0, groups: Vec::new(), width: WIDTH_MIN }
    }
}

impl Group {
    fn new(pattern: TopicPattern) -> Group {
        let (line, parked) = (Line::default(), HashSet::new());
        Group { pattern, members: 0, line, parked, awake: 0 }
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
            round: 0,
            split: (0, 0),
        }
    }
}

/// The patterns without those that others of them include, so that no topic counts twice.
fn distinct(patterns: &[TopicPattern]) -> Vec<TopicPattern> {
    let mut distinct: Vec<TopicPattern> = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        if !distinct.iter().any(|other| other.includes(pattern)) {
            distinct.retain(|other| !pattern.includes(other));
            distinct.push(pattern.clone());
        }
    }
    distinct
}

// === impl Line ===

impl Line {
    fn push(&mut self, id: u32) {
        if self.present.insert(id) {
            self.order.push_back(id);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let id = self.order.pop_front()?;
        self.present.remove(&id);
        Some(id)
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    /// Drops those that are gone, once they are many.
    fn compact(&mut self, members: usize, exists: impl Fn(u32) -> bool) {
        if self.order.len() > 2 * members + WIDTH_MIN {
            self.order.retain(|&id| exists(id));
            self.present.retain(|&id| exists(id));
        }
    }
}
