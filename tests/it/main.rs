//! The integration tests: one binary, one link. Only a list of modules; what belongs where:
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a panic is how a test fails, and what it prints is shown then"
)]

/// Errors of one job of a call.
mod apart;
/// Inspection without a server.
mod by_hand;
/// Scripts of `.ci`.
mod ci;
/// The commands of `ringq` as processes; a file per command.
mod cli;
/// `ringq::client` against a real server: producers, workers, errors, the examples.
mod client;
/// Required behaviour of every store, one file per verb; each case runs against every store.
mod conformance;
/// Many callers that change one job.
mod contention;
/// README.md and docs/ against the product: commands are run, tables compared, links followed.
mod docs;
/// The server from outside: its process, its sockets, the generated stubs; a file per theme.
mod e2e;
/// Data of former builds in a Redis.
mod frozen;
/// Fairness of groups.
mod groups;
/// Fixtures of the end-to-end tests: the server process, clients, a worker that records.
mod harness;
/// Calls that arrive after their own deadline.
mod late;
/// Files of former versions.
mod migration;
/// Seeded random sequences of every verb: a store against a reference model.
mod model;
/// The metrics of a server, checked by promtool.
mod monitoring;
/// Ended jobs that a Redis recalls.
mod recall;
/// Cost of a job in Redis.
mod redis_cost;
/// Bounds of one script.
mod redis_looks;
/// Golden vectors of the ring.
mod ring;
/// Calls of a store as the tests write them.
mod store_calls;
