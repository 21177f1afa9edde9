//! The verbs of the product. A verb decides by [`crate::domain`] what follows from an event, has a shard write it,
//! and notifies the streams of this replica. Feeds and timers hold a shard each, and pass it to their verbs.
//!
//! Each room has a handle, so that a caller reaches the verbs that it was given and no others:
//!
//! - `produce`, [`Producer`]: enqueue, and what producers do with single jobs
//! - `settle`, [`Settler`]: ends of leases, requested by workers or without them
//! - `operate`, [`Operator`]: lists, statistics, purge, redrive, topics and shards
//! - `upkeep`, [`Upkeep`]: what timers call
//!
//! They share [`Core`], which has no verb, and:
//!
//! - `locate`: the shard of a job while the ring changes
//! - `by_shard`: splits the items of a call by shard, and merges the results
//! - `transfer`: writes a job in another topic before it ends where it is
//! - `request_hash`: the request of an enqueue, by which a repeat is recognized
//! - `topic_limits`: limits of topics
//! - `rates`: jobs per second of topics

mod by_shard;
mod locate;
mod operate;
mod produce;
mod rates;
mod request_hash;
mod settle;
#[cfg(test)]
pub(crate) mod tests;
mod topic_limits;
mod transfer;
mod upkeep;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::Clock;
use crate::documents::Documents;
use crate::domain::ring::ShardState;
use crate::domain::{
    Durability, ReceiptKey, RetryOverrides, RetryPolicy, ShardName, Time, TopicName, limit,
};
use crate::metrics::Metrics;
use crate::shards::{self, Shard, Shards};
use crate::store::LeaseEvent;

use produce::Evictions;
use settle::JobLogLimiter;

pub use crate::shards::ShardError;
pub use crate::store::RevokeReason;
pub use operate::{
    FoundJob, GroupRows, JobExplanation, JobsPage, ListJobs, ListPosition, ListedJob, Operator,
    PurgeTopic, PurgedJobs, RedriveJobs, RedrivenJobs, SetShardStateError, ShardInfo,
    ShardPosition, TopicChange, TopicChangeError, TopicRefusal, TopicRow, etag,
};
pub use produce::{AcceptedJob, Draft, EnqueueError, FullTopic, Producer, WriteTerms};
pub use rates::Rates;
pub use settle::{
    AckItem, EndLeasesResult, ExtendItem, LeaseStatus, NackItem, SettleError, SettleResult, Settler,
};
pub use upkeep::{NextUpkeep, Upkeep};

/// The handles to all verbs. Cheap to clone.
#[derive(Clone)]
pub struct Scheduler {
    /// Verbs of producers.
    pub producer: Producer,
    /// Verbs about leases.
    pub settler: Settler,
    /// Verbs of operators.
    pub operator: Operator,
    /// Verbs of timers.
    pub upkeep: Upkeep,
}

/// State that the verbs share; it has no verb itself. Cheap to clone.
#[derive(Clone)]
pub struct Core {
    inner: Arc<CoreInner>,
}

struct CoreInner {
    shards: Shards,
    documents: Documents,
    clock: Clock,
    metrics: Metrics,
    rates: Rates,
    evictions: Evictions,
    replica: ReplicaIdentity,
    listener: OnceLock<StreamListener>,
    job_log_limiter: JobLogLimiter,
}

/// Identity of this server process.
#[derive(Clone, Debug)]
pub struct ReplicaIdentity {
    /// Configured name of the replica.
    pub name: String,
    /// Random number of this process: part of every receipt that it issues.
    pub nonce: u32,
}

/// Callbacks to the streams of this replica. Both are called synchronously and do not block.
pub struct StreamListener {
    /// Receives changes that this replica has made to its own leases on a shard. Changes by others come as
    /// [`ShardEvent::Lease`](crate::store::ShardEvent::Lease).
    pub on_lease_event: LeaseEventListener,
    /// Returns the credit of a stream, as long as it is known.
    pub credit: CreditLookup,
}

/// Callback for a change of leases of this replica on a shard.
pub type LeaseEventListener = Box<dyn Fn(&Shard, LeaseEvent) + Send + Sync>;
/// Callback that returns the credit of a stream.
pub type CreditLookup = Box<dyn Fn(u32) -> Option<u32> + Send + Sync>;

// === impl Scheduler ===

