//! The next step: random steps over every verb, on few ids so that they collide, and at times on the edges of the
//! state.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::store_calls::{
    JobReschedule, LeaseExtension, LeaseSettlement, LostClaim, PurgeBatch, RedriveBatch, TestJob,
    Unclaim,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use ringq::domain::engine::{CrashMove, Unacked};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{
    GroupName, JobId, JobKey, OnConflict, Payload, PolicyEffect, PriorityAgeing, RetentionRule,
    RetryOverrides, RetryPolicy, ShardName, Spec, State, Time, Token, TopicName, When, limit,
};
use ringq::store::{
    CarriedHistory, Claim, DocumentWrite, GroupSetting, LeaseRef, Purge, RunningLease,
    SettleAction, StreamDemand, TopicDemand, WritePrecondition,
};

use super::reference::Reference;
use crate::conformance::OWNER;
use crate::conformance::values::policy_write;

const TOPICS: [&str; 3] = ["t0", "t1", "t2"];
const IDS: [&str; 4] = ["a", "b", "c", "d"];
/// The topic whose jobs have groups, and their names.
const GROUPED: &str = TOPICS[1];
const GROUPS: [&str; 3] = ["g0", "g1", "g2"];
/// Two jobs with one request id, and one with another.
const REQUESTS: [u64; 3] = [1 << 24 | 1, 1 << 24 | 2, 2 << 24 | 1];
/// Server-made ids, for follow-ups.
const MADE: u128 = 2;
/// Number of old tokens and settles to try again.
const REMEMBERED: usize = 24;

/// A call, or a move of the clock.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Clock(Time),
    Enqueue(Vec<TestJob>),
    Claim(Claim),
    Unclaim(Unclaim),
    Leases(Vec<LeaseRef>),
    Settle(Vec<LeaseSettlement>),
    Extend(Vec<LeaseExtension>),
    Delete(Vec<JobKey>),
    Reschedule(Vec<JobReschedule>),
    Redrive(RedriveBatch),
    Purge(PurgeBatch),
    Reap(usize),
    Orphans(u32),
    Prune(usize),
    List { topic: TopicName, state: State, full: bool, limit: usize },
    Topics { prefix: String, after: Option<TopicName>, limit: usize },
    Evict(Eviction),
    Policy(DocumentWrite),
    Stats,
    Reopen,
}

/// A search for the oldest jobs of a topic, which then leave it.
#[derive(Clone, Debug)]
pub(super) struct Eviction {
    pub(super) topic: TopicName,
    /// Number of jobs to make room for.
    pub(super) jobs: usize,
    pub(super) max_waiting: u64,
    /// Another job to evict.
    pub(super) other: Option<JobKey>,
}

impl Step {
    /// Returns whether this step changes nothing in a store.
    pub(super) fn only_reads(&self) -> bool {
        matches!(
            self,
            Step::Leases(_)
                | Step::Reap(_)
                | Step::Orphans(_)
                | Step::List { .. }
                | Step::Topics { .. }
                | Step::Stats
                | Step::Reopen
        )
    }

    /// Returns this step with its first command alone.
    pub(super) fn alone(mut self) -> Step {
        match &mut self {
            Step::Enqueue(jobs) => jobs.truncate(1),
            Step::Settle(items) => items.truncate(1),
            Step::Extend(items) => items.truncate(1),
            Step::Delete(keys) => keys.truncate(1),
            Step::Reschedule(items) => items.truncate(1),
            Step::Redrive(redrive) => redrive.ids.truncate(1),
            Step::Purge(purge) => purge.ids.truncate(1),
            Step::Unclaim(Unclaim::Leases(refs)) => refs.truncate(1),
            Step::Evict(evict) => (evict.jobs, evict.other) = (1, None),
            _ => {}
        }
        self
    }
}

/// The dice, and earlier values to use again.
pub(super) struct Dice {
    rng: StdRng,
    /// True if most jobs are taken and acknowledged, as in a queue with workers: by every second seed.
    is_busy: bool,
    /// True if jobs of one topic have groups: by two of four seeds.
    has_groups: bool,
    leases: VecDeque<LeaseRef>,
    settles: VecDeque<LeaseSettlement>,
    nonces: VecDeque<u32>,
    /// The next step, if it is drawn already.
    next: Option<Step>,
}

