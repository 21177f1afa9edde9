//! Groups: the distinct patterns that streams subscribe to, the topics that match them, and the queues of their
//! streams.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;

use crate::domain::{TopicName, TopicPattern};

use super::glob_tasks::{AttachProgress, DetachTask, GlobTask, ParkedScan};
use super::topic_order::ParkedTopics;
use super::{ClaimPlanner, TAKERS_MIN, TopicEntry, TopicPosition, TopicStatus};

/// Streams that share a pattern, and the topics that match it.
pub(super) struct PatternGroup {
    pub(super) pattern: TopicPattern,
    /// Progress of attaching the topics of a glob.
    pub(super) attached: AttachProgress,
    pub(super) members: usize,
    pub(super) queue: StreamQueue,
    pub(super) parked: ParkedTopics,
    /// Scan of the parked topics, if one is running.
    pub(super) parked_scan: Option<ParkedScan>,
    pub(super) awake: usize,
}

/// Queue of streams in turn, each at most once.
#[derive(Default)]
pub(super) struct StreamQueue {
    order: VecDeque<u32>,
    present: HashSet<u32>,
}

// === impl ClaimPlanner ===

impl ClaimPlanner {
    /// Adds a stream to the group of this pattern. Returns the group's id.
    pub(super) fn join_group(&mut self, pattern: &TopicPattern) -> u32 {
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
        self.groups.insert(id, PatternGroup::new(pattern.clone()));
        self.by_pattern.insert(pattern.clone(), id);
        match pattern {
            TopicPattern::Exact(name) if !self.topics.contains_key(name) => self.add_topic(name),
            TopicPattern::Exact(name) => self.attach(name, id),
            TopicPattern::Prefix(_) => {
                self.glob_groups.insert(id);
                self.glob_tasks.push_back(GlobTask::Attach(id));
            }
        }
        id
    }

    /// Removes a stream from the group. The last one removes the group.
    pub(super) fn leave_group(&mut self, id: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.members -= 1;
        if group.members > 0 {
            let subs = &self.streams;
            group.queue.compact(group.members, |id| subs.contains_key(&id));
            return;
        }
        let Some(group) = self.groups.remove(&id) else { return };
        self.by_pattern.remove(&group.pattern);
        self.glob_groups.remove(&id);
        match group.pattern {
            TopicPattern::Exact(name) => self.detach(&name, id),
            TopicPattern::Prefix(prefix) => {
                let (parked, reach) = (group.parked, group.attached);
                let detach = DetachTask { group: id, prefix, parked, after: None, attached: reach };
                self.glob_tasks.push_back(GlobTask::Detach(detach));
            }
        }
    }

    /// Adds a new topic, awake, to the groups that match it.
    pub(super) fn add_topic(&mut self, name: &TopicName) {
        let globs = self
            .glob_groups
            .iter()
            .filter(|id| self.groups.get(id).is_some_and(|group| group.includes_new(name)));
        let exact = self.by_pattern.get(&TopicPattern::Exact(name.clone()));
        let matching: Vec<u32> = globs.chain(exact).copied().collect();
        let parked = matching.iter().filter_map(|id| self.groups.get(id)?.parked.last_key_value());
        let turn = self.order.turn_of(name, parked.map(|(place, _)| *place).max());
        self.topics.insert(name.clone(), TopicEntry::new(turn));
        matching.into_iter().for_each(|group| self.attach(name, group));
        self.set_status(name, TopicStatus::Awake);
    }

