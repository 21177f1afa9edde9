//! The leases of streams that the server has ended: they outlive their streams, also past the end of
//! this replica, so the store must not give them back at its next start.

use std::time::Duration;

use crate::domain::{StreamId, limit};
use crate::pauses::Pauses;
use crate::shards::Shard;
use crate::store::Tied;

use super::ledger::Loose;

/// First and longest pause after a failed call.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Tries of one call, and how long they may take: the replica waits for them when it ends. What fails
/// is a restart's concern only, and then costs a hand-over, not a job.
const TRIES: usize = 6;
const TRIES_MAX: Duration = Duration::from_secs(5);

/// Detaches `leases` of a stream on one shard, a call's worth at a time.
pub(super) async fn run(shard: Shard, stream: StreamId, leases: Vec<Loose>) {
    for part in leases.chunks(limit::CALL_JOBS_MAX) {
        let tied = |loose: &Loose| Tied { lease: loose.lease.clone(), stream };
        let refs: Vec<Tied> = part.iter().map(tied).collect();
        let detached = tokio::time::timeout(TRIES_MAX, detach(&shard, &refs)).await;
        if !detached.unwrap_or(false) {
            let (shard, leases) = (shard.name(), leases.len());
            tracing::warn!(%shard, leases, "leases of ended streams will go with this replica");
            return;
        }
    }
}

/// Whether the shard has taken it in.
async fn detach(shard: &Shard, refs: &[Tied]) -> bool {
    let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
    for tried in 1..=TRIES {
        if shard.detach(refs.to_vec()).await.is_ok() {
            return true;
        }
        if tried < TRIES {
            tokio::time::sleep(pauses.pause()).await;
        }
    }
    false
}
