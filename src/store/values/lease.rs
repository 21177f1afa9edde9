//! Leases: as a store has them, how they end and how they last.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::engine::{self, Command, OutageExpiry, Phase, Record, SettleAction};
use crate::domain::lifecycle::AttemptContext;
use crate::domain::{JobKey, Payload, StreamId, Time, Token};

use super::JobRequest;

/// Names one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
}

/// A running lease as the store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningLease {
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
    /// Bytes of its payload, headers and checkpoint.
    pub bytes: u64,
    /// What deciding needs.
    pub attempt: AttemptContext,
    /// The store's time of reading.
    pub now: Time,
}

/// A lease, as long as this stream answers for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLeaseRef {
    /// Which.
    pub lease: LeaseRef,
    /// The stream.
    pub stream: StreamId,
}

/// Ties leases to a stream, which answers for them from then on.
#[derive(Clone, Debug, PartialEq)]
pub struct AdoptBatch {
    /// The stream.
    pub to: StreamId,
    /// Give-back after it breaks.
    pub grace: Duration,
    /// Which.
    pub items: Vec<AdoptItem>,
}

/// A lease that is to be adopted.
#[derive(Clone, Debug, PartialEq)]
pub struct AdoptItem {
    /// Which, and the stream that it comes from.
    pub source: StreamLeaseRef,
    /// Unless it was detached: only if it was extended then or later. `None`: in any case.
    pub since: Option<Time>,
}

/// Ends one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseSettlement {
    /// Which.
    pub lease: LeaseRef,
    /// Nonce of the replica whose stream has it, as the receipt or the lease says. That of the caller: nobody
    /// else has to hear of it.
    pub owner: u32,
    /// How.
    pub action: SettleAction,
    /// Only while the deadline is still this one (a reap, or the give-back of a broken stream).
    pub deadline: Option<Time>,
}

/// Moves the deadline of one lease to now plus a duration.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseExtension {
    /// Which.
    pub lease: LeaseRef,
    /// From now; absent: the lease's own duration.
    pub duration: Option<Duration>,
    /// Note for people; absent keeps the last one.
    pub progress: Option<String>,
    /// What the next delivery brings along; an empty one clears it, absent keeps the last one. Where the store has no
    /// room for it nothing of the item is applied, and the call fails with [`Error::Full`](super::super::Error::Full).
    pub checkpoint: Option<Payload>,
    /// It ran out while no server served its shard, and waits for its worker.
    pub outage_expiry: Option<OutageExpiry>,
    /// Nothing is written after that; absent: the store's own bound on a call.
    pub write_deadline: Option<Instant>,
}

// === impl Lease ===

impl RunningLease {
    /// The lease of the job of this key, as its record has it; `None`: it does not run.
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

    /// The stream that answers for it.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        StreamId { owner: self.owner, stream: self.stream }
    }

    /// The lease and the stream that answers for it.
    #[must_use]
    pub fn stream_lease_ref(&self) -> StreamLeaseRef {
        let lease = LeaseRef { key: self.key.clone(), token: self.token };
        StreamLeaseRef { lease, stream: self.stream_id() }
    }
}

// === impl Settle, Extend, Tied, Adopt, LeaseRef ===

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
