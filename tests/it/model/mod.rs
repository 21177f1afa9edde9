//! The model test: seeded random sequences of every verb go to a store and to a reference model of it, and every
//! answer and everything that can be read is compared. The engine (`mirror.rs`) runs beside them: each job of the
//! store must read like the engine's.
//!
//! `RINGQ_MODEL_SEEDS` and `RINGQ_MODEL_STEPS` set the size (`make model` runs 100 seeds of 10,000 steps);
//! `RINGQ_MODEL_SEED` runs one seed again.

mod coverage;
mod failover;
mod groups;
mod held;
mod limits;
mod mirror;
mod policies;
mod reference;
mod run;
mod steps;
mod table;

use std::collections::BTreeSet;

use crate::conformance::Backend;
use mirror::{WAYS, Ways};
use run::Run;

/// Seeds of an ordinary `cargo test`, and steps of each.
const SEEDS: u64 = 10;
const STEPS: u64 = 3_000;
/// Steps after which every case must have been tried.
const STEPS_TO_SEE_ALL: u64 = 30_000;
/// Steps after which each way of a store, with the engine or without, must have been taken often enough.
const STEPS_TO_COUNT: u64 = 200_000;
const WAY_TAKEN_MIN: u64 = 1_000;
/// Every step takes several round trips: divisor of the seeds and steps of Redis.
const REDIS_SHARE: u64 = 2;
/// Differences from Redis show early or never: divisor of the seeds and steps of Valkey.
const VALKEY_SHARE: u64 = 5;
/// A file takes one fsync per write: divisor of its seeds and steps.
const FILE_SHARE: u64 = 5;

#[expect(
    clippy::disallowed_methods,
    reason = "how much to test is no configuration of the product"
)]
fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// Runs the seeds and checks the union of the cases that they tried.
async fn run(backend: Backend, share: u64) {
    let steps = number("RINGQ_MODEL_STEPS").unwrap_or(STEPS);
    if let Some(seed) = number("RINGQ_MODEL_SEED") {
        if let Some(run) = Run::new(backend, seed).await {
            run.take(steps).await;
        }
        return;
    }
    let seeds = number("RINGQ_MODEL_SEEDS").unwrap_or(SEEDS).div_ceil(share);
    let steps = steps.div_ceil(share);
    let (mut seen, mut ways) = (BTreeSet::new(), Ways::new());
    for seed in 0..seeds {
        let Some(run) = Run::new(backend, seed).await else { return };
        let (tried, taken) = run.take(steps).await;
        seen.extend(tried);
        taken.into_iter().for_each(|(way, times)| *ways.entry(way).or_default() += times);
    }
    println!("{backend:?}: {ways:?}");
    if seeds * steps >= STEPS_TO_COUNT {
        let times = |way: &&str| ways.get(way).copied().unwrap_or(0);
        let seldom: Vec<_> = WAYS.iter().filter(|way| times(way) < WAY_TAKEN_MIN).collect();
        assert!(seldom.is_empty(), "taken too seldom: {seldom:?} of {ways:?}");
    }
    if seeds * steps >= STEPS_TO_SEE_ALL {
        let missing: Vec<_> = coverage::wanted().difference(&seen).cloned().collect();
        assert!(missing.is_empty(), "never tried: {missing:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_in_memory_does_what_the_reference_does() {
    run(Backend::SqliteMemory, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_in_a_file_does_what_the_reference_does() {
    run(Backend::SqliteFile, FILE_SHARE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_does_what_the_reference_does() {
    run(Backend::Redis, REDIS_SHARE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey_does_what_the_reference_does() {
    run(Backend::Valkey, VALKEY_SHARE).await;
}
