//! Unclaim: a claim that reached no worker never happened.

use crate::store_calls::{LostClaim, StoreCalls as _, TestJob, Unclaim};
use ringq::domain::{OnConflict, State};
use ringq::store::{Claim, LeaseRef, LeaseRefusal, LeasedJob, TopicDemand};

use super::fixture::Fixture;
use super::values::{
    OWNER, TOPIC, ack, after, job_in, lease_ref, new_job, plus, released, taker, topic,
};

/// Claims everything of these topics under `nonce`.
async fn claim_with(q: &Fixture, nonce: u32, topics: &[&str]) -> Vec<LeasedJob> {
    let ask =
        |name: &&str| TopicDemand { topic: topic(name), ageing: None, streams: vec![taker()] };
    let claim = Claim { nonce, owner: OWNER, topics: topics.iter().map(ask).collect() };
    let claims = q.store.claim(claim).await.unwrap();
    claims.topics.into_iter().flat_map(|claimed| claimed.by_stream).flatten().collect()
}

fn lost_claim(nonce: u32) -> LostClaim {
    LostClaim { nonce, topics: [topic(TOPIC), topic("u")].into(), cursor: None }
}

async fn unclaim_nonce(q: &Fixture, nonce: u32) -> u64 {
    q.undo(Unclaim::Claim(lost_claim(nonce))).await.unwrap()
}

pub(crate) async fn a_nonce_undoes_its_whole_claim_and_no_other(q: Fixture) {
    q.store.enqueue(vec![new_job("a"), new_job("b"), job_in("u", "c")]).await.unwrap();
    assert_eq!(claim_with(&q, 101, &[TOPIC, "u"]).await.len(), 3);
    q.put(new_job("d")).await;
    claim_with(&q, 100, &[TOPIC]).await;
    q.put(new_job("e")).await;
    claim_with(&q, 102, &[TOPIC]).await;
    assert_eq!(unclaim_nonce(&q, 101).await, 3);
    assert_eq!(unclaim_nonce(&q, 101).await, 0, "once");
    assert_eq!(q.claim_ids().await, ["a", "b"]);
    assert_eq!(q.get_in("u", "c").await.unwrap().state, State::Ready);
    assert_eq!(q.state("d").await, Some(State::Running));
    assert_eq!(q.state("e").await, Some(State::Running));
}

