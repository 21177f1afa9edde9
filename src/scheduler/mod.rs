//! The verbs of the product. A verb decides by [`crate::domain`] what follows from an event, has a shard write it,
//! and notifies the streams of this replica. Feeds and timers hold a shard each, and pass it to their verbs.
//!
//! - `enqueue`, `shard_batch`: [`Scheduler::enqueue`], and the fallback when the shard of a job fails
//! - `locate`, `close_rings`: the shard of a job while the ring changes, and the end of that change
//! - `settle`: ack, nack and extend, which workers request
//! - `by_shard`: splits the items of a call by shard, and merges the results
//! - `end_leases`: ends leases otherwise than by an ack, and without their workers
//! - `crash_topic`: moves jobs that have crashed as often as they may to their crash topics
//! - `lease_status`: looks up leases whose settle notification may have been lost
//! - `upkeep`: reap and prune, called by the timers
//! - `topic_changes`: settings and pauses of topics
//! - `topic_limits`, `evictions`: limits of topics, and the jobs that leave full ones
//! - `topic_sums`: sums over many topics, for quotas
//! - `job_log`: log lines about expired leases and dead letters
//! - `explain`: the facts about a job that explain why it does not run
//! - `admin`, `list`, `purge`, `redrive`: get, delete, reschedule, purge, redrive and the lists

mod admin;
mod by_shard;
mod close_rings;
mod crash_topic;
mod end_leases;
mod enqueue;
mod evictions;
mod explain;
mod groups;
mod job_log;
mod lease_status;
mod list;
mod locate;
mod purge;
mod rates;
mod redrive;
mod repeated_enqueue;
mod request_hash;
mod settle;
mod shard_batch;
#[cfg(test)]
pub(crate) mod tests;
mod topic_changes;
mod topic_limits;
mod topic_sums;
mod upkeep;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{
    Durability, ReceiptKey, RetryOverrides, RetryPolicy, ShardName, Time, TopicName, limit,
};
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::shards::{self, Shard, Shards};
use crate::store::LeaseEvent;

use job_log::JobLogLimiter;

pub use crate::shards::ShardError;
pub use crate::store::RevokeReason;
pub use admin::{SetShardStateError, ShardInfo, TopicRow};
pub use end_leases::EndLeasesResult;
pub use enqueue::{AcceptedJob, Draft, EnqueueError, FullTopic, WriteTerms};
use evictions::Evictions;
pub use explain::{FoundJob, JobExplanation};
pub use groups::GroupRows;
pub use lease_status::LeaseStatus;
pub use list::{JobsPage, ListJobs, ListPosition, ListedJob, ShardPosition};
pub use purge::{PurgeTopic, PurgedJobs};
pub use rates::Rates;
pub use redrive::{RedriveJobs, RedrivenJobs};
pub use settle::{AckItem, ExtendItem, NackItem, SettleError, SettleResult};
pub use topic_changes::{TopicChange, TopicChangeError, TopicRefusal, etag};
pub use upkeep::NextUpkeep;

/// Handle to everything that a verb needs. Cheap to clone.
#[derive(Clone)]
pub struct Scheduler {
    inner: Arc<SchedulerInner>,
}

struct SchedulerInner {
    shards: Shards,
    policies: Policies,
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
    /// Creates a scheduler over these shards.
    #[must_use]
    pub fn new(
        shards: Shards,
        clock: Clock,
        metrics: Metrics,
        replica: ReplicaIdentity,
    ) -> Scheduler {
        let (rates, listener) = (Rates::new(), OnceLock::new());
        let notices = JobLogLimiter::new();
        let policies = Policies::new(shards.clone(), clock.clone());
        let inner = SchedulerInner {
            shards,
            policies,
            clock,
            metrics,
            rates,
            evictions: Evictions::default(),
            replica,
            listener,
            job_log_limiter: notices,
        };
        Scheduler { inner: Arc::new(inner) }
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

    /// Returns the policies of topics.
    #[must_use]
    pub fn policies(&self) -> &Policies {
        &self.inner.policies
    }

    /// Returns the key of the receipts of a shard; `None`: the shard was not reached yet, or is not configured here.
    #[must_use]
    pub fn receipt_key(&self, shard: &ShardName) -> Option<ReceiptKey> {
        self.inner.shards.by_name(shard)?.receipt_key()
    }

    /// Returns the retry policy of a job of `topic` with the overrides `over`: server, then topic, then job.
    #[must_use]
    pub fn retry_policy(&self, topic: &TopicName, over: Option<&RetryOverrides>) -> RetryPolicy {
        let policies = self.inner.policies.any();
        let settings = policies.as_ref().and_then(|policies| policies.settings(topic));
        let of_topic = settings.map(|settings| &settings.retry);
        RetryPolicy::default().merge(of_topic).merge(over)
    }

    /// Returns the retention of dead letters of `topic`.
    fn dead_retention(&self, topic: &TopicName) -> Duration {
        let policies = self.inner.policies.any();
        let settings = policies.as_ref().and_then(|policies| policies.settings(topic));
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
