//! Replicas die.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use rand::Rng as _;
use ringq::pb::StreamRequest;
use tokio::time::Instant;

use crate::checker::history::{Event, Nanos};
use crate::cluster::Shape;
use crate::harness::{Client, job, millis, proto, receipts, take};
use crate::load::Habits;
use crate::trial::{Trial, harm_time, long};

/// Range of the lifetimes and of the absences of a replica in a loop of kills.
const LIVES_MS: std::ops::Range<u64> = 300..1200;
const AWAY_MS: std::ops::Range<u64> = 10..600;
/// Time limit for streams of a killed replica to be on another one.
const ELSEWHERE_WITHIN: Duration = Duration::from_secs(1);
/// Number of jobs under long leases when their replica dies.
const HELD: usize = 50;
/// Time limit for the release of the leases of a dead replica, however long they are.
const BACK_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again() {
    let name = "replica_killed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(mut trial) = trial else { return };
    let mut random = trial.random();
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        trial.run(millis(random.random_range(LIVES_MS))).await;
        let replica = random.random_range(0..trial.cluster.replica.len());
        trial.kill_replica(replica).await;
        trial.run(millis(random.random_range(AWAY_MS))).await;
        trial.restart_replica(replica).await;
    }
    let outcome = trial.finish().await;
    assert!(outcome.verdict.cuts > 0);
    let moves = moves(&outcome.events());
    let slowest = moves.iter().max().copied().unwrap_or_default();
    println!(
        "{name}: {} streams of dead replicas went elsewhere, the last after {slowest:?}",
        moves.len()
    );
    assert!(!moves.is_empty(), "no stream broke");
    // Less the time in which this machine itself stood still.
    if long() {
        let late = outcome.stood_still();
        assert!(slowest < ELSEWHERE_WITHIN + late, "{slowest:?}, {late:?} of this machine's");
    }
}

/// Returns how long workers were without a stream after their replica was killed.
fn moves(events: &[Event]) -> Vec<Duration> {
    let (mut open, mut without) = (HashMap::new(), HashMap::new());
    let mut moves = Vec::new();
    for event in events {
        match event {
            Event::Opened { worker, server, at, .. } => {
                open.insert(*worker, *server);
                let since: Option<Nanos> = without.remove(worker);
                moves.extend(since.map(|since| Duration::from_nanos(at.saturating_sub(since))));
            }
            Event::Killed { server, at } => {
                let broken = open.extract_if(|_, on| on == server);
                without.extend(broken.map(|(worker, _)| (worker, *at)));
            }
            _ => {}
        }
    }
    moves
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn all_killed_at_once() {
    let name = "all_replicas_killed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(mut trial) = trial else { return };
    let turn = harm_time().min(Duration::from_secs(10)) / 2;
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        trial.run(turn).await;
        trial.kill_replicas().await;
        trial.run(millis(200)).await;
        trial.restart_replicas().await;
        trial.run(turn).await;
    }
    let outcome = trial.finish().await;
    assert!(outcome.verdict.cuts > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn stands_still_for_two_leases() {
    let name = "replica_stands_still";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    let still = 2 * trial.shared().habits.lease;
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        trial.stop_replica(0);
        trial.run(still).await;
        trial.resume_replica(0);
        trial.run(still / 4).await;
    }
    let outcome = trial.finish().await;
    assert!(outcome.stales() > 0, "no settle came after its lease had expired");
}

pub(crate) fn signal(pid: u32, name: &str) {
    let script = format!("kill -{name} {pid}");
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn long_leases_of_a_dead_replica_come_back() {
    let lease = Duration::from_secs(24 * 3600);
    let trial = Trial::start("long_leases", Shape::default(), Habits::default()).await;
    let Some(mut trial) = trial else { return };
    let [first, second] = [0, 1].map(|replica| trial.cluster.replica[replica].grpc);
    let (first, second) = (Client::connect(first).await, Client::connect(second).await);
    let ids = first.enqueue_all(vec![job("held"); HELD]).await;
    let take = || StreamRequest {
        max_in_flight: i32::try_from(HELD).unwrap(),
        lease_duration: proto(lease).into(),
        orphan_grace: proto(Duration::from_secs(1)).into(),
        ..take("held")
    };
    let mut worker = first.stream(take()).await;
    worker.next_many(HELD).await;
    let mut next = second.stream(take()).await;

    trial.kill_replica(0).await;
    let killed = Instant::now();
    let mut back = Vec::new();
    while back.len() < HELD {
        let left = BACK_WITHIN.saturating_sub(killed.elapsed());
        let delivery = tokio::time::timeout(left, next.next()).await;
        back.push(delivery.unwrap_or_else(|_| panic!("only {} jobs came back", back.len())));
    }
    println!("long_leases: {HELD} jobs were back after {:?}", killed.elapsed());
    assert!(back.iter().all(|delivery| delivery.attempt == 1 && ids.contains(&delivery.id)));
    second.ack_all(&receipts(&back)).await;
    trial.restart_replica(0).await;
    trial.finish().await;
}
