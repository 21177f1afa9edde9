//! Replicas that fall silent on a shard that they share with this one, whose nonce is 1. Time is moved
//! by hand, and so are their signs; this replica shows itself when a test says so.

use std::time::Duration;

use super::harness::{SOON, Server, attempt, options, settle_down, store};
use super::*;
use crate::clock::{Clock, ManualClock};
use crate::domain::Receipt;
use crate::scheduler::{AckItem, SettleError};
use crate::store::{Ask, Claim, Store as _, Taker};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// The other replicas.
const B: u32 = 2;
const C: u32 = 3;

/// This replica on a shard that it shares with these others, which live.
async fn start_among(others: &[u32]) -> Server {
    let clock = ManualClock::new(Time(1_700_000_000_000_000));
    let time = Clock::Manual(clock.clone());
    let store = store(&time);
    store.share();
    others.iter().for_each(|&other| store.show(other, clock.now()));
    let server = Server::over(store, clock, &time, 1);
    server.scheduler.shards().join(1, server.scheduler.clock()).await;
    settle_down().await;
    server
}

impl Server {
    /// A job that another replica has given to a worker for a day, with a grace of 5 s.
    async fn held_by(&self, owner: u32, topic: &str) -> Receipt {
        self.enqueue(topic, 1).await;
        let grace = Some(5 * SECOND);
        let (stream, worker_id) = (1, "theirs".into());
        let (jobs, bytes, oversize) = (1, 1 << 20, true);
        let taker = Taker { stream, worker_id, lease: DAY, grace, jobs, bytes, oversize };
        let asks = vec![Ask { topic: TopicName::stored(topic), takers: vec![taker] }];
        let claim = Claim { nonce: rand::random(), owner, asks };
        let leased = self.store.claim(claim).await.unwrap().topics.remove(0).leased.remove(0);
        let (shard, key, token) = (self.store.name().clone(), &leased[0].key, leased[0].token);
        Receipt { shard, owner, stream, token, key: key.clone() }
    }

    async fn is_running(&self, topic: &str) -> bool {
        self.stats(topic).await.running == 1
    }

    async fn knows(&self, owner: u32) -> bool {
        self.beat().await;
        self.store.knows(owner)
    }
}

#[tokio::test]
async fn the_leases_of_a_silent_replica_come_back_after_their_grace() {
    let server = start_among(&[B, C]).await;
    let receipt = server.held_by(B, "t").await;
    server.held_by(C, "other").await;
    server.live(10 * SECOND, &[C]).await;
    // It is noticed now, 10 s after its last sign.
    server.live(5 * SECOND - Duration::from_millis(1), &[C]).await;
    assert!(server.is_running("t").await && server.knows(B).await);
    server.live(Duration::from_millis(1), &[C]).await;
    server.eventually("t", |stats| stats.ready == 1).await;
    settle_down().await;
    assert!(!server.knows(B).await && server.knows(C).await, "nothing is left of it");

    let mut stream = server.open(options(&["t"]));
    let again = stream.jobs(1).await;
    assert_eq!(attempt(&again[0]), (0, 1), "counted as a delivery and not as a failure");
    let late = AckItem { receipt, result: None, follow_ups: Vec::new() };
    assert_eq!(server.scheduler.ack(vec![late]).await, [Err(SettleError::Stale)]);
    server.ack(&again).await;
    assert!(server.is_running("other").await, "who lives keeps its own");
}

#[tokio::test]
async fn an_extend_since_the_last_sign_keeps_a_job_for_good() {
    let server = start_among(&[B, C]).await;
    server.live(2 * SECOND, &[B, C]).await;
    let mut receipts = Vec::new();
    for topic in ["before", "since", "late", "never"] {
        receipts.push(server.held_by(B, topic).await);
    }
    server.extend_by([receipts[0].clone()]).await;
    server.live(2 * SECOND, &[B, C]).await;
    server.extend_by([receipts[1].clone()]).await;
    server.live(10 * SECOND, &[C]).await;
    // Within the grace, after the leases were read.
    server.live(SECOND, &[C]).await;
    server.extend_by([receipts[2].clone()]).await;
    // What fails is done again.
    server.store.fail_detaches(1);
    server.live(4 * SECOND, &[C]).await;
    server.eventually("never", |stats| stats.ready == 1).await;
    server.eventually("before", |stats| stats.ready == 1).await;
    let forgotten = async {
        while server.knows(B).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, forgotten).await.unwrap();
    assert!(server.is_running("since").await && server.is_running("late").await);
    // Nobody who comes later takes them for orphans.
    assert_eq!(server.left_to_the_next_life().await, 0);
}

#[tokio::test]
async fn a_replica_that_shows_itself_within_the_grace_keeps_its_leases() {
    let server = start_among(&[B]).await;
    server.held_by(B, "t").await;
    server.live(14 * SECOND, &[]).await;
    // It wakes up a moment before its leases are let go: this replica does not know yet.
    server.store.show(B, server.clock.now());
    server.live(8 * SECOND, &[]).await;
    assert!(server.is_running("t").await && server.knows(B).await);
    assert_eq!(server.left_to_the_next_life().await, 1, "it is a lease of its stream still");
    // And when it falls silent again, that is another silence with a grace of its own.
    server.live(6 * SECOND, &[]).await;
    assert!(server.is_running("t").await);
    server.live(SECOND, &[]).await;
    server.eventually("t", |stats| stats.ready == 1).await;
}

#[tokio::test]
async fn leases_of_a_replica_that_nobody_knows_are_met_at_the_start() {
    let server = start_among(&[]).await;
    server.held_by(B, "t").await;
    assert!(!server.knows(B).await);
    let server = server.restart();
    server.scheduler.shards().join(2, server.scheduler.clock()).await;
    settle_down().await;
    assert!(server.knows(B).await);
}

#[tokio::test]
async fn a_shard_that_was_away_makes_nobody_silent() {
    let server = start_among(&[B, C]).await;
    server.held_by(B, "b").await;
    server.held_by(C, "c").await;
    server.live(4 * SECOND, &[B, C]).await;
    // Nobody could reach it for a minute, and this replica is the first to do so again.
    server.clock.advance(60 * SECOND);
    server.live(4 * SECOND, &[]).await;
    // Another one follows; the third was killed meanwhile.
    server.live(5 * SECOND, &[C]).await;
    assert!(server.is_running("b").await, "its grace is not over");
    server.live(4 * SECOND, &[C]).await;
    server.eventually("b", |stats| stats.ready == 1).await;
    assert!(server.is_running("c").await);
}

#[tokio::test]
async fn who_leaves_in_order_is_forgotten_unless_a_stream_broke_before() {
    for breaks in [false, true] {
        let server = start_among(&[B]).await;
        server.held_by(B, "other").await;
        server.enqueue("t", 1).await;
        let mut stream = server.open(options(&["t"]));
        stream.jobs(1).await;
        if breaks {
            drop(stream);
            settle_down().await;
        } else {
            server.dispatcher.drain();
            assert!(stream.batch().await.draining);
        }
        server.dispatcher.close().await;
        server.scheduler.shards().close().await;
        assert_eq!(server.store.knows(1), breaks, "if it is known, others find it silent");
    }
}
