//! Fairness of groups in numbers, on stores whose clock the test drives.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::store_calls::{StoreCalls as _, TestJob};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use ringq::domain::{GroupName, RetentionRule, Spec, Time, limit};
use ringq::store::{GroupsQuery, LeasedJob, StreamDemand};

use crate::conformance::values::{TOPIC, ack, new_job, one, taker, topic};
use crate::conformance::{Backend, Fixture, START};

/// Jobs of the noisy group, jobs of each small one, and number of small ones, as the promise has them.
const NOISY_JOBS: usize = 100_000;
const SMALL_JOBS: usize = 10;
const SMALL_GROUPS: usize = 99;
/// Deliveries within which the last job of each small group must be: on one shard, on eight.
const DELIVERIES_MAX: usize = 1_050;
const DELIVERIES_MAX_OF_EIGHT: usize = 1_300;
/// Many groups, with one job each, unless `RINGQ_TEST_GROUPS` has another number.
const GROUPS: usize = 20_000;

/// Builds a job of a group that leaves nothing.
fn job(group: &str, id: usize) -> TestJob {
    let spec = Spec { group: GroupName::stored(group), ..Spec::default() };
    TestJob { spec, retention: RetentionRule::Nothing, ..new_job(&format!("{group}-{id}")) }
}

async fn put(store: &Fixture, jobs: impl IntoIterator<Item = TestJob>) {
    let jobs: Vec<TestJob> = jobs.into_iter().collect();
    for part in jobs.chunks(limit::CALL_JOBS_MAX) {
        store.store.enqueue(part.to_vec()).await.unwrap();
    }
}

async fn claim(store: &Fixture, jobs: u32) -> Vec<LeasedJob> {
    let stream = StreamDemand { jobs, ..taker() };
    one(store.claim_for(TOPIC, vec![stream]).await.by_stream)
}

async fn ack_all(store: &Fixture, leased: &[LeasedJob]) {
    for part in leased.chunks(limit::CALL_JOBS_MAX) {
        for settled in store.store.settle(part.iter().map(ack).collect()).await.unwrap() {
            settled.unwrap();
        }
    }
}

fn group_of(leased: &LeasedJob) -> &str {
    GroupName::text(leased.spec.group.as_ref())
}

async fn has_groups(store: &Fixture) -> bool {
    let query = GroupsQuery { topic: topic(TOPIC), after: None, limit: 1 };
    !store.store.groups(query).await.unwrap().is_empty()
}

/// Opens this number of stores; `None` if this machine has no such store.
async fn open(backend: Backend, shards: usize) -> Option<Vec<Fixture>> {
    let mut stores = Vec::new();
    for _ in 0..shards {
        stores.push(Fixture::open(backend).await?);
    }
    Some(stores)
}