    pub(super) fn detach(&mut self, name: &TopicName, id: u32) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.groups.retain(|&other| other != id);
            if topic.position == TopicPosition::Ready && topic.groups.is_empty() {
                topic.unqueue(&mut self.order);
                topic.position = TopicPosition::Parked;
            }
        }
        self.update_sleeping(name);
        self.drop_if_unused(name);
    }

    /// Attaches the topic to the group, unless it is attached. A parked topic is unparked with the others of the
    /// group.
    pub(super) fn attach(&mut self, name: &TopicName, id: u32) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        if topic.groups.contains(&id) {
            return;
        }
        topic.groups.push(id);
        if topic.status != TopicStatus::Awake {
            return self.update_sleeping(name);
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.awake += 1;
            if topic.position == TopicPosition::Parked {
                group.parked.insert(topic.turn.place(), name.clone());
            }
        }
    }

    /// Drops a topic about which a later wake-up carries all information: one asleep without a time (unless wake-ups
    /// can be lost), or one that no stream could claim from.
    pub(super) fn drop_if_unused(&mut self, name: &TopicName) {
        let Some(topic) = self.topics.get(name) else { return };
        let named = self.by_pattern.contains_key(&TopicPattern::Exact(name.clone()));
        let empty = topic.status == TopicStatus::Asleep(None);
        let meant = !topic.groups.is_empty();
        if named || !empty && (self.tracks_globs || meant) || self.can_miss_events && meant {
            return;
        }
        self.set_status(name, TopicStatus::Asleep(None));
        if let Some(topic) = self.remove(name) {
            self.order.keep_turn(name.clone(), topic.turn);
        }
    }

    /// Drops a topic that the shard has removed, unless a stream names it, or it has become awake since and matches a
    /// glob.
    pub(in crate::dispatch) fn drop_topic(&mut self, name: &TopicName) {
        let named = self.by_pattern.contains_key(&TopicPattern::Exact(name.clone()));
        let Some(topic) = self.topics.get(name).filter(|_| !named) else { return };
        // No stream subscribes to it, so no claim would find it empty.
        if topic.groups.is_empty() {
            self.set_status(name, TopicStatus::Asleep(None));
        }
        if self.topics.get(name).is_some_and(|topic| topic.status == TopicStatus::Asleep(None)) {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: &TopicName) -> Option<TopicEntry> {
        let removed = self.topics.remove(name);
        self.update_sleeping(name);
        removed
    }

    /// Returns up to `most` topics that begin with `prefix`, from behind `after` on.
    pub(super) fn topic_names(
        &self,
        prefix: &str,
        after: Option<&TopicName>,
        most: usize,
    ) -> Vec<TopicName> {
        let first = TopicName::stored(prefix);
        let from = after.map_or(Bound::Included(&first), Bound::Excluded);
        let names = self.topics.range((from, Bound::Unbounded)).map(|(name, _)| name);
        names.take_while(|name| name.as_str().starts_with(prefix)).take(most).cloned().collect()
    }
}

// === impl PatternGroup ===

impl PatternGroup {
    pub(super) fn new(pattern: TopicPattern) -> PatternGroup {
        let (line, parked) = (StreamQueue::default(), BTreeMap::new());
        let reach = match &pattern {
            TopicPattern::Exact(_) => AttachProgress::All,
            TopicPattern::Prefix(_) => AttachProgress::UpTo(None),
        };
        PatternGroup {
            pattern,
            attached: reach,
            members: 0,
            queue: line,
            parked,
            parked_scan: None,
            awake: 0,
        }
    }

    /// Returns whether a new topic belongs to the group now; otherwise it is attached later, with the other remaining
    /// topics.
    fn includes_new(&self, name: &TopicName) -> bool {
        self.pattern.matches(name) && self.attached.covers(name)
    }
}

/// Returns the patterns without those that another one includes, so that no topic counts twice.
pub(super) fn distinct(patterns: &[TopicPattern]) -> Vec<TopicPattern> {
    let mut distinct: Vec<TopicPattern> = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        if !distinct.iter().any(|other| other.includes(pattern)) {
            distinct.retain(|other| !pattern.includes(other));
            distinct.push(pattern.clone());
        }
    }
    distinct
}

// === impl StreamQueue ===

impl StreamQueue {
    pub(super) fn push(&mut self, id: u32) {
        if self.present.insert(id) {
            self.order.push_back(id);
        }
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        let id = self.order.pop_front()?;
        self.present.remove(&id);
        Some(id)
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Puts the stream back to the front, from where it was popped.
    pub(super) fn push_front(&mut self, id: u32) {
        if self.present.insert(id) {
            self.order.push_front(id);
        }
    }

    /// Moves the stream to the front, if it is queued. Searches from the back.
    pub(super) fn move_to_front(&mut self, id: u32) {
        if let Some(place) = self.order.iter().rposition(|&other| other == id) {
            self.order.remove(place);
            self.order.push_front(id);
        }
    }

    /// Moves the stream to the back, if it is queued. Searches from the front.
    pub(super) fn move_to_back(&mut self, id: u32) {
        if let Some(place) = self.order.iter().position(|&other| other == id) {
            self.order.remove(place);
            self.order.push_back(id);
        }
    }

    /// Removes streams that are gone, once there are many.
    fn compact(&mut self, members: usize, exists: impl Fn(u32) -> bool) {
        if self.order.len() > 2 * members + TAKERS_MIN {
            self.order.retain(|&id| exists(id));
            self.present.retain(|&id| exists(id));
        }
    }
}
