//! ringq: jobs scheduled over gRPC, kept durably, pushed to workers within their credit.
//!
//! # Layers
//! ```text
//!            producers / workers / grpcurl              browsers, Prometheus
//!                      │ gRPC                                  │ HTTP
//! ┌────────────────────┴───────────────────────────────────────┴─────────┐
//! │ grpc      proto ↔ domain, errors, limits        http   health, metrics │
//! │ dispatch  streams, credit, wake-ups             timer  reap, prune     │
//! │ scheduler the verbs: what follows from an event                       │
//! │ shards    ring, routing, batchers                                     │
//! │ store     one trait, one shard each      store::sqlite, store::redis  │
//! │ domain    pure: life cycle, retry, ids, credit, limits                │
//! └───────────────────────────────────────────────────────────────────────┘
//! ```
//! Imports run downwards only; [`metrics`] and [`clock`] lie beside all of them. [`app`] wires everything and is the
//! only module that knows all. `tests/modules` holds this, and that no modules import each other in a circle.
//!
//! # A job's way
//! [`grpc`] checks a request and makes it a value of [`domain`]; [`scheduler`] gives the job an id
//! and a place; [`shards`] puts it into the next group of its shard; [`store`] writes it and says on
//! its event channel that something can be claimed. [`dispatch`] hears that, claims within the
//! credit of its hungry streams and hands the lease to a transport. The worker's Ack comes back
//! through [`grpc`] to [`scheduler`], which ends the lease by its token and frees the credit.
//!
//! # Invariants
//! - **Rust decides, the store moves.** Next state, wait and dead letter are computed in [`domain`]
//!   and passed to the store, which checks the precondition and writes.
//! - **Only the store's clock decides** what is due or expired; [`clock`] is the only reader.
//! - **Nothing is kept only in memory.** Credit is an estimate that may lag; the lease in the store is
//!   the truth.
//! - **No job runs that nobody received.** A claim that did not reach a transport is undone and not
//!   counted.
//! - **Nothing polls.** Whoever waits sleeps until an event or the next known time. Only what a shared shard
//!   tells can get lost on the way: each second one call asks for what was not heard of.
//! - **Every queue is bounded** by a named constant: in [`domain::limit`] if others rely on it, a setting in [`config`]
//!   if operators choose it, else beside the queue.
#![forbid(unsafe_code)]

#[cfg(feature = "server")]
pub mod app;
#[cfg(feature = "cli")]
pub mod cli;
pub mod client;
#[cfg(feature = "server")]
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod dispatch;
#[cfg(feature = "server")]
pub mod domain;
#[cfg(feature = "server")]
pub mod grpc;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod metrics;
mod pauses;
pub mod pb;
#[cfg(feature = "server")]
pub mod scheduler;
#[cfg(feature = "server")]
pub mod shards;
#[cfg(feature = "server")]
pub mod shutdown;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
#[cfg(feature = "server")]
pub mod timer;
