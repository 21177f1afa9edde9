//! A run: each step goes to the store and to the reference, and every answer is compared.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;

use crate::store_calls::{JobDeletion, PurgeBatch, StoreCalls as _, TestJob};
use ringq::domain::engine::Command;
use ringq::domain::{
    DocumentName, GroupName, Job, JobKey, PolicyEffect, State, Time, Token, TopicName,
    TopicPattern, limit,
};
use ringq::store::{
    Claim, DocumentWrite, Error, GroupsQuery, JobRequest, JobSum, LeaseQueryResult, LeaseRef,
    ListQuery, NotWrittenReason, RequestResult, RoomQuery, RunningLease, StatsOptions,
    all_or_worst_error,
};

use super::coverage::Seen;
use super::mirror::{Mirror, Ways};
use super::policies::effect_of;
use super::reference::Reference;
use super::steps::{DUE_SOON, Dice, Eviction, Step, keys, shard, topics};
use crate::conformance::{Backend, Fixture};

/// Steps shown when a run fails.
const TAIL: usize = 30;
/// The command of a server that makes room for more jobs.
const EVICT: Command = Command::Evict { frees_bytes: false };
/// Limit of the text of a step: a large payload adds little.
const STEP_CHARS_MAX: usize = 600;
/// Limit of a prune that comes before another call.
const PRUNED_AT_ONCE: usize = 100;
/// Steps between two comparisons of everything that can be read.
const WHOLE_EVERY: u64 = 20;

/// A store and its reference.
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) store: Fixture,
    pub(super) reference: Reference,
    /// The engine after the same steps; `None` after a fault, which may take some of them back.
    pub(super) mirror: Option<Mirror>,
    pub(super) steps: u64,
    tail: VecDeque<(Time, Step)>,
}

// === impl Run ===

impl Run {
    /// Creates a run; `None` when this machine has no such store.
    pub(super) async fn new(backend: Backend, seed: u64) -> Option<Run> {
        Some(Run::over(Fixture::open(backend).await?, seed))
    }

    /// Creates a run on this store.
    pub(super) fn over(store: Fixture, seed: u64) -> Run {
        let reference =
            Reference::new(shard(), store.store.write_durability().by_default, store.now());
        let mirror = Some(Mirror::new(shard()));
        Run { seed, store, reference, mirror, steps: 0, tail: VecDeque::new() }
    }

    /// Takes this number of steps; returns the cases that were tried and the ways that were taken.
    pub(super) async fn take(mut self, steps: u64) -> (BTreeSet<Seen>, Ways) {
        let mut dice = Dice::new(self.seed);
        self.go_on(&mut dice, steps).await;
        let ways = self.mirror.take().map_or_else(Ways::new, |mirror| mirror.ways);
        (std::mem::take(&mut self.reference.seen), ways)
    }

    /// Takes steps up to this total.
    pub(super) async fn go_on(&mut self, dice: &mut Dice, steps: u64) {
        while self.steps < steps {
            let step = self.throw(dice);
            self.apply(step).await.unwrap();
            self.compare_jobs(keys(), true).await;
            self.steps += 1;
            if self.steps.is_multiple_of(WHOLE_EVERY) {
                self.compare_whole().await;
            }
        }
    }

    /// Draws the next step.
    pub(super) fn throw(&mut self, dice: &mut Dice) -> Step {
        let step = dice.step(&self.reference, self.store.now());
        self.tail.push_back((self.store.now(), step.clone()));
        if self.tail.len() > TAIL {
            self.tail.pop_front();
        }
        step
    }

