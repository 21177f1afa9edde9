//! Who asks for jobs, what they get, and how it is undone.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::{JobKey, Payload, Spec, Time, Token, TopicName};

use super::LeaseRef;

/// One claim: all of a replica's hungry streams together.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Upper half of every token of this claim; random.
    pub nonce: u32,
    /// Nonce of the replica.
    pub owner: u32,
    /// One per topic.
    pub topics: Vec<TopicDemand>,
}

/// What is asked of one topic.
#[derive(Clone, Debug)]
pub struct TopicDemand {
    /// The topic.
    pub topic: TopicName,
    /// Who gets what is found; jobs go round from taker to taker. Nobody: only what there is is asked.
    pub streams: Vec<StreamDemand>,
}

/// One stream that can take jobs.
#[derive(Clone, Debug)]
pub struct StreamDemand {
    /// The stream, unique within the replica's life.
    pub stream: u32,
    /// Who works there.
    pub worker_id: Arc<str>,
    /// Lease of jobs that name none.
    pub lease: Duration,
    /// Give-back after the stream breaks; `None`: the lease outlives the call (a Pull).
    pub grace: Option<Duration>,
    /// Jobs it can take.
    pub jobs: u32,
    /// Bytes of payload, headers and checkpoint it can take.
    pub bytes: u64,
    /// Whether the first job may exceed `bytes`, because the stream holds nothing.
    pub oversize: bool,
}

/// What a claim answers, in the order of its asks.
#[derive(Clone, Debug)]
pub struct ClaimResult {
    /// The store's time of the claim.
    pub now: Time,
    /// One per ask.
    pub topics: Vec<TopicLeases>,
}

/// What was found in one topic.
#[derive(Clone, Debug)]
pub struct TopicLeases {
    /// Leases by taker, in the order of [`TopicDemand::takers`].
    pub by_stream: Vec<Vec<LeasedJob>>,
    /// What to expect of the topic next.
    pub remainder: TopicRemainder,
}

/// What a claim left in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRemainder {
    /// More is ready, or was: what has expired since may count as long as no claim has met it.
    Ready,
    /// Nothing before that time. A job that expired before it was due counts as long as no claim has met
    /// it and no prune: who wakes up for it finds nothing, which costs less than to look at each
    /// claim whether the next job is still alive.
    ReadyAt(Time),
    /// Nothing at all.
    Empty,
    /// Not known yet: what stood first had expired or is gone, and clearing it away filled the call. Whoever
    /// got nothing asks again at once: nothing was too large for them.
    Unknown,
}

/// A job leased to a taker.
#[derive(Clone, Debug)]
pub struct LeasedJob {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
    /// When it began, by the store's clock, and later than every lease that the shard gave out before: of two leases of
    /// one id the later has the greater one.
    pub fence: Time,
    /// When it ends.
    pub deadline: Time,
    /// What was asked for.
    pub spec: Spec,
    /// Its priority.
    pub priority: u8,
    /// Counted failures so far.
    pub failures: u32,
    /// Finished hand-overs so far, this one not included.
    pub deliveries: u32,
    /// When it became ready.
    pub due: Time,
    /// When it was enqueued.
    pub create_time: Time,
    /// Of the last failed attempt.
    pub last_error: String,
    /// What a worker before has kept with it.
    pub checkpoint: Option<Payload>,
}

/// Which leases to undo.
#[derive(Clone, Debug)]
pub enum Unclaim {
    /// These.
    Leases(Vec<LeaseRef>),
    /// Those of a claim whose reply was lost, a part at a time.
    Claim(LostClaim),
}

/// A claim whose reply was lost, and how far the search for its leases has come.
#[derive(Clone, Debug)]
pub struct LostClaim {
    /// Its nonce.
    pub nonce: u32,
    /// The topics that it asked for.
    pub topics: Arc<[TopicName]>,
    /// Where the last part ended; `None` is the first one.
    pub cursor: Option<String>,
}

/// What an unclaim did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclaimResult {
    /// Leases that it undid.
    pub leases: u64,
    /// Where the search for a lost claim goes on; `None` where there is nothing left to search.
    pub cursor: Option<String>,
}

// === impl Leased ===

impl LeasedJob {
    /// Bytes of payload, headers and checkpoint: what a stream's byte credit counts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let checkpoint = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.body.len());
        (self.spec.bytes() + checkpoint) as u64
    }
}
