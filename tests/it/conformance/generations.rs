//! Generations: their numbers, and the fate of one that waits behind a running one.

use std::time::Duration;

use crate::store_calls::{RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{EnqueueOutcome, OnConflict, RetentionRule, State, limit};
use ringq::store::{LeaseRefusal, LeasedJob, SettleCommandReply};

use super::conflict::{LATER, POLICIES, URGENT, first, second, take};
use super::fixture::Fixture;
use super::values::{
    RETENTION, ack, after, dead_lettered, failed, lease_ref, new_job, plus, released,
};

pub(crate) async fn generations_count_what_is_enqueued_over(q: Fixture) {
    let put = async |on_conflict| {
        q.put(TestJob { on_conflict, ..new_job("a") }).await;
        q.job("a").await.generation
    };
    assert_eq!(put(OnConflict::Keep).await, 1, "created");
    assert_eq!(put(OnConflict::Keep).await, 1, "unchanged");
    assert_eq!(put(OnConflict::Reschedule).await, 1, "rescheduled");
    assert_eq!(put(OnConflict::Replace).await, 2, "replaced");
    let running = q.claim_one().await;
    assert_eq!(put(OnConflict::Replace).await, 3, "deferred");
    assert_eq!(put(OnConflict::Reschedule).await, 4, "deferred over a deferral");
    q.ack(&running).await;
    assert_eq!(q.job("a").await.generation, 4, "the waiting one started");
    assert_eq!(q.delete("a").await, Some(State::Ready));
    assert_eq!(put(OnConflict::Keep).await, 5, "created over a cancelled one");
}

/// Returns every way in which a lease can end.
fn ends() -> Vec<(&'static str, Option<LeaseEndCause>)> {
    vec![
        ("ack", None),
        ("retry", Some(failed())),
        ("release", Some(released())),
        ("die", Some(dead_lettered())),
        ("expiry", Some(LeaseEndCause::Expired)),
        ("broken", Some(LeaseEndCause::StreamBroken)),
    ]
}

async fn end(q: &Fixture, leased: &LeasedJob, cause: Option<LeaseEndCause>) -> State {
    match cause {
        Some(cause) => q.end(leased, cause).await.state,
        None => q.ack(leased).await.state,
    }
}

pub(crate) async fn a_waiting_generation_starts_when_the_lease_ends_however_it_ends(q: Fixture) {
    for (id, cause) in ends() {
        let keep = RetentionRule::Record(RETENTION);
        let running = take(&q, TestJob { retention: keep, ..first(id) }).await;
        let deferred = q.now();
        let next = TestJob { due: after(0), priority: Some(9), ..second(id) };
        q.put(TestJob { on_conflict: OnConflict::Replace, ..next }).await;
        q.sleep(3);
        assert_eq!(end(&q, &running, cause).await, State::Ready, "{id}");
        let job = q.job(id).await;
        assert_eq!((job.state, job.generation), (State::Ready, 2), "{id}");
        assert_eq!(job.spec, second("").spec, "{id}");
        assert_eq!((job.create_time, job.due_time), (deferred, deferred), "{id}");
        assert_eq!((job.failures, job.deliveries, job.attempts.len()), (0, 0, 0), "{id}");
        assert_eq!((job.last_error, job.result, job.finish_time), ("".into(), None, None), "{id}");
        assert_eq!(q.claim_one().await.key, job.key, "{id}");
    }
    assert_eq!(q.stats("t").await.dead, 0);
    assert_eq!(q.stats("t").await.dead_total, 0, "the old generation is no dead letter");
    assert_eq!(q.stats("t").await.backoff, 0, "the old generation is not retried");
}

pub(crate) async fn a_waiting_generation_waits_for_its_due_time(q: Fixture) {
    let running = take(&q, first("a")).await;
    let put = q.put(TestJob { on_conflict: OnConflict::Replace, ..second("a") }).await;
    q.sleep(1);
    assert_eq!(q.ack(&running).await.state, State::Scheduled);
    assert_eq!(q.job("a").await.due_time, put.due);
    q.until_just_before(put.due);
    assert!(q.claim_ids().await.is_empty());
    q.until(put.due);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn a_waiting_generation_never_runs_beside_the_running_one(q: Fixture) {
    take(&q, first("a")).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, due: after(0), ..second("a") }).await;
    q.sleep(10_000);
    assert!(q.claim_ids().await.is_empty());
    assert_eq!(q.state("a").await, Some(State::Running));
}

