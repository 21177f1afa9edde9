//! A backlog: many jobs that wait in one order, wherever they came from and whatever leaves it.
//!
//! `RINGQ_SEED` repeats the random choices of a run.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::store_calls::{RedriveBatch, StoreCalls as _, TestJob};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use ringq::domain::{JobId, RetentionRule, State, Time, limit};
use ringq::store::{ListQuery, StreamDemand, TopicLeases, TopicRemainder};

use super::fixture::Fixture;
use super::values::{RETENTION, TOPIC, after, ids_of, key, new_job, plus, taker, topic};

/// More jobs than a few calls take.
const JOBS: usize = 3_000;
/// Jobs of one call.
const CALL: usize = 500;

/// Enqueues a backlog and returns its order: in each call of [`CALL`] jobs one of ten was due later and is due now.
async fn fill(q: &Fixture) -> Vec<String> {
    let (mut order, mut delayed) = (Vec::new(), Vec::new());
    for call in 0..JOBS / CALL {
        let ids = (0..CALL).map(|n| format!("{call}-{n}"));
        let (late, soon): (Vec<_>, Vec<_>) = ids.partition(|id| id.ends_with('7'));
        let due = after(1);
        let jobs = late.iter().map(|id| TestJob { due, ..new_job(id) });
        q.store.enqueue(jobs.chain(soon.iter().map(|id| new_job(id))).collect()).await.unwrap();
        order.append(&mut delayed);
        order.extend(soon);
        delayed = late;
        q.sleep(1);
    }
    // Jobs that became due in this second come before those that are enqueued in it.
    order.append(&mut delayed);
    order
}

#[expect(clippy::disallowed_methods, reason = "what to test is no configuration of the product")]
fn seed() -> u64 {
    let value = std::env::var("RINGQ_SEED").ok();
    value.map_or_else(rand::random, |value| value.parse().expect("RINGQ_SEED is no number"))
}

async fn delete(q: &Fixture, ids: &[String]) {
    for part in ids.chunks(limit::CALL_JOBS_MAX) {
        let keys = part.iter().map(|id| key(TOPIC, id).into()).collect();
        assert!(q.store.delete(keys).await.unwrap().iter().all(Option::is_some));
    }
}

/// Returns the ids of all jobs in that state, page by page.
async fn listed(q: &Fixture, state: State) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let list =
            ListQuery { topic: topic(TOPIC), state, group: None, full: false, limit: 300, after };
        let page = q.store.list(list).await.unwrap();
        ids.extend(page.jobs.into_iter().map(|listed| listed.job.key.id.to_string()));
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

/// Claims, and claims again as long as the claim was spent on gaps, as streams do.
async fn past_gaps(q: &Fixture, takers: Vec<StreamDemand>) -> TopicLeases {
    loop {
        let claimed = q.claim_for(TOPIC, takers.clone()).await;
        let nothing = claimed.by_stream.iter().all(Vec::is_empty);
        if !nothing || claimed.remainder != TopicRemainder::Unknown {
            return claimed;
        }
    }
}

/// Returns the jobs of a claim for several takers, in the order of their turns.
fn in_turn(claimed: &TopicLeases) -> Vec<String> {
    let most = claimed.by_stream.iter().map(Vec::len).max().unwrap_or(0);
    let round = |n| claimed.by_stream.iter().filter_map(move |leased| leased.get(n));
    (0..most).flat_map(round).map(|leased| leased.key.id.to_string()).collect()
}

