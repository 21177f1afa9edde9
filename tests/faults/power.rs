//! The power of all servers is cut: every FSYNCED answer is on the disk, and a Redis that syncs every second has lost
//! only the end of its answered writes.
//!
//! The servers work on a loop-mounted file system. They are stopped at an arbitrary moment, the image is copied
//! without the page cache, and the same servers on the copy must have every job that was promised. The clients
//! continue all the while, as they do when machines come back: calls without an answer are repeated. The proof that
//! the rig finds losses: servers whose syncs do nothing are detected.
//!
//! Needs root and loop mounts, and is skipped with a printed notice without them.

use std::time::Duration;

use rand::Rng as _;
use ringq::pb::Durability;

use crate::checker::history::Event;
use crate::cluster::Shape;
use crate::harness::{Program, in_ci, millis};
use crate::image::{Mounted, Offer, offer};
use crate::load::Habits;
use crate::preload::compile;
use crate::setting::number;
use crate::trial::{Outcome, Trial, long};

/// Range of the time until a cut.
const LIVES_MS: std::ops::Range<u64> = 500..2500;
/// Longest wait for repeats; lost jobs never come.
const PATIENCE: Duration = millis(6000);

/// Programs other than the system's Redis, by the name of their trial.
const OTHERS: [(&str, Program); 2] =
    [("power_redis_6", Program::Redis6), ("power_valkey", Program::Valkey)];

/// Returns the number of power cuts.
fn cuts() -> u32 {
    number("RINGQ_CUTS", if long() { 2 } else { 1 })
}

fn on_files() -> Shape {
    Shape { files: true, replicas: 1, ..on_redis(Program::Redis, "always") }
}

fn on_redis(program: Program, fsync: &'static str) -> Shape {
    Shape { shards: 2, replicas: 2, program, fsync, ..Shape::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_lose_nothing() {
    let Some(outcome) = cut("power_files", on_files(), Durability::Unspecified, cuts()).await
    else {
        return;
    };
    assert!(outcome.all_are_synced());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_redis_that_always_syncs_loses_nothing() {
    let kinds = [("power_redis", Program::Redis)].into_iter().chain(OTHERS);
    for ((name, program), cuts) in kinds.zip([cuts(), 1, 1]) {
        let shape = on_redis(program, "always");
        let Some(outcome) = cut(name, shape, Durability::Unspecified, cuts).await else { continue };
        assert!(outcome.all_are_synced());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_redis_that_syncs_every_second_loses_the_last_two_at_most() {
    let shape = on_redis(Program::Redis, "everysec");
    cut("power_everysec", shape, Durability::Unspecified, cuts()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_redis_that_syncs_every_second_loses_no_job_that_waited() {
    let shape = on_redis(Program::Redis8, "everysec");
    let Some(outcome) = cut("power_waited", shape, Durability::Fsynced, cuts()).await else {
        return;
    };
    assert!(outcome.all_are_synced());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn files_that_are_not_synced_are_found() {
    is_found("power_files_unsynced", on_files()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_redis_that_does_not_sync_is_found() {
    is_found("power_redis_unsynced", on_redis(Program::Redis, "always")).await;
}

/// Cuts the power this often under load; `None` where that is not possible.
async fn cut(name: &'static str, shape: Shape, asked: Durability, cuts: u32) -> Option<Outcome> {
    let (mut disk, mut trial) = start(name, shape, asked).await?;
    let mut random = trial.random();
    for _ in 0..cuts {
        trial.run(millis(random.random_range(LIVES_MS))).await;
        assert!(trial.cut_power(&mut disk).await, "no server on what the cut has left");
    }
    Some(trial.finish().await)
}

/// Runs without any sync: then the checker must find the missing jobs.
async fn is_found(name: &'static str, shape: Shape) {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = compile("nosync.c", dir.path()) else { return };
    let shape = Shape { preload: Some(library), ..shape };
    let started = start(name, shape, Durability::Unspecified).await;
    let Some((mut disk, mut trial)) = started else { return };
    trial.run(millis(LIVES_MS.end)).await;
    if trial.cut_power(&mut disk).await {
        let lost = trial.judge(PATIENCE).await.verdict.lost;
        assert!(!lost.is_empty(), "servers without syncs lose nothing: the rig is blind");
    } else {
        println!("{name}: no server on what the cut has left");
    }
}

/// Starts a load on servers with all shards on one disk. The disk is dropped last.
async fn start(name: &'static str, shape: Shape, asked: Durability) -> Option<(Mounted, Trial)> {
    if !able() {
        return None;
    }
    let disk = Mounted::fresh().unwrap();
    let shape = Shape { disk: Some(disk.path.clone()), ..shape };
    let trial = Trial::start(name, shape, Habits { asked, ..Habits::default() }).await?;
    Some((disk, trial))
}

/// Returns whether the power can be cut. In CI a missing tool is an error; a machine that cannot mount is not.
fn able() -> bool {
    match offer() {
        Offer::Able => return true,
        Offer::Lacking(why) if in_ci() => panic!("{why}"),
        Offer::Lacking(why) | Offer::Unable(why) => println!("skipped: no power cuts: {why}"),
    }
    false
}

impl Outcome {
    /// Returns whether all enqueues were answered as synced, and at least one was answered.
    fn all_are_synced(&self) -> bool {
        let events = self.events();
        let mut answers = events.iter().filter_map(|event| match event {
            Event::Enqueued { fsynced, .. } => Some(*fsynced),
            _ => None,
        });
        self.verdict.enqueued > 0 && answers.all(|fsynced| fsynced)
    }
}