pub(crate) async fn a_replacing_deferral_takes_the_place_of_the_waiting_one(q: Fixture) {
    let running = take(&q, first("a")).await;
    let replace = |job| TestJob { on_conflict: OnConflict::Replace, ..job };
    q.put(replace(TestJob { priority: Some(3), due: after(0), ..new_job("a") })).await;
    q.put(replace(second("a"))).await;
    q.ack(&running).await;
    let job = q.job("a").await;
    assert_eq!((job.spec, job.generation), (second("").spec, 3));
    assert_eq!((job.priority, job.due_time), (URGENT, plus(q.now(), LATER)));
}

pub(crate) async fn a_rescheduling_deferral_runs_the_same_payload_again(q: Fixture) {
    let running = take(&q, first("a")).await;
    let again = TestJob { on_conflict: OnConflict::Reschedule, priority: None, ..second("a") };
    q.put(again).await;
    q.ack(&running).await;
    let job = q.job("a").await;
    assert_eq!((job.spec, job.generation), (first("").spec, 2));
    assert_eq!((job.priority, job.due_time), (9, plus(q.now(), LATER)));
}

pub(crate) async fn a_rescheduling_deferral_moves_the_waiting_one(q: Fixture) {
    let running = take(&q, first("a")).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, ..second("a") }).await;
    let again = TestJob { on_conflict: OnConflict::Reschedule, due: after(2), ..new_job("a") };
    let put = q.put(TestJob { request_code: Some(3), ..again }).await;
    assert_eq!((put.outcome, put.due), (Some(EnqueueOutcome::Deferred), plus(q.now(), 2)));
    q.ack(&running).await;
    let job = q.job("a").await;
    assert_eq!((job.spec, job.generation), (second("").spec, 3));
    assert_eq!((job.priority, job.due_time), (URGENT, put.due));
}

pub(crate) async fn a_rescheduling_deferral_moves_the_priority_of_the_waiting_one(q: Fixture) {
    let running = take(&q, first("a")).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, ..second("a") }).await;
    let on_conflict = OnConflict::Reschedule;
    q.put(TestJob { on_conflict, priority: Some(2), ..new_job("a") }).await;
    q.ack(&running).await;
    let job = q.job("a").await;
    assert_eq!((job.priority, job.state), (2, State::Ready));
}

pub(crate) async fn a_waiting_generation_can_expire_before_it_starts(q: Fixture) {
    let running = take(&q, first("a")).await;
    let next = TestJob { due: after(0), expire: Some(after(5)), ..second("a") };
    q.put(TestJob { on_conflict: OnConflict::Replace, ..next }).await;
    q.sleep(5);
    assert_eq!(q.state("a").await, Some(State::Running), "the running one has no expire time");
    assert_eq!(q.ack(&running).await.state, State::Expired);
    assert_eq!(q.state("a").await, Some(State::Expired));
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn the_old_lease_has_no_power_over_the_started_generation(q: Fixture) {
    let running = take(&q, first("a")).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, due: after(0), ..second("a") }).await;
    let retry = q.decide(&running, failed()).await;
    q.ack(&running).await;
    let started = q.job("a").await;
    assert_eq!(q.settle(retry).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.extend(&running, None, None).await, Err(LeaseRefusal::Stale));
    assert!(!q.unclaim(&running).await);
    assert_eq!(q.job("a").await, started);
    let repeat = q.settle(ack(&running)).await.unwrap();
    assert!(repeat.repeated, "a repeated ack is success while the record lives");
    assert_eq!(q.job("a").await, started);
}

