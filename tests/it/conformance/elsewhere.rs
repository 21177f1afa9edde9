//! Notifications to a replica about its leases when another one settles, extends or deletes them: each exactly once,
//! by stream and token. Only for stores that replicas share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::store_calls::{
    AdoptBatch, AdoptItem, LeaseExtension, LeaseSettlement, StoreCalls as _, TestJob,
};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{RetentionRule, StreamId, Time, Token};
use ringq::store::{
    Claim, EventKind, LeaseEvent, LeasedJob, RevokeReason, SettleAction, ShardEvent, Store,
    StreamDemand, TopicDemand,
};
use tokio::sync::broadcast::Receiver;

use super::fixture::Fixture;
use super::values::{
    OWNER, RETENTION, TOPIC, ack, dead_lettered, decide, failed_for, key, lease_ref, new_job, one,
    released, taker, text, tied, topic,
};
use crate::harness::within;

const OTHER: u32 = 0xffff_fffe;

/// A store opened by the owner's replica and by another one, and the notifications to the owner.
struct Two {
    q: Fixture,
    other: Arc<dyn Store>,
    events: Receiver<ShardEvent>,
}

impl Two {
    async fn new(q: Fixture) -> Option<Two> {
        let other = q.elsewhere(OTHER).await?;
        let events = q.store.subscribe(EventKind::Leases);
        Some(Two { q, other, events })
    }

    /// Leases jobs to streams of a replica; returns them in the order of the ids.
    async fn leased(&self, owner: u32, streams: &[u32], jobs: &[TestJob]) -> Vec<LeasedJob> {
        let mut leased = Vec::new();
        for (stream, job) in streams.iter().cycle().zip(jobs) {
            self.q.put(job.clone()).await;
            let takers = vec![StreamDemand { stream: *stream, jobs: 1, ..taker() }];
            let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: takers }];
            let claim = Claim { nonce: self.q.nonce(), owner, topics: asks };
            let store = if owner == OWNER { &self.q.store } else { &self.other };
            leased.push(one(one(one(store.claim(claim).await.unwrap().topics).by_stream)));
        }
        leased
    }

    /// Waits for the next lease notification of the owner.
    async fn next_event(&mut self) -> LeaseEvent {
        loop {
            let event = within("a hint", self.events.recv()).await.unwrap();
            if let ShardEvent::Lease(hint) = event {
                return hint;
            }
        }
    }

    /// Checks that no further notification arrives: the message that ends the test is the next one.
    async fn receives_no_more(&mut self) {
        let last = one(self.leased(OWNER, &[99], &[new_job("last")]).await);
        self.other.settle(vec![ack(&last)]).await.unwrap()[0].unwrap();
        assert_eq!(
            self.next_event().await,
            LeaseEvent::Settled { stream: 99, tokens: vec![last.token] }
        );
    }
}

fn jobs(ids: &[&str], keep: RetentionRule) -> Vec<TestJob> {
    ids.iter().map(|id| TestJob { retention: keep, ..new_job(id) }).collect()
}

pub(crate) async fn a_settle_elsewhere_reports_the_owner_which_leases_are_over(q: Fixture) {
    let Some(mut two) = Two::new(q).await else { return };
    let result = || SettleAction::Ack {
        result: Some(text("done")),
        follow_ups: vec![new_job("next").new_job()],
    };
    for (n, keep) in [
        RetentionRule::Nothing,
        RetentionRule::Tombstone(RETENTION),
        RetentionRule::Record(RETENTION),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("acked{n}");
        let leased = one(two.leased(OWNER, &[3], &jobs(&[&id], keep)).await);
        two.other.settle(vec![ack(&leased)]).await.unwrap()[0].unwrap();
        assert_eq!(
            two.next_event().await,
            LeaseEvent::Settled { stream: 3, tokens: vec![leased.token] }
        );
    }
    let leased = one(two.leased(OWNER, &[4], &[new_job("with")]).await);
    let settle = LeaseSettlement { action: result(), ..ack(&leased) };
    two.other.settle(vec![settle]).await.unwrap()[0].unwrap();
    assert_eq!(
        two.next_event().await,
        LeaseEvent::Settled { stream: 4, tokens: vec![leased.token] }
    );
    two.q.claim_ids().await;
    for (n, cause) in [failed_for(60), released(), dead_lettered()].into_iter().enumerate() {
        let leased = one(two.leased(OWNER, &[5], &[new_job(&format!("nacked{n}"))]).await);
        let settle = two.q.decide(&leased, cause).await;
        two.other.settle(vec![settle]).await.unwrap()[0].unwrap();
        assert_eq!(
            two.next_event().await,
            LeaseEvent::Settled { stream: 5, tokens: vec![leased.token] }
        );
        two.q.claim_ids().await;
    }
    two.receives_no_more().await;
}

