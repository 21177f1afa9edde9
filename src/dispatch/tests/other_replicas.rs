//! Changes of a replica's leases by others on the same store, with and without events.

use std::time::Duration;

use futures::FutureExt as _;

use crate::domain::engine::{Command, Enqueue, Extend, NewJob, Settle};
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::{JobId, JobKey, OnConflict, RetentionRule, Spec, TopicName, When, limit};
use crate::scheduler::EndLeasesResult;
use crate::store::faulty_store::FeedCall;
use crate::store::{
    JobRequest, LeaseEvent, LeaseRef, RequestResult, RunningLease, SettleAction, ShardEvent,
    WritePrecondition, all_or_worst_error,
};

use super::harness::{SOON, TestServer, TestWorker, options, run_pending_tasks};
use super::*;

/// Changes by another replica are made directly in the store, past the server.
impl TestServer {
    async fn apply_elsewhere(&self, requests: Vec<JobRequest>) -> Vec<RequestResult> {
        all_or_worst_error(self.store.sqlite_store().apply(requests).await).unwrap()
    }

    async fn enqueue_elsewhere(&self, topic: &str, id: &str) {
        self.apply_elsewhere(vec![new_job(topic, id, When::Now).into()]).await;
    }

    async fn ack_elsewhere(&self, delivery: &JobDelivery) {
        let LeaseRef { key, token } = lease(delivery);
        let action = SettleAction::Ack { result: None, follow_ups: Vec::new() };
        let settle = Command::Settle(Settle { token, deadline: None, action });
        self.apply_elsewhere(vec![JobRequest::new(key, settle)]).await[0].settle_result().unwrap();
    }

    fn send_event(&self, event: ShardEvent) {
        self.store.events.send(event);
    }

