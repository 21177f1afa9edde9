//! Durability: real server processes that are killed or lose their power under load.
//!
//! The short form runs with `cargo test`; `make durability` runs the long one. `RINGQ_KILLS`,
//! `RINGQ_JOBS` and `RINGQ_CUTS` set the length, `RINGQ_SEED` repeats the random choices of a run
//! (not its timing), `RINGQ_BIN` names another server binary. Power cuts need root and loop mounts
//! and are skipped aloud without them.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a rig reads clocks and the environment, and prints what it found"
)]

#[allow(dead_code, reason = "the fault scenarios share it and record more")]
#[path = "../checker/mod.rs"]
mod checker;
mod clients;
mod image;
mod kill9;
mod powercut;
mod producer;
mod redis;
mod rig;
#[allow(dead_code, reason = "the load bench shares this file and uses the rest")]
#[path = "../../benches/load/server.rs"]
mod server;
mod setting;
mod worker;

use checker::history;
