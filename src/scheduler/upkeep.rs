//! Upkeep: what the timers call. Each verb does a bounded piece and says when there is more.

use crate::domain::lifecycle::Cause;
use crate::domain::{Time, limit};
use crate::shards::{self, Shard};

use super::Scheduler;

// === impl Scheduler ===

impl Scheduler {
    /// Ends leases whose deadline has passed; answers when the next one passes.
    ///
    /// # Errors
    /// As the store's.
    pub async fn reap(&self, shard: &Shard) -> shards::Result<Option<Time>> {
        let reaped = shard.reap(limit::CALL_JOBS_MAX).await?;
        if !reaped.leases.is_empty() {
            let ended = self.end_leases(shard, &reaped.leases, &Cause::Expired).await?;
            tracing::info!(shard = %shard.name(), ended, "leases expired");
        }
        Ok(reaped.next)
    }

    /// Expires and forgets what has passed its time; answers when there is more.
    ///
    /// # Errors
    /// As the store's.
    pub async fn prune(&self, shard: &Shard) -> shards::Result<Option<Time>> {
        Ok(shard.prune(limit::CALL_JOBS_MAX).await?.next)
    }
}
