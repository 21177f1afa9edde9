//! Waiting until a write is as safe as was asked, where the settings of Redis promise less.
//!
//! WAITAOF and WAIT wait for what their own connection has written before, and block it: a batch and its waiting go down
//! one connection that no other call uses meanwhile.

use deadpool_redis::redis::{self, RedisError};
use tokio::time::Instant;

use crate::domain::Durability;
use crate::domain::limit::CONFIRM_MAX;

use super::connections::RedisConnection;

/// What a batch waits for once it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DurabilityWait {
    pub(super) disk: bool,
    pub(super) replica: bool,
}

// === impl Wait ===

impl DurabilityWait {
    /// Waits for what `connection` has written; what that has reached, `None` when it is not more than every write
    /// reaches.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) async fn confirm(
        self,
        connection: &mut RedisConnection,
    ) -> Result<Option<Durability>, RedisError> {
        let end = Instant::now() + CONFIRM_MAX;
        let left = || {
            let left = end.saturating_duration_since(Instant::now()).as_millis();
            // 0 is for ever.
            u64::try_from(left).unwrap_or(u64::MAX).max(1)
        };
        if self.disk {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(1).arg(0).arg(left());
            let (local, _replicas): (u64, u64) = wait.query_async(connection).await?;
            if local == 0 {
                return Ok(None);
            }
        }
        let disk = self.disk.then_some(Durability::Fsynced);
        if !self.replica {
            return Ok(disk);
        }
        let replicas: u64 = redis::cmd("WAIT").arg(1).arg(left()).query_async(connection).await?;
        Ok(if replicas == 0 { disk } else { Some(Durability::Replicated) })
    }
}