    pub(super) async fn apply(&mut self, step: Step) -> Result<(), Error> {
        if let Some(mirror) = &mut self.mirror {
            mirror_step(mirror, &step, self.store.now());
        }
        let Run { reference, store: fixture, .. } = self;
        let store = &fixture.store;
        match step {
            Step::Clock(time) => {
                fixture.until(time);
                reference.tick(time);
            }
            Step::Enqueue(jobs) => self.enqueue(jobs).await?,
            Step::Evict(evict) => self.evict(evict).await?,
            Step::Claim(claim) => self.claim(claim).await?,
            Step::Unclaim(what) => same(reference.unclaim(&what), fixture.undo(what).await?),
            Step::Leases(refs) => {
                let expected: Vec<_> = refs.iter().map(|lease| reference.lease(lease)).collect();
                same(expected, store.running_leases(refs).await?);
            }
            Step::Settle(items) => {
                let expected: Vec<_> = items.iter().map(|item| reference.settle(item)).collect();
                same(expected, store.settle(items).await?);
            }
            Step::Extend(items) => {
                let expected: Vec<_> = items.iter().map(|item| reference.extend(item)).collect();
                same(expected, store.extend(items).await?);
            }
            Step::Delete(keys) => {
                let expected: Vec<_> = keys.iter().map(|key| reference.delete(key)).collect();
                let items = keys.into_iter().map(JobDeletion::from).collect();
                same(expected, store.delete(items).await?);
            }
            Step::Reschedule(items) => {
                let expected: Vec<_> = items.iter().map(|i| reference.reschedule(i)).collect();
                same(expected, store.reschedule(items).await?);
            }
            Step::Redrive(redrive) => {
                same(reference.redrive(&redrive), store.redrive(redrive).await?);
            }
            Step::Purge(batch) => self.purge(&batch).await?,
            Step::Reap(limit) => {
                let reaped = store.overdue_leases(limit).await?;
                self.check_reaped(reaped, limit);
            }
            Step::Orphans(owner) => self.orphans(owner).await?,
            Step::Prune(limit) => self.prune(limit).await?,
            Step::List { topic, state, full, limit } => {
                self.compare_list(&topic, state, full, limit).await;
            }
            Step::Topics { prefix, after, limit } => {
                let expected = reference.topics_after(&prefix, after.as_ref(), limit);
                same(expected, store.topics(prefix, after, limit).await?);
            }
            Step::Policy(policy) => self.write_policy(policy).await?,
            Step::Stats => self.compare_stats().await,
            Step::Reopen => {
                if fixture.survives_reopening() {
                    fixture.reopen().await;
                }
            }
        }
        Ok(())
    }

    /// Enqueues in both. The engine has no limits: it gets the jobs that had room.
    async fn enqueue(&mut self, jobs: Vec<TestJob>) -> Result<(), Error> {
        let got = self.store.store.enqueue(jobs.clone()).await?;
        let (now, mut expected) = (self.store.now(), Vec::new());
        for (job, got) in jobs.iter().zip(&got) {
            let is_full = got.not_written == Some(NotWrittenReason::TopicFull);
            expected.push(self.reference.enqueue(job, is_full));
            if let Some(mirror) = self.mirror.as_mut().filter(|_| !is_full) {
                mirror.enqueue(job, now);
            }
        }
        same(expected, got);
        Ok(())
    }

    /// Makes room as a server does, in both, after a prune: jobs that have expired would count. Another job may have
    /// been found by another server, and have left since.
    async fn evict(&mut self, evict: Eviction) -> Result<(), Error> {
        let Eviction { topic, jobs, max_waiting, other } = evict;
        let now = self.store.now();
        self.prune(PRUNED_AT_ONCE).await?;
        let new = JobSum { jobs: jobs as u64, bytes: 0 };
        let room = RoomQuery { new, max_waiting: Some(max_waiting), ..RoomQuery::default() };
        let oldest =
            self.store.store.oldest_waiting(topic.clone(), room).await?.unwrap_or_default();
        same(&self.reference.oldest_waiting(&topic, jobs, max_waiting), &oldest);
        let oldest = oldest.ids.into_iter().map(|id| JobKey { topic: topic.clone(), id });
        let keys: Vec<JobKey> = oldest.chain(other).collect();
        let requests = keys.iter().map(|key| JobRequest::new(key.clone(), EVICT));
        let applied = all_or_worst_error(self.store.store.apply(requests.collect()).await)?;
        let expected: Vec<bool> = keys.iter().map(|key| self.reference.evict(key)).collect();
        same(expected, applied.iter().map(RequestResult::is_done).collect());
        if let Some(mirror) = &mut self.mirror {
            // Its replies may differ: nothing prunes the records of the engine.
            for key in &keys {
                mirror.apply(key, &EVICT, now);
            }
        }
        Ok(())
    }

    /// Stores a policy in both. A topic without records is deleted with it, so these are pruned first.
    async fn write_policy(&mut self, policy: DocumentWrite) -> Result<(), Error> {
        if effect_of(&policy).policy == PolicyEffect::Forget {
            self.prune(PRUNED_AT_ONCE).await?;
        }
        let expected = vec![self.reference.write_policy(&policy)];
        same(expected, self.store.store.write_documents(vec![policy], None).await?);
        Ok(())
    }

