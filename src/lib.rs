//! ringq: jobs scheduled over gRPC, kept durably, pushed to workers within their credit.
//!
//! [`client`] is the library for producers and workers, [`pb`] the generated code of its protocol. Without features
//! this package has nothing else; the feature `server` adds the server, `cli` the program.
#![cfg_attr(feature = "cli", doc = "")]
#![cfg_attr(feature = "cli", doc = include_str!("architecture.md"))]
#![forbid(unsafe_code)]

#[cfg(feature = "server")]
pub mod app;
#[cfg(feature = "server")]
pub mod audit;
#[cfg(feature = "server")]
pub mod auth;
mod backoff;
#[cfg(feature = "server")]
mod canonical_json;
#[cfg(feature = "cli")]
pub mod cli;
pub mod client;
#[cfg(feature = "server")]
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
mod connections;
#[cfg(feature = "server")]
mod contract;
#[cfg(feature = "server")]
pub mod dispatch;
#[cfg(feature = "server")]
pub mod documents;
#[cfg(feature = "server")]
pub mod domain;
#[cfg(feature = "server")]
pub mod grpc;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
mod keda;
#[cfg(feature = "server")]
mod line_writer;
#[cfg(feature = "server")]
mod log_limiter;
#[cfg(feature = "server")]
pub mod metrics;
pub mod pb;
#[cfg(feature = "server")]
pub mod rpc;
#[cfg(feature = "server")]
pub mod scheduler;
#[cfg(feature = "server")]
pub mod shards;
#[cfg(feature = "server")]
pub mod shutdown;
#[cfg(feature = "server")]
mod source_files;
#[cfg(feature = "server")]
mod stderr;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
#[cfg(feature = "server")]
pub mod timer;
#[cfg(feature = "server")]
pub mod tls;
#[cfg(feature = "server")]
pub mod trace;
