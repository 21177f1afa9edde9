//! Locates jobs with ids that clients chose while the ring changes: on the newest owner, or still on an owner under
//! an older ring. A job that is found is handled there; a new one is written to the newest owner only when no other
//! one has it, so an owner that does not answer blocks it.

use std::collections::BTreeMap;

use crate::domain::JobKey;
use crate::shards::{self, Op, Shard, ShardError, Shards};

use super::Scheduler;
use super::by_shard::ByShard;

/// Jobs that may be elsewhere than on their newest owner, by the shards that may have them.
pub(super) struct UncertainJobs<'s>(ByShard<'s, JobKey>);

/// Shards of jobs by index in the call; no entry for jobs that were not found.
pub(super) type LocatedJobs = BTreeMap<usize, Result<Shard, BlockingShard>>;

/// A shard that may have the job and does not answer: nothing was written.
#[derive(Clone)]
pub(super) struct BlockingShard {
    pub(super) shard: Shard,
    pub(super) error: ShardError,
}

/// Returns an error if the job may be on a shard that only other replicas are configured with.
pub(super) fn absent_owner_error(shards: &Shards, key: &JobKey) -> Option<ShardError> {
    shards.absent_owner(key).map(|shard| ShardError::elsewhere(&shard))
}

// === impl Scheduler ===

impl Scheduler {
    /// Calls the shards that may have one job, beginning with its newest owner, until `found` returns a value.
    /// Returns that value and the shard.
    ///
    /// # Errors
    /// Errors of the store, when no shard has the job and one does not answer or is not configured here.
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

// === impl UncertainJobs ===

impl<'s> UncertainJobs<'s> {
    pub(super) fn new() -> UncertainJobs<'s> {
        UncertainJobs(ByShard::new())
    }

    /// Adds the job of that index, which may be on one of these shards.
    pub(super) fn add(&mut self, index: usize, key: &JobKey, former: Vec<&'s Shard>) {
        for shard in former {
            self.0.add(shard, (index, key.clone()), 0);
        }
    }

    /// Reads the jobs from the shards that may have them.
    pub(super) async fn locate(self) -> LocatedJobs {
        let look = |shard: &'s Shard, keys: Vec<JobKey>| async move {
            let count = keys.len();
            match shard.call(Op::Get, |store| store.get(keys, false)).await {
                Ok(jobs) => jobs.into_iter().map(|job| Ok(job.map(|_| shard.clone()))).collect(),
                Err(error) => vec![Err(BlockingShard::new(shard, &error)); count],
            }
        };
        let mut found = LocatedJobs::new();
        for (index, located) in self.0.call(look).await {
            match located {
                Ok(Some(shard)) => drop(found.insert(index, Ok(shard))),
                Ok(None) => {}
                Err(blocking) => drop(found.entry(index).or_insert(Err(blocking))),
            }
        }
        found
    }
}

// === impl BlockingShard ===

impl BlockingShard {
    fn new(shard: &Shard, error: &ShardError) -> BlockingShard {
        let why = format!("the shard may have the job from before a ring change: {}", error.error);
        BlockingShard { shard: shard.clone(), error: ShardError::unavailable(shard.name(), why) }
    }
}
