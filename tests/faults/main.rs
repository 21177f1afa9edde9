//! Faults: several Redis, several replicas and many clients as real processes and connections, something
//! that goes wrong, and a checker that reads what the clients saw.
//!
//! A scenario starts a [`trial::Trial`] (a [`cluster::Cluster`] under a [`load::Load`]), does its harm,
//! undoes it, and calls `finish`: everything drains within a bound, the checker finds nothing, the
//! server's books fit the history.
//!
//! The short form runs with `cargo test`, of each kind of harm one scenario; `make faults` runs all in the long one, `make
//! durability` a part of it at length.
//! `RINGQ_FAULT_SECONDS` is how long a scenario does its harm, `RINGQ_MIXED_SECONDS` how long the mixed one,
//! `RINGQ_DROPS` how many replies are lost, `RINGQ_KILLS` how often a server on files is killed at least, `RINGQ_CUTS`
//! how often the power is cut, which takes root and loop mounts; `RINGQ_SEED` repeats the random choices of a run (not
//! its timing). The long one is of the released binary (`RINGQ_BIN`): it says how quick the others stay, and what is
//! not optimized is slow by itself.

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

/// The server's own numbers against the history.
mod books;
/// All server processes of a trial.
mod cluster;
/// A disk whose power can be cut.
mod image;
/// Enqueue times by shard.
mod latency;
/// Producers and workers.
mod load;
/// What changes how a server syncs.
mod preload;
/// Between replicas and a Redis: loses answers and hints.
mod proxy;
/// What the environment says.
mod setting;
/// A cluster under load, from start to verdict.
mod trial;
/// A network that loses packets.
mod wire;

/// What is broken is found: histories that were changed, and a Redis that lies.
mod broken;
/// Nothing goes wrong, or only the clients do.
mod calm;
/// No more connections.
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
/// Shards drain, come and move while everything runs.
mod live;
/// Answers of claims and hints are lost.
mod lost;
/// Everything at random.
mod mixed;
/// Bodies of all sizes, and calls that are none.
mod odd;
/// The power of all servers is cut.
mod power;
/// A Redis dies, stands still, forgets its scripts, throws its clients out.
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
