//! Replicas that fall silent on a shard that they share with this one, whose nonce is 1. Time and heartbeats are
//! moved by hand; this replica sends a heartbeat when a test calls for one.

use std::time::Duration;

use crate::clock::{Clock, ManualClock};
use crate::domain::{Receipt, TopicName};
use crate::scheduler::{AckItem, SettleError};
use crate::store::{Claim, Store as _, StreamDemand, TopicDemand};

use super::harness::{SOON, TestServer, attempt, options, run_pending_tasks, store};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// Other replicas.
const B: u32 = 2;
const C: u32 = 3;

/// Starts this replica on a shard that it shares with these others, which are alive.
async fn start_among(others: &[u32]) -> TestServer {
    let clock = ManualClock::new(Time(1_700_000_000_000_000));
    let time = Clock::Manual(clock.clone());
    let store = store(&time);
    store.share();
    others.iter().for_each(|&other| store.add_heartbeat(other, clock.now()));
    let server = TestServer::over(store, clock, &time, 1);
    server.scheduler.shards().join(1, server.scheduler.clock()).await;
    run_pending_tasks().await;
    server
}

impl TestServer {
    /// Creates a job that another replica has delivered to a worker, with a lease of a day and a grace of 5 s.
    async fn held_by(&self, owner: u32, topic: &str) -> Receipt {
        self.enqueue(topic, 1).await;
        let grace = Some(5 * SECOND);
        let (stream, worker_id) = (1, "theirs".into());
        let (jobs, bytes, oversize) = (1, 1 << 20, true);
        let taker = StreamDemand { stream, worker_id, lease: DAY, grace, jobs, bytes, oversize };
        let asks = vec![TopicDemand {
            topic: TopicName::stored(topic),
            ageing: None,
            streams: vec![taker],
        }];
        let claim = Claim { nonce: rand::random(), owner, topics: asks };
        let leased = self.store.claim(claim).await.unwrap().topics.remove(0).by_stream.remove(0);
        let (shard, key, token) = (self.store.name().clone(), &leased[0].key, leased[0].token);
        Receipt { shard, owner, stream, token, key: key.clone() }
    }

    async fn is_running(&self, topic: &str) -> bool {
        self.stats(topic).await.running == 1
    }

    async fn knows(&self, owner: u32) -> bool {
        self.beat().await;
        self.store.has_heartbeat_of(owner)
    }
}

#[tokio::test]
async fn the_leases_of_a_silent_replica_come_back_after_their_grace() {
    let server = start_among(&[B, C]).await;
    let receipt = server.held_by(B, "t").await;
    server.held_by(C, "other").await;
    server.advance_with_heartbeats(10 * SECOND, &[C]).await;
    // The silence is noticed now, 10 s after the last heartbeat.
    server.advance_with_heartbeats(5 * SECOND - Duration::from_millis(1), &[C]).await;
    assert!(server.is_running("t").await && server.knows(B).await);
    server.advance_with_heartbeats(Duration::from_millis(1), &[C]).await;
    server.eventually("t", |stats| stats.ready == 1).await;
    run_pending_tasks().await;
    assert!(!server.knows(B).await && server.knows(C).await, "nothing is left of it");

    let mut stream = server.open(options(&["t"]));
    let again = stream.jobs(1).await;
    assert_eq!(attempt(&again[0]), (0, 1), "counted as a delivery and not as a failure");
    let late = AckItem { receipt, result: None, follow_ups: Vec::new() };
    assert_eq!(server.scheduler.settler.ack(vec![late]).await, [Err(SettleError::Stale)]);
    server.ack(&again).await;
    assert!(server.is_running("other").await, "a live replica keeps its leases");
}

