//! Ends leases whose deadline has passed.

use tokio_util::sync::CancellationToken;

use crate::scheduler::Scheduler;
use crate::shards::Shard;
use crate::store::EventKind;

/// Ends expired leases of one shard until `stop` is cancelled.
pub(super) async fn run(scheduler: Scheduler, shard: Shard, stop: CancellationToken) {
    let events = shard.events(EventKind::Upkeep);
    let (piece, pause) = (|| scheduler.reap(&shard), |pause| shard.pause_before_retry(pause));
    super::tend(scheduler.clock(), events, stop, piece, pause).await;
}
