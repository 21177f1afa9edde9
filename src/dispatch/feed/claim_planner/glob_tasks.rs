//! Work on all topics of a glob, which may be a million. It is done in pieces, with claims in between.

use std::ops::Bound;

use crate::domain::{TopicName, TopicPattern};

use super::topic_order::{ParkedTopics, TurnPosition};
use super::{CLAIM_TOPICS_MAX, ClaimPlanner, TopicPosition, TopicStatus};

/// Number of topics of one piece: a few hundred microseconds. A delivery waits for several pieces on its way.
pub(super) const PIECE: usize = 128;

/// Remaining work, from behind a topic on.
pub(super) enum GlobTask {
    /// Attaches a new group to its topics, see [`AttachProgress`].
    Attach(u32),
    /// Detaches a removed group from the topics that it was attached to, and drops its parked topics.
    Detach(DetachTask),
    /// Adds the awake topics of a pull's glob to its unclaimed topics: the pull is exhausted once all were claimed
    /// from.
    Gather { stream: u32, prefix: String, after: Option<TopicName> },
}

/// Progress of attaching a group to the topics of its glob.
pub(super) enum AttachProgress {
    /// Topics up to this name are attached; the others follow in pieces.
    UpTo(Option<TopicName>),
    All,
}

/// State of [`GlobTask::Detach`].
pub(super) struct DetachTask {
    pub(super) group: u32,
    pub(super) prefix: String,
    pub(super) parked: ParkedTopics,
    pub(super) after: Option<TopicName>,
    pub(super) attached: AttachProgress,
}

/// Scan over the parked topics of a group, in the order of their turns. It ends at the topic that was last when it
/// began, so that a topic parked again behind it is reached by the next scan, not at once.
pub(super) struct ParkedScan {
    after: Option<TurnPosition>,
    until: TurnPosition,
    /// A stream has received credit since the scan began.
    restart: bool,
}

// === impl AttachProgress ===

impl AttachProgress {
    pub(super) fn covers(&self, name: &TopicName) -> bool {
        match self {
            AttachProgress::UpTo(last) => last.as_ref().is_some_and(|last| name <= last),
            AttachProgress::All => true,
        }
    }
}

// === impl ClaimPlanner ===

impl ClaimPlanner {
    /// Returns whether work is left before the next plan covers all topics.
    pub(in crate::dispatch) fn has_glob_tasks(&self) -> bool {
        !self.glob_tasks.is_empty() || !self.unparking.is_empty() || self.plan_was_limited
    }

    /// Unparks topics. Streams wait for that, so it does not wait for glob tasks.
    pub(super) fn unpark_next(&mut self) {
        let mut left = PIECE;
        while left > 0
            && let Some(group) = self.unparking.pop_front()
        {
            left -= self.unpark_piece(group, left.min(CLAIM_TOPICS_MAX)).clamp(1, left);
        }
    }

    /// Runs a piece of the glob tasks, each in turn: a small glob does not wait for a wide one.
    pub(in crate::dispatch) fn run_glob_task(&mut self) {
        let mut left = PIECE;
        while left > 0
            && let Some(chore) = self.glob_tasks.pop_front()
        {
            let most = left.min(CLAIM_TOPICS_MAX);
            left -= match chore {
                GlobTask::Attach(group) => self.attach_piece(group, most),
                GlobTask::Detach(detach) => self.detach_piece(detach, most),
                GlobTask::Gather { stream, prefix, after } => {
                    self.gather_piece(stream, prefix, after, most)
                }
            };
        }
    }

