//! What concerns all topics of a glob, of which there may be a million, is done in pieces, and claims come in between.

use crate::domain::TopicName;

use super::super::TopicPattern;
use super::groups::Parked;
use super::{Board, Position, Status};

/// Topics that one piece looks at: some hundred microseconds. A delivery waits for several pieces on its way.
pub(super) const PIECE: usize = 128;

/// What is still to be done, from behind a topic on.
pub(super) enum Chore {
    /// Topics get a new group.
    Attach { group: u32, after: Option<TopicName> },
    /// They lose one that is no more, and what was parked in it is dropped.
    Detach { group: u32, prefix: String, parked: Parked, after: Option<TopicName> },
    /// A pull is told once all of them were asked for it: they are noted.
    Gather { stream: u32, prefix: String, after: Option<TopicName> },
    /// Those that are parked get another chance, the next ones first.
    Unpark { group: u32 },
}

// === impl Board ===

impl Board {
    /// Whether there is something to be done before the next plan is a whole one.
    pub(in crate::dispatch) fn has_chores(&self) -> bool {
        !self.chores.is_empty() || self.is_cut
    }

    /// Does a piece of it.
    pub(super) fn work(&mut self) {
        let mut left = PIECE;
        while left > 0
            && let Some(chore) = self.chores.pop_front()
        {
            left -= match chore {
                Chore::Attach { group, after } => self.attach_some(group, after, left),
                Chore::Detach { group, prefix, parked, after } => {
                    self.detach_some(group, prefix, parked, after, left)
                }
                Chore::Gather { stream, prefix, after } => {
                    self.gather_some(stream, prefix, after, left)
                }
                Chore::Unpark { group } => self.unpark_some(group, left),
            };
        }
    }

    fn attach_some(&mut self, group: u32, after: Option<TopicName>, most: usize) -> usize {
        let pattern = self.groups.get(&group).map(|group| &group.pattern);
        let Some(TopicPattern::Prefix(prefix)) = pattern else { return 0 };
        let names = self.names(prefix, after.as_ref(), most);
        names.iter().for_each(|name| self.attach(name, group));
        if names.len() == most {
            let after = names.last().cloned();
            self.chores.push_front(Chore::Attach { group, after });
        }
        if let Some(grown) = self.groups.get_mut(&group) {
            grown.unpark_soon(group, &mut self.chores);
        }
        names.len()
    }

    fn detach_some(
        &mut self,
        group: u32,
        prefix: String,
        mut parked: Parked,
        after: Option<TopicName>,
        most: usize,
    ) -> usize {
        let names = self.names(&prefix, after.as_ref(), most);
        names.iter().for_each(|name| self.detach(name, group));
        let dropped = (0..most).map_while(|_| parked.pop_first()).count();
        if names.len() == most || dropped == most {
            let after = names.last().cloned().or(after);
            self.chores.push_front(Chore::Detach { group, prefix, parked, after });
        }
        names.len().max(dropped)
    }

    /// What is awake now was so when the pull came, or may have become so since: it is asked all the same.
    fn gather_some(
        &mut self,
        stream: u32,
        prefix: String,
        after: Option<TopicName>,
        most: usize,
    ) -> usize {
        if !self.fresh.contains(&stream) {
            return 0;
        }
        let names = self.names(&prefix, after.as_ref(), most);
        let (count, last) = (names.len(), names.last().cloned());
        let topics = &self.topics;
        let awake = |name: &TopicName| topics.get(name).is_some_and(|t| t.status == Status::Awake);
        let Some(sub) = self.subs.get_mut(&stream) else { return 0 };
        sub.unasked.extend(names.into_iter().filter(awake));
        if count == most {
            self.chores.push_front(Chore::Gather { stream, prefix, after: last });
        } else {
            sub.gathering -= 1;
            self.answered_if_asked(stream);
        }
        count
    }

    fn unpark_some(&mut self, id: u32, most: usize) -> usize {
        let mut count = 0;
        while let Some(group) = self.groups.get_mut(&id) {
            // The next stream with credit begins this anew.
            if group.parked.is_empty() || group.line.len() == 0 {
                group.unparking = false;
                break;
            }
            if count == most {
                self.chores.push_front(Chore::Unpark { group: id });
                break;
            }
            count += 1;
            let next = group.parked.pop_first();
            next.into_iter().for_each(|(_, name)| self.unpark(&name));
        }
        count
    }

    /// The topic may have takers again.
    fn unpark(&mut self, name: &TopicName) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        if topic.position != Position::Parked {
            return;
        }
        let place = topic.turn.place();
        for group in &topic.groups {
            if let Some(group) = self.groups.get_mut(group) {
                group.parked.remove(&place);
            }
        }
        topic.enter(&mut self.turns, name.clone());
    }
}