/// Returns every job that a run can touch.
pub(super) fn keys() -> Vec<JobKey> {
    let made = (0..MADE).map(|n| JobId::from_uuid(&shard(), n));
    let ids: Vec<JobId> = IDS.map(JobId::stored).into_iter().chain(made).collect();
    let key = |topic: &str, id: &JobId| JobKey { topic: TopicName::stored(topic), id: id.clone() };
    TOPICS.iter().flat_map(|topic| ids.iter().map(|id| key(topic, id))).collect()
}

/// Returns the undo of a claim with that nonce, whose answer was lost.
pub(super) fn lost_claim(nonce: u32) -> Unclaim {
    Unclaim::Claim(LostClaim { nonce, topics: topics().into(), cursor: None })
}

/// Time within which jobs are counted as due soon.
pub(super) const DUE_SOON: Duration = Duration::from_secs(40);

pub(super) fn topics() -> Vec<TopicName> {
    TOPICS.iter().chain(&["none"]).map(|name| TopicName::stored(name)).collect()
}

pub(super) fn shard() -> ShardName {
    ShardName::try_new("s0").unwrap()
}

fn remember<T>(memory: &mut VecDeque<T>, item: T) {
    memory.push_back(item);
    if memory.len() > REMEMBERED {
        memory.pop_front();
    }
}

// === impl Dice: steps ===

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        let (leases, settles, nonces) = Default::default();
        let (rng, is_busy) = (StdRng::seed_from_u64(seed), seed % 2 == 1);
        let has_groups = seed % 4 < 2;
        Dice { rng, is_busy, has_groups, leases, settles, nonces, next: None }
    }

    /// Draws the next step of a run in the state of `reference`.
    pub(super) fn step(&mut self, reference: &Reference, now: Time) -> Step {
        if let Some(next) = self.next.take() {
            return next;
        }
        let running = reference.running();
        if self.is_busy && self.rng.random_bool(0.7) {
            return match self.rng.random_range(0..10) {
                0 => Step::Clock(self.time(reference.edges(), now)),
                1..3 => self.enqueue(reference, Dice::plain_jobs),
                3 => self.enqueue(reference, |dice| dice.jobs_on(reference, now)),
                4 | 5 => Step::Claim(self.plain_claim()),
                6 => Step::Claim(self.claim()),
                _ => Step::Settle(self.some(2, |dice| dice.plain_ack(&running))),
            };
        }
        match self.rng.random_range(0..104) {
            0..20 => Step::Clock(self.time(reference.edges(), now)),
            20..40 => self.enqueue(reference, |dice| dice.jobs_on(reference, now)),
            40..56 => Step::Claim(self.claim()),
            56..72 => Step::Settle(self.settles(&running, now)),
            72..75 => Step::Extend(self.some(2, |dice| dice.extend(&running))),
            75..78 => Step::Unclaim(self.unclaim(&running)),
            78..80 => Step::Leases(self.some(3, |dice| dice.lease(&running))),
            80..84 => Step::Delete(self.some(2, Dice::key)),
            84..87 => Step::Reschedule(self.some(2, |dice| dice.reschedule(now))),
            87 => Step::Purge(self.purge(now)),
            88..92 => Step::Redrive(self.redrive(&reference.terminal())),
            92..94 => Step::Reap(self.rng.random_range(1..5)),
            94 => Step::Orphans(self.rng.random_range(1..4)),
            95..97 => Step::Prune(self.rng.random_range(1..10)),
            97 => self.list(),
            98 => self.topics(),
            99 | 100 => self.topic_policy(reference, now),
            101 | 102 => self.eviction(reference),
            _ if self.rng.random_bool(0.2) => Step::Reopen,
            _ => Step::Stats,
        }
    }

    /// Draws a time in the future: mostly next to an edge, sometimes anywhere.
    fn time(&mut self, mut edges: Vec<Time>, now: Time) -> Time {
        edges.retain(|&edge| edge > now);
        edges.sort();
        edges.truncate(3);
        let later = match self.rng.random_range(0..10) {
            0 => now.plus(self.seconds(100)),
            1 | 2 => now.plus(self.seconds(3)),
            _ => match edges.choose(&mut self.rng) {
                Some(edge) => Time(edge.0 + self.rng.random_range(-1..=1)),
                None => now.plus(self.seconds(1)),
            },
        };
        Time(later.0.max(now.0 + 1))
    }

    fn list(&mut self) -> Step {
        Step::List {
            topic: self.topic(),
            state: self.pick(&State::ALL),
            full: self.rng.random(),
            limit: self.rng.random_range(1..4),
        }
    }

    fn topics(&mut self) -> Step {
        let after = self.maybe(0.5, Dice::topic);
        let prefix = self.pick(&["", "t", "t1", "x"]).to_owned();
        Step::Topics { prefix, after, limit: self.rng.random_range(1..4) }
    }
}

