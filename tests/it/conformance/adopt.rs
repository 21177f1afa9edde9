//! Adopt: another stream takes over a lease; and lookup of leases by their streams.

use std::time::Duration;

use crate::store_calls::{AdoptBatch, AdoptItem, StoreCalls as _};
use ringq::domain::{RetentionRule, State, StreamId};
use ringq::store::{
    Claim, LeaseRefusal, LeasedJob, RunningLease, SettleCommandReply, StreamDemand, TopicDemand,
};

use super::fixture::Fixture;
use super::values::{
    OWNER, RETENTION, TOPIC, ack, job_in, lease_ref, new_job, one, released, taker, text, tied,
    topic,
};

const GRACE: Duration = Duration::from_secs(3);
const TO: StreamId = StreamId { owner: 0xffff_fff0, stream: u32::MAX };

/// Claims one job for the first stream of `owner`.
async fn claim_as(q: &Fixture, owner: u32, lease: Duration) -> LeasedJob {
    let takers = vec![StreamDemand { jobs: 1, lease, ..taker() }];
    let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: takers }];
    let claims = q.store.claim(Claim { nonce: q.nonce(), owner, topics: asks }).await.unwrap();
    one(one(one(claims.topics).by_stream))
}

/// Adopts one lease of the first stream of `owner`.
async fn adopt(q: &Fixture, leased: &LeasedJob, owner: u32, to: StreamId) -> bool {
    let items = vec![AdoptItem { source: tied(leased, owner), since: None }];
    one(q.store.adopt(AdoptBatch { to, grace: GRACE, items }).await.unwrap())
}

pub(crate) async fn an_adopted_lease_is_tied_to_its_new_stream(q: Fixture) {
    for (id, seconds) in [("short", 30), ("long", 86_400)] {
        q.put(new_job(id)).await;
        let leased = claim_as(&q, OWNER, Duration::from_secs(seconds)).await;
        let before = q.lease(&leased).await.unwrap();
        assert!(adopt(&q, &leased, OWNER, TO).await);
        let after = q.lease(&leased).await.unwrap();
        let StreamId { owner, stream } = TO;
        let expected = RunningLease { owner, stream, grace: Some(GRACE), now: after.now, ..before };
        assert_eq!(after, expected);
    }
    let orphans = q.store.orphaned_leases(vec![OWNER]).await.unwrap();
    assert!(orphans.len() == 2 && orphans.iter().all(|lease| lease.stream_id() == TO));
    assert!(q.store.orphaned_leases(vec![TO.owner]).await.unwrap().is_empty());
}

pub(crate) async fn only_the_stream_that_has_a_lease_gives_it_away(q: Fixture) {
    q.put(new_job("a")).await;
    let leased = claim_as(&q, OWNER, RETENTION).await;
    assert!(!adopt(&q, &leased, OWNER + 1, TO).await, "another replica's");
    let mut other = tied(&leased, OWNER);
    other.stream.stream += 1;
    let items = vec![AdoptItem { source: other, since: None }];
    assert_eq!(q.store.adopt(AdoptBatch { to: TO, grace: GRACE, items }).await.unwrap(), [false]);
    assert!(adopt(&q, &leased, OWNER, TO).await);
    assert!(adopt(&q, &leased, OWNER, TO).await, "a repeat");
    let late = StreamId { owner: 5, stream: 5 };
    assert!(!adopt(&q, &leased, OWNER, late).await, "the first one has it");
    assert_eq!(q.lease(&leased).await.unwrap().stream_id(), TO);
    q.ack(&leased).await;
    assert!(!adopt(&q, &leased, OWNER, TO).await, "it is over");
}

pub(crate) async fn a_lease_that_is_tied_is_adopted_only_if_it_was_extended_since(q: Fixture) {
    q.put_ids(&["before", "since", "never", "detached"]).await;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(claim_as(&q, OWNER, RETENTION).await);
    }
    leases.sort_by_key(|leased| leased.key.id.to_string());
    let [before, detached, never, since] = &leases[..] else { panic!("four") };
    q.extend(before, None, None).await.unwrap();
    q.sleep(2);
    let now = q.lease(never).await.unwrap().now;
    q.extend(since, None, None).await.unwrap();
    q.store.detach(vec![tied(detached, OWNER)]).await.unwrap();
    let item = |leased| AdoptItem { source: tied(leased, OWNER), since: Some(now) };
    let items = [before, detached, never, since].map(item).into();
    let adopted = q.store.adopt(AdoptBatch { to: TO, grace: GRACE, items }).await.unwrap();
    assert_eq!(adopted, [false, true, false, true]);
}

