//! Groups of the reference: whose turn it is, and the numbers of each group.

use std::collections::BTreeMap;

use ringq::domain::{GroupName, JobKey, State, TopicName, limit};
use ringq::store::{GroupSetting, ShardGroupStats, TopicRemainder};

use super::held::Held;
use super::reference::Reference;

type Group = Option<GroupName>;

impl Reference {
    pub(super) fn configure(&mut self, topic: &TopicName, settings: &[GroupSetting]) {
        // A topic with a policy exists.
        self.total(topic, |_| ());
        self.settings.insert(topic.clone(), settings.to_vec());
    }

    /// Returns weight and pause of a group.
    fn setting(&self, topic: &TopicName, group: &Group) -> (u8, bool) {
        let settings = self.settings.get(topic).map_or(&[][..], Vec::as_slice).iter();
        let found = settings.rev().find(|setting| setting.group == *group);
        found.map_or((1, false), |setting| (setting.weight, setting.paused))
    }

    /// Returns the jobs of a topic that have not ended, by group.
    fn lanes(&self, topic: &TopicName) -> BTreeMap<Group, Vec<&Held>> {
        let mut lanes: BTreeMap<Group, Vec<&Held>> = BTreeMap::new();
        for held in self.of(topic) {
            if !held.state(self.now()).is_terminal() {
                lanes.entry(held.job.spec.group.clone()).or_default().push(held);
            }
        }
        lanes
    }

    /// Returns the next job of each group that may have the next turn: those with the least running jobs by weight.
    pub(super) fn next_jobs(&self, topic: &TopicName) -> Vec<JobKey> {
        let now = self.now();
        let mut found: Vec<(u64, u64, JobKey)> = Vec::new();
        for (group, jobs) in self.lanes(topic) {
            let (weight, paused) = self.setting(topic, &group);
            let ready = jobs.iter().filter(|held| held.waits() && held.job.due_time <= now);
            let next = ready.min_by_key(|held| {
                let job = &held.job;
                (limit::PRIORITY_MAX - job.priority, job.due_time, held.arrival)
            });
            if let Some(next) = next.filter(|_| !paused) {
                let running = jobs.iter().filter(|held| !held.waits()).count() as u64;
                found.push((running, weight.into(), next.job.key.clone()));
            }
        }
        let is_least = |(running, weight, _): &(u64, u64, JobKey)| {
            found.iter().all(|(other, its, _)| running * its <= other * weight)
        };
        let least = found.iter().filter(|lane| is_least(lane));
        least.map(|(_, _, key)| key.clone()).collect()
    }

    /// Returns the remainder of a topic of which no job is ready.
    pub(super) fn next_due(&self, topic: &TopicName) -> TopicRemainder {
        let lanes = self.lanes(topic).into_iter();
        let lanes = lanes.filter(|(group, _)| !self.setting(topic, group).1);
        let waiting = lanes.flat_map(|(_, jobs)| jobs).filter(|held| held.waits());
        let due = waiting.map(|held| held.job.due_time).min();
        due.map_or(TopicRemainder::Empty, TopicRemainder::ReadyAt)
    }

    /// Returns the numbers of each group of a topic.
    pub(super) fn groups(&self, topic: &TopicName) -> Vec<ShardGroupStats> {
        let now = self.now();
        let stats = |(group, jobs): (Group, Vec<&Held>)| {
            let (weight, paused) = self.setting(topic, &group);
            let count = |is: fn(State) -> bool| {
                jobs.iter().filter(|held| is(held.state(now))).count() as u64
            };
            let ready = jobs.iter().filter(|held| held.state(now) == State::Ready);
            ShardGroupStats {
                ready: count(|state| state == State::Ready),
                scheduled: count(|state| matches!(state, State::Scheduled | State::Backoff)),
                running: count(|state| state == State::Running),
                oldest_ready: ready.map(|held| now.since(held.job.due_time)).max(),
                group,
                weight,
                paused,
            }
        };
        self.lanes(topic).into_iter().map(stats).collect()
    }
}