// === impl Dice: what is asked ===

impl Dice {
    fn job(&mut self, now: Time) -> TestJob {
        let key = self.key();
        let group = self.group(&key.topic);
        TestJob {
            key,
            spec: Spec { group, ..self.spec() },
            due: self.when(now),
            priority: self.maybe(0.3, |dice| dice.pick(&[0, 5, 9])),
            expire: self.maybe(0.5, |dice| dice.expire(now)),
            retention: self.keep(),
            on_conflict: self.policy(),
            request_code: self.maybe(0.6, |dice| dice.pick(&REQUESTS)),
            durability: None,
            deadline: None,
            precondition: WritePrecondition::Anything,
            max_waiting: None,
            max_bytes: None,
            history: self.maybe(0.1, |_| {
                let last_error = "it crashed".to_owned();
                Box::new(CarriedHistory { last_error, ..CarriedHistory::default() })
            }),
        }
    }

    /// Draws jobs of one topic with ordinary settings.
    fn plain_jobs(&mut self) -> Vec<TestJob> {
        let topic = self.topic();
        self.some(6, |dice| dice.plain_job(&topic))
    }

    /// Draws a job that is due at once, with ordinary settings.
    fn plain_job(&mut self, topic: &TopicName) -> TestJob {
        let tombstone = RetentionRule::Tombstone(Duration::from_secs(2));
        let record = RetentionRule::Record(Duration::from_secs(9));
        let keep = self.pick(&[
            RetentionRule::Nothing,
            RetentionRule::Nothing,
            tombstone,
            tombstone,
            record,
        ]);
        let (payload, group) = (self.spec().payload, self.group(topic));
        TestJob {
            key: JobKey { topic: topic.clone(), ..self.key() },
            spec: Spec { payload, group, ..Spec::default() },
            due: When::Now,
            priority: None,
            expire: None,
            retention: keep,
            on_conflict: self.policy(),
            request_code: None,
            durability: None,
            deadline: None,
            precondition: WritePrecondition::Anything,
            max_waiting: None,
            max_bytes: None,
            history: None,
        }
    }

    /// Draws a group for a job of the topic whose jobs have groups. Each second run has none.
    fn group(&mut self, topic: &TopicName) -> Option<GroupName> {
        let has_groups = self.has_groups && topic.as_str() == GROUPED;
        self.maybe(if has_groups { 0.7 } else { 0.0 }, |dice| dice.pick(&GROUPS))
            .and_then(GroupName::stored)
    }

    /// Draws a policy: mostly a pause, or its end, with settings of some groups. Now and then it expects another version
    /// than the shard has.
    fn topic_policy(&mut self, reference: &Reference, now: Time) -> Step {
        let paused = reference.paused_for_good();
        let resumed = paused.choose(&mut self.rng).filter(|_| self.rng.random_bool(0.8)).cloned();
        let effect = match self.rng.random_range(0..20) {
            _ if resumed.is_some() => PolicyEffect::Deliver,
            0 | 1 => PolicyEffect::Pause { until: None },
            2 => PolicyEffect::Pause { until: Some(now) },
            3..10 => PolicyEffect::Pause { until: Some(now.plus(self.seconds(6))) },
            10..13 => PolicyEffect::Forget,
            13..15 => PolicyEffect::Release,
            _ => PolicyEffect::Deliver,
        };
        let topic = resumed.unwrap_or_else(|| self.topic());
        let version = reference.policy_version(&topic);
        let expected = version + u64::from(self.rng.random_bool(0.1));
        let groups = match effect {
            PolicyEffect::Release | PolicyEffect::Forget => Vec::new(),
            PolicyEffect::Deliver | PolicyEffect::Pause { .. } => self.group_settings(),
        };
        let mut write = policy_write(topic.as_str(), expected, version + 1, effect);
        write.effect.iter_mut().for_each(|effect| effect.groups.clone_from(&groups));
        Step::Policy(write)
    }

