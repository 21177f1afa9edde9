//! State of a store after it is opened again. A capability: stores in memory skip these.

use std::time::Duration;

use crate::store_calls::{RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{EnqueueOutcome, JobId, OnConflict, State, Time};
use ringq::store::{Error, StatsOptions};

use super::fixture::Fixture;
use super::values::{
    OWNER, TOPIC, ack, after, dead_lettered, failed_for, new_job, one, plus, topic,
};

pub(crate) async fn everything_reads_the_same_after_reopening(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let leased = q.running("retried").await;
    q.end(&leased, failed_for(900)).await;
    let leased = q.running("dead").await;
    q.end(&leased, dead_lettered()).await;
    let leased = q.running("done").await;
    q.ack(&leased).await;
    let running = q.running("running").await;
    q.put(TestJob { on_conflict: OnConflict::Replace, ..new_job("running") }).await;
    q.extend(&running, None, Some("half way")).await.unwrap();
    q.put(TestJob { due: after(60), ..new_job("later") }).await;
    q.put_ids(&["a", "b"]).await;
    let keys = ["retried", "dead", "done", "running", "later", "a", "b"];
    let keys: Vec<_> = keys.iter().map(|id| super::key(TOPIC, id)).collect();
    let read = async |q: &Fixture| {
        let jobs = q.store.get(keys.clone(), true).await.unwrap();
        let topics = q.store.topics(String::new(), None, 10).await.unwrap();
        (jobs, topics, q.stats(TOPIC).await, q.store.info().await.unwrap().jobs)
    };
    let before = read(&q).await;
    q.reopen().await;
    assert_eq!(read(&q).await, before);
    assert_eq!(q.claim_ids().await, ["a", "b"]);
}

pub(crate) async fn a_lease_of_the_former_life_can_be_settled(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let leased = q.running("a").await;
    q.reopen().await;
    assert!(q.claim_ids().await.is_empty());
    assert_eq!(q.lease(&leased).await.unwrap().deadline, leased.deadline);
    assert_eq!(q.ack(&leased).await.state, State::Succeeded);
    q.reopen().await;
    assert!(q.settle(ack(&leased)).await.unwrap().repeated);
}

pub(crate) async fn the_streams_of_the_former_life_are_orphans_and_can_be_let_go(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let leased = q.running("a").await;
    q.reopen().await;
    assert!(q.store.orphaned_leases(vec![OWNER]).await.unwrap().is_empty());
    assert_eq!(one(q.store.orphaned_leases(vec![OWNER + 1]).await.unwrap()).token, leased.token);
    q.end(&leased, LeaseEndCause::StreamBroken).await;
    let job = q.job("a").await;
    assert_eq!((job.state, job.failures, job.deliveries), (State::Ready, 0, 1));
}

pub(crate) async fn a_lease_that_ran_out_meanwhile_is_reaped(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let leased = q.running("a").await;
    q.reopen().await;
    assert_eq!(q.store.overdue_leases(10).await.unwrap().next_deadline, Some(leased.deadline));
    q.until(leased.deadline);
    assert_eq!(one(q.store.overdue_leases(10).await.unwrap().leases).token, leased.token);
}

pub(crate) async fn arrival_goes_on_where_it_was(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    q.put_ids(&["a", "b"]).await;
    q.claim_one().await;
    q.reopen().await;
    q.put_ids(&["c"]).await;
    assert_eq!(q.claim_ids().await, ["b", "c"]);
}

pub(crate) async fn a_job_becomes_due_while_no_server_runs(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    q.put(TestJob { due: after(60), ..new_job("a") }).await;
    q.store.close().await;
    q.until(plus(q.now(), 60));
    q.reopen().await;
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn an_undelayed_job_is_ready_though_the_clock_went_back(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    q.put(TestJob { due: after(60), ..new_job("delayed") }).await;
    q.put(new_job("a")).await;
    q.store.close().await;
    q.until(Time(q.now().0 - 3_600_000_000));
    q.reopen().await;
    assert_eq!(q.claim_ids().await, ["a"]);
    q.sleep(3_660);
    assert_eq!(q.claim_ids().await, ["delayed"]);
}

pub(crate) async fn one_that_moved_last_hides_no_clock_that_went_back(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let old = q.run(new_job("old")).await;
    q.end(&old, dead_lettered()).await;
    q.sleep(86_400);
    // A store that records the time does so only now and then.
    q.reopen().await;
    q.put(new_job("a")).await;
    let redrive = RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![JobId::stored("old")],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        target: Some(topic("other")),
        states: vec![State::Dead],
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    assert_eq!(q.store.redrive(redrive).await.unwrap().redriven, 1);
    q.store.close().await;
    q.until(Time(q.now().0 - 3_600_000_000));
    q.reopen().await;
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn a_repeat_over_a_restart_is_recognized(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let job = || TestJob {
        request_code: Some(u64::MAX),
        on_conflict: OnConflict::Replace,
        ..new_job("a")
    };
    q.put(job()).await;
    q.reopen().await;
    assert_eq!(q.put(job()).await.outcome, Some(EnqueueOutcome::Unchanged));
}

pub(crate) async fn a_shard_is_refused_under_another_name(q: Fixture) {
    let Some(q) = q.lasting() else { return };
    q.put(new_job("a")).await;
    q.store.close().await;
    let refused = q.open_as("other").await.map(drop).unwrap_err();
    assert!(refused.contains("s0"), "{refused}");
    assert!(q.open_as("s0").await.is_ok());
}

pub(crate) async fn a_closed_store_refuses_every_call(q: Fixture) {
    q.put(new_job("a")).await;
    q.store.close().await;
    let refused = |error: Error| assert!(!error.outcome_unknown(), "{error:?}");
    refused(q.store.enqueue(vec![new_job("b")]).await.unwrap_err());
    refused(q.store.get(vec![super::key(TOPIC, "a")], true).await.unwrap_err());
    refused(q.store.stats(vec![topic(TOPIC)], StatsOptions::default()).await.unwrap_err());
    refused(q.store.prune(1).await.unwrap_err());
    q.store.close().await;
}

pub(crate) async fn the_key_of_receipts_stays(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let key = q.store.receipt_key();
    assert!(key.is_some());
    q.reopen().await;
    assert_eq!(q.store.receipt_key(), key);
}
