//! Fences: of two deliveries of one id the later one has the greater fence, whatever happens between them.

use std::time::Duration;

use crate::store_calls::{RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{JobId, OnConflict, RetentionRule, Time};
use ringq::store::{Claim, LeasedJob, StreamDemand, TopicDemand};

use super::fixture::Fixture;
use super::values::{
    OWNER, TOPIC, after, dead_lettered, failed_for, key, new_job, one, released, taker, topic,
};

/// An hour, by which the clock goes back.
const STEP: i64 = 3_600_000_000;

/// Steps the clock back.
fn step_back(q: &Fixture) {
    q.until(Time(q.now().0 - STEP));
}

fn assert_rises(fences: &[Time]) {
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(crate) async fn a_fence_is_the_store_time_at_which_the_lease_began(q: Fixture) {
    let leased = q.running("a").await;
    assert_eq!(leased.fence, q.now());
    let lease = q.lease(&leased).await.unwrap();
    assert_eq!((lease.start_time, lease.attempt.first_start), (q.now(), q.now()));
    q.sleep(2);
    q.extend(&leased, None, Some("half way")).await.unwrap();
    q.extend(&leased, None, None).await.unwrap();
    assert_eq!(q.lease(&leased).await.unwrap().start_time, leased.fence, "an extend keeps it");
    q.ack(&leased).await;
    let leased = q.running("b").await;
    assert_eq!(leased.fence, q.now());
}

/// The clock stands still throughout.
pub(crate) async fn each_delivery_of_an_id_has_a_greater_fence(q: Fixture) {
    let mut fences = Vec::new();
    let mut claim = async |q: &Fixture| -> LeasedJob {
        let leased = q.claim_one().await;
        fences.push(leased.fence);
        leased
    };
    q.put(new_job("a")).await;
    for cause in [released(), failed_for(0), LeaseEndCause::Expired, LeaseEndCause::StreamBroken] {
        let leased = claim(&q).await;
        let settle = q.decide(&leased, cause).await;
        q.settle(settle).await.unwrap();
        q.store.delete(vec![key(TOPIC, "a").into()]).await.unwrap();
        q.put(TestJob { on_conflict: OnConflict::Replace, ..new_job("a") }).await;
    }
    let leased = claim(&q).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, ..new_job("a") }).await;
    q.ack(&leased).await;
    let leased = claim(&q).await;
    assert!(q.unclaim(&leased).await);
    let leased = claim(&q).await;
    q.end(&leased, dead_lettered()).await;
    let redrive = RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![JobId::stored("a")],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        target: None,
        states: vec![ringq::domain::State::Dead],
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    assert_eq!(q.store.redrive(redrive).await.unwrap().redriven, 1);
    let leased = claim(&q).await;
    q.ack(&leased).await;
    // No record of it is left.
    q.sleep(3_600);
    q.put(TestJob { retention: RetentionRule::Nothing, ..new_job("a") }).await;
    let leased = claim(&q).await;
    q.ack(&leased).await;
    q.put(new_job("a")).await;
    claim(&q).await;
    assert_eq!(fences.len(), 10);
    assert_rises(&fences);
}

pub(crate) async fn leases_of_one_claim_begin_together(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    q.put(TestJob { key: key("other", "d"), priority: Some(3), ..new_job("d") }).await;
    let takers =
        |jobs| vec![StreamDemand { jobs, ..taker() }, StreamDemand { jobs, stream: 2, ..taker() }];
    let asks = [TOPIC, "other"].map(|name| TopicDemand {
        topic: topic(name),
        ageing: None,
        streams: takers(2),
    });
    let claim = Claim { nonce: q.nonce(), owner: OWNER, topics: asks.into() };
    let claims = q.store.claim(claim).await.unwrap();
    let leased = claims.topics.into_iter().flat_map(|claimed| claimed.by_stream).flatten();
    let leased: Vec<_> = leased.collect();
    assert_eq!(leased.len(), 4);
    for leased in &leased {
        assert_eq!(leased.fence, q.now());
        assert_eq!(q.lease(leased).await.unwrap().start_time, q.now());
    }
    // A claim that finds nothing uses up no time.
    assert!(q.claim_ids().await.is_empty());
    q.put_ids(&["e"]).await;
    assert_eq!(q.claim_one().await.fence.0, q.now().0 + 1);
}

