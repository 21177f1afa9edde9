//! Faults: several Redis, several replicas and many clients as real processes and connections, a fault, and a checker
//! of the history that the clients recorded.
//!
//! A scenario starts a [`trial::Trial`] (a [`cluster::Cluster`] under a [`load::Load`]), causes its fault, undoes it,
//! and calls `finish`: everything drains within a bound, the checker finds nothing, the server's statistics match the
//! history.
//!
//! The short form runs with `cargo test`, one scenario for each kind of fault; `make faults` runs all in the long
//! form, `make durability` a part of it at length. `RINGQ_FAULT_SECONDS` is the time of harm of a scenario,
//! `RINGQ_MIXED_SECONDS` that of the mixed one, `RINGQ_DROPS` the number of lost replies, `RINGQ_KILLS` the least
//! number of kills of a server on files, `RINGQ_CUTS` the number of power cuts, which need root and loop mounts;
//! `RINGQ_SEED` repeats the random choices of a run (not its timing). The long form tests the released binary
//! (`RINGQ_BIN`): it compares times, and an unoptimized binary is slow by itself.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a rig reads clocks and the environment, prints what it found, and panics to fail"
)]

/// The recorder and the checker.
#[path = "../checker/mod.rs"]
mod checker;
/// Redis servers and replicas, shared with `it`.
#[allow(dead_code, unused_imports, reason = "the integration tests use the rest")]
#[path = "../it/harness/mod.rs"]
mod harness;

/// Compares the server's own numbers with the history.
mod books;
/// All server processes of a trial.
mod cluster;
/// A disk whose power can be cut.
mod image;
/// Enqueue times by shard.
mod latency;
/// Producers and workers.
mod load;
/// Libraries that change how a server syncs.
mod preload;
/// Proxy between replicas and a Redis: loses answers and hints.
mod proxy;
/// Settings from the environment.
mod setting;
/// A cluster under load, from start to verdict.
mod trial;
/// A network that loses packets.
mod wire;

/// Broken builds are found: changed histories, and a Redis that lies.
mod broken;
/// Runs without faults, or with faults of the clients only.
mod calm;
/// Exhausted connections.
mod connections;
/// Replicas are cut off from a Redis that lives.
mod cut_off;
/// Very many jobs are due at once.
mod due;
/// A Redis begins to evict.
mod evicts;
/// The server on files of SQLite.
mod files;
/// A Redis is full.
mod full;
mod held;
/// Calls reach a Redis late.
mod late;
/// Topics are over their limit; settings come and go.
mod limits;
/// Shards drain, are added and move while everything runs.
mod live;
/// Answers of claims and hints are lost.
mod lost;
/// Random faults.
mod mixed;
/// Bodies of all sizes, and malformed calls.
mod odd;
/// Topics and groups are paused meanwhile.
mod paused;
/// The power of all servers is cut.
mod power;
/// A Redis dies, stands still, loses its scripts, disconnects its clients.
mod redis;
/// Replicas die.
mod replica;
/// Workers read slowly or not at all.
mod slow;
/// A Redis stands still for a while.
mod still;
/// The log of a Redis is torn or damaged.
mod torn;
/// Workers stand still or die.
mod worker;
