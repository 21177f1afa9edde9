//! Closes rings that are no longer needed, and removes shards from them that drain and are empty.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::scheduler::Upkeep;

/// Interval of checks of draining shards while all replicas agree: an operator waits for their end.
const LOOKS: Duration = Duration::from_secs(5);

/// Closes rings and releases drained shards until `stop` is cancelled.
pub(super) async fn run(upkeep: Upkeep, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = release(&upkeep) => {}
        () = close(&upkeep) => {}
    }
}

async fn release(upkeep: &Upkeep) {
    loop {
        tokio::time::sleep(upkeep.shards().until_agreement().max(LOOKS)).await;
        upkeep.release_drained().await;
    }
}

async fn close(upkeep: &Upkeep) {
    loop {
        // The search reads much data, and its result is valid for hours as a rule.
        tokio::time::sleep(upkeep.shards().timeouts().ring_agreement).await;
        if let Err(error) = upkeep.close_rings().await {
            tracing::debug!(%error, "cannot determine whether former rings are still needed; retried later");
        }
    }
}
