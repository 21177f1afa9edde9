//! Deletes topics that have been empty for long, one piece after the other.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::scheduler::Upkeep;
use crate::shards::Shard;

use super::{BREATH, PAUSES};

/// Interval of scans of all topics: a topic is kept for a day, and need not be deleted to the minute.
const EVERY: Duration = Duration::from_secs(3_600);

/// Deletes empty topics of one shard until `stop` is cancelled.
pub(super) async fn run(upkeep: Upkeep, shard: Shard, stop: CancellationToken) {
    let looks = async {
        loop {
            tokio::time::sleep(EVERY).await;
            look(&upkeep, &shard).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = looks => {}
    }
}

/// Scans every topic once. A piece that fails is retried when the shard answers again.
async fn look(upkeep: &Upkeep, shard: &Shard) {
    let mut after = None;
    loop {
        after = shard.retry(PAUSES, || upkeep.tidy(shard, after.clone())).await;
        if after.is_none() {
            return;
        }
        tokio::time::sleep(BREATH).await;
    }
}