/// Other calls claim, acknowledge and undo between the parts, so that leases appear and disappear beside those that
/// are searched.
pub(crate) async fn a_lost_claim_among_many_leases_is_undone_in_parts(q: Fixture) {
    let many =
        |count: usize, name: &str| (0..count).map(|n| new_job(&format!("{name}{n:04}"))).collect();
    let mut others = Vec::new();
    for (nonce, jobs) in [(7, many(600, "a")), (8, many(40, "b")), (9, many(900, "c"))] {
        q.store.enqueue(jobs).await.unwrap();
        let mut leased = claim_with(&q, nonce, &[TOPIC]).await;
        leased.extend(claim_with(&q, nonce, &[TOPIC]).await);
        if nonce != 8 {
            others.extend(leased);
        }
    }
    let (mut lost, mut undone, mut parts) = (lost_claim(8), 0, 0_u32);
    loop {
        let part = q.store.unclaim(Unclaim::Claim(lost.clone())).await.unwrap();
        (undone, parts) = (undone + part.leases, parts + 1);
        q.ack(&others.pop().unwrap()).await;
        assert!(q.unclaim(&others.swap_remove(0)).await);
        claim_with(&q, 10 + parts, &[TOPIC]).await;
        match part.cursor {
            Some(next) => lost.cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(undone, 40);
    assert!((4..=20).contains(&parts), "{parts}");
    assert_eq!(unclaim_nonce(&q, 8).await, 0);
    assert_eq!(q.stats(TOPIC).await.running, 1_540 - u64::from(parts));
}

pub(crate) async fn the_smallest_and_the_largest_nonce_are_undone_like_others(q: Fixture) {
    for nonce in [0, 1, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX] {
        q.put(new_job(&nonce.to_string())).await;
        claim_with(&q, nonce, &[TOPIC]).await;
    }
    for nonce in [u32::MAX, 1, i32::MAX as u32 + 1, 0, i32::MAX as u32] {
        assert_eq!(unclaim_nonce(&q, nonce).await, 1, "{nonce}");
        assert_eq!(q.state(&nonce.to_string()).await, Some(State::Ready), "{nonce}");
    }
}

pub(crate) async fn nothing_is_counted(q: Fixture) {
    q.put(new_job("a")).await;
    let before = (q.job("a").await, q.stats(TOPIC).await);
    let leased = q.claim_one().await;
    assert!(q.unclaim(&leased).await);
    let mut after = q.job("a").await;
    after.worker_id.clone_from(&before.0.worker_id);
    assert_eq!((after, q.stats(TOPIC).await), before);
}

pub(crate) async fn an_undone_claim_is_not_the_first_attempt(q: Fixture) {
    let leased = q.running("a").await;
    q.unclaim(&leased).await;
    q.sleep(9);
    let leased = q.claim_one().await;
    assert_eq!(q.lease(&leased).await.unwrap().attempt.first_start, q.now());
}

pub(crate) async fn an_undone_later_claim_leaves_the_counters(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, released()).await;
    let leased = q.claim_one().await;
    q.unclaim(&leased).await;
    let job = q.job("a").await;
    assert_eq!((job.deliveries, job.failures, job.attempts.len()), (1, 0, 1));
}

pub(crate) async fn an_unclaimed_job_keeps_its_old_place(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    let leased = q.claim(2).await;
    q.sleep(1);
    assert!(q.unclaim(&leased[0]).await);
    assert!(q.unclaim(&leased[1]).await);
    assert_eq!(q.claim_ids().await, ["a", "b", "c"]);
}

pub(crate) async fn an_unclaimed_lease_is_gone(q: Fixture) {
    let leased = q.running("a").await;
    q.unclaim(&leased).await;
    assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.extend(&leased, None, None).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.lease(&leased).await, Err(LeaseRefusal::Stale));
    assert!(!q.unclaim(&leased).await);
    assert_eq!(q.state("a").await, Some(State::Ready));
}

pub(crate) async fn only_leases_that_hold_are_undone(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    let leased = q.claim(3).await;
    q.ack(&leased[0]).await;
    let mut refs: Vec<LeaseRef> = leased.iter().map(lease_ref).collect();
    refs[1].token.0 ^= 1;
    refs.push(LeaseRef { key: super::key("nowhere", "a"), token: leased[2].token });
    assert_eq!(q.undo(Unclaim::Leases(refs)).await.unwrap(), 1);
    assert_eq!(q.state("a").await, Some(State::Succeeded));
    assert_eq!(q.state("b").await, Some(State::Running));
    assert_eq!(q.state("c").await, Some(State::Ready));
}

pub(crate) async fn an_unclaimed_job_past_its_expire_time_is_expired(q: Fixture) {
    let leased = q.run(TestJob { expire: Some(after(5)), ..new_job("a") }).await;
    q.sleep(6);
    assert_eq!(q.state("a").await, Some(State::Running));
    assert!(q.unclaim(&leased).await);
    assert_eq!(q.state("a").await, Some(State::Expired));
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn an_undone_claim_makes_way_for_a_waiting_generation(q: Fixture) {
    let leased = q.running("a").await;
    let put = TestJob { on_conflict: OnConflict::Replace, due: after(5), ..new_job("a") };
    q.put(put).await;
    q.unclaim(&leased).await;
    let job = q.job("a").await;
    assert_eq!((job.state, job.generation), (State::Scheduled, 2));
    assert_eq!(job.due_time, plus(q.now(), 5));
    q.sleep(5);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn an_unknown_nonce_undoes_nothing(q: Fixture) {
    q.running("a").await;
    assert_eq!(unclaim_nonce(&q, 12_345).await, 0);
    assert_eq!(q.state("a").await, Some(State::Running));
}

pub(crate) async fn a_lease_named_twice_is_undone_once(q: Fixture) {
    let leased = q.running("a").await;
    let put = TestJob { on_conflict: OnConflict::Replace, due: after(5), ..new_job("a") };
    q.put(put).await;
    let refs = vec![lease_ref(&leased); 2];
    assert_eq!(q.undo(Unclaim::Leases(refs)).await.unwrap(), 1);
    assert_eq!(q.state("a").await, Some(State::Scheduled));
}
