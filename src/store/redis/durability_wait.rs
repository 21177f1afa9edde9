//! Waits until a write has the requested durability, where the settings of Redis provide less.
//!
//! WAITAOF and WAIT wait for the earlier writes of their own connection, and block it: a batch and its wait use one
//! connection that no other call uses meanwhile.

use deadpool_redis::redis::{self, RedisError};
use tokio::time::Instant;

use crate::domain::Durability;
use crate::domain::limit::CONFIRM_MAX;

use super::connections::RedisConnection;

/// Confirmations for which a written batch waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DurabilityWait {
    pub(super) disk: bool,
    pub(super) replica: bool,
}

// === impl Wait ===

impl DurabilityWait {
    /// Waits for the writes of `connection`; returns the durability that they have reached, `None` when it is not
    /// more than that of every write.
    ///
    /// # Errors
    /// The connection cannot be used any more.
    pub(super) async fn confirm(
        self,
        connection: &mut RedisConnection,
    ) -> Result<Option<Durability>, RedisError> {
        let end = Instant::now() + CONFIRM_MAX;
        let left = || {
            let left = end.saturating_duration_since(Instant::now()).as_millis();
            // A timeout of 0 would wait for ever.
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
