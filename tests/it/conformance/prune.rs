//! Prune: removes records that are past their time. No result of a call depends on it; the other cases of expiry,
//! retention and tombstones never call it.

use std::time::Duration;

use crate::store_calls::{StoreCalls as _, TestJob};
use ringq::domain::{RetentionRule, Spec, State, limit};
use ringq::store::ListQuery;

use super::fixture::Fixture;
use super::values::{
    TOPIC, ack, after, dead_lettered, failed_for, new_job, one, plus, text, topic,
};

/// Prunes until nothing is left to do now; returns the number of jobs.
async fn prune_all(q: &Fixture) -> u64 {
    let mut total = 0;
    for _ in 0..100 {
        let pruned = q.store.prune(10).await.unwrap();
        total += pruned.pruned;
        if pruned.next_due.is_none_or(|next| next > q.now()) {
            return total;
        }
    }
    panic!("pruning comes to no end");
}

async fn records(q: &Fixture) -> u64 {
    q.store.info().await.unwrap().jobs
}

pub(crate) async fn what_was_kept_long_enough_is_removed(q: Fixture) {
    let leased = q.running("tombstone").await;
    q.ack(&leased).await;
    let keep = RetentionRule::Record(Duration::from_secs(90));
    let leased = q.run(TestJob { retention: keep, ..new_job("record") }).await;
    q.ack(&leased).await;
    let leased = q.running("dead").await;
    q.end(&leased, dead_lettered()).await;
    assert_eq!((prune_all(&q).await, records(&q).await), (0, 3));
    for (seconds, left) in [(60, 2), (30, 1), (14 * 86_400 - 91, 1), (1, 0)] {
        q.sleep(seconds);
        prune_all(&q).await;
        assert_eq!(records(&q).await, left, "after {seconds} s more");
    }
}

pub(crate) async fn a_pruned_expired_job_reads_like_one_that_is_not(q: Fixture) {
    let expire = plus(q.now(), 5);
    let keep = RetentionRule::Record(Duration::from_secs(10));
    for (id, keep) in [("a", RetentionRule::Tombstone(Duration::from_secs(10))), ("b", keep)] {
        q.put(TestJob { retention: keep, expire: Some(after(5)), ..new_job(id) }).await;
    }
    q.sleep(7);
    let before = (q.job("a").await, q.job("b").await);
    prune_all(&q).await;
    assert_eq!((q.job("a").await, q.job("b").await), before);
    assert_eq!((before.0.state, before.0.finish_time), (State::Expired, Some(expire)));
    assert_eq!((before.0.spec.payload, before.1.spec.payload), (None, Some(text("b"))));
    q.until_just_before(plus(expire, 10));
    assert!(q.get("a").await.is_some());
    q.until(plus(expire, 10));
    assert_eq!((q.get("a").await, q.get("b").await), (None, None));
    prune_all(&q).await;
    assert_eq!(records(&q).await, 0);
}

pub(crate) async fn an_expired_tombstone_has_no_past_before_it_is_pruned(q: Fixture) {
    let leased = q.run(TestJob { expire: Some(after(100)), ..new_job("a") }).await;
    q.extend(&leased, None, Some("half way")).await.unwrap();
    q.end(&leased, failed_for(900)).await;
    q.sleep(100);
    let before = q.job("a").await;
    prune_all(&q).await;
    assert_eq!(q.job("a").await, before);
    assert_eq!((before.state, before.spec.payload), (State::Expired, None));
}

pub(crate) async fn an_expired_job_that_is_not_kept_is_removed(q: Fixture) {
    q.put(TestJob { retention: RetentionRule::Nothing, expire: Some(after(5)), ..new_job("a") })
        .await;
    q.sleep(5);
    assert!(prune_all(&q).await >= 1);
    assert_eq!(records(&q).await, 0);
}

pub(crate) async fn running_and_waiting_jobs_are_left_alone(q: Fixture) {
    q.run(TestJob { expire: Some(after(1)), ..new_job("running") }).await;
    q.put(TestJob { due: after(86_400), ..new_job("waiting") }).await;
    q.sleep(3600);
    assert_eq!(prune_all(&q).await, 0);
    assert_eq!(q.state("running").await, Some(State::Running));
    assert_eq!(q.state("waiting").await, Some(State::Scheduled));
}

pub(crate) async fn a_limit_is_kept_and_the_rest_is_announced(q: Fixture) {
    for n in 0..25 {
        let keep = RetentionRule::Nothing;
        q.put(TestJob { retention: keep, expire: Some(after(5)), ..new_job(&format!("j{n}")) })
            .await;
    }
    q.sleep(5);
    let pruned = q.store.prune(10).await.unwrap();
    assert!(pruned.pruned <= 10 && pruned.pruned > 0, "{pruned:?}");
    assert!(pruned.next_due.unwrap() <= q.now(), "{pruned:?}");
    prune_all(&q).await;
    assert_eq!(records(&q).await, 0);
}

pub(crate) async fn the_next_time_is_that_of_the_next_job(q: Fixture) {
    assert_eq!(q.store.prune(10).await.unwrap().next_due, None);
    q.put(TestJob { due: after(1), ..new_job("waiting") }).await;
    assert_eq!(q.store.prune(10).await.unwrap().next_due, None, "it never expires");
    q.put(TestJob { due: after(90), expire: Some(after(100)), ..new_job("expires") }).await;
    assert_eq!(q.store.prune(10).await.unwrap().next_due, Some(plus(q.now(), 100)));
    let leased = q.running("done").await;
    q.ack(&leased).await;
    assert_eq!(q.store.prune(10).await.unwrap().next_due, Some(plus(q.now(), 60)));
}

pub(crate) async fn a_pruned_job_is_not_in_the_way_of_a_new_one(q: Fixture) {
    let leased = q.running("a").await;
    q.ack(&leased).await;
    q.sleep(60);
    prune_all(&q).await;
    let spec = Spec { payload: Some(text("new")), ..Spec::default() };
    q.put(TestJob { spec, ..new_job("a") }).await;
    assert_eq!(q.job("a").await.generation, 1);
    let settled = one(q.store.settle(vec![ack(&leased)]).await.unwrap());
    assert_eq!(settled, Err(ringq::store::LeaseRefusal::Stale));
    assert_eq!(q.stats(TOPIC).await.ready, 1);
}

/// New expired records may arrive all the time.
pub(crate) async fn a_count_does_not_wait_for_all_that_is_past_its_time(q: Fixture) {
    const MANY: usize = (limit::PRUNES_MAX + 2) * limit::CALL_JOBS_MAX;
    let expires = |n: usize| TestJob {
        expire: Some(after(60)),
        retention: RetentionRule::Nothing,
        ..new_job(&n.to_string())
    };
    for part in (0..MANY).map(expires).collect::<Vec<_>>().chunks(limit::CALL_JOBS_MAX) {
        q.store.enqueue(part.to_vec()).await.unwrap();
    }
    q.sleep(61);
    q.stats(TOPIC).await;
    assert!(records(&q).await >= limit::CALL_JOBS_MAX as u64, "some of it is left");
    let list = ListQuery {
        topic: topic(TOPIC),
        state: State::Ready,
        group: None,
        full: false,
        limit: 50,
        after: None,
    };
    let page = q.store.list(list).await.unwrap();
    assert!(page.jobs.is_empty(), "what is past its time is in no list");
    assert_eq!(q.stats(TOPIC).await.ready, 0);
}