impl Scheduler {
    /// Creates the verbs over these shards.
    #[must_use]
    pub fn new(
        shards: Shards,
        clock: Clock,
        metrics: Metrics,
        replica: ReplicaIdentity,
    ) -> Scheduler {
        let documents = Documents::new(shards.clone(), clock.clone());
        let inner = CoreInner {
            shards,
            documents,
            clock,
            metrics,
            rates: Rates::new(),
            evictions: Evictions::default(),
            replica,
            listener: OnceLock::new(),
            job_log_limiter: JobLogLimiter::new(),
        };
        let core = Core { inner: Arc::new(inner) };
        let upkeep = Upkeep(core.clone());
        Scheduler {
            producer: core.producer(),
            settler: core.settler(),
            operator: Operator(core),
            upkeep,
        }
    }
}

impl Deref for Scheduler {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.upkeep
    }
}

// === impl Core ===

impl Core {
    fn producer(&self) -> Producer {
        Producer(self.clone())
    }

    fn settler(&self) -> Settler {
        Settler(self.clone())
    }

    /// Registers the listener for the streams of this replica. Only the first call has an effect.
    pub fn set_listener(&self, listener: StreamListener) {
        let _ = self.inner.listener.set(listener);
    }

    /// Returns the identity of this process.
    #[must_use]
    pub fn replica(&self) -> &ReplicaIdentity {
        &self.inner.replica
    }

    /// Returns the clock of this replica. Due times are decided by the clock of a store, see
    /// [`ClaimResult::now`](crate::store::ClaimResult::now).
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Returns the shards.
    #[must_use]
    pub fn shards(&self) -> &Shards {
        &self.inner.shards
    }

    /// Returns the metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Returns the documents, such as the policies of topics.
    #[must_use]
    pub fn documents(&self) -> &Documents {
        &self.inner.documents
    }

    /// Returns the key of the receipts of a shard; `None`: the shard was not reached yet, or is not configured here.
    #[must_use]
    pub fn receipt_key(&self, shard: &ShardName) -> Option<ReceiptKey> {
        self.inner.shards.by_name(shard)?.receipt_key()
    }

    /// Returns the retry policy of a job of `topic` with the overrides `over`: server, then topic, then job.
    #[must_use]
    pub fn retry_policy(&self, topic: &TopicName, over: Option<&RetryOverrides>) -> RetryPolicy {
        let documents = self.inner.documents.any();
        let settings = documents.as_ref().and_then(|documents| documents.settings(topic));
        let of_topic = settings.map(|settings| &settings.retry);
        RetryPolicy::default().merge(of_topic).merge(over)
    }

    /// Returns the retention of dead letters of `topic`.
    fn dead_retention(&self, topic: &TopicName) -> Duration {
        let documents = self.inner.documents.any();
        let settings = documents.as_ref().and_then(|documents| documents.settings(topic));
        settings.and_then(|settings| settings.dead_retention).unwrap_or(limit::DEAD_RETENTION)
    }

    /// Returns the highest durability that a write can request on every active shard; `None` while that depends on a
    /// shard that was not reached yet.
    #[must_use]
    pub fn durability(&self) -> Option<Durability> {
        let shards = self.inner.shards.all().iter();
        let active = shards.filter(|shard| shard.state() == ShardState::Active);
        let mut least = None;
        let mut is_unknown = false;
        for shard in active {
            match shard.known_write_durability() {
                Some(reach) => least = Some(least.unwrap_or(reach.max).min(reach.max)),
                None => is_unknown = true,
            }
        }
        match least {
            // No shard can have less.
            Some(Durability::Memory) => least,
            _ if is_unknown => None,
            least => Some(least.unwrap_or(Durability::Memory)),
        }
    }

    /// Returns the names of the shards that do not answer.
    #[must_use]
    pub fn unreachable(&self) -> Vec<String> {
        let down = self.inner.shards.all().iter().filter(|shard| shard.is_down());
        down.map(|shard| shard.name().to_string()).collect()
    }

    fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// Runs `task` to its end even if its caller goes away: the streams must be notified of what the store has
    /// applied.
    async fn run_to_completion<T: Send + 'static>(
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match tokio::spawn(task).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and the caller with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn notify_stream(&self, shard: &Shard, owner: u32, hint: LeaseEvent) {
        if owner == self.inner.replica.nonce
            && let Some(listener) = self.inner.listener.get()
        {
            (listener.on_lease_event)(shard, hint);
        }
    }

    fn shard(&self, name: &ShardName) -> shards::Result<&Shard> {
        let missing = || ShardError::unavailable(name, "the shard is not configured here");
        self.inner.shards.by_name(name).ok_or_else(missing)
    }
}
