//! Closes former rings when they are needed no more: no shard has a job left whose newest owner is another one.
//! Removes a shard that drains when it is needed no more: it is empty, and none of the calls that could write to it
//! is in flight.

use std::time::Duration;

use crate::domain::ring::ShardState;
use crate::domain::{JobKey, TopicName, limit};
use crate::shards::{self, Op, Shard};

use super::Upkeep;

/// Pause between two pieces of a search, which leaves the shard to other callers.
const SCAN_PAUSE: Duration = Duration::from_millis(5);
/// Number of topics of a page when all of them are read.
const TOPICS_PAGE: usize = 1_000;

// === impl Upkeep ===

impl Upkeep {
    /// Closes the rings before the newest one, if all replicas have agreed on that for a while, this replica is the
    /// one to close them, and no job is left that only they find. Takes long, in small pieces: it reads all ids. A
    /// ring with a shard that is not configured here stays open, and nothing is read for it.
    ///
    /// # Errors
    /// Errors of the store: every shard must have answered.
    pub async fn close_rings(&self) -> shards::Result<()> {
        let shards = &self.inner.shards;
        let Some(agreement) = shards.agreement() else { return Ok(()) };
        if !shards.may_close_rings() {
            return Ok(());
        }
        for shard in shards.all() {
            if self.has_misplaced_jobs(shard).await? {
                return Ok(());
            }
        }
        shards.close_former_rings(agreement).await;
        Ok(())
    }

    /// Removes shards that drain and are empty from the former rings, also from those that are needed for jobs on
    /// other shards, under the same conditions. Makes one call to each shard that drains.
    pub async fn release_drained(&self) {
        let shards = &self.inner.shards;
        let Some(agreement) = shards.agreement() else { return };
        let drains = |shard: &&Shard| shard.state() == ShardState::Draining;
        for shard in shards.all().iter().filter(drains) {
            if !shards.is_on_ring(shard.name()) {
                continue;
            }
            // The shard itself must report now that it drains and is empty; one that does not answer stays.
            let is_empty = shard
                .info()
                .await
                .is_ok_and(|info| info.state == Some(ShardState::Draining) && info.jobs == 0);
            if is_empty {
                shards.remove_from_former_rings(agreement, shard.name()).await;
            }
        }
    }

    /// Returns whether the shard has a job whose newest owner is another one.
    async fn has_misplaced_jobs(&self, shard: &Shard) -> shards::Result<bool> {
        let mut after: Option<TopicName> = None;
        loop {
            let from = after.clone();
            let page = shard
                .call(Op::Topics, |store| store.topics(String::new(), from, TOPICS_PAGE))
                .await?;
            for topic in &page {
                if self.has_misplaced_jobs_in(shard, &topic.name).await? {
                    return Ok(true);
                }
            }
            after = page.into_iter().next_back().map(|topic| topic.name);
            if after.is_none() {
                return Ok(false);
            }
        }
    }

    async fn has_misplaced_jobs_in(
        &self,
        shard: &Shard,
        topic: &TopicName,
    ) -> shards::Result<bool> {
        let is_stray = |id: crate::domain::JobId| {
            let key = JobKey { topic: topic.clone(), id };
            let owner = self.inner.shards.owner(&key);
            key.id.shard().is_none() && owner.is_none_or(|owner| owner.name() != shard.name())
        };
        let mut from = None;
        loop {
            let (topic, place) = (topic.clone(), from.clone());
            let part =
                shard.call(Op::Ids, |store| store.ids(topic, place, limit::CALL_JOBS_MAX)).await?;
            if part.ids.into_iter().any(is_stray) {
                return Ok(true);
            }
            from = part.cursor;
            if from.is_none() {
                return Ok(false);
            }
            tokio::time::sleep(SCAN_PAUSE).await;
        }
    }
}
