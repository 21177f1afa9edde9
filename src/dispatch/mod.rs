//! Gets jobs to workers: streams with credit, wake-ups, revocations, and the give-back of what
//! nobody received or nobody speaks for any more.
//!
//! ```text
//!   shard ◀─claim── feed ──grant──▶ stream (ledger, credit) ──take──▶ outbox ──▶ transport
//!     │               ▲                 ▲          │
//!     └─── events ────┘                 │          └─unsent─▶ returns ──unclaim──▶ shard
//!   scheduler, hear ─ hints ─▶ streams ─┘          ├─broken─▶ orphans ──release──▶ shard
//!                                                  └─ended──▶ detach ──(keeps)───▶ shard
//! ```
//!
//! - `feed`, `ask`, `looks` and `board`: what to ask a shard for, and when; one claim per shard at a time
//! - `ledger`, `stream`, `streams`: credit and outbox of one stream; all streams of this replica
//! - `outbox`, `pull`: the two ways out
//! - `lifetime`: the age and idle ends of a stream, whether its transport is polled or not
//! - `hear`: what becomes of leases by other replicas' doing
//! - `returns`, `orphans`, `watch`: what was not sent, what nobody speaks for, what ran out or was not heard of
//! - `lost`: claims whose answers were lost
//! - `silence`, `silent`: whose streams are broken because their replica is silent
//! - `dispatcher`, `hub`: the handle to all of it, and what its parts share
//! - `detach`: what outlives its stream, because the server has ended it
//! - `adoption`, `adoptions`: how the worker's next stream comes to answer for it
//!
//! # How leases go from stream to stream
//! A stream that is over, ended by the server or broken, stays in the books with what its worker holds. The worker's
//! next stream names it, or comes by the same connection with the same worker id; `streams` then makes it the heir, and
//! `adoption` moves the leases: first in the store, then in the books. Of a broken stream only those that were extended
//! since the break are moved, because of the others nobody knows whether they have arrived. A stream of another replica,
//! or of a former life of this one, is looked for in the store.
//!
//! # How credit comes back
//! What the scheduler has written of a settle it tells `streams` as a hint, as `hear` does what others wrote. `streams`
//! finds the stream, which locks its `ledger`: that releases the lease from the credit, and says whether feeds wait
//! for what is free now. Whoever settles knows nothing of credit, and whoever counts it nothing of settles.
//!
//! # Invariants
//! - What is held and asked for on behalf of a stream never exceeds its credit.
//! - A claimed job is in an outbox, on its way back, or sent; nothing else forgets it.
//! - What was not polled by a transport goes back, and counts neither as a failure nor as a delivery. So does what
//!   a pull has taken, unless the last frame of its answer was.

mod adoption_queue;
mod check_timer;
mod claim_planner;
mod claim_request;
mod detach_leases;
mod dispatch_core;
mod dispatcher;
mod lease_adopter;
mod lease_events;
mod lease_watch;
mod lost_claims;
mod orphan_release;
mod outbox;
mod periodic_timer;
mod pull;
mod replica_watcher;
mod return_queue;
mod shard_feed;
mod silence_detector;
mod stream;
mod stream_ledger;
mod stream_lifetime;
mod stream_mailbox;
mod stream_registry;
#[cfg(test)]
mod tests;
mod topic_polls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::{Receipt, StreamId, Time, TopicName};
use crate::scheduler::RevokeReason;
use crate::store::LeasedJob;

pub use dispatcher::Dispatcher;
pub use outbox::Outbox;
pub use pull::{PullHandover, PullOptions};

/// Bounds of this replica's streams.
#[derive(Clone, Debug)]
pub struct Config {
    /// Streams and pulls at once.
    pub streams_max: usize,
    /// A stream is ended with `draining` after so long, plus or minus a tenth; zero is never.
    pub age_max: Duration,
}

/// What a worker asks for, checked and within the limits.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Exact names and trailing-wildcard globs (`billing.*`), served in turn.
    pub topics: Vec<TopicPattern>,
    /// Unsettled deliveries allowed.
    pub max_in_flight: u32,
    /// Unsettled bytes allowed.
    pub max_in_flight_bytes: u64,
    /// Deliveries per message.
    pub max_batch: u32,
    /// Lease of jobs that name none.
    pub lease: Duration,
    /// An empty message after this much silence.
    pub heartbeat: Duration,
    /// End with OK after so many deliveries; `None` is endless.
    pub max_jobs: Option<u64>,
    /// End with OK after so long without a job.
    pub idle_timeout: Option<Duration>,
    /// Give-back after the stream breaks.
    pub orphan_grace: Duration,
    /// Who works here; may be empty.
    pub worker_id: Arc<str>,
    /// The worker's former stream, whose leases this one adopts.
    pub continues: Option<StreamId>,
    /// The peer's address, with its port: it names the connection, too. Empty where it is not known.
    pub peer: String,
    /// The peer's user agent, for people.
    pub user_agent: String,
}

/// A topic name, or all topics with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicPattern {
    /// This topic.
    Exact(TopicName),
    /// Every topic whose name begins so (the glob without its `*`).
    Prefix(String),
}

/// One message of a stream.
#[derive(Clone, Debug, Default)]
pub struct StreamBatch {
    /// Jobs handed over.
    pub deliveries: Vec<JobDelivery>,
    /// Jobs taken back.
    pub revocations: Vec<(Receipt, RevokeReason)>,
    /// Credit in use after this message.
    pub in_flight: u32,
    /// Nothing more comes.
    pub draining: bool,
}

/// One job handed to a worker.
#[derive(Clone, Debug)]
pub struct JobDelivery {
    /// Proof of the lease.
    pub receipt: Receipt,
    /// The job.
    pub job: LeasedJob,
    /// What is left of the lease.
    pub lease_left: Duration,
    /// How long ago the job was due.
    pub lag: Duration,
}

/// An open stream, for people.
#[derive(Clone, Debug)]
pub struct WorkerInfo {
    /// Who works there.
    pub worker_id: String,
    /// The stream.
    pub stream_id: String,
    /// The peer's address.
    pub peer: String,
    /// The peer's user agent.
    pub user_agent: String,
    /// What it asked for.
    pub topics: Vec<TopicPattern>,
    /// Its credit.
    pub max_in_flight: u32,
    /// Credit in use.
    pub in_flight: u32,
    /// When it was opened.
    pub connect_time: Time,
}

/// Why no stream can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamOpenError {
    /// As many as this replica takes are open.
    #[error("this replica has {max} streams and pulls open, which is its maximum; try another one")]
    TooManyStreams {
        /// Its maximum.
        max: usize,
    },
    /// The replica is leaving.
    #[error("this replica is leaving; open the stream on another one")]
    Draining,
}

// === impl TopicPattern ===

impl TopicPattern {
    /// Whether the topic is one of those meant.
    #[must_use]
    pub fn matches(&self, topic: &TopicName) -> bool {
        match self {
            TopicPattern::Exact(name) => name == topic,
            TopicPattern::Prefix(prefix) => topic.as_str().starts_with(prefix),
        }
    }

    /// Whether every topic that `other` means is meant.
    fn includes(&self, other: &TopicPattern) -> bool {
        match (self, other) {
            (_, TopicPattern::Exact(name)) => self.matches(name),
            (TopicPattern::Prefix(wide), TopicPattern::Prefix(narrow)) => narrow.starts_with(wide),
            (TopicPattern::Exact(_), TopicPattern::Prefix(_)) => false,
        }
    }
}

/// As it is written in a request.
impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicPattern::Exact(name) => name.fmt(f),
            TopicPattern::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}
