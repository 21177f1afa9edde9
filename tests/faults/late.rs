//! Calls reach a Redis seconds after a replica gave them up: a connection is held on the way, or the network loses
//! packets and the kernel repeats them.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::Rng as _;
use tokio::time::Instant;

use crate::cluster::Shape;
use crate::load::Habits;
use crate::proxy::Proxy;
use crate::trial::{Trial, harm_time};

/// Time of a held connection: longer than a replica waits for an answer.
const HELD_MS: RangeInclusive<u64> = 3_200..=8_000;
/// Time of lost packets.
const CUT_MS: RangeInclusive<u64> = 2_000..=8_000;
/// Time that suffices to catch some calls that are repeated meanwhile.
const WITHOUT_WINDOWS: Duration = Duration::from_secs(20);
/// Longest wait for repeats; lost jobs never come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time without faults in between.
const WELL_MS: RangeInclusive<u64> = 200..=1_500;

/// Many deletions, each followed by another job under the same id, and leases that outlast the harm: a second lease
/// is seen beside the first.
fn habits() -> Habits {
    let lease = Duration::from_secs(4);
    Habits { deleted: 0.3, superseded: 1.0, slow: 0.05, lease, ..Habits::default() }
}

fn some(random: &mut impl rand::Rng, range: RangeInclusive<u64>) -> Duration {
    Duration::from_millis(random.random_range(range))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn connections_are_held_and_let_go_late() {
    let shape = Shape { proxied: true, ..Shape::default() };
    let Some(trial) = Trial::start("held_connections", shape, habits()).await else { return };
    hold_connections(&trial, harm_time()).await;
    trial.finish().await;
}

/// Holds connections to one Redis after the other for a while, for `time`.
async fn hold_connections(trial: &Trial, time: Duration) {
    let (mut random, end) = (trial.random(), Instant::now() + time);
    trial.may_wait();
    trial.run(Duration::from_millis(300)).await;
    while Instant::now() < end {
        let redis = random.random_range(0..trial.cluster.proxy.len());
        trial.note(format!("connections to redis {redis} are held"));
        trial.cluster.proxy[redis].hold();
        trial.run(some(&mut random, HELD_MS)).await;
        trial.cluster.proxy[redis].release();
        trial.note(format!("connections to redis {redis} are released"));
        trial.run(some(&mut random, WELL_MS)).await;
    }
}

/// A broken build: the nemesis must find its fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn late_calls_that_are_executed_are_found() {
    let shape = Shape { proxied: true, ..Shape::default() };
    let Some(trial) = Trial::start("windows_dropped", shape, habits()).await else { return };
    trial.cluster.proxy.iter().for_each(Proxy::drop_windows);
    hold_connections(&trial, WITHOUT_WINDOWS).await;
    let verdict = trial.judge(PATIENCE).await.verdict;
    let (twice, back) = (&verdict.overlap, &verdict.after_ack);
    assert!(!twice.is_empty() || !back.is_empty(), "no late enqueue is found: {verdict}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn packets_are_lost_and_repeated_by_the_kernel() {
    let shape = Shape { wired: true, ..Shape::default() };
    let Some(trial) = Trial::start("lost_packets", shape, habits()).await else { return };
    let (mut random, end) = (trial.random(), Instant::now() + harm_time());
    let Some(wire) = &trial.cluster.wire else { return };
    trial.may_wait();
    trial.run(Duration::from_millis(300)).await;
    while Instant::now() < end {
        let redis = random.random_range(0..trial.cluster.redis.len());
        trial.note(format!("packets to redis {redis} are lost"));
        wire.cut(redis);
        trial.run(some(&mut random, CUT_MS)).await;
        wire.join(redis);
        trial.note(format!("packets to redis {redis} arrive"));
        trial.run(some(&mut random, WELL_MS)).await;
    }
    trial.finish().await;
}