    /// Draws settings of some groups.
    fn group_settings(&mut self) -> Vec<GroupSetting> {
        let mut groups = vec![None];
        groups.extend(GROUPS.map(GroupName::stored));
        groups.retain(|_| self.rng.random_bool(0.3));
        let settings = groups.into_iter().map(|group| GroupSetting {
            group,
            weight: self.pick(&[1, 2, 3, 100]),
            paused: self.rng.random_bool(0.3),
        });
        settings.collect()
    }

    /// Draws an enqueue of these jobs. If they have a limit, mostly after a prune, so that their topics have jobs that
    /// wait alone.
    fn enqueue(
        &mut self,
        reference: &Reference,
        jobs: impl FnOnce(&mut Dice) -> Vec<TestJob>,
    ) -> Step {
        let mut jobs = jobs(self);
        if self.rng.random_bool(0.75) {
            return Step::Enqueue(jobs);
        }
        self.limit(reference, &mut jobs);
        let step = Step::Enqueue(jobs);
        if self.rng.random_bool(0.4) {
            return step;
        }
        self.next = Some(step);
        Step::Prune(self.rng.random_range(1..10))
    }

    /// Gives jobs a limit: mostly the same for all of a topic, as a server does, or else each of them its own.
    fn limit(&mut self, reference: &Reference, jobs: &mut [TestJob]) {
        let is_mixed = self.rng.random_bool(0.3);
        let mut limits = BTreeMap::new();
        for job in jobs {
            let topic = job.key.topic.clone();
            let drawn = self.max_waiting(reference, &topic);
            let common = *limits.entry(topic).or_insert(drawn);
            job.max_waiting = if is_mixed {
                Some(drawn).filter(|_| self.rng.random_bool(0.7))
            } else {
                Some(common)
            };
        }
    }

    /// Draws a limit next to the number of waiting jobs of a topic.
    fn max_waiting(&mut self, reference: &Reference, topic: &TopicName) -> u64 {
        let count = reference.waiting(topic) + reference.unpruned(topic);
        (count + self.pick(&[0, 1, 1, 2, 2, 3])).saturating_sub(1)
    }

    /// Draws a search for the oldest jobs, of a topic that may be far over its limit.
    fn eviction(&mut self, reference: &Reference) -> Step {
        let (topic, other) = (self.topic(), self.maybe(0.3, Dice::key));
        let max_waiting = self.max_waiting(reference, &topic) / self.pick(&[1, 1, 2, 8]);
        Step::Evict(Eviction { topic, jobs: self.rng.random_range(1..5), max_waiting, other })
    }

    fn jobs_on(&mut self, reference: &Reference, now: Time) -> Vec<TestJob> {
        self.some(2, |dice| dice.job_on(reference, now))
    }

    /// Draws a job that repeats the last request of its id now and then.
    fn job_on(&mut self, reference: &Reference, now: Time) -> TestJob {
        let job = self.job(now);
        let repeated = reference.request(&job.key).filter(|_| self.rng.random_bool(0.45));
        TestJob { request_code: repeated.or(job.request_code), ..job }
    }

    fn policy(&mut self) -> OnConflict {
        use OnConflict::{Keep, Reject, Replace, Reschedule};
        self.pick(&[Keep, Replace, Reschedule, Reject])
    }

    fn keep(&mut self) -> RetentionRule {
        match self.rng.random_range(0..5) {
            0 => RetentionRule::Nothing,
            1 | 2 => {
                RetentionRule::Tombstone(self.pick(&[Duration::from_secs(2), limit::TOMBSTONE]))
            }
            _ => RetentionRule::Record(self.seconds(20)),
        }
    }

    fn spec(&mut self) -> Spec {
        let bytes = self.pick(&[0, 1, 9, 60, 3_000]);
        let fill = self.rng.random_range(b'a'..=b'z');
        let payload = Payload {
            text: self.rng.random(),
            body: vec![fill; bytes].into(),
            content_type: self.pick(&["", "text/plain"]).to_owned(),
        };
        let headers = self.maybe(0.2, |_| ("name".to_owned(), "välue".to_owned()));
        Spec {
            payload: self.maybe(0.8, |_| payload.clone()),
            headers: headers.into_iter().collect(),
            retry: self.maybe(0.6, Dice::retry).and_then(RetryOverrides::boxed),
            lease: self.maybe(0.3, |dice| dice.seconds(4)),
            group: None,
            retention: self.maybe(0.1, |dice| dice.seconds(9)),
        }
    }