pub(crate) async fn an_adoption_is_reported_to_the_former_owner_and_what_follows_to_the_new_one(
    q: Fixture,
) {
    let Some(mut two) = Two::new(q).await else { return };
    for keep in [
        RetentionRule::Nothing,
        RetentionRule::Tombstone(RETENTION),
        RetentionRule::Record(RETENTION),
    ] {
        for by in 0..2 {
            // From the other replica to this one: its receipt always names the other one.
            let id = format!("{keep:?}{by}");
            let leased = one(two.leased(OTHER, &[1], &jobs(&[&id], keep)).await);
            let to = StreamId { owner: OWNER, stream: 6 };
            let items = vec![AdoptItem { source: tied(&leased, OTHER), since: None }];
            let adopt = AdoptBatch { to, grace: Duration::ZERO, items };
            assert_eq!(two.other.adopt(adopt).await.unwrap(), [true]);
            let owner = [OTHER, OWNER][by];
            two.other.settle(vec![LeaseSettlement { owner, ..ack(&leased) }]).await.unwrap()[0]
                .unwrap();
            assert_eq!(
                two.next_event().await,
                LeaseEvent::Settled { stream: 6, tokens: vec![leased.token] }
            );
            // Away from this replica.
            let id = format!("{keep:?}{by}away");
            let leased = one(two.leased(OWNER, &[1], &jobs(&[&id], keep)).await);
            let to = StreamId { owner: OTHER, stream: 6 };
            let items = vec![AdoptItem { source: tied(&leased, OWNER), since: None }];
            let adopt = AdoptBatch { to, grace: Duration::ZERO, items };
            assert_eq!(two.other.adopt(adopt).await.unwrap(), [true]);
            assert_eq!(
                two.next_event().await,
                LeaseEvent::Adopted { stream: 1, tokens: vec![leased.token] }
            );
            two.other.settle(vec![ack(&leased)]).await.unwrap()[0].unwrap();
        }
    }
    two.receives_no_more().await;
}

