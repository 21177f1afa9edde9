//! Events: hints that a topic can be claimed, or needs a reap or prune, and from which time on.

use std::time::Duration;

use crate::harness::{PATIENCE, for_a_while};
use crate::store_calls::{JobReschedule, RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::{JobId, OnConflict, RetentionRule, State, Time, limit};
use ringq::store::{EventKind, ShardEvent};
use tokio::sync::broadcast::Receiver;

use super::fixture::Fixture;
use super::values::{TOPIC, after, dead_lettered, failed_for, key, new_job, plus, released, topic};

/// Waits for an event that `wanted` accepts; panics when none comes.
async fn expect(
    events: &mut Receiver<ShardEvent>,
    what: &str,
    wanted: impl Fn(&ShardEvent) -> bool,
) {
    let mut seen = Vec::new();
    let found = async {
        loop {
            let event = events.recv().await.unwrap();
            if wanted(&event) {
                return;
            }
            seen.push(event);
        }
    };
    let found = for_a_while(PATIENCE, found).await;
    assert!(found.is_some(), "{what}: only {seen:?}");
}

/// Waits for the hint that [`TOPIC`] can be claimed from exactly `at` on.
async fn expect_claimable(events: &mut Receiver<ShardEvent>, what: &str, at: Time) {
    let wanted = ShardEvent::Claimable { topic: topic(TOPIC), at };
    expect(events, what, |event| *event == wanted).await;
}

/// Waits for the hint that [`TOPIC`] can be claimed now.
async fn expect_ready(q: &Fixture, events: &mut Receiver<ShardEvent>, what: &str) {
    let now = q.now();
    let ready = |event: &ShardEvent| match event {
        ShardEvent::Claimable { topic, at } => topic.as_str() == TOPIC && *at <= now,
        ShardEvent::TopicForgotten(_)
        | ShardEvent::UpkeepDue { .. }
        | ShardEvent::StateSet
        | ShardEvent::DocumentsChanged
        | ShardEvent::Disconnected
        | ShardEvent::Lease(_)
        | ShardEvent::EventsMissed => false,
    };
    expect(events, what, ready).await;
}

pub(crate) async fn a_ready_job_is_announced(q: Fixture) {
    let mut events = q.store.subscribe(EventKind::Jobs);
    q.put(new_job("a")).await;
    expect_ready(&q, &mut events, "enqueue").await;
}

pub(crate) async fn a_delayed_job_is_announced_for_its_due_time(q: Fixture) {
    let mut events = q.store.subscribe(EventKind::Jobs);
    let put = q.put(TestJob { due: after(9), ..new_job("a") }).await;
    expect_claimable(&mut events, "enqueue", put.due).await;
}

pub(crate) async fn a_job_that_comes_back_is_announced(q: Fixture) {
    for (what, cause) in [("release", released()), ("retry", failed_for(0))] {
        let leased = q.running("a").await;
        let mut events = q.store.subscribe(EventKind::Jobs);
        q.end(&leased, cause).await;
        expect_ready(&q, &mut events, what).await;
        let leased = q.claim_one().await;
        q.ack(&leased).await;
        q.delete("a").await;
    }
    let leased = q.running("a").await;
    let mut events = q.store.subscribe(EventKind::Jobs);
    q.unclaim(&leased).await;
    expect_ready(&q, &mut events, "unclaim").await;
}

pub(crate) async fn a_retry_is_announced_for_its_due_time(q: Fixture) {
    let leased = q.running("a").await;
    let mut events = q.store.subscribe(EventKind::Jobs);
    q.end(&leased, failed_for(30)).await;
    expect_claimable(&mut events, "retry", plus(q.now(), 30)).await;
}

pub(crate) async fn a_generation_that_starts_is_announced(q: Fixture) {
    let leased = q.running("a").await;
    let next = TestJob { on_conflict: OnConflict::Replace, due: after(5), ..new_job("a") };
    let put = q.put(next).await;
    let mut events = q.store.subscribe(EventKind::Jobs);
    q.ack(&leased).await;
    expect_claimable(&mut events, "ack", put.due).await;
}

pub(crate) async fn a_moved_job_is_announced(q: Fixture) {
    q.put(TestJob { due: after(60), ..new_job("a") }).await;
    let mut events = q.store.subscribe(EventKind::Jobs);
    let item =
        JobReschedule { key: key(TOPIC, "a"), due: Some(after(7)), priority: None, deadline: None };
    q.store.reschedule(vec![item]).await.unwrap();
    expect_claimable(&mut events, "reschedule", plus(q.now(), 7)).await;
    let debounce = TestJob { on_conflict: OnConflict::Reschedule, due: after(3), ..new_job("a") };
    q.put(debounce).await;
    expect_claimable(&mut events, "enqueue", plus(q.now(), 3)).await;
}

pub(crate) async fn a_redriven_job_is_announced(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, dead_lettered()).await;
    let mut events = q.store.subscribe(EventKind::Jobs);
    let redrive = RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![JobId::stored("a")],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        target: None,
        states: vec![State::Dead],
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    q.store.redrive(redrive).await.unwrap();
    expect_ready(&q, &mut events, "redrive").await;
}

