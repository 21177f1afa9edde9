//! Reschedule (the RPC): waiting and dead jobs move; anything else is refused by its state.

use std::time::Duration;

use crate::store_calls::{JobReschedule, RescheduleResult, StoreCalls as _, TestJob};
use ringq::domain::{Job, RetentionRule, State, Time, When};

use super::fixture::Fixture;
use super::values::{TOPIC, after, dead_lettered, failed_for, key, new_job, one, plus};

async fn reschedule(
    q: &Fixture,
    id: &str,
    due: Option<When>,
    priority: Option<u8>,
) -> RescheduleResult {
    let item = JobReschedule { key: key(TOPIC, id), due, priority, deadline: None };
    one(q.store.reschedule(vec![item]).await.unwrap())
}

/// Moves a job that must exist and be movable.
async fn moved(q: &Fixture, id: &str, due: Option<When>, priority: Option<u8>) -> Job {
    reschedule(q, id, due, priority).await.unwrap().unwrap()
}

/// Returns `job` without the fields that a brief read leaves out.
fn brief(mut job: Job) -> Job {
    job.spec.payload = None;
    job.result = None;
    job.attempts.clear();
    job
}

pub(crate) async fn a_scheduled_job_moves_earlier_later_and_to_now(q: Fixture) {
    q.put(TestJob { due: after(60), ..new_job("a") }).await;
    for (due, seconds, state) in [
        (after(30), 30, State::Scheduled),
        (after(90), 90, State::Scheduled),
        (When::Now, 0, State::Ready),
        (When::At(plus(q.now(), 5)), 5, State::Scheduled),
    ] {
        let job = moved(&q, "a", Some(due), None).await;
        assert_eq!((job.state, job.due_time), (state, plus(q.now(), seconds)));
        assert_eq!(brief(job), brief(q.job("a").await));
    }
}

pub(crate) async fn a_moved_job_is_claimed_at_its_new_time(q: Fixture) {
    q.put(new_job("a")).await;
    let due = moved(&q, "a", Some(after(7)), None).await.due_time;
    q.until_just_before(due);
    assert!(q.claim_ids().await.is_empty());
    q.until(due);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn a_job_in_backoff_moves_and_keeps_its_counters(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, failed_for(60)).await;
    let job = moved(&q, "a", Some(after(5)), None).await;
    assert_eq!((job.state, job.failures, job.deliveries), (State::Backoff, 1, 1));
    assert_eq!(job.due_time, plus(q.now(), 5));
    assert_eq!(q.job("a").await.attempts.len(), 1);
}

pub(crate) async fn an_absent_due_time_or_priority_is_kept(q: Fixture) {
    let due = q.put(TestJob { due: after(60), priority: Some(3), ..new_job("a") }).await.due;
    let job = moved(&q, "a", None, Some(9)).await;
    assert_eq!((job.due_time, job.priority), (due, 9));
    let job = moved(&q, "a", Some(after(1)), None).await;
    assert_eq!((job.due_time, job.priority), (plus(q.now(), 1), 9));
}

pub(crate) async fn a_new_priority_changes_the_order(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    moved(&q, "c", None, Some(1)).await;
    assert_eq!(q.claim_ids().await, ["c", "a", "b"]);
}

pub(crate) async fn a_dead_job_is_revived(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, dead_lettered()).await;
    let job = moved(&q, "a", Some(after(5)), None).await;
    assert_eq!((job.state, job.finish_time), (State::Scheduled, None));
    assert_eq!((job.failures, job.deliveries), (0, 0), "revived, counters 0");
    let stats = q.stats(TOPIC).await;
    assert_eq!((stats.dead, stats.scheduled, stats.dead_total), (0, 1, 1));
    q.sleep(5);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn a_revived_job_is_not_forgotten_like_the_dead_one(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, dead_lettered()).await;
    let year = Duration::from_secs(366 * 86_400);
    let due = moved(&q, "a", Some(When::After(year)), None).await.due_time;
    q.until(due);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn running_and_finished_jobs_are_refused_by_their_state(q: Fixture) {
    q.running("running").await;
    let leased = q.running("succeeded").await;
    q.ack(&leased).await;
    q.put(TestJob { expire: Some(after(1)), ..new_job("expired") }).await;
    q.sleep(1);
    q.put(new_job("cancelled")).await;
    q.delete("cancelled").await;
    for (id, state) in [
        ("running", State::Running),
        ("succeeded", State::Succeeded),
        ("expired", State::Expired),
        ("cancelled", State::Cancelled),
    ] {
        let before = q.job(id).await;
        assert_eq!(reschedule(&q, id, Some(When::Now), Some(5)).await, Err(state));
        assert_eq!(q.job(id).await, before);
    }
}

pub(crate) async fn a_missing_job_is_answered_with_none(q: Fixture) {
    assert_eq!(reschedule(&q, "a", Some(When::Now), None).await, Ok(None));
    let leased = q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("a") }).await;
    q.ack(&leased).await;
    assert_eq!(reschedule(&q, "a", Some(When::Now), None).await, Ok(None));
}

pub(crate) async fn a_reschedule_raises_no_generation_and_no_total(q: Fixture) {
    q.put(new_job("a")).await;
    let before = (q.job("a").await, q.stats(TOPIC).await);
    moved(&q, "a", Some(When::At(q.now())), Some(0)).await;
    assert_eq!((q.job("a").await, q.stats(TOPIC).await), before);
}

pub(crate) async fn a_job_moved_beyond_its_expire_time_expires(q: Fixture) {
    q.put(TestJob { expire: Some(after(5)), ..new_job("a") }).await;
    let job = moved(&q, "a", Some(after(9)), None).await;
    assert_eq!(job.state, State::Scheduled);
    q.sleep(5);
    assert_eq!(q.state("a").await, Some(State::Expired));
}

pub(crate) async fn the_items_of_a_call_are_answered_in_their_order(q: Fixture) {
    q.put_ids(&["a", "b"]).await;
    let item = |id, due| JobReschedule {
        key: key(TOPIC, id),
        due: Some(due),
        priority: None,
        deadline: None,
    };
    let items =
        vec![item("b", after(1)), item("x", after(1)), item("a", after(2)), item("b", after(3))];
    let moved = q.store.reschedule(items).await.unwrap();
    let dues: Vec<Option<Time>> =
        moved.into_iter().map(|job| job.unwrap().map(|job| job.due_time)).collect();
    let at = |seconds| Some(plus(q.now(), seconds));
    assert_eq!(dues, [at(1), None, at(2), at(3)]);
}

pub(crate) async fn a_job_that_died_after_its_expire_time_is_revived_all_the_same(q: Fixture) {
    let leased = q.run(TestJob { expire: Some(after(5)), ..new_job("a") }).await;
    q.sleep(6);
    q.end(&leased, dead_lettered()).await;
    assert_eq!(moved(&q, "a", Some(When::Now), None).await.state, State::Ready);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn a_due_time_that_has_passed_is_now(q: Fixture) {
    q.put(TestJob { due: after(60), ..new_job("a") }).await;
    let past = When::At(q.now().minus(Duration::from_secs(9)));
    let job = moved(&q, "a", Some(past), None).await;
    assert_eq!((job.state, job.due_time), (State::Ready, q.now()));
}
