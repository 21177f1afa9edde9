//! Locates jobs with ids that clients chose while the ring changes: on the newest owner, or still on an owner under
//! an older ring. A job that is found is handled there; a new one is written to the newest owner only when no other
//! one has it, so an owner that does not answer blocks it.

use std::collections::BTreeMap;

use crate::domain::JobKey;
use crate::shards::{self, Op, Shard, ShardError, Shards};

use super::Core;
use super::by_shard::ByShard;

/// Shard of a job that exists, or is to be written.
pub(super) enum Location<'s> {
    /// This shard has the job, or takes it if there is none: the newest owner, or a former one that has it.
    On(&'s Shard),
    /// This shard may have the job and does not answer: nothing is to be written.
    Blocked(&'s Shard, ShardError),
    /// No shard that was asked has the job. A shard that only other replicas are configured with may have it.
    Elsewhere {
        /// Newest owner, if it is configured here.
        owner: Option<&'s Shard>,
        /// Error that names the other shard.
        error: ShardError,
    },
    /// No shard owns the id.
    NoOwner,
}

// === impl Core ===

impl Core {
    /// Locates jobs; each result is for the key of its index.
    pub(super) async fn locate(&self, keys: &[JobKey]) -> Vec<Location<'_>> {
        let shards = &self.inner.shards;
        loop {
            let changes = shards.ring_changes();
            let mut found = read(shards, keys).await;
            // Owners and former owners may have changed meanwhile.
            if shards.ring_changes() == changes {
                let location =
                    |(index, key)| found.remove(&index).unwrap_or_else(|| absent(shards, key));
                return keys.iter().enumerate().map(location).collect();
            }
        }
    }

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

/// Reads jobs from the shards other than the newest owner that may have them. A job may be on a shard that is not
/// configured here only if the newest owner does not have it, so that one is asked then, too.
async fn read<'s>(shards: &'s Shards, keys: &[JobKey]) -> BTreeMap<usize, Location<'s>> {
    let mut asked = ByShard::new();
    for (index, key) in keys.iter().enumerate() {
        let newest = shards.absent_owner(key).and_then(|_| shards.owner(key));
        for shard in shards.former_owners(key).into_iter().chain(newest) {
            asked.add(shard, (index, key.clone()), 0);
        }
    }
    let look = |shard: &'s Shard, keys: Vec<JobKey>| async move {
        let count = keys.len();
        match shard.call(Op::Get, |store| store.get(keys, false)).await {
            Ok(jobs) => jobs.into_iter().map(|job| job.map(|_| Location::On(shard))).collect(),
            Err(error) => {
                let why = format!(
                    "the shard may have the job from before a ring change: {}",
                    error.error
                );
                let error = ShardError::unavailable(shard.name(), why);
                (0..count).map(|_| Some(Location::Blocked(shard, error.clone()))).collect()
            }
        }
    };
    let mut found = BTreeMap::new();
    for (index, location) in asked.call(look).await {
        match location {
            Some(on @ Location::On(_)) => drop(found.insert(index, on)),
            Some(blocked) => drop(found.entry(index).or_insert(blocked)),
            None => {}
        }
    }
    found
}

/// Returns the location of a job that no shard had that was asked.
fn absent<'s>(shards: &'s Shards, key: &JobKey) -> Location<'s> {
    match (absent_owner_error(shards, key), shards.owner(key)) {
        (Some(error), owner) => Location::Elsewhere { owner, error },
        (None, Some(owner)) => Location::On(owner),
        (None, None) => Location::NoOwner,
    }
}

/// Returns an error if the job may be on a shard that only other replicas are configured with.
fn absent_owner_error(shards: &Shards, key: &JobKey) -> Option<ShardError> {
    shards.absent_owner(key).map(|shard| ShardError::elsewhere(&shard))
}
