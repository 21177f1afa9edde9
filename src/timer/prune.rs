//! Expires jobs that were not running by their expire time, and deletes records after their retention.

use tokio_util::sync::CancellationToken;

use crate::scheduler::Upkeep;
use crate::shards::Shard;
use crate::store::EventKind;

/// Expires jobs and deletes records of one shard until `stop` is cancelled.
pub(super) async fn run(upkeep: Upkeep, shard: Shard, stop: CancellationToken) {
    let events = shard.events(EventKind::Upkeep);
    let (piece, pause) = (|| upkeep.prune(&shard), |pause| shard.pause_before_retry(pause));
    super::tend(upkeep.clock(), events, stop, piece, pause).await;
}
