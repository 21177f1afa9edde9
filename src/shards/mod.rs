//! The ring of shards: which store owns a job, where new jobs go, and what stands in front of each
//! store. The only user of the [`Store`] trait; one code for every kind of store.
//!
//! - `placement`: where ids that the server makes go
//! - `shard`, `batcher`: one store, and the calls of many callers as one
//! - `guard`, `breaker`: a store that does not answer costs its own callers a moment, and others nothing
//! - `spread`: one question to all shards

mod batcher;
mod breaker;
#[cfg(test)]
pub(crate) mod faulty;
mod guard;
mod placement;
mod shard;
mod spread;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::ring::ShardState;
use crate::domain::{JobKey, Ring, ShardName};
use crate::metrics::Metrics;
use crate::store::Store;

use placement::Placement;

pub use guard::Patience;
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
    ring: Ring,
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
        let weights = members.iter().map(|member| (member.store.name().clone(), member.weight));
        let ring = Ring::new(weights.collect());
        let down = watch::Sender::new(0);
        let shard = |member| Shard::new(member, &patience, &down, metrics);
        let members: Vec<Shard> = members.into_iter().map(shard).collect();
        let placement = Placement::new(members.len());
        Shards { inner: Arc::new(Inner { members, ring, placement, patience, down }) }
    }

    /// The shard that owns `key`: the one that a server-made id names, else by the ring. `None` when
    /// the id names a shard that is not on it.
    #[must_use]
    pub fn owner(&self, key: &JobKey) -> Option<&Shard> {
        match key.id.shard() {
            Some(name) => self.named(&name),
            None => self.named(self.inner.ring.owner(key)?),
        }
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
        let works = |shard: &Shard| !shard.is_down() && shard.refuses_jobs().is_none();
        place(&|shard| fresh(shard) && works(shard)).or_else(|| place(&fresh))
    }

    /// What tells this ring from every other: replicas that serve one queue must agree in it.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.inner.ring.fingerprint()
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

    /// Closes every store after what it accepted, all at once and each for 5 s at most.
    pub async fn close(&self) {
        let close = async |shard: &Shard| {
            if tokio::time::timeout(CLOSE_MAX, shard.close()).await.is_err() {
                tracing::warn!(shard = %shard.name(), "the shard does not let go and is left");
            }
        };
        futures::future::join_all(self.all().iter().map(close)).await;
    }
}
