//! Tests of ringq from outside: a process, sockets, signals and the generated stubs, nothing else. Each test starts a
//! server of its own; a file per theme.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests: a panic is how they fail, and they measure real time from outside"
)]

/// Identities, and what each may do.
mod access;
/// The operator's view: lists, redrive, workers, shards, the server itself, topics.
mod admin;
/// A server that is away for longer than leases last.
mod away;
/// Streams of replicas behind a load balancer.
mod balance;
/// Streams that break, servers that die, callers that cancel.
mod broken;
/// Moves of jobs to their crash topics.
mod crash_topic;
/// Crashes of workers, apart from failures.
mod crashes;
/// Credit when every Ack goes to another replica, and hints are lost.
mod credit;
/// Servers on one Redis that are killed, stand still or end, and their leases.
mod dead;
/// Requests that are short on the wire and large in memory.
mod decoded;
/// Due times, expiry.
mod delayed;
/// Durability of writes to Redis.
mod durability;
/// Outcomes of Enqueue, and safe repeats.
mod enqueue;
/// Failures that are not about fields: size, deadlines, missing topics and jobs, cancelled calls.
mod errors;
/// ExplainJob: each reason, built for real.
mod explain;
/// Fences and checkpoints: order of deliveries, and the state that a delivery takes over from the one before.
mod fence;
mod full;
mod full_bytes;
/// Logs whose reader has stopped.
mod full_log;
/// Groups of a topic.
mod groups;
/// The contract through grpcurl alone.
pub(crate) mod grpcurl;
/// Health over gRPC and HTTP, metrics.
mod health;
/// Hostile connections.
mod hostile;
/// Get, Delete, Reschedule.
mod jobs;
/// Calls as JSON over HTTP.
mod json;
/// The worker of `examples/json_worker.py`.
mod json_worker;
/// JSON Web Tokens as proofs of identities.
mod jwt;
/// Writes that reach Redis late.
mod late;
/// Texts for people that are longer than their limit.
mod long_texts;
/// Shards that lose their data, and files that are moved.
mod lost_data;
/// Modes of the files of a server.
mod modes;
/// Workers of a few lines with defaults only, and the log when that goes wrong.
mod naive;
/// Reports of a server about a Redis that dies: log, probes and server info.
mod outage;
/// Topics that are over their limits.
mod over_limit;
/// Calls that wait too long for a shard.
mod overload;
/// The life of the process: SIGTERM, bad starts, a full disk.
mod process;
/// PurgeTopic.
mod purge;
/// Connections of a server to its Redis: schemes, certificates, a Redis that comes later or is wrong.
mod reach;
/// A worker that reads slowly.
mod reader;
/// A server whose shard is a Redis, and faults of that.
mod redis;
/// Every rule of the contract that refuses a request.
mod refusals;
/// Repeated calls, and ids that belong to one call only.
mod repeats;
/// Several replicas on one Redis.
mod replicas;
/// Several shards behind one server.
mod ring;
/// The scaler that KEDA calls.
mod scaler;
/// A Redis behind Sentinel, and its failovers.
mod sentinel;
/// Ack, Nack, Extend, retries, dead letters.
mod settle;
/// Shard calls of operators: list and set.
mod shards;
/// Clients that stall: silent ones, half messages, answers that are not read.
mod stalls;
/// Messages at the start of a server on Redis.
mod start;
/// Messages of a stream: content, time and amount.
mod stream;
/// TLS of both ports: clients, refusals, client certificates, changed files.
mod tls;
mod topic_files;
mod topics;
/// Traces and log records, at an OTLP receiver.
mod tracing;
/// Topics are served in turn.
mod turns;
