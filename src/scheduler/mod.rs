//! The verbs of the product: what follows from an event. A verb asks [`crate::domain`] what follows, has a shard
//! write it, and tells the streams of this replica. Feeds and timers hold a shard each, and hand it to the verb
//! that they want of it.
//!
//! - `enqueue`, `run`: [`Scheduler::enqueue`], and where a job goes when its shard fails
//! - `locate`, `rings`: where a job lies while the ring changes, and when that is over
//! - `settle`, `split`: ack, nack and extend, which workers ask for
//! - `end`: how a lease ends otherwise than by an ack, and without its worker
//! - `fate`: what became of leases that this replica has not heard of
//! - `upkeep`: reap and prune, called by the timers
//! - `notice`: what the log says of leases that ran out and of dead letters
//! - `admin`, `list`, `redrive`: get, delete, reschedule, redrive and the lists

mod admin;
mod close_rings;
mod end_leases;
mod enqueue;
mod job_log;
mod lease_status;
mod list;
mod locate;
mod rates;
mod redrive;
mod repeated_enqueue;
mod request_hash;
mod settle;
mod shard_batch;
mod split_by_shard;
#[cfg(test)]
pub(crate) mod tests;
mod upkeep;

use std::sync::{Arc, OnceLock};

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{Durability, RetryOverrides, RetryPolicy, ShardName, Time};
use crate::metrics::Metrics;
use crate::shards::{self, Shard, Shards};
use crate::store::LeaseEvent;

use job_log::JobLogLimiter;

pub use crate::shards::ShardError;
pub use crate::store::RevokeReason;
pub use admin::{SetShardStateError, ShardInfo, TopicRow};
pub use end_leases::EndLeasesResult;
pub use enqueue::{AcceptedJob, Draft, EnqueueError};
pub use lease_status::LeaseStatus;
pub use list::{JobsPage, ListJobs, ListPosition, ListedJob, ShardPosition};
pub use rates::Rates;
pub use redrive::{RedriveJobs, RedrivenJobs};
pub use settle::{AckItem, ExtendItem, NackItem, SettleError, SettleResult};
pub use upkeep::NextUpkeep;

/// Handle to everything that a verb needs. Cheap to clone.
#[derive(Clone)]
pub struct Scheduler {
    inner: Arc<SchedulerInner>,
}

struct SchedulerInner {
    shards: Shards,
    clock: Clock,
    metrics: Metrics,
    rates: Rates,
    replica: ReplicaIdentity,
    listener: OnceLock<StreamListener>,
    job_log_limiter: JobLogLimiter,
}

/// Who this server process is.
#[derive(Clone, Debug)]
pub struct ReplicaIdentity {
    /// Its configured name.
    pub name: String,
    /// Random for each process: part of every receipt that it hands out.
    pub nonce: u32,
}

/// The streams of this replica, as the verbs know them. Both are called synchronously and do not block.
pub struct StreamListener {
    /// Hears what this replica has done to its own leases on a shard. What others did to them comes as
    /// [`Event::Lease`](crate::store::Event::Lease).
    pub on_lease_event: LeaseEventListener,
    /// The credit of a stream, as long as it is known.
    pub credit: CreditLookup,
}

/// Takes a hint about leases of this replica on a shard.
pub type LeaseEventListener = Box<dyn Fn(&Shard, LeaseEvent) + Send + Sync>;
/// Answers the credit of a stream.
pub type CreditLookup = Box<dyn Fn(u32) -> Option<u32> + Send + Sync>;

// === impl Scheduler ===

impl Scheduler {
    /// A scheduler over these shards.
    #[must_use]
    pub fn new(
        shards: Shards,
        clock: Clock,
        metrics: Metrics,
        replica: ReplicaIdentity,
    ) -> Scheduler {
        let (rates, listener) = (Rates::new(), OnceLock::new());
        let notices = JobLogLimiter::new();
        let inner = SchedulerInner {
            shards,
            clock,
            metrics,
            rates,
            replica,
            listener,
            job_log_limiter: notices,
        };
        Scheduler { inner: Arc::new(inner) }
    }

    /// Registers who hears the hints for this replica's streams; the first one stays.
    pub fn set_listener(&self, listener: StreamListener) {
        let _ = self.inner.listener.set(listener);
    }

    /// Who this process is.
    #[must_use]
    pub fn replica(&self) -> &ReplicaIdentity {
        &self.inner.replica
    }

    /// The replica's clock. What is due is decided by a store's own, see [`Claims::now`](crate::store::Claims::now).
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The shards.
    #[must_use]
    pub fn shards(&self) -> &Shards {
        &self.inner.shards
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The policy in force for a job that says `over`: server, then job. (Topics get their own
    /// settings with the verb that configures them; they belong in between.)
    #[must_use]
    pub fn retry_policy(&self, over: &RetryOverrides) -> RetryPolicy {
        RetryPolicy::default().merge(over)
    }

    /// The most that can be asked of a write on every active shard; `None` while that hangs on one that was not
    /// reached yet.
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
            // None can be worse.
            Some(Durability::Memory) => least,
            _ if is_unknown => None,
            least => Some(least.unwrap_or(Durability::Memory)),
        }
    }

    /// Shards that do not answer.
    #[must_use]
    pub fn unreachable(&self) -> Vec<String> {
        let down = self.inner.shards.all().iter().filter(|shard| shard.is_down());
        down.map(|shard| shard.name().to_string()).collect()
    }

    fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// Runs `task` to its end even if whoever waits for it goes away: what the store has applied must
    /// also reach the streams.
    async fn run_to_completion<T: Send + 'static>(
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match tokio::spawn(task).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is going down, and the caller with it.
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
        let missing = || ShardError::unavailable(name, "it is not one of this server's");
        self.inner.shards.by_name(name).ok_or_else(missing)
    }
}