/// Jobs of each kind, because claims treat them by different paths.
pub(crate) async fn a_fence_rises_though_the_clock_went_back(q: Fixture) {
    let mut fences = vec![q.running("first").await.fence];
    for id in ["a", "b", "c"] {
        step_back(&q);
        let large = ringq::domain::Payload {
            body: vec![b'x'; 3_000].into(),
            ..ringq::domain::Payload::default()
        };
        let mut apart = new_job(id);
        apart.spec.payload = Some(large);
        let kinds = [
            new_job(id),
            TestJob { retention: RetentionRule::Nothing, ..new_job(id) },
            TestJob { priority: Some(7), ..new_job(id) },
            TestJob { expire: Some(after(900)), ..new_job(id) },
            apart,
        ];
        for job in kinds {
            let expired = q.now();
            let leased = q.run(job).await;
            assert_eq!(leased.deadline, expired.plus(super::values::LEASE), "by the clock");
            fences.push(leased.fence);
            assert_eq!(q.lease(&leased).await.unwrap().start_time, leased.fence);
            q.end(&leased, dead_lettered()).await;
            assert_eq!(q.job(id).await.attempts[0].start_time, leased.fence);
            q.delete(id).await;
        }
        // Several jobs of one claim.
        let several = [format!("{id}-1"), format!("{id}-2")];
        q.put_ids(&several.each_ref().map(String::as_str)).await;
        let both = q.claim(2).await;
        assert_eq!(both[0].fence, both[1].fence);
        fences.push(both[0].fence);
        for leased in &both {
            q.ack(leased).await;
        }
        q.sleep(120);
    }
    assert_rises(&fences);
    q.sleep(4 * 3_600);
    assert_eq!(q.running("later").await.fence, q.now(), "the clock has caught up");
}

pub(crate) async fn a_fence_rises_over_reopening_though_the_clock_went_back(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let mut fences = Vec::new();
    q.put(new_job("a")).await;
    for _ in 0..3 {
        let leased = q.claim_one().await;
        fences.push(leased.fence);
        q.end(&leased, released()).await;
        step_back(&q);
        q.reopen().await;
        assert_eq!(q.delete("a").await.map(|state| state.is_terminal()), Some(false));
        q.put(TestJob { on_conflict: OnConflict::Replace, ..new_job("a") }).await;
    }
    assert_rises(&fences);
}

pub(crate) async fn fences_rise_over_claims_of_many_replicas_at_once(q: Fixture) {
    let ids: Vec<String> = (0..40).map(|n| format!("job-{n}")).collect();
    let other = q.elsewhere(OWNER + 1).await;
    let mut last = vec![Time(0); ids.len()];
    for _ in 0..5 {
        q.store.enqueue(ids.iter().map(|id| new_job(id)).collect()).await.unwrap();
        let claims = (0..20).map(|n| {
            let store = match &other {
                Some(other) if n % 2 == 1 => other,
                _ => &q.store,
            };
            let asks = vec![TopicDemand {
                topic: topic(TOPIC),
                ageing: None,
                streams: vec![StreamDemand { jobs: 2, ..taker() }],
            }];
            store.claim(Claim { nonce: q.nonce(), owner: OWNER, topics: asks })
        });
        let mut starts = Vec::new();
        for claims in futures::future::join_all(claims).await {
            let leased = one(one(claims.unwrap().topics).by_stream);
            starts.extend(leased.first().map(|leased| leased.fence));
            for leased in leased {
                let nth = ids.iter().position(|id| *id == leased.key.id.as_str()).unwrap();
                assert!(leased.fence > last[nth], "{} after {:?}", leased.fence.0, last[nth]);
                last[nth] = leased.fence;
            }
        }
        let claims = starts.len();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), claims, "no two claims begin together");
        for id in &ids {
            q.delete(id).await;
        }
        q.sleep(61);
    }
}
