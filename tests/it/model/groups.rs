//! Groups of the reference: whose turn it is, and the numbers of each group.

use std::collections::BTreeMap;

use ringq::domain::{
    GroupName, JobKey, PriorityAgeing, State, Time, Token, TopicName, limit, turns,
};
use ringq::store::{Claim, ShardGroupStats, TopicDemand, TopicLeases, TopicRemainder};

use super::held::Held;
use super::reference::Reference;

type Group = Option<GroupName>;

/// Orders of groups that are tried for one claim: far more than the few groups of a run have.
const TURNS_TRIED: usize = 1_000;

impl Reference {
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

    /// Returns the next job of each group that may have the next turn: those with the least running jobs by weight, and
    /// those with so few more that all turns so far may make up for them.
    pub(super) fn next_jobs(
        &self,
        topic: &TopicName,
        ageing: Option<PriorityAgeing>,
    ) -> Vec<JobKey> {
        let now = self.now();
        let mut found: Vec<(i64, JobKey)> = Vec::new();
        for (group, jobs) in self.lanes(topic) {
            let (weight, paused) = self.setting(topic, &group);
            let ready = jobs.iter().filter(|held| held.waits() && held.job.due_time <= now);
            let next = ready.min_by_key(|held| {
                let job = &held.job;
                let level = limit::PRIORITY_MAX - job.priority;
                let aged = ageing.map(|ageing| ageing.aged(job.due_time, job.priority));
                (aged, level, job.due_time, held.arrival)
            });
            if let Some(next) = next.filter(|_| !paused) {
                let running = jobs.iter().filter(|held| !held.waits()).count();
                let score = turns::score(0, i64::try_from(running).unwrap(), weight);
                found.push((score, next.job.key.clone()));
            }
        }
        let least = found.iter().map(|(score, _)| *score).min().unwrap_or_default();
        let last = turns::place_served(self.turns.get(topic).copied().unwrap_or_default());
        found.retain(|(score, _)| *score <= least + last);
        found.into_iter().map(|(_, key)| key).collect()
    }

    /// Returns choices between these groups that lead to the leases of the store, if there are any: the
    /// reference does not know which of them was served longest ago.
    pub(super) fn turns(
        &self,
        claim: &Claim,
        ask: &TopicDemand,
        found: &TopicLeases,
        started: Time,
    ) -> impl FnMut(usize) -> usize + use<> {
        let keys = |leases: &TopicLeases| -> Vec<Vec<JobKey>> {
            let streams = leases.by_stream.iter();
            streams.map(|leased| leased.iter().map(|leased| leased.key.clone()).collect()).collect()
        };
        let is_open = self.next_jobs(&ask.topic, ask.ageing).len() > 1;
        // Each choice so far, and the number of groups to choose from.
        let mut path: Vec<(usize, usize)> = Vec::new();
        for _ in 0..if is_open { TURNS_TRIED } else { 0 } {
            let (mut step, mut taken) = (0, path.clone());
            let choose = |groups| {
                if step == taken.len() {
                    taken.push((0, groups));
                }
                step += 1;
                taken[step - 1].0
            };
            let claimed =
                self.clone().claim_topic(claim, ask, found, started, &|_| Token(0), choose);
            if keys(&claimed) == keys(found) {
                path = taken;
                break;
            }
            while taken.last().is_some_and(|(choice, groups)| choice + 1 >= *groups) {
                taken.pop();
            }
            let Some((choice, _)) = taken.last_mut() else { break };
            *choice += 1;
            path = taken;
        }
        let mut choices = path.into_iter().map(|(choice, _)| choice);
        move |_| choices.next().unwrap_or(0)
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