pub(crate) async fn a_detach_for_the_former_stream_comes_too_late(q: Fixture) {
    q.put(new_job("a")).await;
    let leased = claim_as(&q, OWNER, RETENTION).await;
    assert!(adopt(&q, &leased, OWNER, TO).await);
    assert_eq!(q.store.detach(vec![tied(&leased, OWNER)]).await.unwrap(), 0);
    assert_eq!(q.lease(&leased).await.unwrap().grace, Some(GRACE));
}

pub(crate) async fn an_adopted_lease_is_settled_by_its_receipt(q: Fixture) {
    let keeps = [
        RetentionRule::Nothing,
        RetentionRule::Tombstone(RETENTION),
        RetentionRule::Record(RETENTION),
    ];
    for (n, keep) in keeps.into_iter().enumerate() {
        q.put(crate::store_calls::TestJob { retention: keep, ..new_job(&format!("a{n}")) }).await;
        let leased = claim_as(&q, OWNER, RETENTION).await;
        assert!(adopt(&q, &leased, OWNER, TO).await);
        q.extend(&leased, None, None).await.unwrap();
        let settled = q.ack(&leased).await;
        assert_eq!(settled, SettleCommandReply { repeated: false, state: State::Succeeded });
        assert!(q.lease(&leased).await.is_err());
    }
    // Several leases, of which one is adopted.
    q.put_ids(&["b", "c", "d"]).await;
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(claim_as(&q, OWNER, RETENTION).await);
    }
    assert!(adopt(&q, &leases[1], OWNER, TO).await);
    let settled = q.store.settle(leases.iter().map(ack).collect()).await.unwrap();
    let done = Ok(SettleCommandReply { repeated: false, state: State::Succeeded });
    assert_eq!(settled, [done, done, done]);
    // Released: the next lease belongs to its own stream only.
    q.put(new_job("e")).await;
    let leased = claim_as(&q, OWNER, RETENTION).await;
    assert!(adopt(&q, &leased, OWNER, TO).await);
    q.end(&leased, released()).await;
    q.sleep(2_000);
    let again = claim_as(&q, OWNER, RETENTION).await;
    assert_eq!(q.lease(&again).await.unwrap().owner, OWNER);
    assert_eq!(q.lease(&leased).await, Err(LeaseRefusal::Stale));
    q.delete("e").await;
    assert!(q.store.orphaned_leases(vec![]).await.unwrap().is_empty());
}

pub(crate) async fn leases_are_found_by_their_streams(q: Fixture) {
    let of = |owner, stream| StreamId { owner, stream };
    let mut job = new_job("paid");
    job.spec.payload = Some(text("1234567"));
    q.put(job).await;
    let leased = claim_as(&q, 8, RETENTION).await;
    q.put_ids(&["b", "c"]).await;
    let detached = claim_as(&q, 8, RETENTION).await;
    claim_as(&q, u32::MAX, RETENTION).await;
    q.store.detach(vec![tied(&detached, 8)]).await.unwrap();
    let mut found = q.store.leases_of_streams(vec![of(8, 1), of(9, 1)]).await.unwrap();
    found.sort_by_key(|lease| lease.grace.is_none());
    let refs: Vec<_> =
        found.iter().map(|lease| (lease.lease_ref(), lease.grace.is_none())).collect();
    assert_eq!(refs, [(lease_ref(&leased), false), (lease_ref(&detached), true)]);
    assert!(found[0].bytes >= 7 && found[0].worker == "worker-1", "{found:?}");
    assert_eq!(q.store.leases_of_streams(vec![of(u32::MAX, 1)]).await.unwrap().len(), 1);
    for none in [of(8, 2), of(1, 8), of(7, 1)] {
        assert!(q.store.leases_of_streams(vec![none]).await.unwrap().is_empty(), "{none}");
    }
    assert!(q.store.leases_of_streams(Vec::new()).await.unwrap().is_empty());
}

pub(crate) async fn many_leases_are_adopted_at_once(q: Fixture) {
    let jobs = (0..700).map(|n| job_in(TOPIC, &format!("{n}"))).collect();
    q.store.enqueue(jobs).await.unwrap();
    let mut leases = Vec::new();
    while leases.len() < 700 {
        leases.extend(one(q.claim_for(TOPIC, vec![taker()]).await.by_stream));
    }
    let item = |leased: &LeasedJob| AdoptItem { source: tied(leased, OWNER), since: None };
    let items = leases.iter().map(item).collect();
    let adopted = q.store.adopt(AdoptBatch { to: TO, grace: GRACE, items }).await.unwrap();
    assert_eq!(adopted, [true; 700]);
    assert_eq!(q.store.leases_of_streams(vec![TO]).await.unwrap().len(), 700);
}
