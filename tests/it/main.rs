//! The integration tests: one binary, one link. Only a list of modules; what belongs where:
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a panic is how a test fails, and what it prints is shown then"
)]

/// What is wrong with one job of a call.
mod apart;
/// What a person reads without a server.
mod by_hand;
/// The commands of `ringq` as processes; a file per command.
mod cli;
/// `ringq::client` against a real server: producers, workers, errors, the examples.
mod client;
/// What every store must do, one file per verb; each case runs against every store.
mod conformance;
/// Many callers that change one job.
mod contention;
/// README.md and docs/ against the product: commands are run, tables compared, links followed.
mod docs;
/// The server from outside: its process, its sockets, the generated stubs; a file per theme.
mod e2e;
/// What former builds left in a Redis.
mod frozen;
/// What the end-to-end tests stand on: the server process, clients, a worker that remembers.
mod harness;
/// Calls that come after the time that they name.
mod late;
/// Files of former versions.
mod migration;
/// Seeded random sequences of every verb: a store against a reference model.
mod model;
/// What a Redis recalls of jobs that have ended.
mod recall;
/// What a job costs Redis.
mod redis_cost;
/// How much one script looks at.
mod redis_looks;
/// Who owns what, pinned.
mod ring;
