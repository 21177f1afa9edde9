//! Extend: moves the deadline of a running lease, with a note for operators.

use std::time::Duration;

use crate::store_calls::{LeaseExtension, StoreCalls as _, TestJob};
use ringq::domain::{Spec, State};
use ringq::store::LeaseRefusal;

use super::fixture::Fixture;
use super::values::{LEASE, TOPIC, key, lease_ref, new_job, one, plus, released};

const LONGER: Option<Duration> = Some(Duration::from_secs(600));

pub(crate) async fn the_deadline_moves_to_now_plus_the_duration(q: Fixture) {
    let leased = q.running("a").await;
    q.sleep(10);
    assert_eq!(q.extend(&leased, LONGER, None).await, Ok(plus(q.now(), 600)));
    let lease = q.lease(&leased).await.unwrap();
    assert_eq!((lease.deadline, lease.extend_time), (plus(q.now(), 600), Some(q.now())));
    assert_eq!(q.job("a").await.lease_expire_time, Some(lease.deadline));
}

pub(crate) async fn a_deadline_can_move_nearer(q: Fixture) {
    let leased = q.running("a").await;
    let nearer = q.extend(&leased, Some(Duration::from_secs(1)), None).await.unwrap();
    assert_eq!(nearer, plus(q.now(), 1));
    q.until(nearer);
    assert_eq!(one(q.store.overdue_leases(10).await.unwrap().leases).key, leased.key);
}

pub(crate) async fn an_absent_duration_is_the_leases_own(q: Fixture) {
    let spec = Spec { lease: Some(Duration::from_secs(5)), ..Spec::default() };
    let own = q.run(TestJob { spec, ..new_job("own") }).await;
    let other = q.running("other").await;
    q.sleep(1);
    assert_eq!(q.extend(&own, None, None).await, Ok(plus(q.now(), 5)));
    assert_eq!(q.extend(&other, None, None).await, Ok(q.now().plus(LEASE)));
}

pub(crate) async fn a_longer_extension_does_not_change_the_leases_own_duration(q: Fixture) {
    let leased = q.running("a").await;
    q.extend(&leased, LONGER, None).await.unwrap();
    q.sleep(1);
    assert_eq!(q.extend(&leased, None, None).await, Ok(q.now().plus(LEASE)));
}

pub(crate) async fn a_note_is_kept_until_another_comes(q: Fixture) {
    let leased = q.running("a").await;
    for (note, kept) in
        [(None, ""), (Some("half wäy"), "half wäy"), (None, "half wäy"), (Some("done"), "done")]
    {
        q.extend(&leased, None, note).await.unwrap();
        assert_eq!(q.job("a").await.progress, kept);
    }
}

pub(crate) async fn an_extension_counts_nothing(q: Fixture) {
    let leased = q.running("a").await;
    let before = (q.job("a").await, q.stats(TOPIC).await);
    q.sleep(1);
    let deadline = q.extend(&leased, None, None).await.unwrap();
    let mut after = q.job("a").await;
    assert_eq!(after.lease_expire_time, Some(deadline));
    after.lease_expire_time = before.0.lease_expire_time;
    assert_eq!((after, q.stats(TOPIC).await), before);
}

pub(crate) async fn a_lease_that_ran_out_can_be_extended_until_it_is_reaped(q: Fixture) {
    let leased = q.running("a").await;
    q.until(leased.deadline);
    q.sleep(100);
    assert!(q.extend(&leased, None, None).await.is_ok());
    assert!(q.store.overdue_leases(10).await.unwrap().leases.is_empty());
    assert_eq!(q.ack(&leased).await.state, State::Succeeded);
}

pub(crate) async fn only_leases_that_hold_are_extended(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    let leased = q.claim(3).await;
    q.end(&leased[0], released()).await;
    let progress = || Some("x".to_owned());
    let item = |lease| LeaseExtension {
        lease,
        duration: LONGER,
        progress: progress(),
        checkpoint: None,
        outage_expiry: None,
        write_deadline: None,
    };
    let mut items: Vec<_> = leased.iter().map(|leased| item(lease_ref(leased))).collect();
    items[1].lease.token.0 ^= 1;
    items.push(item(lease_ref(&leased[2])));
    items[3].lease.key = key("nowhere", "c");
    items.push(item(lease_ref(&leased[2])));
    items[4].lease.key = key(TOPIC, "d");
    let extended = q.store.extend(items).await.unwrap();
    let (stale, gone) = (Err(LeaseRefusal::Stale), Err(LeaseRefusal::NotFound));
    assert_eq!(extended, [stale, stale, Ok(plus(q.now(), 600)), gone, gone]);
    assert_eq!(q.job("b").await.progress, "");
    assert_eq!(q.job("b").await.lease_expire_time, Some(leased[1].deadline));
}

pub(crate) async fn another_lease_of_the_job_was_not_extended(q: Fixture) {
    let leased = q.running("a").await;
    q.extend(&leased, LONGER, None).await.unwrap();
    q.end(&leased, released()).await;
    let leased = q.claim_one().await;
    let lease = q.lease(&leased).await.unwrap();
    assert_eq!((lease.extend_time, lease.deadline), (None, q.now().plus(LEASE)));
}

pub(crate) async fn a_finished_job_cannot_be_extended(q: Fixture) {
    let leased = q.running("a").await;
    q.ack(&leased).await;
    assert_eq!(q.extend(&leased, None, None).await, Err(LeaseRefusal::Stale));
    q.sleep(60);
    assert_eq!(q.extend(&leased, None, None).await, Err(LeaseRefusal::NotFound));
}