    fn attach_piece(&mut self, id: u32, most: usize) -> usize {
        let Some(group) = self.groups.get(&id) else { return 0 };
        let (TopicPattern::Prefix(prefix), AttachProgress::UpTo(last)) =
            (&group.pattern, &group.attached)
        else {
            return 0;
        };
        let names = self.topic_names(prefix, last.as_ref(), most);
        names.iter().for_each(|name| self.attach(name, id));
        let is_cut = names.len() == most;
        if is_cut {
            self.glob_tasks.push_back(GlobTask::Attach(id));
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.attached = if is_cut {
                AttachProgress::UpTo(names.last().cloned())
            } else {
                AttachProgress::All
            };
        }
        self.unpark_soon(id);
        names.len()
    }

    fn detach_piece(&mut self, mut detach: DetachTask, most: usize) -> usize {
        let mut names = self.topic_names(&detach.prefix, detach.after.as_ref(), most);
        names.truncate(names.partition_point(|name| detach.attached.covers(name)));
        names.iter().for_each(|name| self.detach(name, detach.group));
        let dropped = (0..most).map_while(|_| detach.parked.pop_first()).count();
        if names.len() == most || dropped == most {
            detach.after = names.last().cloned().or(detach.after);
            self.glob_tasks.push_back(GlobTask::Detach(detach));
        }
        names.len().max(dropped)
    }

    /// Adds the topics that are awake now. Some may have become awake after the pull came: they are claimed from all
    /// the same.
    fn gather_piece(
        &mut self,
        stream: u32,
        prefix: String,
        after: Option<TopicName>,
        most: usize,
    ) -> usize {
        if !self.unclaimed_streams.contains(&stream) {
            return 0;
        }
        let names = self.topic_names(&prefix, after.as_ref(), most);
        let (count, last) = (names.len(), names.last().cloned());
        let topics = &self.topics;
        let awake =
            |name: &TopicName| topics.get(name).is_some_and(|t| t.status == TopicStatus::Awake);
        let Some(sub) = self.streams.get_mut(&stream) else { return 0 };
        sub.unclaimed.extend(names.into_iter().filter(awake));
        if count == most {
            self.glob_tasks.push_back(GlobTask::Gather { stream, prefix, after: last });
        } else {
            sub.globs_pending -= 1;
            self.finish_if_claimed(stream);
        }
        count
    }

    /// Schedules the parked topics of the group to be unparked, because a stream of the group has credit again.
    pub(super) fn unpark_soon(&mut self, id: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (Some(first), Some(last)) =
            (group.parked.first_key_value(), group.parked.last_key_value())
        else {
            return;
        };
        if let Some(walk) = &mut group.parked_scan {
            walk.restart = true;
        } else if first.0 == last.0 {
            let name = first.1.clone();
            self.unpark(&name);
        } else {
            group.parked_scan = Some(ParkedScan { after: None, until: *last.0, restart: false });
            self.unparking.push_back(id);
        }
    }

    fn unpark_piece(&mut self, id: u32, most: usize) -> usize {
        let mut count = 0;
        while let Some(group) = self.groups.get_mut(&id) {
            // The next stream with credit begins a new scan.
            let Some(walk) = group.parked_scan.as_mut().filter(|_| group.queue.len() > 0) else {
                group.parked_scan = None;
                break;
            };
            if count == most {
                self.unparking.push_back(id);
                break;
            }
            let from = walk.after.map_or(Bound::Unbounded, Bound::Excluded);
            if let Some((place, name)) =
                group.parked.range((from, Bound::Included(walk.until))).next()
            {
                walk.after = Some(*place);
                let name = name.clone();
                self.unpark(&name);
                count += 1;
                continue;
            }
            let again = walk.restart;
            group.parked_scan = None;
            if again {
                self.unpark_soon(id);
            }
            break;
        }
        count
    }

    /// Unparks the topic: it may have takers again.
    pub(super) fn unpark(&mut self, name: &TopicName) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        if topic.position != TopicPosition::Parked {
            return;
        }
        let place = topic.turn.place();
        for group in &topic.groups {
            if let Some(group) = self.groups.get_mut(group) {
                group.parked.remove(&place);
            }
        }
        topic.queue(&mut self.order, name.clone());
    }
}
