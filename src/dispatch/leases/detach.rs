//! Detaches the leases of streams that the server has ended. Such leases outlive their streams, also past the end of
//! this replica, so the store must not release them at its next start.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backoff::BackoffRange;
use crate::domain::engine::Command;
use crate::domain::{StreamId, limit};
use crate::shards::Shard;
use crate::store::JobRequest;

use crate::dispatch::streams::ledger::StreamLease;

/// First and longest pause after a failed call.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(1) };
/// Longest time of further attempts during shutdown, which waits for them. Leases that are not detached by then are
/// released some time after the replica has stopped, even if their worker is alive.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// Detaches `leases` of a stream on one shard, one call's worth at a time, until the shard has applied it: only then
/// can a stream of another replica adopt a lease. `stop` is cancelled when the replica shuts down.
pub(in crate::dispatch) async fn run(
    shard: Shard,
    stream: StreamId,
    leases: Vec<StreamLease>,
    stop: CancellationToken,
) {
    let detach = async {
        for part in leases.chunks(limit::CALL_JOBS_MAX) {
            let detach = |held: &StreamLease| {
                let token = held.lease.token;
                JobRequest::new(held.lease.key.clone(), Command::Detach { token, stream })
            };
            shard.retry(RETRY_DELAYS, || shard.apply_all(part.iter().map(detach).collect())).await;
        }
    };
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_MAX).await;
    };
    tokio::select! {
        () = detach => {}
        () = too_late => {
            let (shard, leases) = (shard.name(), leases.len());
            tracing::warn!(
                %shard,
                leases,
                "shutdown before all leases of an ended stream were detached; the rest will be released"
            );
        }
    }
}
