//! Closes rings that are needed no more, and lets shards leave them that drain and are empty.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::scheduler::Scheduler;

/// Between two looks at shards that drain, while all agree: somebody waits for their end.
const LOOKS: Duration = Duration::from_secs(5);

/// Runs until `stop`.
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
        // The search reads much, and what it finds stays for hours as a rule.
        tokio::time::sleep(scheduler.shards().timeouts().ring_agreement).await;
        if let Err(error) = scheduler.close_rings().await {
            tracing::debug!(%error, "whether former rings are needed could not be found out");
        }
    }
}
