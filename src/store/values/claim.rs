//! Claims: the demand of streams, and the leases that they receive.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::{JobKey, Payload, PriorityAgeing, Spec, Time, Token, TopicName};

/// A claim: all streams of a replica with free credit together.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Upper half of every token of this claim; random.
    pub nonce: u32,
    /// Nonce of the replica.
    pub owner: u32,
    /// The demand, one entry per topic.
    pub topics: Vec<TopicDemand>,
}

/// The demand for jobs of one topic.
#[derive(Clone, Debug)]
pub struct TopicDemand {
    /// The topic.
    pub topic: TopicName,
    /// Ageing of its priorities; `None`: they are strict levels. It comes with each claim, so a shard stores nothing of it,
    /// and settings of patterns count like those of topics.
    pub ageing: Option<PriorityAgeing>,
    /// The streams that receive the jobs found, in turn. Empty: the call only reads the remainder.
    pub streams: Vec<StreamDemand>,
}

/// Demand of a stream that can take jobs.
#[derive(Clone, Debug)]
pub struct StreamDemand {
    /// The stream, unique within the replica's life.
    pub stream: u32,
    /// Id of the worker on the stream.
    pub worker_id: Arc<str>,
    /// Lease of jobs that name none.
    pub lease: Duration,
    /// Release delay after the stream breaks; `None`: the lease outlives the call (a Pull).
    pub grace: Option<Duration>,
    /// Maximum number of jobs.
    pub jobs: u32,
    /// Maximum bytes of payload, headers and checkpoint.
    pub bytes: u64,
    /// Allows the first job to exceed `bytes`, because the stream holds nothing.
    pub oversize: bool,
}

/// Result of a claim, in the order of its topics.
#[derive(Clone, Debug)]
pub struct ClaimResult {
    /// The store's time of the claim.
    pub now: Time,
    /// The results, one per topic.
    pub topics: Vec<TopicLeases>,
}

/// Leases found in one topic.
#[derive(Clone, Debug)]
pub struct TopicLeases {
    /// Leases by stream, in the order of [`TopicDemand::streams`].
    pub by_stream: Vec<Vec<LeasedJob>>,
    /// State of the topic after the claim.
    pub remainder: TopicRemainder,
}

/// State of a topic after a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRemainder {
    /// More jobs are ready, or were: expired jobs may count until a claim finds them.
    Ready,
    /// No job is ready before that time. A job that expired before its due time may count until a claim or a prune
    /// finds it. The caller then wakes up for nothing, which costs less than a check at each claim whether the next
    /// job is still alive.
    ReadyAt(Time),
    /// The topic is empty.
    Empty,
    /// The state is not known yet: the first jobs had expired or were gone, and removing them used up the call. A
    /// stream that received nothing retries at once: no job was too large for it.
    Unknown,
}

/// A job leased to a stream.
#[derive(Clone, Debug)]
pub struct LeasedJob {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
    /// Start of the lease by the store's clock, later than the start of every earlier lease of the shard: of two
    /// leases of one id the later one has the greater fence.
    pub fence: Time,
    /// Deadline of the lease.
    pub deadline: Time,
    /// Specification of the job.
    pub spec: Spec,
    /// Priority of the job.
    pub priority: u8,
    /// Number of counted failures so far.
    pub failures: u32,
    /// Number of finished deliveries so far, without this one.
    pub deliveries: u32,
    /// Number of crashes of its workers so far.
    pub crashes: u32,
    /// Time at which the job became ready.
    pub due: Time,
    /// Time of the enqueue.
    pub create_time: Time,
    /// Error of the last failed attempt.
    pub last_error: String,
    /// Checkpoint stored by an earlier worker.
    pub checkpoint: Option<Payload>,
}

// === impl LeasedJob ===

impl LeasedJob {
    /// Returns the bytes of payload, headers and checkpoint: they count against the byte credit of a stream.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let checkpoint = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.body.len());
        (self.spec.bytes() + checkpoint) as u64
    }
}
