//! The ring of shards: which store owns a job, where new jobs go, and what stands in front of each
//! store. Every call of a [`Store`] goes through here; one code for every kind of store.
//!
//! - `placement`: where ids that the server makes go
//! - `shard`, `batcher`: one store, and the calls of many callers as one
//! - `verbs`, `op`: what a store is asked, and the verbs by name
//! - `health`: whether a shard can be used, and why not; one that does not answer costs its own callers a moment, and
//!   others nothing
//! - `patience`: time limits of calls
//! - `error`: what went wrong, and where
//! - `spread`: one question to all shards
//! - `flight`: one read for all callers that wait for it
//! - `census`: how the replicas of these shards learn of each other and of the ring
//! - `council`, `dissent`: what one of them knows of that, which ring it serves, and whether they agree

mod batcher;
mod coalesced_read;
mod error;
mod fan_out;
mod forwarded;
mod health;
mod membership;
mod op;
mod ring_disagreement;
mod ring_state;
mod round_robin;
mod shard;
mod timeouts;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::ring::ShardState;
use crate::domain::{JobKey, ShardName};
use crate::metrics::Metrics;
use crate::store::Store;

use ring_state::RingState;
use round_robin::WeightedRoundRobin;

pub use error::{Result, ShardError};
pub use fan_out::{FanOut, PartialAnswers};
pub use health::ShardHealth;
pub use membership::RingAgreement;
pub use round_robin::RUN_MAX;
pub use shard::Shard;
pub use timeouts::ShardTimeouts;

/// How long a store may take to let go of its shard.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// All shards of this replica. Cheap to clone.
#[derive(Clone)]
pub struct Shards {
    inner: Arc<ShardsInner>,
}

struct ShardsInner {
    /// In the order of the configuration.
    members: Vec<Shard>,
    ring_state: RingState,
    placement: WeightedRoundRobin,
    timeouts: ShardTimeouts,
    /// How many shards do not answer.
    down: watch::Sender<usize>,
}

/// A shard as it is configured.
pub struct ShardMember {
    /// Its store.
    pub store: Arc<dyn Store>,
    /// Its part of the jobs, compared with the others'.
    pub weight: u32,
    /// Whether it takes new jobs.
    pub state: ShardState,
}

// === impl Member ===

impl<S: Store + 'static> From<Arc<S>> for ShardMember {
    fn from(store: Arc<S>) -> ShardMember {
        ShardMember { store, weight: 1, state: ShardState::Active }
    }
}

// === impl Shards ===

impl Shards {
    /// A ring of these shards. Must be called within a runtime: each shard's batchers run on it.
    ///
    /// # Panics
    /// When there are none: a configuration without a shard is refused before.
    #[must_use]
    pub fn new(members: Vec<ShardMember>, metrics: &Metrics) -> Shards {
        Shards::with_timeouts(ShardTimeouts::default(), members, metrics)
    }

    /// As [`Shards::new`], with another patience.
    ///
    /// # Panics
    /// As [`Shards::new`].
    #[must_use]
    pub fn with_timeouts(
        patience: ShardTimeouts,
        members: Vec<ShardMember>,
        metrics: &Metrics,
    ) -> Shards {
        assert!(!members.is_empty(), "a ring has at least one shard");
        let down = watch::Sender::new(0);
        let shard = |(index, member)| Shard::new(index, member, &patience, &down, metrics);
        let members: Vec<Shard> = members.into_iter().enumerate().map(shard).collect();
        let (placement, council) = (
            WeightedRoundRobin::new(members.len()),
            RingState::new(&members, patience.call_max(), metrics),
        );
        Shards {
            inner: Arc::new(ShardsInner {
                members,
                ring_state: council,
                placement,
                timeouts: patience,
                down,
            }),
        }
    }

    /// The shard that owns `key`: the one that a server-made id names, else by the newest ring. `None`
    /// when the id names a shard that is not here, or none takes new jobs.
    #[must_use]
    pub fn owner(&self, key: &JobKey) -> Option<&Shard> {
        match key.id.shard() {
            Some(name) => self.by_name(&name),
            None => self.by_name(self.rings().newest().owner(key)?),
        }
    }

    /// Shards that may have the job as well, because they owned it under an older ring that is still open.
    /// None for most jobs even then, and none for ids that a server made.
    #[must_use]
    pub fn former_owners(&self, key: &JobKey) -> Vec<&Shard> {
        let rings = self.rings();
        if !rings.is_changing() || key.id.shard().is_some() {
            return Vec::new();
        }
        rings.former_owners(key).into_iter().filter_map(|name| self.by_name(name)).collect()
    }

    /// A shard that may have the job as well and is not here: another replica has it.
    #[must_use]
    pub fn absent_owner(&self, key: &JobKey) -> Option<ShardName> {
        let rings = self.rings();
        let mut owners = rings.owners_on_peer_rings(key);
        owners.find(|name| self.by_name(name).is_none())
    }

    /// Shards that only other replicas have.
    #[must_use]
    pub fn absent_shards(&self) -> Vec<ShardName> {
        let rings = self.rings();
        let mut names: Vec<_> = rings.peer_ring_shards().cloned().collect();
        names.retain(|name| self.by_name(name).is_none());
        names.sort();
        names.dedup();
        names
    }

    /// The shard of that name.
    #[must_use]
    pub fn by_name(&self, name: &ShardName) -> Option<&Shard> {
        self.inner.members.iter().find(|shard| shard.name() == name)
    }

    /// The shard on which the next `jobs` jobs with server-made ids are placed: an active one that
    /// answers, if there is any, and none of `tried`. `None` when all active ones were tried.
    #[must_use]
    pub fn pick_for_new_jobs(&self, jobs: usize, tried: &[ShardName]) -> Option<&Shard> {
        let fresh =
            |shard: &Shard| shard.state() == ShardState::Active && !tried.contains(shard.name());
        let members = &self.inner.members;
        let place =
            |eligible: &dyn Fn(&Shard) -> bool| self.inner.placement.pick(members, jobs, eligible);
        let works = |shard: &Shard| shard.health().takes_jobs();
        place(&|shard| fresh(shard) && works(shard)).or_else(|| place(&fresh))
    }

    /// What tells this ring from every other: replicas that serve one queue must agree in it.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.rings().newest().fingerprint()
    }

    /// How patient it is.
    #[must_use]
    pub fn timeouts(&self) -> &ShardTimeouts {
        &self.inner.timeouts
    }

    /// Every shard, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> &[Shard] {
        &self.inner.members
    }

    /// How many shards do not answer, now and whenever that changes.
    #[must_use]
    pub fn down_count(&self) -> watch::Receiver<usize> {
        self.inner.down.subscribe()
    }

    /// Leaves the other replicas, and closes every store after what it accepted, all at once and each for
    /// 5 s at most.
    pub async fn close(&self) {
        if tokio::time::timeout(CLOSE_MAX, self.announce_leave()).await.is_err() {
            tracing::warn!("a shard was not told that this replica leaves");
        }
        let close = async |shard: &Shard| {
            if tokio::time::timeout(CLOSE_MAX, shard.close()).await.is_err() {
                tracing::warn!(shard = %shard.name(), "the shard does not let go and is left");
            }
        };
        futures::future::join_all(self.all().iter().map(close)).await;
    }
}
