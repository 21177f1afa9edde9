//! The ring of shards: the owner of each job, the placement of new jobs, and the guards in front of each store. Every
//! call of a [`Store`] goes through here; one code for every kind of store.
//!
//! - `round_robin`: placement of jobs with server-made ids
//! - `shard`, `batcher`: one store, and the calls of many callers as one
//! - `queue_delay`: refuses calls that wait too long for their turn
//! - `op`: the verbs of a store by name
//! - `health`: whether a shard can be used, and why not; a shard that does not answer costs its own callers a moment,
//!   and others nothing
//! - `timeouts`: time limits of calls
//! - `error`: errors of calls, with the shard
//! - `fan_out`: one call to several shards at once
//! - `coalesced_read`: one read for all callers that wait for it
//! - `membership`: heartbeats, by which the replicas of these shards find each other and agree on the ring
//! - `ring_state`, `ring_disagreement`: a replica's view of the ring, and whether replicas agree

mod batcher;
mod coalesced_read;
mod error;
mod fan_out;
mod health;
mod membership;
mod op;
mod queue_delay;
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
pub use op::Op;
pub use round_robin::RUN_MAX;
pub use shard::Shard;
pub use timeouts::ShardTimeouts;

/// Time limit of the leave of this replica, and of closing each store.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// All shards of this replica. Cheap to clone.
#[derive(Clone)]
pub struct Shards {
    inner: Arc<ShardsInner>,
}

/// Returns the part of a number that falls to one of these weights; all parts together are the number.
fn part(number: u64, weights: &[u32], index: usize) -> u64 {
    let sum = |weights: &[u32]| weights.iter().map(|&weight| u128::from(weight)).sum::<u128>();
    let up_to = |end: usize| u128::from(number) * sum(&weights[..end]) / sum(weights).max(1);
    u64::try_from(up_to(index + 1) - up_to(index)).unwrap_or(u64::MAX)
}

struct ShardsInner {
    /// Shards in the order of the configuration.
    members: Vec<Shard>,
    ring_state: RingState,
    placement: WeightedRoundRobin,
    timeouts: ShardTimeouts,
    /// Number of shards that do not answer.
    down: watch::Sender<usize>,
}

/// A shard as it is configured.
pub struct ShardMember {
    /// Store of the shard.
    pub store: Arc<dyn Store>,
    /// Weight: its part of the jobs, relative to the other shards.
    pub weight: u32,
    /// Configured state: whether it takes new jobs.
    pub state: ShardState,
}

// === impl ShardMember ===

impl<S: Store + 'static> From<Arc<S>> for ShardMember {
    fn from(store: Arc<S>) -> ShardMember {
        ShardMember { store, weight: 1, state: ShardState::Active }
    }
}

// === impl Shards ===

impl Shards {
    /// Creates a ring of these shards. Must be called within a runtime: the batchers of each shard run on it.
    ///
    /// # Panics
    /// Without members: a configuration without a shard is rejected before.
    #[must_use]
    pub fn new(members: Vec<ShardMember>, metrics: &Metrics) -> Shards {
        Shards::with_timeouts(ShardTimeouts::default(), members, metrics)
    }