    async fn purge(&mut self, batch: &PurgeBatch) -> Result<(), Error> {
        let expected = self.reference.purge(batch);
        let applied = all_or_worst_error(self.store.store.apply(batch.requests()).await)?;
        same(expected, applied.into_iter().map(RequestResult::into_delete_result).collect());
        Ok(())
    }

    async fn orphans(&mut self, owner: u32) -> Result<(), Error> {
        let orphan = |l: &RunningLease| l.owner != owner && l.grace.is_some();
        let expected = self.reference.running().into_iter().filter(orphan).collect();
        same(by_key(expected), by_key(self.store.store.orphaned_leases(vec![owner]).await?));
        Ok(())
    }

    /// Claims in both. The store makes the tokens; everything else of a claim is predicted.
    async fn claim(&mut self, claim: Claim) -> Result<(), Error> {
        let got = self.store.store.claim(claim.clone()).await?;
        let leased = got.topics.iter().flat_map(|topic| topic.by_stream.iter().flatten());
        let tokens: Vec<(JobKey, Token)> = leased.map(|l| (l.key.clone(), l.token)).collect();
        let wrong = tokens.iter().find(|(_, token)| token.nonce() != claim.nonce);
        assert!(wrong.is_none(), "a token without the claim's nonce: {wrong:?}");
        let token = |key: &JobKey| {
            let made = tokens.iter().find(|(leased, _)| leased == key);
            made.map_or(Token(0), |(_, token)| *token)
        };
        if let Some(mirror) = &mut self.mirror {
            mirror.claim(&claim, &got);
        }
        let mut expected = self.reference.claim(&claim, &got, token);
        for ((ask, wanted), found) in claim.topics.iter().zip(&mut expected.topics).zip(&got.topics)
        {
            wanted.remainder = self.reference.rest(&ask.topic, wanted.remainder, found.remainder);
        }
        let reads_the_same = format!("{expected:?}") == format!("{got:?}");
        assert!(reads_the_same, "{}", difference(&expected, &got));
        Ok(())
    }

    /// Compares reaped leases. Leases with equal deadlines may come in any order.
    fn check_reaped(&self, reaped: LeaseQueryResult, limit: usize) {
        let running = self.reference.running();
        let past = running.iter().filter(|lease| lease.deadline <= self.store.now()).count();
        let found = past.min(limit);
        let deadline = |lease: &RunningLease| lease.deadline;
        let expected: Vec<_> = running.iter().take(found).map(deadline).collect();
        same(expected, reaped.leases.iter().map(deadline).collect());
        same(running.get(found).map(deadline), reaped.next_deadline);
        for lease in reaped.leases {
            let name = LeaseRef { key: lease.key.clone(), token: lease.token };
            same(self.reference.lease(&name), Ok(lease));
        }
    }

    /// Prunes both. A store may choose how many expired records it removes per call; none may remain.
    async fn prune(&mut self, limit: usize) -> Result<(), Error> {
        let store = &self.store.store;
        self.reference.pruned();
        loop {
            let pruned = store.prune(limit).await?;
            assert!(pruned.pruned <= limit as u64, "{pruned:?} by {limit}");
            if pruned.next_due.is_none_or(|next| next > self.store.now()) {
                same(self.reference.next_prune(), pruned.next_due);
                same(self.reference.records(), store.info().await?.jobs);
                return Ok(());
            }
            assert!(pruned.pruned > 0, "there is more to prune and nothing was");
        }
    }
}

// === impl Run: everything that can be read ===

impl Run {
    pub(super) async fn compare_whole(&self) {
        self.compare_jobs(keys(), false).await;
        self.compare_stats().await;
        same(self.reference.policies(), &self.policies().await);
        for topic in topics() {
            self.compare_groups(&topic).await;
            for state in State::ALL {
                self.compare_list(&topic, state, true, 2).await;
            }
        }
    }

    async fn compare_jobs(&self, keys: Vec<JobKey>, full: bool) {
        let expected: Vec<_> = keys.iter().map(|key| self.reference.get(key, full)).collect();
        let got = self.store.store.get(keys.clone(), full).await.unwrap();
        for ((key, expected), got) in keys.iter().zip(expected).zip(got) {
            if let Some(mirror) = self.mirror.as_ref().filter(|_| full) {
                same(mirror.get(key, self.store.now()), got.clone());
            }
            same(expected, got);
        }
    }

