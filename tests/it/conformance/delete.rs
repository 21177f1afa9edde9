//! Delete: waiting and running jobs become CANCELLED, finished and dead ones are removed.

use crate::store_calls::{JobDeletion, StoreCalls as _, TestJob};
use ringq::domain::{AttemptOutcome, EnqueueOutcome, OnConflict, RetentionRule, State, limit};
use ringq::store::{Deleted, LeaseRefusal};

use super::fixture::Fixture;
use super::values::{
    OWNER, RETENTION, TOPIC, ack, after, dead_lettered, failed_for, key, new_job, one, text,
};

pub(crate) async fn a_waiting_job_is_cancelled(q: Fixture) {
    q.put(new_job("ready")).await;
    q.put(TestJob { due: after(9), ..new_job("scheduled") }).await;
    for (id, previous) in [("ready", State::Ready), ("scheduled", State::Scheduled)] {
        assert_eq!(q.delete(id).await, Some(previous));
        let job = q.job(id).await;
        assert_eq!((job.state, job.finish_time), (State::Cancelled, Some(q.now())));
        assert_eq!((job.deliveries, job.attempts.len()), (0, 0));
    }
    q.sleep(10);
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn a_job_in_backoff_is_cancelled(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, failed_for(5)).await;
    assert_eq!(q.delete("a").await, Some(State::Backoff));
    q.sleep(5);
    assert_eq!(q.state("a").await, Some(State::Cancelled));
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn a_running_job_is_cancelled_and_its_lease_revoked(q: Fixture) {
    let keep = RetentionRule::Record(RETENTION);
    let leased = q.run(TestJob { retention: keep, ..new_job("a") }).await;
    let deleted = one(q.store.delete(vec![key(TOPIC, "a").into()]).await.unwrap());
    let revoked = Some((OWNER, 1, leased.token));
    assert_eq!(deleted, Some(Deleted { previous: State::Running, revoked }));
    let job = q.job("a").await;
    assert_eq!((job.state, job.lease_expire_time), (State::Cancelled, None));
    assert_eq!((job.deliveries, job.failures), (1, 0), "a hand-over counts however it ended");
    assert_eq!(job.attempts[0].outcome, AttemptOutcome::Revoked);
    assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::NotFound));
    assert_eq!(q.extend(&leased, None, None).await, Err(LeaseRefusal::NotFound));
    assert_eq!(q.job("a").await, job);
    q.sleep(100);
    assert!(q.store.overdue_leases(10).await.unwrap().leases.is_empty());
}

pub(crate) async fn only_a_running_job_has_a_lease_to_revoke(q: Fixture) {
    q.put(new_job("a")).await;
    let deleted = one(q.store.delete(vec![key(TOPIC, "a").into()]).await.unwrap()).unwrap();
    assert_eq!(deleted.revoked, None);
}

pub(crate) async fn a_cancelled_job_is_kept_like_a_finished_one(q: Fixture) {
    let retention = RETENTION;
    q.put(new_job("tombstone")).await;
    q.put(TestJob { retention: RetentionRule::Record(retention), ..new_job("record") }).await;
    q.put(TestJob { retention: RetentionRule::Nothing, ..new_job("nothing") }).await;
    let cancelled = q.now();
    for id in ["tombstone", "record", "nothing"] {
        assert_eq!(q.delete(id).await, Some(State::Ready));
    }
    assert_eq!(q.get("nothing").await, None);
    assert_eq!(q.job("tombstone").await.spec.payload, None);
    assert_eq!(q.job("record").await.spec.payload, Some(text("record")));
    for (id, keep) in [("tombstone", limit::TOMBSTONE), ("record", retention)] {
        q.until_just_before(cancelled.plus(keep));
        assert_eq!(q.state(id).await, Some(State::Cancelled), "{id}");
        q.until(cancelled.plus(keep));
        assert_eq!(q.get(id).await, None, "{id}");
    }
}

