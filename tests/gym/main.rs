//! The gym: a scripted server that plays scenarios with a worker or producer in any language, and reports each
//! expectation that the program did not meet.
//!
//! `cargo test --locked --test gym -- --help` lists the options. A scenario starts a server on ports of its own and the
//! program with the settings in `RINGQ_…` variables; `docs/workers.md` has the rules that they check.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a rig reads clocks and the environment, prints what it found, and panics on faults of its own"
)]

mod answers;
mod broken;
mod call;
mod cli;
mod exchange;
/// Ports for servers that go away and come back, shared with `it`.
#[path = "../it/harness/port.rs"]
mod free_port;
mod handle;
mod jobs;
mod languages;
mod mutations;
mod program;
mod record;
mod scenario;
mod scenarios;
mod server;
mod source;

fn main() -> std::process::ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(cli::run())
}
