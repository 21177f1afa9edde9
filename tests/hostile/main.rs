//! Hostile clients on both ports: each costs itself only. The server's memory and open files stay within bounds that each
//! scenario names, hostile connections are ended or slowed down, and a polite client beside them works as fast as
//! without them, within a factor of 3. Times below 5 ms count as 5 ms: attackers and server share the processors.
//!
//! `make hostile` runs all scenarios, in about 5 minutes; `cargo test` none of them, because they compare times and load
//! the whole machine. `RINGQ_BIN` is the server; `make hostile` uses the release build.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a rig reads clocks and the environment, prints what it found, and panics to fail"
)]

/// Servers and clients, shared with `it`.
#[allow(dead_code, unused_imports, reason = "the integration tests use the rest")]
#[path = "../it/harness/mod.rs"]
mod harness;

use harness::frames;

/// Hostile clients.
mod attack;
/// The client beside them.
mod polite;
/// Frame of a scenario.
mod trial;

/// Frames that cost their sender little.
mod floods;
/// Headers of any size.
mod headers;
/// Very many connections and calls.
mod many;
/// Pools that clients without an identity fill, and what others get meanwhile.
mod pools;
/// Clients that send as slowly as they can.
mod slow;
/// Answers that are not read, or byte by byte.
mod windows;
