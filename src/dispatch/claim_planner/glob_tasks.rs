//! What concerns all topics of a glob, of which there may be a million, is done in pieces, and claims come in between.

use std::ops::Bound;

use crate::domain::TopicName;

use super::super::TopicPattern;
use super::topic_order::{ParkedTopics, TurnPosition};
use super::{CLAIM_TOPICS_MAX, ClaimPlanner, TopicPosition, TopicStatus};

/// Topics that one piece looks at: some hundred microseconds. A delivery waits for several pieces on its way.
pub(super) const PIECE: usize = 128;

/// What is still to be done, from behind a topic on.
pub(super) enum GlobTask {
    /// Topics get a new group, see [`AttachProgress`].
    Attach(u32),
    /// They lose one that is no more, as far as they had got it, and what was parked in it is dropped.
    Detach(DetachTask),
    /// A pull is told once all of them were asked for it: they are noted.
    Gather { stream: u32, prefix: String, after: Option<TopicName> },
}

/// How many topics of a glob know their group.
pub(super) enum AttachProgress {
    /// Those up to this name: the others get to know it in pieces.
    UpTo(Option<TopicName>),
    All,
}

/// See [`GlobTask::Detach`].
pub(super) struct DetachTask {
    pub(super) group: u32,
    pub(super) prefix: String,
    pub(super) parked: ParkedTopics,
    pub(super) after: Option<TopicName>,
    pub(super) attached: AttachProgress,
}

/// A walk over what is parked in a group, the next ones first. It ends where the last one was when it began, so that what
/// is parked again behind it has its chance in the next walk, not at once.
pub(super) struct ParkedScan {
    after: Option<TurnPosition>,
    until: TurnPosition,
    /// A stream has got credit since it began.
    restart: bool,
}

// === impl Reach ===

impl AttachProgress {
    pub(super) fn covers(&self, name: &TopicName) -> bool {
        match self {
            AttachProgress::UpTo(last) => last.as_ref().is_some_and(|last| name <= last),
            AttachProgress::All => true,
        }
    }
}

// === impl Board ===

impl ClaimPlanner {
    /// Whether there is something to be done before the next plan is a whole one.
    pub(in crate::dispatch) fn has_glob_tasks(&self) -> bool {
        !self.glob_tasks.is_empty() || !self.unparking.is_empty() || self.plan_was_limited
    }

    /// Parked topics get another chance. Streams wait for that, so it does not wait for chores.
    pub(super) fn unpark_next(&mut self) {
        let mut left = PIECE;
        while left > 0
            && let Some(group) = self.unparking.pop_front()
        {
            left -= self.unpark_piece(group, left.min(CLAIM_TOPICS_MAX)).clamp(1, left);
        }
    }

    /// Does a piece of the chores, each in turn: a small glob does not wait for a wide one.
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

    /// What is awake now was so when the pull came, or may have become so since: it is asked all the same.
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

    /// What is parked gets another chance, because a stream of the group has credit again.
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
            // The next stream with credit begins this anew.
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

    /// The topic may have takers again.
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