/// A noisy group with a large backlog came first; workers take the jobs of all shards in turn. Returns the number of
/// deliveries until the last job of a small group.
async fn last_of_small_groups(backend: Backend, shards: usize) -> Option<usize> {
    let stores = open(backend, shards).await?;
    let mut rng = StdRng::seed_from_u64(1);
    let small = (0..SMALL_JOBS).flat_map(|n| (0..SMALL_GROUPS).map(move |g| (format!("s{g}"), n)));
    let noisy = (0..NOISY_JOBS).map(|n| ("noisy".to_owned(), n));
    let mut placed: Vec<Vec<TestJob>> = vec![Vec::new(); shards];
    for (group, n) in noisy.chain(small) {
        placed[rng.random_range(0..shards)].push(job(&group, n));
    }
    for (store, jobs) in stores.iter().zip(placed) {
        put(store, jobs).await;
    }
    let (mut delivered, mut last, mut left) = (0, 0, SMALL_GROUPS * SMALL_JOBS);
    while left > 0 {
        for store in &stores {
            let leased = claim(store, 16).await;
            for leased in &leased {
                delivered += 1;
                if group_of(leased) != "noisy" {
                    (last, left) = (delivered, left - 1);
                }
            }
            ack_all(store, &leased).await;
        }
    }
    println!("{backend:?}, {shards} shards: the last job of a small group is number {last}");
    Some(last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_groups_are_served_beside_a_large_one_on_sqlite() {
    let last = last_of_small_groups(Backend::SqliteMemory, 1).await.unwrap();
    assert!(last <= DELIVERIES_MAX, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_groups_are_served_beside_a_large_one_on_redis() {
    let Some(last) = last_of_small_groups(Backend::Redis, 1).await else { return };
    assert!(last <= DELIVERIES_MAX, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_groups_are_served_beside_a_large_one_on_eight_shards() {
    let Some(last) = last_of_small_groups(Backend::Redis, 8).await else { return };
    assert!(last <= DELIVERIES_MAX_OF_EIGHT, "{last}");
}

/// Idle groups cost nothing, and many busy ones are fine: prints what they take.
#[expect(clippy::disallowed_methods, reason = "how many to test with is no configuration")]
async fn many_groups(backend: Backend) {
    let count: usize =
        std::env::var("RINGQ_TEST_GROUPS").map_or(GROUPS, |count| count.parse().unwrap());
    let Some(store) = Fixture::open(backend).await else { return };
    let before = store.memory().await;
    let began = began();
    put(&store, (0..count).map(|n| job(&format!("g{n}"), 0))).await;
    let (enqueued, full) = (began.elapsed(), store.memory().await);
    let mut groups = std::collections::BTreeSet::new();
    while groups.len() < count {
        let leased = claim(&store, 512).await;
        assert!(!leased.is_empty(), "{} of {count}", groups.len());
        groups.extend(leased.iter().map(|leased| group_of(leased).to_owned()));
        ack_all(&store, &leased).await;
    }
    let all = began.elapsed();
    println!(
        "{backend:?}: {count} groups enqueued in {enqueued:?}, claimed and acknowledged in {:?}; bytes of memory \
         before, with them and after: {before:?} {full:?} {:?}",
        all - enqueued,
        store.memory().await
    );
    assert!(!has_groups(&store).await);
    assert_eq!(store.lanes().await.unwrap_or(0), 0);
}

#[expect(clippy::disallowed_methods, reason = "the time that the test takes is printed")]
fn began() -> Instant {
    Instant::now()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_groups_come_and_go_on_sqlite() {
    many_groups(Backend::SqliteMemory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_groups_come_and_go_on_redis() {
    many_groups(Backend::Redis).await;
}

/// Returns the Jain index of shares: 1 if all are equal, 1/n if one has all.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn jain(shares: impl Iterator<Item = usize> + Clone) -> f64 {
    let sum: f64 = shares.clone().map(|share| share as f64).sum();
    let squares: f64 = shares.clone().map(|share| (share * share) as f64).sum();
    sum * sum / (shares.count() as f64 * squares)
}

/// A thousand tenants with a backlog on eight shards, one of them with ten times the jobs. Each worker holds its job
/// for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_with_a_backlog_have_equal_shares() {
    const TENANTS: usize = 1_000;
    const SHARDS: usize = 8;
    const BACKLOG: usize = 64;
    const DELIVERIES: usize = 16_000;
    let Some(stores) = open(Backend::Redis, SHARDS).await else { return };
    let mut rng = StdRng::seed_from_u64(7);
    let mut placed: Vec<Vec<TestJob>> = vec![Vec::new(); SHARDS];
    let of = |tenant: usize| if tenant == 0 { 10 * BACKLOG } else { BACKLOG };
    let mut jobs: Vec<TestJob> = (0..TENANTS)
        .flat_map(|tenant| (0..of(tenant)).map(move |n| job(&format!("t{tenant}"), n)))
        .collect();
    jobs.shuffle(&mut rng);
    for job in jobs {
        placed[rng.random_range(0..SHARDS)].push(job);
    }
    for (store, jobs) in stores.iter().zip(placed) {
        put(store, jobs).await;
    }
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    let mut running: Vec<VecDeque<LeasedJob>> = vec![VecDeque::new(); SHARDS];
    let mut delivered = 0;
    while delivered < DELIVERIES {
        for (store, running) in stores.iter().zip(&mut running) {
            let leased = claim(store, 32).await;
            delivered += leased.len();
            for leased in &leased {
                *shares.entry(group_of(leased).to_owned()).or_default() += 1;
            }
            running.extend(leased);
            // Jobs end in another order than they began.
            let mut ended = Vec::new();
            while running.len() > 64 {
                let index = rng.random_range(0..running.len());
                ended.extend(running.swap_remove_back(index));
            }
            ack_all(store, &ended).await;
        }
    }
    assert_eq!(shares.len(), TENANTS);
    let index = jain(shares.values().copied());
    println!(
        "jain index {index:.4} over {delivered} deliveries; the tenant with more: {}",
        shares["t0"]
    );
    assert!(index >= 0.98, "{index}");
}

/// A simulation of workers on a driven clock: the noisy group always has jobs that run ten times as long as those of
/// the quiet group, which come one by one. Returns the waits of the quiet jobs, sorted.
async fn quiet_waits(
    backend: Backend,
    workers: usize,
    gap: Duration,
    noisy: bool,
) -> Option<Vec<Duration>> {
    const QUIET_JOBS: usize = 300;
    let store = Fixture::open(backend).await?;
    let noisy_jobs = if noisy { 40 * workers + 4 * QUIET_JOBS } else { 0 };
    put(&store, (0..noisy_jobs).map(|n| job("noisy", n))).await;
    // Not at the moment at which a job ends.
    let warm_up = 2 * NOISY_RUN + Duration::from_millis(3);
    let arrival = |n: usize| START.plus(warm_up + gap * u32::try_from(n).unwrap());
    // Workers come one after the other, so their noisy jobs do not end at once.
    let begins = (0..workers).map(|n| {
        START.plus(NOISY_RUN * u32::try_from(n).unwrap() / u32::try_from(workers).unwrap())
    });
    let mut ends: Vec<(Time, Option<LeasedJob>)> = begins.map(|at| (at, None)).collect();
    let (mut waits, mut free, mut next) = (Vec::new(), 0, 0);
    while waits.len() < QUIET_JOBS {
        let end = ends.iter().map(|(at, _)| *at).min();
        let coming = (next < QUIET_JOBS).then(|| arrival(next));
        let now = end.into_iter().chain(coming).min().expect("something happens");
        store.until(now);
        let (over, rest): (Vec<_>, Vec<_>) = ends.into_iter().partition(|(at, _)| *at <= now);
        ends = rest;
        free += u32::try_from(over.len()).unwrap();
        let over: Vec<LeasedJob> = over.into_iter().filter_map(|(_, leased)| leased).collect();
        ack_all(&store, &over).await;
        if coming == Some(now) {
            put(&store, [job("quiet", next)]).await;
            next += 1;
        }
        for leased in claim(&store, free).await {
            free -= 1;
            let is_quiet = group_of(&leased) == "quiet";
            if is_quiet {
                waits.push(now.since(leased.due));
            }
            let run = if is_quiet { NOISY_RUN / 10 } else { NOISY_RUN };
            ends.push((now.plus(run), Some(leased)));
        }
    }
    waits.sort();
    Some(waits)
}

/// Run time of a noisy job.
const NOISY_RUN: Duration = Duration::from_secs(1);

async fn a_quiet_group_waits_little(backend: Backend) {
    for (workers, gap) in [(10, 50), (10, 100), (10, 137), (20, 50), (20, 100), (50, 100)] {
        let gap = Duration::from_millis(gap);
        let Some(alone) = quiet_waits(backend, workers, gap, false).await else { return };
        let beside = quiet_waits(backend, workers, gap, true).await.unwrap();
        let p99 = |waits: &[Duration]| waits[waits.len() * 99 / 100];
        let (alone, beside) = (p99(&alone), p99(&beside));
        let most = alone + 2 * NOISY_RUN / u32::try_from(workers).unwrap();
        println!(
            "{workers} workers, a job each {gap:?}: p99 {alone:?} alone, {beside:?} beside noise"
        );
        assert!(beside <= most, "{workers} workers, {gap:?}: {beside:?} is more than {most:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_jobs_of_a_noisy_group_do_not_hold_all_workers_on_sqlite() {
    a_quiet_group_waits_little(Backend::SqliteMemory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_jobs_of_a_noisy_group_do_not_hold_all_workers_on_redis() {
    a_quiet_group_waits_little(Backend::Redis).await;
}
