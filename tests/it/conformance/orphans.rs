//! Orphans: the leases of streams of another replica, which are released after their grace.

use crate::store_calls::StoreCalls as _;
use std::time::Duration;

use ringq::store::{Claim, LeasedJob, StreamDemand, TopicDemand};

use super::fixture::Fixture;
use super::values::{OWNER, TOPIC, job_in, new_job, one, released, taker, tied, topic};

/// Claims one job for a stream of `owner`.
async fn claim_as(q: &Fixture, owner: u32, grace: Option<Duration>) -> LeasedJob {
    let takers = vec![StreamDemand { jobs: 1, grace, ..taker() }];
    let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: takers }];
    let claims = q.store.claim(Claim { nonce: q.nonce(), owner, topics: asks }).await.unwrap();
    one(one(one(claims.topics).by_stream))
}

async fn orphans(q: &Fixture, living: u32) -> Vec<String> {
    orphans_beside(q, &[living]).await
}

async fn orphans_beside(q: &Fixture, living: &[u32]) -> Vec<String> {
    let leases = q.store.orphaned_leases(living.to_vec()).await.unwrap();
    let mut ids: Vec<_> = leases.iter().map(|lease| lease.key.id.to_string()).collect();
    ids.sort();
    ids
}

pub(crate) async fn leases_of_other_replicas_that_carry_a_grace_are_orphans(q: Fixture) {
    q.put_ids(&["mine", "pulled", "theirs", "zero"]).await;
    claim_as(&q, OWNER, Some(Duration::from_secs(5))).await;
    claim_as(&q, 8, None).await;
    claim_as(&q, 8, Some(Duration::from_secs(5))).await;
    claim_as(&q, 9, Some(Duration::ZERO)).await;
    assert_eq!(orphans(&q, OWNER).await, ["theirs", "zero"]);
    assert_eq!(orphans(&q, 8).await, ["mine", "zero"]);
    assert_eq!(orphans(&q, 1_000).await, ["mine", "theirs", "zero"]);
}

pub(crate) async fn an_orphan_reads_as_its_lease_does(q: Fixture) {
    q.put(new_job("a")).await;
    let leased = claim_as(&q, 8, Some(Duration::from_millis(1))).await;
    q.sleep(2);
    q.extend(&leased, None, None).await.unwrap();
    q.sleep(3);
    let orphan = one(q.store.orphaned_leases(vec![OWNER]).await.unwrap());
    assert_eq!(orphan, q.lease(&leased).await.unwrap());
    assert_eq!((orphan.owner, orphan.grace), (8, Some(Duration::from_millis(1))));
}

pub(crate) async fn ended_leases_are_no_orphans(q: Fixture) {
    q.put_ids(&["a", "b", "c", "d"]).await;
    let grace = Some(Duration::from_secs(5));
    let acked = claim_as(&q, 8, grace).await;
    let nacked = claim_as(&q, 8, grace).await;
    let undone = claim_as(&q, 8, grace).await;
    claim_as(&q, 8, grace).await;
    q.ack(&acked).await;
    q.end(&nacked, released()).await;
    q.unclaim(&undone).await;
    q.delete("d").await;
    assert!(orphans(&q, OWNER).await.is_empty());
}

pub(crate) async fn a_lease_past_its_deadline_is_an_orphan_still(q: Fixture) {
    q.put(new_job("a")).await;
    claim_as(&q, 8, Some(Duration::from_secs(5))).await;
    q.sleep(1_000);
    assert_eq!(orphans(&q, OWNER).await, ["a"]);
}

pub(crate) async fn leases_of_several_living_replicas_are_no_orphans(q: Fixture) {
    q.put_ids(&["a", "b", "c", "d"]).await;
    for owner in [0, 8, 9, u32::MAX] {
        claim_as(&q, owner, Some(Duration::from_secs(5))).await;
    }
    assert_eq!(orphans_beside(&q, &[9, 0]).await, ["b", "d"]);
    assert_eq!(orphans_beside(&q, &[8, 9, u32::MAX, 77]).await, ["a"]);
    assert_eq!(orphans_beside(&q, &[]).await, ["a", "b", "c", "d"]);
    assert!(orphans_beside(&q, &[u32::MAX, 9, 8, 0]).await.is_empty());
}

pub(crate) async fn a_detached_lease_is_no_orphan_with_any_extender(q: Fixture) {
    q.put_ids(&["a", "b"]).await;
    let grace = Some(Duration::from_secs(5));
    let (a, b) = (claim_as(&q, 8, grace).await, claim_as(&q, 8, grace).await);
    q.extend(&a, None, None).await.unwrap();
    assert_eq!(q.store.detach(vec![tied(&a, 8)]).await.unwrap(), 1);
    q.extend(&a, Some(Duration::from_secs(90)), None).await.unwrap();
    assert_eq!(orphans(&q, OWNER).await, ["b"]);
    q.ack(&b).await;
    assert_eq!(q.store.detach(vec![tied(&b, 8)]).await.unwrap(), 0);
    q.ack(&a).await;
}

pub(crate) async fn many_orphans_are_found_in_every_topic(q: Fixture) {
    for name in ["t", "u"] {
        let jobs = (0..700).map(|n| job_in(name, &format!("{name}{n}"))).collect();
        q.store.enqueue(jobs).await.unwrap();
        // A claim is bounded, too.
        let mut claimed = 0;
        while claimed < 700 {
            claimed += one(q.claim_for(name, vec![taker()]).await.by_stream).len();
        }
    }
    assert_eq!(orphans(&q, OWNER + 1).await.len(), 1_400);
    assert!(orphans(&q, OWNER).await.is_empty());
}
