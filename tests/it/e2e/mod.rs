//! ringq from outside: a process, sockets, signals and the generated stubs, nothing else. Each test
//! starts a server of its own; a file per theme.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests: a panic is how they fail, and they measure real time from outside"
)]

/// The operator's view: lists, redrive, workers, shards, the server itself, topics.
mod admin;
/// A server that is away for longer than leases last.
mod away;
/// Streams that break, servers that die, callers that leave.
mod broken;
/// Credit when every Ack goes to another replica, and hints are lost.
mod credit;
/// Servers on one Redis that are killed, stand still or end, and what becomes of their leases.
mod dead;
/// Due times, expiry.
mod delayed;
/// What a write to Redis reaches.
mod durability;
/// What Enqueue answers, and that repeats are safe.
mod enqueue;
/// Failures that are not about fields: size, deadlines, what is not there, what was cancelled.
mod errors;
/// Fences and checkpoints: what tells a delivery from the one before, and what it takes over from that.
mod fence;
/// The contract through grpcurl alone.
pub(crate) mod grpcurl;
/// Health over gRPC and HTTP, metrics.
mod health;
/// Get, Delete, Reschedule.
mod jobs;
/// Writes that reach Redis late.
mod late;
/// Workers of a few lines that know only defaults, and what the log says when that goes wrong.
mod naive;
/// What a server says of a Redis that dies: in its log, to probes and of itself.
mod outage;
/// The life of the process: SIGTERM, bad starts, a full disk.
mod process;
/// How a server reaches its Redis: schemes, certificates, a Redis that comes later or is wrong.
mod reach;
/// A worker that reads slowly.
mod reader;
/// A server whose shard is a Redis, and what can happen to that.
mod redis;
/// Every rule of the contract that refuses a request.
mod refusals;
/// Calls that are sent again, and ids that belong to one call alone.
mod repeats;
/// Several replicas on one Redis.
mod replicas;
/// Several shards behind one server.
mod ring;
/// A Redis behind Sentinel, and its failovers.
mod sentinel;
/// Ack, Nack, Extend, retries, dead letters.
mod settle;
/// What operators read and set of shards.
mod shards;
/// Clients that stall: silent ones, half messages, answers that are not read.
mod stalls;
/// What whoever starts a server on Redis is told.
mod start;
/// What comes over a stream, when, and how much of it.
mod stream;
/// Topics are served in turns.
mod turns;
