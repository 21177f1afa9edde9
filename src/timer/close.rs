//! Closes former rings once no job lies where only they say, so that nobody has to look there any more.

use tokio_util::sync::CancellationToken;

use crate::scheduler::Scheduler;

/// Runs until `stop`.
pub(super) async fn run(scheduler: Scheduler, stop: CancellationToken) {
    let rest = async {
        loop {
            tokio::time::sleep(scheduler.shards().until_agreement()).await;
            if let Err(error) = scheduler.close_rings().await {
                tracing::debug!(%error, "whether former rings are needed could not be found out");
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = rest => {}
    }
}
