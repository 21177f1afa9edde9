//! Reap: returns leases whose deadline has passed, without ending them, and the time of the next deadline.

use std::time::Duration;

use crate::store_calls::{LeaseSettlement, StoreCalls as _, TestJob};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{Spec, State};
use ringq::store::{LeaseRefusal, RunningLease};

use super::fixture::Fixture;
use super::values::{ack, decide, new_job, one, plus, released};

/// Builds a job whose lease lasts this number of seconds.
fn lasting(id: &str, seconds: u64) -> TestJob {
    let spec = Spec { lease: Some(Duration::from_secs(seconds)), ..Spec::default() };
    TestJob { spec, ..new_job(id) }
}

fn ids(leases: &[RunningLease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.key.id.as_str()).collect()
}

pub(crate) async fn a_lease_is_found_from_its_deadline_on(q: Fixture) {
    let leased = q.running("a").await;
    q.until_just_before(leased.deadline);
    let reaped = q.store.overdue_leases(10).await.unwrap();
    assert!(reaped.leases.is_empty());
    assert_eq!(reaped.next_deadline, Some(leased.deadline));
    q.until(leased.deadline);
    let reaped = q.store.overdue_leases(10).await.unwrap();
    let lease = one(reaped.leases);
    assert_eq!((lease.key, lease.token), (leased.key.clone(), leased.token));
    assert_eq!((lease.deadline, lease.now, reaped.next_deadline), (leased.deadline, q.now(), None));
}

pub(crate) async fn what_is_found_is_what_reading_the_lease_shows(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, released()).await;
    let leased = q.claim_one().await;
    q.sleep(3);
    q.extend(&leased, None, None).await.unwrap();
    q.sleep(100);
    let reaped = one(q.store.overdue_leases(10).await.unwrap().leases);
    assert_eq!(reaped, q.lease(&leased).await.unwrap());
    assert_eq!(reaped.attempt.deliveries, 1);
}

pub(crate) async fn reading_ends_nothing(q: Fixture) {
    let leased = q.running("a").await;
    q.until(leased.deadline);
    q.store.overdue_leases(10).await.unwrap();
    assert_eq!(q.state("a").await, Some(State::Running));
    assert_eq!(q.store.overdue_leases(10).await.unwrap().leases.len(), 1);
    assert_eq!(q.ack(&leased).await.state, State::Succeeded);
}

pub(crate) async fn an_ack_after_the_reaping_is_stale(q: Fixture) {
    let leased = q.running("a").await;
    q.until(leased.deadline);
    let lease = one(q.store.overdue_leases(10).await.unwrap().leases);
    let settle = LeaseSettlement {
        deadline: Some(lease.deadline),
        ..decide(&lease, LeaseEndCause::Expired)
    };
    assert_eq!(q.settle(settle).await.unwrap().state, State::Backoff);
    assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.state("a").await, Some(State::Backoff));
}

pub(crate) async fn a_limit_is_kept_and_the_rest_is_announced(q: Fixture) {
    for (id, seconds) in [("c", 30), ("a", 10), ("b", 20), ("d", 40)] {
        q.run(lasting(id, seconds)).await;
    }
    let start = q.now();
    q.sleep(30);
    let reaped = q.store.overdue_leases(2).await.unwrap();
    assert_eq!(ids(&reaped.leases), ["a", "b"]);
    assert_eq!(reaped.next_deadline, Some(plus(start, 30)));
    let reaped = q.store.overdue_leases(3).await.unwrap();
    assert_eq!(ids(&reaped.leases), ["a", "b", "c"]);
    assert_eq!(reaped.next_deadline, Some(plus(start, 40)));
}

pub(crate) async fn an_extended_lease_is_found_at_its_new_deadline(q: Fixture) {
    let leased = q.running("a").await;
    let moved = q.extend(&leased, Some(Duration::from_secs(90)), None).await.unwrap();
    q.until(leased.deadline);
    let reaped = q.store.overdue_leases(10).await.unwrap();
    assert_eq!((reaped.leases.len(), reaped.next_deadline), (0, Some(moved)));
    q.until(moved);
    assert_eq!(q.store.overdue_leases(10).await.unwrap().leases.len(), 1);
}

pub(crate) async fn settled_unclaimed_and_deleted_leases_are_not_found(q: Fixture) {
    q.put_ids(&["a", "b", "c", "d"]).await;
    let leased = q.claim(4).await;
    q.ack(&leased[0]).await;
    q.end(&leased[1], released()).await;
    q.unclaim(&leased[2]).await;
    q.delete("d").await;
    q.sleep(100);
    let reaped = q.store.overdue_leases(10).await.unwrap();
    assert_eq!((reaped.leases.len(), reaped.next_deadline), (0, None));
}

pub(crate) async fn an_empty_store_has_nothing_to_reap(q: Fixture) {
    let reaped = q.store.overdue_leases(10).await.unwrap();
    assert_eq!((reaped.leases.len(), reaped.next_deadline), (0, None));
}