    async fn compare_stats(&self) {
        let expected: Vec<_> = topics().iter().map(|t| self.reference.stats(t, DUE_SOON)).collect();
        same(
            expected,
            self.store.store.stats(topics(), StatsOptions::due_within(DUE_SOON)).await.unwrap(),
        );
    }

    /// Returns the policies of the store and their versions, in the order of their changes.
    pub(super) async fn policies(&self) -> Vec<(TopicName, u64)> {
        let page = self.store.store.documents(0, limit::CALL_JOBS_MAX).await.unwrap();
        let policies = page.documents.into_iter().map(|policy| match policy.name {
            DocumentName::TopicPolicy(TopicPattern::Exact(topic)) => (topic, policy.version),
            _ => panic!("{policy:?} was never written"),
        });
        policies.collect()
    }

    async fn compare_groups(&self, topic: &TopicName) {
        let (mut got, mut after) = (Vec::new(), None);
        loop {
            let query = GroupsQuery { topic: topic.clone(), after: after.clone(), limit: 2 };
            let page = self.store.store.groups(query).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(GroupName::text(last.group.as_ref()).to_owned());
            got.extend(page);
        }
        same(self.reference.groups(topic), got);
    }

    async fn compare_list(&self, topic: &TopicName, state: State, full: bool, limit: usize) {
        let keys = self.reference.list(topic, state);
        let expected: Vec<Job> =
            keys.iter().filter_map(|key| self.reference.get(key, full)).collect();
        let (mut got, mut after) = (Vec::new(), None);
        loop {
            let list = ListQuery { topic: topic.clone(), state, group: None, full, limit, after };
            let page = self.store.store.list(list).await.unwrap();
            assert!(page.jobs.len() <= limit, "{} jobs in a page of {limit}", page.jobs.len());
            got.extend(page.jobs.into_iter().map(|listed| listed.job));
            after = page.next;
            same(got.len() < expected.len(), after.is_some());
            if after.is_none() {
                break;
            }
        }
        same(expected, got);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last steps before the store and the reference disagreed:");
            for (now, step) in &self.tail {
                let step: String = format!("{step:?}").chars().take(STEP_CHARS_MAX).collect();
                eprintln!("{} {step}", now.0);
            }
            let (seed, steps) = (self.seed, self.steps + 1);
            eprintln!("again: RINGQ_MODEL_SEED={seed} RINGQ_MODEL_STEPS={steps} cargo test model");
        }
    }
}

/// Applies a step of a run; claims, enqueues and evictions follow the answer of the store.
fn mirror_step(mirror: &mut Mirror, step: &Step, now: Time) {
    match step {
        Step::Settle(items) => items.iter().for_each(|item| mirror.settle(item, now)),
        Step::Extend(items) => items.iter().for_each(|item| mirror.extend(item, now)),
        Step::Unclaim(what) => mirror.unclaim(what, now),
        Step::Redrive(redrive) => mirror.redrive(redrive, now),
        Step::Delete(keys) => {
            for key in keys {
                mirror.apply(key, &Command::Delete { finished: None }, now);
            }
        }
        Step::Purge(batch) => {
            for request in batch.requests() {
                mirror.apply(&request.key, &request.command, now);
            }
        }
        Step::Reschedule(items) => {
            for item in items {
                let command = Command::Reschedule { due: item.due, priority: item.priority };
                mirror.apply(&item.key, &command, now);
            }
        }
        _ => {}
    }
}

fn by_key(mut leases: Vec<RunningLease>) -> Vec<RunningLease> {
    leases.sort_by(|a, b| a.key.cmp(&b.key));
    leases
}

/// Compares the answers of the reference and of the store.
fn same<T: PartialEq + Debug>(reference: T, store: T) {
    assert!(reference == store, "{}", difference(&reference, &store));
}

/// Returns the lines in which two values differ, or both values when their shapes differ.
fn difference<T: Debug>(reference: &T, store: &T) -> String {
    let (left, right) = (format!("{reference:#?}"), format!("{store:#?}"));
    if left.lines().count() != right.lines().count() {
        return format!("\nreference: {reference:?}\n    store: {store:?}");
    }
    let lines = left.lines().zip(right.lines()).filter(|(left, right)| left != right);
    let lines = lines.map(|(left, right)| format!("\nreference: {left}\n    store: {right}"));
    format!("{}\nin {reference:?}", lines.collect::<String>())
}