pub(crate) async fn the_lease_of_a_deleted_job_that_is_not_kept_is_not_found(q: Fixture) {
    let leased = q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("a") }).await;
    assert_eq!(q.delete("a").await, Some(State::Running));
    assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::NotFound));
    assert_eq!(q.get("a").await, None);
}

pub(crate) async fn finished_dead_cancelled_and_expired_jobs_are_forgotten(q: Fixture) {
    let leased = q.running("succeeded").await;
    q.ack(&leased).await;
    let leased = q.running("dead").await;
    q.end(&leased, dead_lettered()).await;
    q.put(TestJob { expire: Some(after(1)), ..new_job("expired") }).await;
    q.sleep(1);
    q.put(new_job("cancelled")).await;
    q.delete("cancelled").await;
    for (id, previous) in [
        ("succeeded", State::Succeeded),
        ("dead", State::Dead),
        ("expired", State::Expired),
        ("cancelled", State::Cancelled),
    ] {
        assert_eq!(q.delete(id).await, Some(previous));
        assert_eq!(q.get(id).await, None);
        assert_eq!(q.delete(id).await, None);
        assert_eq!(q.put(new_job(id)).await.outcome, Some(EnqueueOutcome::Created));
        assert_eq!(q.job(id).await.generation, 1, "{id}");
    }
}

pub(crate) async fn what_is_not_there_is_not_deleted(q: Fixture) {
    q.put(new_job("a")).await;
    let keys = [key("nowhere", "a"), key(TOPIC, "b"), key(TOPIC, "a")];
    let deleted = q.store.delete(keys.map(JobDeletion::from).to_vec()).await.unwrap();
    let found: Vec<_> = deleted.into_iter().map(|d| d.map(|d| d.previous)).collect();
    assert_eq!(found, [None, None, Some(State::Ready)]);
}

pub(crate) async fn the_same_job_twice_in_one_call_is_cancelled_then_forgotten(q: Fixture) {
    q.put(new_job("a")).await;
    let deleted = q.store.delete(vec![key(TOPIC, "a").into(); 3]).await.unwrap();
    let found: Vec<_> = deleted.into_iter().map(|d| d.map(|d| d.previous)).collect();
    assert_eq!(found, [Some(State::Ready), Some(State::Cancelled), None]);
}

pub(crate) async fn a_forgotten_record_that_is_not_pruned_is_not_found(q: Fixture) {
    let leased = q.running("a").await;
    q.ack(&leased).await;
    q.sleep(60);
    assert_eq!(q.delete("a").await, None);
}

pub(crate) async fn a_delete_that_means_one_generation_leaves_the_next_one_alone(q: Fixture) {
    let keep = RetentionRule::Record(RETENTION);
    for id in ["stays", "goes"] {
        let leased = q.run(TestJob { retention: keep, ..new_job(id) }).await;
        q.end(&leased, dead_lettered()).await;
    }
    let finished = q.job("stays").await.finish_time;
    assert_eq!(finished, Some(q.now()));
    let meant = |id| JobDeletion { key: key(TOPIC, id), finished, deadline: None };
    // A client enqueues it again before the caller that moved it away deletes it.
    q.sleep(1);
    q.put(TestJob { on_conflict: OnConflict::Replace, retention: keep, ..new_job("stays") }).await;
    let deleted = q.store.delete(vec![meant("stays"), meant("goes")]).await.unwrap();
    let previous: Vec<_> = deleted.into_iter().map(|done| done.map(|done| done.previous)).collect();
    assert_eq!(previous, [None, Some(State::Dead)]);
    assert_eq!((q.state("stays").await, q.state("goes").await), (Some(State::Ready), None));
    // Neither does a job that has died since then match.
    q.end(&q.claim_one().await, dead_lettered()).await;
    assert_eq!(q.store.delete(vec![meant("stays")]).await.unwrap(), [None]);
    assert_eq!(q.state("stays").await, Some(State::Dead));
}