    fn retry(&mut self) -> RetryOverrides {
        RetryOverrides {
            max_attempts: self.maybe(0.5, |dice| dice.pick(&[1, 2, -1])),
            max_deliveries: self.maybe(0.5, |dice| dice.pick(&[1, 1, 2, 3])),
            max_crashes: self.maybe(0.5, |dice| dice.pick(&[1, 1, 2, -1])),
            delays: self.maybe(0.3, |dice| vec![dice.seconds(3)]).unwrap_or_default(),
            ignore_expired_leases: self.maybe(0.3, |dice| dice.rng.random()),
            max_retry_duration: self.maybe(0.1, |dice| dice.seconds(5)),
            ..RetryOverrides::default()
        }
    }

    fn when(&mut self, now: Time) -> When {
        match self.rng.random_range(0..4) {
            0 | 1 => When::Now,
            2 => When::After(self.seconds(5)),
            _ => When::At(Time(now.0 + self.rng.random_range(-2_000_000..5_000_000))),
        }
    }

    fn expire(&mut self, now: Time) -> When {
        match self.rng.random_range(0..4) {
            0 => When::At(Time(now.0 + self.rng.random_range(-1_000_000..2))),
            _ => When::After(self.seconds(6)),
        }
    }

    fn claim(&mut self) -> Claim {
        let nonce = self.rng.random();
        remember(&mut self.nonces, nonce);
        let mut names = topics();
        names.retain(|_| self.rng.random_bool(0.6));
        let asks = names.into_iter();
        let asks = asks.map(|topic| {
            let ageing = self.maybe(0.4, Dice::ageing).flatten();
            TopicDemand { topic, ageing, streams: self.some(3, Dice::taker) }
        });
        let asks = asks.collect();
        Claim { nonce, owner: self.rng.random_range(1..4), topics: asks }
    }

    /// Draws the worth of a level of priority, of a size that lets jobs of other levels go first now and then.
    fn ageing(&mut self) -> Option<PriorityAgeing> {
        let worth = self.pick(&[1, 100, 1_000, 60_000].map(Duration::from_millis));
        PriorityAgeing::of_setting(Some(worth))
    }

    /// Draws a claim for one stream with room.
    fn plain_claim(&mut self) -> Claim {
        let taker =
            StreamDemand { jobs: self.rng.random_range(1..9), bytes: 10_000, ..self.taker() };
        let asks = vec![TopicDemand { topic: self.topic(), ageing: None, streams: vec![taker] }];
        Claim { topics: asks, ..self.claim() }
    }

    fn taker(&mut self) -> StreamDemand {
        StreamDemand {
            stream: self.rng.random_range(1..9),
            worker_id: self.pick(&["", "w1", "wörker"]).into(),
            lease: self.seconds(5),
            grace: self.maybe(0.7, |dice| dice.seconds(5)),
            jobs: self.rng.random_range(0..4),
            bytes: self.pick(&[0, 10, 100, 10_000, 10_000]),
            oversize: self.rng.random(),
        }
    }

    fn unclaim(&mut self, running: &[RunningLease]) -> Unclaim {
        match self.nonces.back() {
            Some(&last) if self.rng.random_bool(0.3) => lost_claim(last),
            _ if self.rng.random_bool(0.1) => lost_claim(self.rng.random()),
            _ => Unclaim::Leases(self.some(3, |dice| dice.lease(running))),
        }
    }

    /// Draws a lease: mostly a live one, or an ended one, or one that never existed.
    fn lease(&mut self, running: &[RunningLease]) -> LeaseRef {
        let old = self.maybe(0.3, |dice| dice.leases.iter().cloned().collect::<Vec<_>>());
        let of = |lease: &RunningLease| LeaseRef { key: lease.key.clone(), token: lease.token };
        let live = running.choose(&mut self.rng).map(of);
        let mut lease = old
            .and_then(|old| old.choose(&mut self.rng).cloned())
            .or(live)
            .unwrap_or_else(|| LeaseRef { key: self.key(), token: Token(0) });
        remember(&mut self.leases, lease.clone());
        if self.rng.random_bool(0.05) {
            lease.token.0 ^= 1;
        }
        lease
    }

