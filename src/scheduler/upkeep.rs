//! Upkeep: what the timers call. Each verb does a bounded piece and says when there is more.

use crate::clock::Skew;
use crate::domain::lifecycle::Cause;
use crate::domain::{Time, TopicName, limit};
use crate::shards::{self, Shard};

use super::Scheduler;

/// When there is more to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// By the shard's clock; `None`: before anything changes there is nothing.
    pub next: Option<Time>,
    /// How that clock stands to this replica's.
    pub skew: Skew,
}

// === impl Scheduler ===

impl Scheduler {
    /// Ends leases whose deadline has passed; answers when the next one passes.
    ///
    /// # Errors
    /// As the store's.
    pub async fn reap(&self, shard: &Shard) -> shards::Result<Due> {
        let before = self.now();
        let reaped = shard.reap(limit::CALL_JOBS_MAX).await?;
        let skew = Skew::measured(before, reaped.now, self.now());
        if !reaped.leases.is_empty() {
            let ended = self.end_leases(shard, &reaped.leases, &Cause::Expired).await?.here;
            if ended > 0 {
                tracing::info!(shard = %shard.name(), ended, "leases expired");
            }
        }
        Ok(Due { next: reaped.next, skew })
    }

    /// Expires and forgets what has passed its time; answers when there is more.
    ///
    /// # Errors
    /// As the store's.
    pub async fn prune(&self, shard: &Shard) -> shards::Result<Due> {
        let before = self.now();
        let pruned = shard.prune(limit::CALL_JOBS_MAX).await?;
        Ok(Due { next: pruned.next, skew: Skew::measured(before, pruned.now, self.now()) })
    }

    /// Looks at the topics behind `after` and forgets those that have been empty for long; the last one of them, if
    /// there are more.
    ///
    /// # Errors
    /// As the store's.
    pub async fn tidy(
        &self,
        shard: &Shard,
        after: Option<TopicName>,
    ) -> shards::Result<Option<TopicName>> {
        let tidied = shard.tidy(after, limit::CALL_JOBS_MAX).await?;
        if !tidied.forgotten.is_empty() {
            let topics = tidied.forgotten.len();
            tracing::info!(shard = %shard.name(), topics, "forgot topics without jobs");
        }
        Ok(tidied.next)
    }
}
