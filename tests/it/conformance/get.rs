//! Get: the full and the brief form of a job. The effects of each verb are tested with that verb.

use crate::store_calls::TestJob;
use ringq::domain::{RetentionRule, State, limit};

use super::fixture::Fixture;
use super::values::{LEASE, TOPIC, failed_for, key, new_job, one, released};

pub(crate) async fn a_running_job_reads_with_its_lease_and_this_delivery(q: Fixture) {
    let leased = q.running("a").await;
    let job = q.job("a").await;
    assert_eq!(job.state, State::Running);
    assert_eq!((job.deliveries, job.failures), (1, 0));
    assert_eq!(job.lease_expire_time, Some(q.now().plus(LEASE)));
    assert_eq!((&*job.worker_id, job.finish_time), ("worker-1", None));
    q.end(&leased, released()).await;
    assert_eq!(q.job("a").await.deliveries, 1, "the same one, finished");
    q.claim_one().await;
    assert_eq!(q.job("a").await.deliveries, 2, "and another");
}

pub(crate) async fn a_running_job_reads_as_running_whatever_the_clock_shows(q: Fixture) {
    q.running("a").await;
    q.sleep(1_000_000);
    assert_eq!(q.state("a").await, Some(State::Running));
}

pub(crate) async fn the_last_holder_is_named_after_the_run(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, failed_for(9)).await;
    assert_eq!(q.job("a").await.worker_id, "worker-1");
}

pub(crate) async fn a_brief_read_has_neither_payload_nor_result_nor_attempts(q: Fixture) {
    let keep = RetentionRule::Record(limit::TOMBSTONE);
    let leased = q.run(TestJob { retention: keep, ..new_job("a") }).await;
    let end = ringq::store::SettleAction::Ack {
        result: Some(super::values::text("result")),
        follow_ups: Vec::new(),
    };
    q.settle(crate::store_calls::LeaseSettlement { action: end, ..super::values::ack(&leased) })
        .await
        .unwrap();
    let brief = one(q.store.get(vec![key(TOPIC, "a")], false).await.unwrap()).unwrap();
    let mut full = q.job("a").await;
    assert!(full.result.is_some() && full.spec.payload.is_some() && !full.attempts.is_empty());
    (full.result, full.spec.payload) = (None, None);
    full.attempts.clear();
    assert_eq!(brief, full);
}

pub(crate) async fn jobs_are_answered_in_the_order_asked_also_twice_and_missing(q: Fixture) {
    q.put_ids(&["a", "b"]).await;
    let keys = [("t", "b"), ("t", "x"), ("nowhere", "a"), ("t", "a"), ("t", "b")];
    let keys = keys.map(|(topic, id)| key(topic, id)).to_vec();
    let found = q.store.get(keys, true).await.unwrap();
    let ids: Vec<_> = found.iter().map(|job| job.as_ref().map(|job| job.key.id.as_str())).collect();
    assert_eq!(ids, [Some("b"), None, None, Some("a"), Some("b")]);
}

pub(crate) async fn a_job_states_on_which_shard_it_lies(q: Fixture) {
    q.put_ids(&["a"]).await;
    assert_eq!(q.job("a").await.shard.as_str(), "s0");
    assert_eq!(q.store.name().as_str(), "s0");
}

pub(crate) async fn many_jobs_are_read_in_one_call(q: Fixture) {
    let ids: Vec<String> = (0..1_500).map(|n| format!("j{n}")).collect();
    q.put_ids(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let keys = ids.iter().map(|id| key(TOPIC, id)).collect();
    let found = q.store.get(keys, false).await.unwrap();
    let read: Vec<_> = found.into_iter().map(|job| job.unwrap().key.id.to_string()).collect();
    assert_eq!(read, ids);
}