pub(crate) async fn leases_of_many_streams_and_owners_are_distinguished(q: Fixture) {
    let Some(mut two) = Two::new(q).await else { return };
    let ids: Vec<String> = (0..40).map(|n| format!("j{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut settles = Vec::new();
    let mut want: BTreeMap<u32, Vec<Token>> = BTreeMap::new();
    for leased in two.leased(OTHER, &[1, 2], &jobs(&ids[..10], RetentionRule::Nothing)).await {
        settles.push(ack(&leased));
    }
    let streams = [1, 2, u32::MAX];
    let leases = two.leased(OWNER, &streams, &jobs(&ids[10..], RetentionRule::Nothing)).await;
    for (leased, stream) in leases.into_iter().zip(streams.into_iter().cycle()) {
        settles.push(ack(&leased));
        want.entry(stream).or_default().push(leased.token);
    }
    assert!(two.other.settle(settles).await.unwrap().iter().all(Result::is_ok));
    let mut received: BTreeMap<u32, Vec<Token>> = BTreeMap::new();
    for _ in streams {
        let LeaseEvent::Settled { stream, tokens } = two.next_event().await else {
            panic!("settled")
        };
        assert!(received.insert(stream, tokens).is_none(), "each stream once");
    }
    assert_eq!(received, want);
    two.receives_no_more().await;
}

pub(crate) async fn what_a_replica_does_to_its_own_leases_it_is_not_reported(q: Fixture) {
    let Some(mut two) = Two::new(q).await else { return };
    let leases =
        two.leased(OWNER, &[1], &jobs(&["a", "b", "c"], RetentionRule::Tombstone(RETENTION))).await;
    two.q.extend(&leases[0], None, None).await.unwrap();
    two.q.ack(&leases[0]).await;
    two.q.end(&leases[1], failed_for(9)).await;
    two.q.delete("c").await;
    two.receives_no_more().await;
}

pub(crate) async fn an_end_by_another_replicas_timer_takes_the_lease_away(q: Fixture) {
    let Some(mut two) = Two::new(q).await else { return };
    for (id, cause) in [("late", LeaseEndCause::Expired), ("orphan", LeaseEndCause::StreamBroken)] {
        let leased = one(two.leased(OWNER, &[6], &[new_job(id)]).await);
        two.q.until(leased.deadline);
        let lease = one(two.other.running_leases(vec![lease_ref(&leased)]).await.unwrap()).unwrap();
        let settle = LeaseSettlement { deadline: Some(lease.deadline), ..decide(&lease, cause) };
        two.other.settle(vec![settle]).await.unwrap()[0].unwrap();
        let (tokens, reason) = (vec![leased.token], RevokeReason::LeaseExpired);
        assert_eq!(two.next_event().await, LeaseEvent::Revoked { stream: 6, tokens, reason });
        two.q.claim_ids().await;
    }
    two.receives_no_more().await;
}

pub(crate) async fn a_delete_elsewhere_takes_the_lease_away(q: Fixture) {
    let Some(mut two) = Two::new(q).await else { return };
    two.q.put(new_job("waits")).await;
    assert!(two.other.delete(vec![key(TOPIC, "waits").into()]).await.unwrap()[0].is_some());
    let leased = one(two.leased(OWNER, &[7], &[new_job("runs")]).await);
    two.other.delete(vec![key(TOPIC, "runs").into()]).await.unwrap();
    let (tokens, reason) = (vec![leased.token], RevokeReason::Deleted);
    assert_eq!(two.next_event().await, LeaseEvent::Revoked { stream: 7, tokens, reason });
    two.receives_no_more().await;
}

pub(crate) async fn an_extend_elsewhere_reports_the_new_deadline(q: Fixture) {
    let Some(mut two) = Two::new(q).await else { return };
    let leased = one(two.leased(OWNER, &[8], &[new_job("a")]).await);
    for seconds in [90, 1] {
        two.q.sleep(5);
        let duration = Some(Duration::from_secs(seconds));
        let lease = lease_ref(&leased);
        let extend = LeaseExtension {
            lease,
            duration,
            progress: None,
            checkpoint: None,
            outage_expiry: None,
            write_deadline: None,
        };
        let deadline: Time = one(two.other.extend(vec![extend]).await.unwrap()).unwrap();
        assert_eq!(deadline, two.q.now().plus(Duration::from_secs(seconds)));
        let tokens = vec![leased.token];
        assert_eq!(two.next_event().await, LeaseEvent::Extended { stream: 8, tokens, deadline });
    }
    two.receives_no_more().await;
}

pub(crate) async fn what_is_refused_elsewhere_is_not_reported(q: Fixture) {
    let Some(mut two) = Two::new(q).await else { return };
    let old = one(two.leased(OWNER, &[9], &[new_job("a")]).await);
    two.q.end(&old, released()).await;
    let new = two.q.claim_one().await;
    let lease = lease_ref(&old);
    let stale = LeaseExtension {
        lease,
        duration: None,
        progress: None,
        checkpoint: None,
        outage_expiry: None,
        write_deadline: None,
    };
    assert!(two.other.extend(vec![stale]).await.unwrap()[0].is_err());
    assert!(two.other.settle(vec![ack(&old)]).await.unwrap()[0].is_err());
    let guarded = LeaseSettlement { deadline: Some(Time(1)), ..ack(&new) };
    assert!(two.other.settle(vec![guarded]).await.unwrap()[0].is_err());
    two.receives_no_more().await;
}
