//! Leases: references to them, and running ones as stored.

use std::time::Duration;

use crate::domain::engine::{Phase, Record};
use crate::domain::lifecycle::AttemptContext;
use crate::domain::{JobKey, StreamId, Time, Token};

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

    /// Returns a reference to the lease.
    #[must_use]
    pub fn lease_ref(&self) -> LeaseRef {
        LeaseRef { key: self.key.clone(), token: self.token }
    }
}
