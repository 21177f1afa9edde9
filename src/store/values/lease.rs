//! Leases: as a store has them, how they end and how they last.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::lifecycle::{LeaseEnd, Standing};
use crate::domain::{JobKey, Payload, State, StreamId, Time, Token};

use super::NewJob;

/// Names one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRef {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
}

/// A running lease as the store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
    /// When it ends.
    pub deadline: Time,
    /// When it began.
    pub start_time: Time,
    /// When it was last extended.
    pub extend_time: Option<Time>,
    /// Nonce of the replica whose stream answers for it.
    pub owner: u32,
    /// That stream: the one that got it, or the last one that adopted it.
    pub stream: u32,
    /// Give-back after the stream breaks; `None`: the lease has outlived its stream.
    pub grace: Option<Duration>,
    /// The worker that got it.
    pub worker: String,
    /// Bytes of its payload and headers.
    pub bytes: u64,
    /// What deciding needs.
    pub standing: Standing,
    /// The store's time of reading.
    pub now: Time,
}

/// A lease, as long as this stream answers for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tied {
    /// Which.
    pub lease: LeaseRef,
    /// The stream.
    pub stream: StreamId,
}

/// Ties leases to a stream, which answers for them from then on.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopt {
    /// The stream.
    pub to: StreamId,
    /// Give-back after it breaks.
    pub grace: Duration,
    /// Which.
    pub items: Vec<Adoptee>,
}

/// A lease that is to be adopted.
#[derive(Clone, Debug, PartialEq)]
pub struct Adoptee {
    /// Which, and the stream that it comes from.
    pub tied: Tied,
    /// Unless it was detached: only if it was extended then or later. `None`: in any case.
    pub since: Option<Time>,
}

/// Ends one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// Which.
    pub lease: LeaseRef,
    /// Nonce of the replica whose stream has it, as the receipt or the lease says. That of the caller: nobody
    /// else has to hear of it.
    pub owner: u32,
    /// How.
    pub end: End,
    /// Only while the deadline is still this one (a reap, or the give-back of a broken stream).
    pub deadline: Option<Time>,
}

/// How a lease ends.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The job is done.
    Ack {
        /// Kept as long as the record is.
        result: Option<Payload>,
        /// Written together with the ack; server-made ids of this shard only.
        follow_ups: Vec<NewJob>,
    },
    /// Decided by [`lease_end`](crate::domain::lifecycle::lease_end).
    Decided {
        /// The decision.
        end: LeaseEnd,
        /// How long a dead letter is kept.
        dead_retention: Duration,
    },
}

/// A lease that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The settle was applied before and this is a repeat, which changes nothing.
    pub repeated: bool,
    /// The state that the job is in now; SUCCEEDED also when no record is left.
    pub state: State,
}

/// Why a lease could not be settled or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such job: deleted, or finished and forgotten.
    #[error("the job is gone: deleted, or finished without retention")]
    NotFound,
    /// Another lease, or none.
    #[error("the lease is gone: it ran out or was revoked")]
    Stale,
}

/// Moves the deadline of one lease to now plus a duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Extend {
    /// Which.
    pub lease: LeaseRef,
    /// From now; absent: the lease's own duration.
    pub duration: Option<Duration>,
    /// Note for people; absent keeps the last one.
    pub progress: Option<String>,
    /// It ran out while no server served its shard, and waits for its worker.
    pub lapsed: Option<Lapsed>,
    /// Nothing is written after that; absent: the store's own bound on a call.
    pub until: Option<Instant>,
}

/// A lease that ran out while no server served its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// Only while its deadline is still this one.
    pub deadline: Time,
    /// When the shard was served again: as if it had been extended then.
    pub served: Time,
}

// === impl Lease ===

impl Lease {
    /// The stream that answers for it.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        StreamId { owner: self.owner, stream: self.stream }
    }

    /// The lease and the stream that answers for it.
    #[must_use]
    pub fn tied(&self) -> Tied {
        let lease = LeaseRef { key: self.key.clone(), token: self.token };
        Tied { lease, stream: self.stream_id() }
    }
}
