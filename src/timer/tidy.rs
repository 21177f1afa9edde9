//! Deletes topics that have been empty for long, one piece after the other.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::scheduler::Scheduler;
use crate::shards::Shard;

use super::{BREATH, PAUSES};

/// Interval of scans of all topics: a topic is kept for a day, and need not be deleted to the minute.
const EVERY: Duration = Duration::from_secs(3_600);

/// Deletes empty topics of one shard until `stop` is cancelled.
pub(super) async fn run(scheduler: Scheduler, shard: Shard, stop: CancellationToken) {
    let looks = async {
        loop {
            tokio::time::sleep(EVERY).await;
            look(&scheduler, &shard).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = looks => {}
    }
}

/// Scans every topic once. A piece that fails is retried when the shard answers again.
async fn look(scheduler: &Scheduler, shard: &Shard) {
    let (mut after, mut pauses) = (None, Backoff::new(PAUSES.0, PAUSES.1));
    loop {
        match scheduler.tidy(shard, after.clone()).await {
            Ok(None) => return,
            Ok(next) => {
                after = next;
                pauses.reset();
                tokio::time::sleep(BREATH).await;
            }
            Err(_) => shard.pause_before_retry(pauses.next_delay()).await,
        }
    }
}