    fn settles(&mut self, running: &[RunningLease], now: Time) -> Vec<LeaseSettlement> {
        let mut settles = self.some(2, |dice| dice.settle(running, now));
        if self.rng.random_bool(0.1) {
            settles.push(settles[0].clone());
        }
        settles
    }

    fn settle(&mut self, running: &[RunningLease], now: Time) -> LeaseSettlement {
        if self.rng.random_bool(0.15) && !self.settles.is_empty() {
            let index = self.rng.random_range(0..self.settles.len());
            return self.settles[index].clone();
        }
        let lease = self.lease(running);
        let held = running.iter().find(|held| held.token == lease.token);
        let end = if self.rng.random_bool(0.4) { self.ack(now) } else { self.unacked() };
        let guard = held.filter(|_| matches!(end, SettleAction::Unacked(_)));
        let deadline = guard.map(|held| held.deadline).filter(|_| self.rng.random_bool(0.4));
        let off = if self.rng.random_bool(0.1) { 1 } else { 0 };
        // A store settles its own leases in another way than those for which others must be notified.
        let owner = self.pick(&[OWNER, OWNER + 1]);
        let settle = LeaseSettlement {
            lease,
            owner,
            action: end,
            deadline: deadline.map(|at| Time(at.0 + off)),
        };
        remember(&mut self.settles, settle.clone());
        settle
    }

    /// Draws an ack without result and follow-ups.
    fn plain_ack(&mut self, running: &[RunningLease]) -> LeaseSettlement {
        let (lease, owner) = (self.lease(running), self.pick(&[OWNER, OWNER + 1]));
        let end = SettleAction::Ack { result: None, follow_ups: Vec::new() };
        let settle = LeaseSettlement { lease, owner, action: end, deadline: None };
        remember(&mut self.settles, settle.clone());
        settle
    }

    fn ack(&mut self, now: Time) -> SettleAction {
        let result = self.spec().payload;
        let follow_ups = self.maybe(0.2, |dice| dice.some(2, |dice| dice.follow_up(now).new_job()));
        SettleAction::Ack { result, follow_ups: follow_ups.unwrap_or_default() }
    }

    fn follow_up(&mut self, now: Time) -> TestJob {
        let mut job = self.job(now);
        job.key.id = JobId::from_uuid(&shard(), self.rng.random_range(0..MADE));
        TestJob { on_conflict: OnConflict::Keep, ..job }
    }

    fn unacked(&mut self) -> SettleAction {
        let (cause, entropy) = (self.cause(), self.rng.random());
        let dead_retention = self.pick(&[Duration::from_secs(5), Duration::from_secs(900)]);
        let rejected = CrashMove::Rejected("its id is taken".to_owned());
        let crash_move = self.pick(&[CrashMove::None, CrashMove::Copied, rejected]);
        SettleAction::Unacked(Unacked {
            cause,
            policy: RetryPolicy::default(),
            entropy,
            dead_retention,
            crash_move,
        })
    }

    fn cause(&mut self) -> LeaseEndCause {
        let error = self.pick(&["", "it fäiled"]).to_owned();
        let delay = self.maybe(0.3, |dice| dice.pick(&[Duration::ZERO, Duration::from_secs(2)]));
        // A new variant does not compile here: it belongs below.
        let _all = |cause: &LeaseEndCause| match cause {
            LeaseEndCause::Failed { .. }
            | LeaseEndCause::Released { .. }
            | LeaseEndCause::DeadLettered { .. } => (),
            LeaseEndCause::Expired
            | LeaseEndCause::StreamBroken
            | LeaseEndCause::WorkerCrashed
            | LeaseEndCause::Unserved => (),
        };
        match self.rng.random_range(0..10) {
            0..3 => LeaseEndCause::Failed { delay, error },
            3 | 4 => LeaseEndCause::Released { delay, error },
            5 | 6 => LeaseEndCause::Expired,
            7 if self.rng.random() => LeaseEndCause::Unserved,
            7 => self.pick(&[LeaseEndCause::StreamBroken, LeaseEndCause::WorkerCrashed]),
            _ => LeaseEndCause::DeadLettered { error },
        }
    }

