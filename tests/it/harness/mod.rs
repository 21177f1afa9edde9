//! Fixtures of the end-to-end tests: a real server process in a directory of its own, its clients, a worker that
//! records what it received, and time.
//!
//! Nothing here depends on the inside of the server: it is started by its command line, called over sockets and
//! stopped by signals.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests: a panic is how they fail, and they measure real time from outside"
)]

mod client;
#[allow(dead_code, reason = "the hostile clients use the rest")]
pub(crate) mod frames;
mod full_pipe;
mod holding_proxy;
mod job;
mod json;
pub(crate) mod otlp;
mod port;
mod proxy;
pub(crate) mod raw;
mod redis;
mod refusal;
mod sentinel;
mod server;
mod time;
mod tls;
mod tls_front;
mod tls_proxy;
mod worker;

pub(crate) use client::{Client, nack, nack_retry, receipts};
#[allow(unused_imports, reason = "the fault scenarios do not use it")]
pub(crate) use full_pipe::full_pipe;
pub(crate) use holding_proxy::HoldingProxy;
pub(crate) use job::{JobExt, job, request};
#[allow(unused_imports, reason = "the fault scenarios do not use it")]
pub(crate) use json::{JsonAnswer, JsonBridge, JsonClient, status_json, unary_methods};
pub(crate) use port::free_port;
pub(crate) use proxy::LossyProxy;
pub(crate) use raw::{RawAnswer, RawCalls, framed, http_get, http_get_on, raw_queue};
#[allow(unused_imports, reason = "the fault scenarios use it")]
pub(crate) use redis::Place;
pub(crate) use redis::{Program, Redis};
pub(crate) use refusal::{assert_refused, names_lock, refusal};
pub(crate) use sentinel::Sentinel;
pub(crate) use server::{Server, Setup};
pub(crate) use time::{
    PATIENCE, SinceEpoch, duration, eventually, eventually_in, for_a_while, in_ci, millis, proto,
    thorough, timestamp, wall_now, within, within_long,
};
pub(crate) use tls::Certificates;
#[allow(unused_imports, reason = "the fault scenarios do not use it")]
pub(crate) use tls::{TlsClient, Valid};
pub(crate) use tls_front::TlsFront;
#[allow(unused_imports, reason = "the fault scenarios do not use it")]
pub(crate) use tls_proxy::TlsProxy;
pub(crate) use worker::{Worker, take};
