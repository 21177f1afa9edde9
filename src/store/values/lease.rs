//! Leases: their representation, and the requests that end, extend or adopt them.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::engine::{self, Command, OutageExpiry, Phase, Record, SettleAction};
use crate::domain::lifecycle::AttemptContext;
use crate::domain::{JobKey, Payload, StreamId, Time, Token};

use super::JobRequest;

/// Reference to one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
}

/// A running lease as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningLease {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
    /// Deadline of the lease.
    pub deadline: Time,
    /// Start of the lease.
    pub start_time: Time,
    /// Time of the last extension.
    pub extend_time: Option<Time>,
    /// Nonce of the replica whose stream answers for the lease.
    pub owner: u32,
    /// The stream that received the lease, or the last one that adopted it.
    pub stream: u32,
    /// Release delay after the stream breaks; `None`: the lease has outlived its stream.
    pub grace: Option<Duration>,
    /// The worker that received the lease.
    pub worker: String,
    /// Bytes of payload, headers and checkpoint of the job.
    pub bytes: u64,
    /// Data that the decision about the attempt needs.
    pub attempt: AttemptContext,
    /// The store's time of reading.
    pub now: Time,
}

/// A lease while this stream answers for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLeaseRef {
    /// The lease.
    pub lease: LeaseRef,
    /// The stream.
    pub stream: StreamId,
}

/// Moves leases to a stream, which answers for them from then on.
#[derive(Clone, Debug, PartialEq)]
pub struct AdoptBatch {
    /// The new stream.
    pub to: StreamId,
    /// Release delay after the new stream breaks.
    pub grace: Duration,
    /// The leases.
    pub items: Vec<AdoptItem>,
}

/// A lease to be adopted.
#[derive(Clone, Debug, PartialEq)]
pub struct AdoptItem {
    /// The lease, and the stream that it comes from.
    pub source: StreamLeaseRef,
    /// Oldest accepted time of the last extension, for a lease that was not detached. `None`: any.
    pub since: Option<Time>,
}

/// Ends one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseSettlement {
    /// The lease.
    pub lease: LeaseRef,
    /// Nonce of the replica whose stream has the lease, from the receipt or the lease. With the caller's own nonce no
    /// other replica is notified.
    pub owner: u32,
    /// The outcome of the attempt.
    pub action: SettleAction,
    /// Condition: the deadline is still this one (a reap, or the release after a broken stream).
    pub deadline: Option<Time>,
}

/// Moves the deadline of one lease to now plus a duration.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseExtension {
    /// The lease.
    pub lease: LeaseRef,
    /// Duration from now; absent: the lease's own duration.
    pub duration: Option<Duration>,
    /// Progress note for people; absent keeps the last one.
    pub progress: Option<String>,
    /// Checkpoint for the next delivery; an empty one clears it, absent keeps the last one. If the store has no room
    /// for it, nothing of the item is applied, and the call fails with [`Error::Full`](super::super::Error::Full).
    pub checkpoint: Option<Payload>,
    /// Set when the lease expired while no server served its shard, and waits for its worker.
    pub outage_expiry: Option<OutageExpiry>,
    /// Deadline of the write; absent: the store's own limit on a call.
    pub write_deadline: Option<Instant>,
}

// === impl RunningLease ===

impl RunningLease {
    /// Returns the lease of the job `key` from its record; `None`: the job does not run.
    #[must_use]
    pub fn from_record(key: JobKey, record: &Record, now: Time) -> Option<RunningLease> {
        let Phase::Running(lease) = &record.phase else { return None };
        Some(RunningLease {
            key,
            token: lease.token,
            deadline: lease.deadline.at,
            start_time: lease.started,
            extend_time: lease.extended.map(|extended| extended.at),
            owner: lease.owner,
            stream: lease.stream,
            grace: lease.grace,
            worker: lease.worker.clone(),
            bytes: record.bytes,
            attempt: record.attempt_context(lease),
            now,
        })
    }

    /// Returns the stream that answers for the lease.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        StreamId { owner: self.owner, stream: self.stream }
    }

    /// Returns the lease and the stream that answers for it.
    #[must_use]
    pub fn stream_lease_ref(&self) -> StreamLeaseRef {
        let lease = LeaseRef { key: self.key.clone(), token: self.token };
        StreamLeaseRef { lease, stream: self.stream_id() }
    }
}

// === impl LeaseSettlement, LeaseExtension, StreamLeaseRef, AdoptBatch, LeaseRef ===

impl From<LeaseSettlement> for JobRequest {
    fn from(settle: LeaseSettlement) -> JobRequest {
        let LeaseSettlement { lease: LeaseRef { key, token }, owner, action: end, deadline } =
            settle;
        let command = Command::Settle(engine::Settle { token, deadline, action: end });
        JobRequest { owner, ..JobRequest::new(key, command) }
    }
}

impl From<LeaseExtension> for JobRequest {
    fn from(extend: LeaseExtension) -> JobRequest {
        let LeaseExtension {
            lease,
            duration,
            progress,
            checkpoint,
            outage_expiry: lapsed,
            write_deadline: until,
        } = extend;
        let LeaseRef { key, token } = lease;
        let command = Command::Extend(engine::Extend {
            token,
            duration,
            progress,
            checkpoint,
            outage_expiry: lapsed,
        });
        JobRequest { deadline: until, ..JobRequest::new(key, command) }
    }
}

impl From<StreamLeaseRef> for JobRequest {
    /// Detaches the lease.
    fn from(
        StreamLeaseRef { lease: LeaseRef { key, token }, stream }: StreamLeaseRef,
    ) -> JobRequest {
        JobRequest::new(key, Command::Detach { token, stream })
    }
}

impl From<AdoptBatch> for Vec<JobRequest> {
    fn from(AdoptBatch { to, grace, items }: AdoptBatch) -> Vec<JobRequest> {
        let request = |AdoptItem { source: tied, since }| {
            let StreamLeaseRef { lease: LeaseRef { key, token }, stream: from } = tied;
            JobRequest::new(key, Command::Adopt(engine::Adopt { token, from, to, grace, since }))
        };
        items.into_iter().map(request).collect()
    }
}

impl From<LeaseRef> for JobRequest {
    /// Undoes the lease.
    fn from(LeaseRef { key, token }: LeaseRef) -> JobRequest {
        JobRequest::new(key, Command::Unclaim(token))
    }
}
