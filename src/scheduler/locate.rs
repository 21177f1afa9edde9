//! Where the job with an id that its client chose lies while the ring changes: on its newest owner, or still
//! on one that it had under an older ring. A job that is found is dealt with there; a new one is written
//! to the newest owner only when no other one has it, so an owner that does not answer is in the way.

use std::collections::BTreeMap;

use futures::future::join_all;

use crate::domain::{JobKey, ShardName};
use crate::shards::{self, Shard, ShardError, Shards};

use super::Scheduler;

/// Jobs that may lie elsewhere than on their newest owner, by whoever may have them.
#[derive(Default)]
pub(super) struct UncertainJobs {
    /// Places in the call, with the keys.
    by_shard: BTreeMap<ShardName, (Shard, Vec<(usize, JobKey)>)>,
}

/// What became of doubts, by place in the call: nothing for those that are nowhere.
pub(super) type LocatedJobs = BTreeMap<usize, Result<Shard, BlockingShard>>;

/// A shard that may have the job and does not answer: nothing was written.
pub(super) struct BlockingShard {
    pub(super) shard: Shard,
    pub(super) error: ShardError,
}

/// That the job may lie on a shard that only other replicas are configured with, if so.
pub(super) fn absent_owner_error(shards: &Shards, key: &JobKey) -> Option<ShardError> {
    shards.absent_owner(key).map(|shard| ShardError::elsewhere(&shard))
}

// === impl Scheduler ===

impl Scheduler {
    /// Makes a call about one job on the shards that may have it, beginning with its newest owner,
    /// until `found` says that one does; which one that is.
    ///
    /// # Errors
    /// As the store's, when none has it and one does not answer or is not here.
    pub(super) async fn call_on_owners<A, T, F>(
        &self,
        key: &JobKey,
        ask: impl Fn(Shard, JobKey) -> F,
        found: impl Fn(A) -> Option<T>,
    ) -> shards::Result<Option<(Shard, T)>>
    where
        F: Future<Output = shards::Result<Vec<A>>>,
    {
        let shards = &self.inner.shards;
        let mut failed = None;
        for shard in shards.owner(key).into_iter().chain(shards.former_owners(key)) {
            match ask(shard.clone(), key.clone()).await {
                Ok(answers) => {
                    if let Some(answer) = answers.into_iter().next().and_then(&found) {
                        return Ok(Some((shard.clone(), answer)));
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.or_else(|| absent_owner_error(shards, key)).map_or(Ok(None), Err)
    }
}

// === impl Doubts ===

impl UncertainJobs {
    /// The job of that place may lie on one of these shards.
    pub(super) fn add(&mut self, index: usize, key: &JobKey, former: Vec<&Shard>) {
        for shard in former {
            let entry = self.by_shard.entry(shard.name().clone());
            let (_, keys) = entry.or_insert_with(|| (shard.clone(), Vec::new()));
            keys.push((index, key.clone()));
        }
    }

    /// Asks the shards.
    pub(super) async fn locate(self) -> LocatedJobs {
        let look = |(shard, keys): (Shard, Vec<(usize, JobKey)>)| async move {
            let (indexes, keys): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
            let jobs = shard.get(keys, false).await;
            (shard, indexes, jobs)
        };
        let mut found = LocatedJobs::new();
        for (shard, indexes, jobs) in join_all(self.by_shard.into_values().map(look)).await {
            match jobs {
                Ok(jobs) => {
                    let there = indexes.into_iter().zip(jobs).filter(|(_, job)| job.is_some());
                    found.extend(there.map(|(index, _)| (index, Ok(shard.clone()))));
                }
                Err(error) => {
                    for index in indexes {
                        found
                            .entry(index)
                            .or_insert_with(|| Err(BlockingShard::new(&shard, &error)));
                    }
                }
            }
        }
        found
    }
}

// === impl InTheWay ===

impl BlockingShard {
    fn new(shard: &Shard, error: &ShardError) -> BlockingShard {
        let why = format!("it may have the job from before the ring changed: {}", error.error);
        BlockingShard { shard: shard.clone(), error: ShardError::unavailable(shard.name(), why) }
    }
}
