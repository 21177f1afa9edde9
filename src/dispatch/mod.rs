//! Delivers jobs to workers: streams with credit, wake-ups, revocations, and the return of leases that reached no
//! client or that no worker extends or settles any more.
//!
//! ```text
//!   shard ◀─claim── shard_feed ──grant──▶ stream (ledger, credit) ──take──▶ outbox ──▶ transport
//!     │                 ▲                    ▲          │
//!     └──── events ─────┘                    │          ├─unsent─▶ return_queue ───unclaim──▶ shard
//!   scheduler, leases::events ▶ registry ──┘          ├─broken─▶ orphan_release ─release──▶ shard
//!                                                       └─ended──▶ detach ─────────(keeps)──▶ shard
//! ```
//!
//! - `streams`: credit, leases and outgoing jobs of each stream, and the registry of all of them
//! - `feed`: contents and time of the claims of a shard
//! - `leases`: leases that move to another stream, expire, or go back
//! - `transport`: the two ways out, streams and pulls
//! - `dispatcher`, `dispatch_core`: the public handle, and the state that its parts share
//!
//! # How leases go from stream to stream
//! A stream that is over, ended by the server or broken, stays in the registry with the leases that its worker holds.
//! The worker's next stream names it, or comes by the same connection with the same worker id. `streams::registry` then
//! makes that stream the successor, and `leases::adopter` moves the leases: first in the store, then in the ledgers. Of
//! a broken stream only leases that were extended since the break are moved, because the others may never have
//! arrived. A stream of another replica, or of a previous run of this one, is looked up in the store.
//!
//! # How credit comes back
//! After the scheduler has written a settle, it sends a lease event to `streams::registry`; `leases::events` does the
//! same for settles of other replicas. The registry finds the stream and locks its `streams::ledger`: this frees the
//! credit of the lease and returns whether feeds wait for credit. The code that settles does not depend on credit,
//! and the code that counts credit does not depend on settles.
//!
//! # Invariants
//! - The jobs held and reserved for a stream never exceed its credit.
//! - A claimed job is in an outbox, on its way back, or sent.
//! - A job that its transport did not poll goes back, and counts neither as a failure nor as a delivery. So does a
//!   job that a pull has taken, unless the last frame of the response was polled.

mod dispatch_core;
mod dispatcher;
mod feed;
mod leases;
mod streams;
#[cfg(test)]
mod tests;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use crate::auth::Identity;
use crate::domain::{Receipt, StreamId, Time, TopicPattern};
use crate::scheduler::RevokeReason;
use crate::store::LeasedJob;

pub use dispatcher::Dispatcher;
pub use transport::outbox::Outbox;
pub use transport::pull::{PullHandover, PullOptions};

/// Limits of the streams of this replica.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of streams and pulls open at the same time, at most.
    pub streams_max: usize,
    /// Age at which a stream is ended with `draining`, plus or minus a tenth; zero means never.
    pub stream_max_age: Duration,
}

/// Options of a stream, checked and within the limits.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Exact names and trailing-wildcard globs (`billing.*`), served in turn.
    pub topics: Vec<TopicPattern>,
    /// Turns per round of each topic of these patterns: all that the worker named, also where `topics` has only the
    /// parts that it may take. Empty: all topics are served in equal turns.
    pub topic_weights: Vec<(TopicPattern, u32)>,
    /// Number of unsettled deliveries, at most.
    pub max_in_flight: u32,
    /// Bytes of unsettled deliveries, at most.
    pub max_in_flight_bytes: u64,
    /// Number of deliveries per message, at most.
    pub max_batch: u32,
    /// Lease of jobs that name none.
    pub lease: Duration,
    /// True: the worker has chosen the lease, so it goes before that of the topic.
    pub names_lease: bool,
    /// Time without a message after which an empty one is sent.
    pub heartbeat: Duration,
    /// Number of deliveries after which the stream ends with OK; `None` means no limit.
    pub max_jobs: Option<u64>,
    /// Time without a job after which the stream ends with OK.
    pub idle_timeout: Option<Duration>,
    /// Time from a break of the stream to the release of its leases.
    pub orphan_grace: Duration,
    /// Worker id; may be empty.
    pub worker_id: Arc<str>,
    /// Identity of the worker; `None`: everyone may do everything. Leases pass only between streams of one identity, and
    /// only for topics whose jobs it may settle.
    pub identity: Option<Arc<Identity>>,
    /// Id of the worker's previous stream, whose leases this one adopts.
    pub continues: Option<StreamId>,
    /// Address and port of the peer; identifies the connection, too. Empty when unknown.
    pub peer: String,
    /// User agent of the peer, for display.
    pub user_agent: String,
}

/// Content of one message of a stream.
#[derive(Clone, Debug, Default)]
pub struct StreamBatch {
    /// Jobs handed over.
    pub deliveries: Vec<JobDelivery>,
    /// Revoked leases with their reasons.
    pub revocations: Vec<(Receipt, RevokeReason)>,
    /// Credit in use after this message, in jobs.
    pub in_flight: u32,
    /// Last message of a stream that is draining.
    pub draining: bool,
}

/// A job handed to a worker.
#[derive(Clone, Debug)]
pub struct JobDelivery {
    /// Receipt of the lease.
    pub receipt: Receipt,
    /// The job.
    pub job: LeasedJob,
    /// Remaining time of the lease.
    pub lease_left: Duration,
    /// Time since the job was due.
    pub lag: Duration,
}

/// An open stream, for display.
#[derive(Clone, Debug)]
pub struct WorkerInfo {
    /// Worker id; may be empty.
    pub worker_id: String,
    /// Id of the stream.
    pub stream_id: String,
    /// Address of the peer.
    pub peer: String,
    /// User agent of the peer.
    pub user_agent: String,
    /// Topics that the stream subscribes to.
    pub topics: Vec<TopicPattern>,
    /// Credit of the stream, in jobs.
    pub max_in_flight: u32,
    /// Credit in use, in jobs.
    pub in_flight: u32,
    /// Time at which the stream was opened.
    pub connect_time: Time,
}

/// A stream or waiting pull that asks for a topic.
#[derive(Clone, Debug)]
pub struct TopicStream {
    /// Topics that it subscribes to.
    pub topics: Vec<TopicPattern>,
    /// True for a pull.
    pub is_pull: bool,
    /// Credit, in jobs.
    pub max_in_flight: u32,
    /// State of its credit.
    pub credit: TopicCredit,
}

/// Credit of a stream or pull, as seen by a job of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicCredit {
    /// Credit in use, in jobs.
    pub in_flight: u32,
    /// Part of `in_flight` that jobs of other topics use.
    pub other_topics: u32,
    /// True if the job fits the free credit.
    pub fits: bool,
    /// True if the client does not read its messages, so that nothing more is claimed for it.
    pub is_unread: bool,
}

/// Reason why a stream or pull cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamOpenError {
    /// The replica has as many streams and pulls open as it allows.
    #[error("this replica has {max} streams and pulls open, its maximum; try another replica")]
    TooManyStreams {
        /// Number of streams and pulls that the replica allows.
        max: usize,
    },
    /// The replica is draining.
    #[error("this replica is draining; open the stream on another replica")]
    Draining,
}
