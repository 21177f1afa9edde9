//! Limits of waiting jobs in the reference: whether a job has room, and the jobs that leave to make some.

use crate::store_calls::TestJob;
use ringq::domain::conflict::ConflictAction;
use ringq::domain::{JobId, JobKey, State, TopicName};
use ringq::store::LeavingJobs;

use super::coverage::Seen;
use super::held::Held;
use super::reference::Reference;
use super::table::{Transition, next};

impl Reference {
    /// Returns the number of waiting jobs of a topic.
    pub(super) fn waiting(&self, topic: &TopicName) -> u64 {
        self.of(topic).iter().filter(|held| held.waits()).count() as u64
    }

    /// Returns whether a topic has no room for this job, which would wait under its id where `held` does not. Jobs past
    /// their expire time take room until a store has written their end, and it may do so at any call: where they decide,
    /// the answer of the store counts, `found`.
    pub(super) fn lacks_room(
        &mut self,
        new: &TestJob,
        (held, fresh): (Option<&Held>, &Held),
        action: ConflictAction,
        found: bool,
    ) -> bool {
        let Some(max) = new.max_waiting else { return false };
        let expires_at_once = fresh.job.expire_time.is_some_and(|expire| expire <= self.now());
        let adds = match action {
            ConflictAction::Write(_) => !held.is_some_and(Held::waits) && !expires_at_once,
            ConflictAction::Revive => true,
            _ => false,
        };
        if !adds {
            return false;
        }
        let topic = &new.key.topic;
        let (waiting, unpruned) = (self.waiting(topic), self.unpruned(topic));
        let open = waiting < max && max <= waiting + unpruned;
        let full = if open { found } else { max <= waiting };
        self.seen.insert(Seen::Room { full, open });
        full
    }

    /// Returns the waiting jobs that leave a topic for `jobs` new ones, where none has expired, and whether it is over its
    /// limit without them, too: it loses two for each new job at most.
    pub(super) fn oldest_waiting(
        &mut self,
        topic: &TopicName,
        jobs: usize,
        max_waiting: u64,
    ) -> LeavingJobs {
        let excess = (self.waiting(topic) + jobs as u64).saturating_sub(max_waiting);
        let wanted = excess.min(2 * jobs as u64);
        self.seen.insert(Seen::Oldest { full: wanted > 0 });
        let mut waiting = self.of(topic);
        waiting.retain(|held| held.waits());
        waiting.sort_by_key(|held| (held.job.priority, held.job.due_time, held.arrival));
        let leaving = waiting.iter().take(usize::try_from(wanted).unwrap());
        let ids: Vec<JobId> = leaving.map(|held| held.job.key.id.clone()).collect();
        let is_over = (ids.len() as u64) < excess && ids.len() >= jobs;
        LeavingJobs { ids, is_over }
    }

    /// Makes a waiting job EXPIRED; returns whether it was one.
    pub(super) fn evict(&mut self, key: &JobKey) -> bool {
        let now = self.now();
        let Some(held) = self.jobs.get_mut(key) else { return false };
        let state = held.state(now);
        if next(state, Transition::Evict).is_err() {
            return false;
        }
        held.finish(State::Expired, now);
        self.saw(state, Transition::Evict);
        self.tick(now);
        true
    }
}