    fn extend(&mut self, running: &[RunningLease]) -> LeaseExtension {
        LeaseExtension {
            lease: self.lease(running),
            duration: self.maybe(0.5, |dice| dice.seconds(9)),
            progress: self.maybe(0.5, |dice| dice.pick(&["", "half", "done"]).to_owned()),
            checkpoint: self.maybe(0.6, Dice::checkpoint),
            outage_expiry: None,
            write_deadline: None,
        }
    }

    /// Draws an empty, a small or a large checkpoint.
    fn checkpoint(&mut self) -> Payload {
        let bytes = self.pick(&[0, 1, 700, 5_000]);
        let content_type = self.pick(&["", "x/y"]).to_owned();
        Payload { text: false, body: vec![7; bytes].into(), content_type }
    }

    fn reschedule(&mut self, now: Time) -> JobReschedule {
        JobReschedule {
            key: self.key(),
            due: self.maybe(0.7, |dice| dice.when(now)),
            priority: self.maybe(0.5, |dice| dice.pick(&[0, 5, 9])),
            deadline: None,
        }
    }

    /// Draws a purge of one or all jobs of a topic, that began now or a while ago.
    fn purge(&mut self, now: Time) -> PurgeBatch {
        let first = self.key();
        let all = keys().into_iter().filter(|key| key.topic == first.topic);
        let ids = match self.rng.random_bool(0.2) {
            true => all.map(|key| key.id).collect(),
            false => vec![first.id],
        };
        let states = State::ALL.into_iter().filter(|_| self.rng.random_bool(0.3)).collect();
        let ago = self.maybe(0.3, |dice| dice.seconds(5)).unwrap_or_default();
        let purge = Purge { states, begin: now.minus(ago), group: None };
        PurgeBatch { topic: first.topic, ids, purge, deadline: None }
    }

    /// Draws a redrive, mostly of a job that ended.
    fn redrive(&mut self, terminal: &[JobKey]) -> RedriveBatch {
        let ended = terminal.choose(&mut self.rng).filter(|_| self.rng.random_bool(0.7)).cloned();
        let first = ended.unwrap_or_else(|| self.key());
        let ids = match self.rng.random_range(0..3) {
            0 => {
                let here = terminal.iter().filter(|key| key.topic == first.topic);
                here.map(|key| key.id.clone()).collect()
            }
            1 => vec![first.id],
            _ => vec![self.key().id, first.id, self.key().id],
        };
        RedriveBatch {
            topic: first.topic,
            ids,
            spacing: self.pick(&[Duration::ZERO, Duration::from_millis(300)]),
            delay: self.pick(&[Duration::ZERO, Duration::from_secs(1)]),
            states: match self.rng.random_bool(0.6) {
                true => State::ALL.into_iter().filter(|state| state.is_terminal()).collect(),
                false => vec![State::Dead, State::Expired],
            },
            ttl: self.maybe(0.5, |dice| dice.seconds(6)),
            target: self.maybe(0.4, |dice| dice.pick(&TOPICS)).map(TopicName::stored),
            dry_run: self.rng.random_bool(0.2),
            deadline: None,
        }
    }
}

// === impl Dice: throws ===

impl Dice {
    /// Draws a whole number of milliseconds up to this number of seconds, often a whole second.
    fn seconds(&mut self, most: u64) -> Duration {
        match self.rng.random() {
            true => Duration::from_secs(self.rng.random_range(1..=most)),
            false => Duration::from_millis(self.rng.random_range(1..=most * 1_000)),
        }
    }

    fn topic(&mut self) -> TopicName {
        self.pick(&topics())
    }

    /// Draws a key. The last topic is rare.
    fn key(&mut self) -> JobKey {
        let rare = self.rng.random_bool(0.95);
        let mut keys = keys();
        keys.retain(|key| !rare || key.topic.as_str() != TOPICS[2] && key.id.shard().is_none());
        self.pick(&keys)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from.choose(&mut self.rng).unwrap().clone()
    }

    fn maybe<T>(&mut self, chance: f64, make: impl FnOnce(&mut Dice) -> T) -> Option<T> {
        self.rng.random_bool(chance).then(|| make(self))
    }

    /// Draws one to `most` items, mostly one.
    fn some<T>(&mut self, most: usize, mut make: impl FnMut(&mut Dice) -> T) -> Vec<T> {
        let count = if self.rng.random_bool(0.6) { 1 } else { self.rng.random_range(1..=most) };
        (0..count).map(|_| make(self)).collect()
    }
}