pub(crate) async fn what_leaves_a_backlog_leaves_the_others_in_their_order(q: Fixture) {
    let seed = seed();
    println!("RINGQ_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut order = fill(&q).await;
    while !order.is_empty() {
        let mut gone = order.clone();
        gone.shuffle(&mut random);
        gone.truncate(random.random_range(0..=order.len() * 3 / 5));
        delete(&q, &gone).await;
        let gone: BTreeSet<_> = gone.into_iter().collect();
        order.retain(|id| !gone.contains(id));
        assert_eq!(q.stats(TOPIC).await.ready, order.len() as u64);
        assert_eq!(listed(&q, State::Ready).await, order);
        for _ in 0..3 {
            let (jobs, takers) = (random.random_range(1..200), random.random_range(1..4));
            let jobs = if random.random_bool(0.3) { 1 } else { jobs };
            let came =
                in_turn(&past_gaps(&q, vec![StreamDemand { jobs, ..taker() }; takers]).await);
            assert_eq!(
                came.len(),
                order.len().min(jobs as usize * takers).min(limit::CALL_JOBS_MAX),
                "more than a gap was passed over"
            );
            assert_eq!(came, order[..came.len()]);
            order.drain(..came.len());
        }
    }
    assert_eq!(q.stats(TOPIC).await.ready, 0);
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn jobs_that_come_and_go_do_not_pile_up(q: Fixture) {
    q.put(new_job("stays")).await;
    for round in 0..20 {
        let ids: Vec<_> = (0..CALL).map(|n| format!("{round}-{n}")).collect();
        q.store.enqueue(ids.iter().map(|id| new_job(id)).collect()).await.unwrap();
        delete(&q, &ids).await;
    }
    assert_eq!((q.stats(TOPIC).await.ready, listed(&q, State::Ready).await.len()), (1, 1));
    assert_eq!(q.stats(TOPIC).await.oldest_ready, Some(Duration::ZERO));
    assert_eq!(ids_of(&q.claim(1).await), ["stays"]);
}

pub(crate) async fn a_job_that_leaves_and_comes_back_at_once_is_there_once(q: Fixture) {
    let ids = ["a", "b", "c"];
    let keep = RetentionRule::Record(RETENTION);
    q.store
        .enqueue(ids.map(|id| TestJob { retention: keep, ..new_job(id) }).to_vec())
        .await
        .unwrap();
    assert_eq!(q.delete("b").await, Some(State::Ready));
    let redrive = RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![JobId::stored("b")],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        target: None,
        states: vec![State::Cancelled],
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    assert_eq!(q.store.redrive(redrive).await.unwrap().redriven, 1);
    assert_eq!(
        (q.stats(TOPIC).await.ready, listed(&q, State::Ready).await),
        (3, ids.map(String::from).to_vec())
    );
    assert_eq!(q.claim_ids().await, ids);
    assert_eq!(q.stats(TOPIC).await.ready, 0);
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn a_new_job_waits_for_no_clock_that_went_back(q: Fixture) {
    q.put(new_job("old")).await;
    q.until(Time(q.now().0 - 3_600_000_000));
    let mut came = Vec::new();
    for (new, jobs) in [("alone", 1), ("one-of-many", 9)] {
        q.put(new_job(new)).await;
        // A store may notice the clock meanwhile and repair the old job, which is due then.
        while !came.iter().any(|id| id == new) {
            let part = q.claim(jobs).await;
            assert!(!part.is_empty(), "{new} does not come");
            assert!(part.iter().all(|leased| leased.due <= q.now()), "it comes before it is due");
            let part = ids_of(&part);
            came.extend(part);
        }
    }
    q.put_ids(&["x", "y"]).await;
    came.extend(q.claim_ids().await);
    q.until(plus(q.now(), 3_600));
    came.extend(q.claim_ids().await);
    came.retain(|id| id != "old");
    assert_eq!(came, ["alone", "one-of-many", "x", "y"]);
}

pub(crate) async fn a_backlog_waits_for_no_clock_that_went_back(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let ids: Vec<_> = (0..JOBS / 2).map(|n| format!("{n:04}")).collect();
    for call in ids.chunks(CALL) {
        q.store.enqueue(call.iter().map(|id| new_job(id)).collect()).await.unwrap();
        q.sleep(60);
    }
    let (gone, left): (Vec<_>, Vec<_>) =
        ids.into_iter().partition(|id| id.ends_with(['1', '3', '5', '7']));
    delete(&q, &gone).await;
    // A store that records the time does so only now and then.
    q.reopen().await;
    q.store.close().await;
    // Some of them are due all the same. The claim continues while the others are repaired.
    q.until(Time(q.now().0 - 170_000_000));
    let clock = q.clock.clone();
    let ticks = async move {
        loop {
            clock.advance(Duration::from_micros(10));
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = q.reopen() => {}
        () = ticks => {}
    }
    assert_eq!((q.stats(TOPIC).await.ready, listed(&q, State::Ready).await.len()), (900, 900));
    let mut came = Vec::new();
    while came.len() < left.len() {
        let part = q.claim(400).await;
        assert!(!part.is_empty(), "{} of {} came", came.len(), left.len());
        came.extend(ids_of(&part));
    }
    assert_eq!(came, left);
}