    /// Advances the time by this many seconds, one by one, and runs the tasks that become due.
    async fn advance_seconds(&self, seconds: u32) {
        for _ in 0..seconds {
            self.clock.advance(SECOND);
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
    }

    /// Advances the time by this many seconds at once.
    async fn skip_seconds(&self, seconds: u32) {
        self.clock.advance(seconds * SECOND);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }

    fn in_flight(&self) -> u32 {
        self.dispatcher.workers()[0].in_flight
    }

    async fn until_in_flight(&self, jobs: u32) {
        let waiting = async {
            while self.in_flight() != jobs {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(SOON, waiting).await;
        assert!(waited.is_ok(), "{} jobs in flight", self.in_flight());
    }
}

fn new_job(topic: &str, id: &str, due: When) -> NewJob {
    let enqueue = Enqueue {
        spec: Spec::default(),
        due,
        priority: None,
        expire: None,
        retention: RetentionRule::Tombstone(60 * SECOND),
        on_conflict: OnConflict::Keep,
        request_code: None,
        precondition: WritePrecondition::Anything,
        max_waiting: None,
        max_bytes: None,
        history: None,
    };
    let key = JobKey { topic: TopicName::stored(topic), id: JobId::stored(id) };
    NewJob { key, enqueue: Box::new(enqueue) }
}

fn lease(delivery: &JobDelivery) -> LeaseRef {
    LeaseRef { key: delivery.job.key.clone(), token: delivery.job.token }
}

/// Starts a server with a stream of this credit, and as many jobs on it.
async fn started(credit: u32) -> (TestServer, TestWorker, Vec<JobDelivery>) {
    let server = TestServer::start_among_others();
    for n in 0..=credit {
        server.enqueue_elsewhere("t", &n.to_string()).await;
    }
    let mut stream = server.open(StreamOptions { max_in_flight: credit, ..options(&["t"]) });
    let jobs = stream.jobs(credit as usize).await;
    (server, stream, jobs)
}

#[tokio::test]
async fn credit_freed_by_another_replica_is_usable_at_once() {
    let (server, mut stream, jobs) = started(2).await;
    server.ack_elsewhere(&jobs[0]).await;
    stream.nothing().await;
    let (stream_id, tokens) = (jobs[0].receipt.stream, vec![jobs[0].job.token]);
    server.send_event(ShardEvent::Lease(LeaseEvent::Settled {
        stream: stream_id,
        tokens: tokens.clone(),
    }));
    stream.jobs(1).await;
    // A repeated event frees the credit once.
    server.send_event(ShardEvent::Lease(LeaseEvent::Settled { stream: stream_id, tokens }));
    run_pending_tasks().await;
    assert_eq!(server.in_flight(), 2);
    assert_eq!(server.store.lease_queries(), 0);
}

#[tokio::test]
async fn stream_that_waits_for_credit_finds_lost_settles() {
    let (server, mut stream, jobs) = started(2).await;
    server.ack_elsewhere(&jobs[1]).await;
    server.advance_seconds(2).await;
    let batch = stream.batch().await;
    assert_eq!((batch.deliveries.len(), batch.in_flight), (1, 2));
    assert!(batch.revocations.is_empty(), "what was acknowledged has not run out");
}

#[tokio::test]
async fn leases_of_a_full_stream_are_looked_up_in_parts() {
    let (server, _stream, _jobs) = started(2 * limit::SCAN_PART_MAX as u32 + 1).await;
    server.skip_seconds(2).await;
    assert_eq!(server.store.lease_queries(), 3);
}

#[tokio::test]
async fn lease_revoked_by_another_replica_is_revoked_without_an_event() {
    let (server, mut stream, jobs) = started(1).await;
    let shard = &server.scheduler.shards().all()[0];
    let found = shard.running_leases(vec![lease(&jobs[0])]).await.unwrap().remove(0).unwrap();
    // Like another replica that took this one for dead; its own lease event reaches no listener.
    let given_back = RunningLease { owner: 99, ..found };
    let ended = server
        .scheduler
        .settler
        .end_leases(shard, &[given_back], &LeaseEndCause::StreamBroken)
        .await;
    assert_eq!(ended, Ok(EndLeasesResult { ended: 1, ended_here: 1, not_ended: Vec::new() }));
    server.advance_seconds(2).await;
    let batch = stream.batch().await;
    assert_eq!(batch.revocations, [(jobs[0].receipt.clone(), RevokeReason::LeaseExpired)]);
}

#[tokio::test]
async fn after_hints_may_have_been_lost_everything_is_looked_up_once() {
    let (server, mut stream, jobs) = started(16).await;
    let asked = server.store.lease_queries();
    for delivery in &jobs[..9] {
        server.ack_elsewhere(delivery).await;
    }
    server.send_event(ShardEvent::EventsMissed);
    stream.jobs(1).await;
    server.until_in_flight(8).await;
    assert_eq!(server.store.lease_queries() - asked, 1);
}

#[tokio::test]
async fn extend_by_another_replica_moves_the_deadline_check() {
    let server = TestServer::start_among_others();
    server.enqueue_elsewhere("t", "1").await;
    let mut stream = server.open(options(&["t"]));
    let jobs = stream.jobs(1).await;
    let LeaseRef { key, token } = lease(&jobs[0]);
    let extend = Command::Extend(Extend {
        token,
        duration: Some(300 * SECOND),
        progress: None,
        checkpoint: None,
        outage_expiry: None,
    });
    let extended = server.apply_elsewhere(vec![JobRequest::new(key, extend)]).await;
    let deadline = extended[0].extend_result().unwrap();
    let (stream_id, tokens) = (jobs[0].receipt.stream, vec![jobs[0].job.token]);
    server.send_event(ShardEvent::Lease(LeaseEvent::Extended {
        stream: stream_id,
        tokens,
        deadline,
    }));
    run_pending_tasks().await;
    server.skip_seconds(40).await;
    assert_eq!(server.store.lease_queries(), 0);
    server.skip_seconds(262).await;
    assert_eq!(server.store.lease_queries(), 1);
}

#[tokio::test]
async fn a_lost_wake_up_costs_a_second() {
    let server = TestServer::start_among_others();
    let mut stream = server.open(options(&["t", "g.*"]));
    run_pending_tasks().await;
    server.enqueue_elsewhere("t", "a").await;
    stream.nothing().await;
    server.advance_seconds(1).await;
    stream.jobs(1).await;
    // A new topic is found by its glob a little later, and from then on as quickly.
    server.enqueue_elsewhere("g.new", "b").await;
    server.advance_seconds(10).await;
    stream.jobs(1).await;
    run_pending_tasks().await;
    server.enqueue_elsewhere("g.new", "c").await;
    server.advance_seconds(1).await;
    stream.jobs(1).await;
}

#[tokio::test]
async fn no_number_of_topics_holds_up_claims() {
    const JOBS: usize = 16_000;
    let server = TestServer::start_among_others();
    let topic = |n: usize| format!("user.{n}");
    let later: Vec<_> =
        (0..5_000).map(|n| new_job(&topic(n), "1", When::After(9_999 * SECOND)).into()).collect();
    server.apply_elsewhere(later).await;
    let jobs = (0..JOBS).map(|n| new_job("busy", &n.to_string(), When::Now).into()).collect();
    server.apply_elsewhere(jobs).await;
    let held = server.store.hold_claims();
    let credit = StreamOptions { max_in_flight: 10_000, max_batch: 1_000, ..options(&["busy"]) };
    let mut busy = server.open(credit);
    server.eventually("busy", |stats| stats.running > 0).await;
    let mut globbing = server.open(options(&["user.*"]));
    drop(held);
    let mut got = 0;
    while got < JOBS {
        let batch = busy.batch().await;
        got += batch.deliveries.len();
        server.ack(&batch.deliveries).await;
    }
    globbing.nothing().await;
    let calls = server.store.take_feed_calls();
    let last = calls.iter().rposition(|call| *call == FeedCall::Claim).unwrap();
    let in_a_row = |calls: &[FeedCall]| {
        let looks = calls.chunk_by(|a, b| a == b).filter(|run| run[0] == FeedCall::Probe);
        looks.map(<[FeedCall]>::len).max().unwrap()
    };
    assert!(calls.contains(&FeedCall::Probe) && in_a_row(&calls[..last]) == 1, "{calls:?}");
    // The polls go through all sleeping topics.
    server.enqueue_elsewhere(&topic(4_321), "2").await;
    let found = async {
        while globbing.batch().now_or_never().is_none() {
            server.advance_seconds(1).await;
        }
    };
    tokio::time::timeout(SOON, found).await.unwrap();
}

#[tokio::test]
async fn unshared_store_is_not_queried() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    let jobs = stream.jobs(1).await;
    server.skip_seconds(20).await;
    assert_eq!(server.store.lease_queries(), 0);
    server.extend(&jobs).await;
    server.skip_seconds(25).await;
    assert_eq!(server.store.lease_queries(), 0, "its own extends need no lookup");
}
