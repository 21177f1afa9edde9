//! Closes rings that are no longer needed, and removes shards from them that drain and are empty.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::scheduler::Scheduler;

/// Interval of checks of draining shards while all replicas agree: an operator waits for their end.
const LOOKS: Duration = Duration::from_secs(5);

/// Closes rings and releases drained shards until `stop` is cancelled.
pub(super) async fn run(scheduler: Scheduler, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = release(&scheduler) => {}
        () = close(&scheduler) => {}
    }
}

async fn release(scheduler: &Scheduler) {
    loop {
        tokio::time::sleep(scheduler.shards().until_agreement().max(LOOKS)).await;
        scheduler.release_drained().await;
    }
}

async fn close(scheduler: &Scheduler) {
    loop {
        // The search reads much data, and its result is valid for hours as a rule.
        tokio::time::sleep(scheduler.shards().timeouts().ring_agreement).await;
        if let Err(error) = scheduler.close_rings().await {
            tracing::debug!(%error, "cannot determine whether former rings are still needed; retried later");
        }
    }
}