pub(crate) async fn a_repeated_ack_of_a_generation_is_success_whichever_runs_now(q: Fixture) {
    let over = TestJob { on_conflict: OnConflict::Replace, due: after(0), ..second("a") };
    let repeat = async |old: &[LeasedJob], state| {
        let before = q.job("a").await;
        for old in old {
            let repeated = SettleCommandReply { repeated: true, state };
            assert_eq!(q.settle(ack(old)).await, Ok(repeated), "{before:?}");
        }
        assert_eq!(q.job("a").await, before);
    };
    let mut old = Vec::new();
    let mut running = take(&q, first("a")).await;
    for _ in 0..3 {
        q.put(TestJob { request_code: None, ..over.clone() }).await;
        q.ack(&running).await;
        old.push(running);
        repeat(&old, State::Ready).await;
        running = q.claim_one().await;
        repeat(&old, State::Running).await;
    }
    q.ack(&running).await;
    old.push(running);
    repeat(&old, State::Succeeded).await;
    assert_eq!(q.stats("t").await.succeeded_total, 4, "each was counted once");
}

pub(crate) async fn a_repeated_ack_is_success_after_the_id_was_enqueued_over(q: Fixture) {
    let keeps = [RetentionRule::Record(RETENTION), RetentionRule::Tombstone(limit::TOMBSTONE)];
    for (policy, keep) in [OnConflict::Replace, OnConflict::Reschedule]
        .into_iter()
        .flat_map(|policy| keeps.map(|keep| (policy, keep)))
    {
        let id = format!("{policy:?} {keep:?}").replace(|c: char| !c.is_alphanumeric(), "_");
        let old = take(&q, TestJob { retention: keep, ..first(&id) }).await;
        q.ack(&old).await;
        let over = TestJob { on_conflict: policy, due: after(0), retention: keep, ..second(&id) };
        assert_eq!(q.put(over).await.outcome, Some(EnqueueOutcome::Created), "{id}");
        assert_eq!(q.settle(ack(&old)).await.unwrap().state, State::Ready, "{id}");
        let running = q.claim_one().await;
        let repeat = q.settle(ack(&old)).await.unwrap();
        assert!(repeat.repeated, "{id}");
        assert_eq!(repeat.state, State::Running, "{id}");
        assert!(!q.ack(&running).await.repeated, "{id}");
        assert!(q.settle(ack(&old)).await.unwrap().repeated, "{id}");
    }
}

pub(crate) async fn a_repeated_settle_is_success_after_its_job_was_put_back(q: Fixture) {
    let dead = take(&q, first("a")).await;
    let nack = q.decide(&dead, dead_lettered()).await;
    q.settle(nack.clone()).await.unwrap();
    let redrive = RedriveBatch {
        topic: dead.key.topic.clone(),
        ids: vec![dead.key.id.clone()],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        target: None,
        states: vec![State::Dead],
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    assert_eq!(q.store.redrive(redrive).await.unwrap().redriven, 1);
    q.claim_one().await;
    let repeated = SettleCommandReply { repeated: true, state: State::Running };
    assert_eq!(q.settle(nack).await, Ok(repeated));
    assert_eq!(q.settle(ack(&dead)).await, Err(LeaseRefusal::Stale));
}

pub(crate) async fn delete_removes_the_running_and_the_waiting_generation(q: Fixture) {
    let running = take(&q, first("a")).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, due: after(0), ..second("a") }).await;
    assert_eq!(q.delete("a").await, Some(State::Running));
    assert_eq!(q.state("a").await, Some(State::Cancelled));
    assert!(q.claim_ids().await.is_empty());
    let refs = vec![lease_ref(&running)];
    assert_eq!(q.store.running_leases(refs).await.unwrap(), [Err(LeaseRefusal::NotFound)]);
    assert_eq!(q.settle(ack(&running)).await, Err(LeaseRefusal::NotFound));
    assert_eq!(q.state("a").await, Some(State::Cancelled));
}

pub(crate) async fn an_id_is_free_after_both_its_generations_were_deleted(q: Fixture) {
    for policy in POLICIES {
        let id = format!("{policy:?}");
        take(&q, first(&id)).await;
        q.put(TestJob { on_conflict: OnConflict::Replace, ..second(&id) }).await;
        q.delete(&id).await;
        let put = q.put(TestJob { on_conflict: policy, priority: Some(9), ..new_job(&id) }).await;
        assert_eq!((put.outcome, put.state), (Some(EnqueueOutcome::Created), State::Ready), "{id}");
        assert_eq!(q.claim_one().await.key.id.as_str(), id);
    }
}