    /// Creates a ring like [`Shards::new`], with these time limits.
    ///
    /// # Panics
    /// Like [`Shards::new`].
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
        let (placement, ring_state) = (
            WeightedRoundRobin::new(members.len()),
            RingState::new(&members, patience.call_max(), metrics),
        );
        Shards {
            inner: Arc::new(ShardsInner {
                members,
                ring_state,
                placement,
                timeouts: patience,
                down,
            }),
        }
    }

    /// Returns the shard that owns `key`: the one that a server-made id names, else by the newest ring. `None` if the
    /// id names a shard that is not configured here, or no shard takes new jobs.
    #[must_use]
    pub fn owner(&self, key: &JobKey) -> Option<&Shard> {
        match key.id.shard() {
            Some(name) => self.by_name(&name),
            None => self.by_name(self.rings().newest().owner(key)?),
        }
    }

    /// Returns shards that may have the job as well, because they owned it under an older ring that is still open.
    /// Empty for most jobs even then, and for ids that a server made.
    #[must_use]
    pub fn former_owners(&self, key: &JobKey) -> Vec<&Shard> {
        let rings = self.rings();
        if !rings.is_changing() || key.id.shard().is_some() {
            return Vec::new();
        }
        rings.former_owners(key).into_iter().filter_map(|name| self.by_name(name)).collect()
    }

    /// Returns a shard that may have the job as well and is configured only on another replica.
    #[must_use]
    pub fn absent_owner(&self, key: &JobKey) -> Option<ShardName> {
        let rings = self.rings();
        let mut owners = rings.owners_on_peer_rings(key);
        owners.find(|name| self.by_name(name).is_none())
    }

    /// Returns the shards that only other replicas have.
    #[must_use]
    pub fn absent_shards(&self) -> Vec<ShardName> {
        let rings = self.rings();
        let mut names: Vec<_> = rings.peer_ring_shards().cloned().collect();
        names.retain(|name| self.by_name(name).is_none());
        names.sort();
        names.dedup();
        names
    }

    /// Returns the shard of that name.
    #[must_use]
    pub fn by_name(&self, name: &ShardName) -> Option<&Shard> {
        self.inner.members.iter().find(|shard| shard.name() == name)
    }

    /// Picks the shard for the next `jobs` jobs with server-made ids: an active one that answers, if there is any,
    /// and none of `tried`. `None` when all active ones were tried.
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

    /// Returns the part of a number that falls to a shard by its weight; all parts together are the number. Shards that
    /// drain have a part too, because they still have jobs.
    #[must_use]
    pub fn share(&self, shard: &Shard, number: u64) -> u64 {
        // By name, so that all replicas come to the same.
        let mut shards: Vec<_> = self.inner.members.iter().collect();
        shards.sort_unstable_by_key(|shard| shard.name());
        let weights: Vec<u32> = shards.iter().map(|shard| shard.weight()).collect();
        let index = shards.iter().position(|member| member.index() == shard.index());
        index.map_or(0, |index| part(number, &weights, index))
    }

    /// Returns the fingerprint of the newest ring: replicas that serve one queue must have the same.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.rings().newest().fingerprint()
    }

    /// Returns the time limits of calls.
    #[must_use]
    pub fn timeouts(&self) -> &ShardTimeouts {
        &self.inner.timeouts
    }

    /// Returns every shard, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> &[Shard] {
        &self.inner.members
    }

    /// Watches the number of shards that do not answer.
    #[must_use]
    pub fn down_count(&self) -> watch::Receiver<usize> {
        self.inner.down.subscribe()
    }

    /// Announces to the other replicas that this one leaves, for 5 s at most; then closes all stores at once, each
    /// after the calls that it accepted, for 5 s at most.
    pub async fn close(&self) {
        if tokio::time::timeout(CLOSE_MAX, self.announce_leave()).await.is_err() {
            tracing::warn!(
                "the leave of this replica was not announced to all shards within 5 s; other replicas \
                 find it silent"
            );
        }
        let close = async |shard: &Shard| {
            if tokio::time::timeout(CLOSE_MAX, shard.close()).await.is_err() {
                tracing::warn!(
                    shard = %shard.name(),
                    "the store did not close within 5 s; shutdown goes on without it"
                );
            }
        };
        futures::future::join_all(self.all().iter().map(close)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_follow_the_weights_and_are_the_number_together() {
        for weights in [&[1][..], &[1, 1, 1], &[1, 2, 5, 100], &[7; 13]] {
            let sum: u32 = weights.iter().sum();
            for number in [0, 1, 2, 7, 100, 1 << 40, u64::MAX] {
                let parts: Vec<u64> =
                    (0..weights.len()).map(|index| part(number, weights, index)).collect();
                assert_eq!(parts.iter().map(|part| u128::from(*part)).sum::<u128>(), number.into());
                for (part, weight) in parts.iter().zip(weights) {
                    let exact = u128::from(number) * u128::from(*weight) / u128::from(sum);
                    assert!(u128::from(*part).abs_diff(exact) <= 1, "{number} by {weights:?}");
                }
            }
        }
    }
}