#[tokio::test]
async fn an_extend_since_the_last_sign_keeps_a_job_for_good() {
    let server = start_among(&[B, C]).await;
    server.advance_with_heartbeats(2 * SECOND, &[B, C]).await;
    let mut receipts = Vec::new();
    for topic in ["before", "since", "late", "never"] {
        receipts.push(server.held_by(B, topic).await);
    }
    server.extend_by([receipts[0].clone()]).await;
    server.advance_with_heartbeats(2 * SECOND, &[B, C]).await;
    server.extend_by([receipts[1].clone()]).await;
    server.advance_with_heartbeats(10 * SECOND, &[C]).await;
    // Within the grace, after the leases were read.
    server.advance_with_heartbeats(SECOND, &[C]).await;
    server.extend_by([receipts[2].clone()]).await;
    // A failed call is retried.
    server.store.fail_detaches(1);
    server.advance_with_heartbeats(4 * SECOND, &[C]).await;
    server.eventually("never", |stats| stats.ready == 1).await;
    server.eventually("before", |stats| stats.ready == 1).await;
    let forgotten = async {
        while server.knows(B).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, forgotten).await.unwrap();
    assert!(server.is_running("since").await && server.is_running("late").await);
    // No later replica releases them as orphans.
    assert_eq!(server.leases_left_in_store().await, 0);
}

#[tokio::test]
async fn a_replica_that_shows_itself_within_the_grace_keeps_its_leases() {
    let server = start_among(&[B]).await;
    server.held_by(B, "t").await;
    server.advance_with_heartbeats(14 * SECOND, &[]).await;
    // The replica resumes a moment before its leases are released: this replica has not read that yet.
    server.store.add_heartbeat(B, server.clock.now());
    server.advance_with_heartbeats(8 * SECOND, &[]).await;
    assert!(server.is_running("t").await && server.knows(B).await);
    assert_eq!(server.leases_left_in_store().await, 1, "it is a lease of its stream still");
    // When it falls silent again, that is another silence with a grace of its own.
    server.advance_with_heartbeats(6 * SECOND, &[]).await;
    assert!(server.is_running("t").await);
    server.advance_with_heartbeats(SECOND, &[]).await;
    server.eventually("t", |stats| stats.ready == 1).await;
}

#[tokio::test]
async fn leases_of_an_unknown_replica_are_found_at_start() {
    let server = start_among(&[]).await;
    server.held_by(B, "t").await;
    assert!(!server.knows(B).await);
    let server = server.restart();
    server.scheduler.shards().join(2, server.scheduler.clock()).await;
    run_pending_tasks().await;
    assert!(server.knows(B).await);
}

#[tokio::test]
async fn unreachable_shard_makes_no_replica_silent() {
    let server = start_among(&[B, C]).await;
    server.held_by(B, "b").await;
    server.held_by(C, "c").await;
    server.advance_with_heartbeats(4 * SECOND, &[B, C]).await;
    // No replica could reach the shard for a minute, and this one is the first to do so again.
    server.clock.advance(60 * SECOND);
    server.advance_with_heartbeats(4 * SECOND, &[]).await;
    // Another one follows; the third was killed meanwhile.
    server.advance_with_heartbeats(5 * SECOND, &[C]).await;
    assert!(server.is_running("b").await, "its grace is not over");
    server.advance_with_heartbeats(4 * SECOND, &[C]).await;
    server.eventually("b", |stats| stats.ready == 1).await;
    assert!(server.is_running("c").await);
}

#[tokio::test]
async fn replica_that_shuts_down_is_removed_unless_a_stream_broke_before() {
    for breaks in [false, true] {
        let server = start_among(&[B]).await;
        server.held_by(B, "other").await;
        server.enqueue("t", 1).await;
        let mut stream = server.open(options(&["t"]));
        stream.jobs(1).await;
        if breaks {
            drop(stream);
            run_pending_tasks().await;
        } else {
            server.dispatcher.drain();
            assert!(stream.batch().await.draining);
        }
        server.dispatcher.close().await;
        server.scheduler.shards().close().await;
        assert_eq!(
            server.store.has_heartbeat_of(1),
            breaks,
            "a replica left in the membership is found silent"
        );
    }
}