/// Matches upkeep that is announced for `by` or earlier.
fn upkeep(by: Time) -> impl Fn(&ShardEvent) -> bool {
    move |event| matches!(event, ShardEvent::UpkeepDue { at } if *at <= by)
}

pub(crate) async fn an_expire_time_is_announced(q: Fixture) {
    let mut events = q.store.subscribe(EventKind::Upkeep);
    q.put(TestJob { expire: Some(after(90)), ..new_job("a") }).await;
    expect(&mut events, "enqueue", upkeep(plus(q.now(), 90))).await;
}

pub(crate) async fn a_deadline_is_announced_and_a_nearer_one_again(q: Fixture) {
    let mut events = q.store.subscribe(EventKind::Upkeep);
    let leased = q.running("a").await;
    expect(&mut events, "claim", upkeep(leased.deadline)).await;
    let nearer = q.extend(&leased, Some(Duration::from_secs(2)), None).await.unwrap();
    expect(&mut events, "extend", upkeep(nearer)).await;
}

pub(crate) async fn the_end_of_a_retention_is_announced(q: Fixture) {
    for (id, cause, kept) in
        [("dead", Some(dead_lettered()), limit::DEAD_RETENTION), ("done", None, limit::TOMBSTONE)]
    {
        let leased = q.running(id).await;
        let mut events = q.store.subscribe(EventKind::Upkeep);
        match cause {
            Some(cause) => q.end(&leased, cause).await,
            None => q.ack(&leased).await,
        };
        expect(&mut events, id, upkeep(q.now().plus(kept))).await;
    }
}

pub(crate) async fn upkeep_is_announced_again_after_it_was_done(q: Fixture) {
    let leased = q.running("a").await;
    q.until(leased.deadline);
    let reaped = q.store.overdue_leases(9).await.unwrap();
    assert_eq!((reaped.leases.len(), reaped.next_deadline), (1, None));
    q.end(&leased, failed_for(0)).await;
    let mut events = q.store.subscribe(EventKind::Upkeep);
    let leased = q.claim_one().await;
    expect(&mut events, "claim", upkeep(leased.deadline)).await;
}

/// Also upkeep that is due later than the last one.
pub(crate) async fn upkeep_is_announced_again_after_jobs_were_forgotten(q: Fixture) {
    let expires = |id, seconds| TestJob {
        expire: Some(after(seconds)),
        retention: RetentionRule::Nothing,
        ..new_job(id)
    };
    q.put(expires("a", 1)).await;
    q.sleep(2);
    let pruned = q.store.prune(9).await.unwrap();
    assert_eq!((pruned.pruned, pruned.next_due), (1, None));
    let mut events = q.store.subscribe(EventKind::Upkeep);
    q.put(expires("b", 10)).await;
    expect(&mut events, "what comes later", upkeep(plus(q.now(), 10))).await;
}
