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
mod census;
mod council;
mod dissent;
mod error;
mod flight;
mod health;
mod op;
mod patience;
mod placement;
mod shard;
mod spread;
mod verbs;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::ring::ShardState;
use crate::domain::{JobKey, ShardName};
use crate::metrics::Metrics;
use crate::store::Store;

use council::Council;
use placement::Placement;

pub use census::Agreement;
pub use error::{Result, ShardError};
pub use health::Health;
pub use patience::Patience;
pub use placement::RUN_MAX;
pub use shard::Shard;
pub use spread::{Partial, Spread};

/// How long a store may take to let go of its shard.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// All shards of this replica. Cheap to clone.
#[derive(Clone)]
pub struct Shards {
    inner: Arc<Inner>,
}

struct Inner {
    /// In the order of the configuration.
    members: Vec<Shard>,
    council: Council,
    placement: Placement,
    patience: Patience,
    /// How many shards do not answer.
    down: watch::Sender<usize>,
}

/// A shard as it is configured.
pub struct Member {
    /// Its store.
    pub store: Arc<dyn Store>,
    /// Its part of the jobs, compared with the others'.
    pub weight: u32,
    /// Whether it takes new jobs.
    pub state: ShardState,
}

// === impl Member ===

impl<S: Store + 'static> From<Arc<S>> for Member {
    fn from(store: Arc<S>) -> Member {
        Member { store, weight: 1, state: ShardState::Active }
    }
}

// === impl Shards ===

impl Shards {
    /// A ring of these shards. Must be called within a runtime: each shard's batchers run on it.
    ///
    /// # Panics
    /// When there are none: a configuration without a shard is refused before.
    #[must_use]
    pub fn new(members: Vec<Member>, metrics: &Metrics) -> Shards {
        Shards::with(Patience::default(), members, metrics)
    }

    /// As [`Shards::new`], with another patience.
    ///
    /// # Panics
    /// As [`Shards::new`].
    #[must_use]
    pub fn with(patience: Patience, members: Vec<Member>, metrics: &Metrics) -> Shards {
        assert!(!members.is_empty(), "a ring has at least one shard");
        let down = watch::Sender::new(0);
        let shard = |(index, member)| Shard::new(index, member, &patience, &down, metrics);
        let members: Vec<Shard> = members.into_iter().enumerate().map(shard).collect();
        let (placement, council) =
            (Placement::new(members.len()), Council::new(&members, patience.call_max(), metrics));
        Shards { inner: Arc::new(Inner { members, council, placement, patience, down }) }
    }

    /// The shard that owns `key`: the one that a server-made id names, else by the newest ring. `None`
    /// when the id names a shard that is not here, or none takes new jobs.
    #[must_use]
    pub fn owner(&self, key: &JobKey) -> Option<&Shard> {
        match key.id.shard() {
            Some(name) => self.named(&name),
            None => self.named(self.rings().newest().owner(key)?),
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
        rings.former_owners(key).into_iter().filter_map(|name| self.named(name)).collect()
    }

    /// A shard that may have the job as well and is not here: another replica has it.
    #[must_use]
    pub fn absent_owner(&self, key: &JobKey) -> Option<ShardName> {
        let rings = self.rings();
        let mut owners = rings.owners_elsewhere(key);
        owners.find(|name| self.named(name).is_none())
    }

    /// Shards that only other replicas have.
    #[must_use]
    pub fn absent(&self) -> Vec<ShardName> {
        let rings = self.rings();
        let mut names: Vec<_> = rings.members_elsewhere().cloned().collect();
        names.retain(|name| self.named(name).is_none());
        names.sort();
        names.dedup();
        names
    }

    /// The shard of that name.
    #[must_use]
    pub fn named(&self, name: &ShardName) -> Option<&Shard> {
        self.inner.members.iter().find(|shard| shard.name() == name)
    }

    /// The shard on which the next `jobs` jobs with server-made ids are placed: an active one that
    /// answers, if there is any, and none of `tried`. `None` when all active ones were tried.
    #[must_use]
    pub fn place(&self, jobs: usize, tried: &[ShardName]) -> Option<&Shard> {
        let fresh =
            |shard: &Shard| shard.state() == ShardState::Active && !tried.contains(shard.name());
        let members = &self.inner.members;
        let place =
            |eligible: &dyn Fn(&Shard) -> bool| self.inner.placement.next(members, jobs, eligible);
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
    pub fn patience(&self) -> &Patience {
        &self.inner.patience
    }

    /// Every shard, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> &[Shard] {
        &self.inner.members
    }

    /// How many shards do not answer, now and whenever that changes.
    #[must_use]
    pub fn down(&self) -> watch::Receiver<usize> {
        self.inner.down.subscribe()
    }

    /// Leaves the other replicas, and closes every store after what it accepted, all at once and each for
    /// 5 s at most.
    pub async fn close(&self) {
        if tokio::time::timeout(CLOSE_MAX, self.leave()).await.is_err() {
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
