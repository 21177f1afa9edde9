//! Claims whose responses were lost: the shard may have leased jobs that no stream has. Their leases are searched
//! part by part and undone, beside the feed, which keeps claiming.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::shards::Shard;
use crate::store::{LostClaim, Unclaim};

/// First and longest pause after a failed call.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Lost claims of one shard at most. Each may hold as many jobs as one call takes, so a shard with this many gets no
/// further claim until one is undone.
const LOST_CLAIMS_MAX: usize = 16;

/// Lost claims of one shard.
#[derive(Default)]
pub(super) struct LostClaims {
    /// Queue of claims; the first one is being undone.
    claims: Mutex<VecDeque<LostClaim>>,
    added: Notify,
}

// === impl LostClaims ===

impl LostClaims {
    /// Adds a claim whose response was lost.
    pub(super) fn add(&self, claim: LostClaim) {
        self.claims().push_back(claim);
        self.added.notify_one();
    }

    /// Returns whether the limit is reached, so that no further claim may be sent.
    pub(super) fn is_full(&self) -> bool {
        self.claims().len() >= LOST_CLAIMS_MAX
    }

    fn first(&self) -> Option<LostClaim> {
        self.claims().front().cloned()
    }

    fn remove_first(&self) {
        self.claims().pop_front();
    }

    fn claims(&self) -> MutexGuard<'_, VecDeque<LostClaim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Undoes the lost claims in order until `stop`. Leases that are not undone by then are released like the others of a
/// stopped replica.
pub(super) async fn run(shard: Shard, lost: Arc<LostClaims>, stop: CancellationToken) {
    let undoing = async {
        loop {
            match lost.first() {
                Some(claim) => {
                    undo_claim(&shard, claim).await;
                    lost.remove_first();
                }
                None => lost.added.notified().await,
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = undoing => {}
    }
}

/// Undoes a lost claim: reads all leases in parts and retries failed calls.
async fn undo_claim(shard: &Shard, mut claim: LostClaim) {
    let (mut pauses, mut leases) = (Backoff::new(RETRY_DELAYS.0, RETRY_DELAYS.1), 0);
    loop {
        let Ok(part) = shard.unclaim(Unclaim::Claim(claim.clone())).await else {
            shard.pause_before_retry(pauses.next_delay()).await;
            continue;
        };
        pauses.reset();
        leases += part.leases;
        match part.cursor {
            Some(next) => claim.cursor = Some(next),
            None => break,
        }
    }
    if leases > 0 {
        tracing::info!(shard = %shard.name(), leases, "undid the leases of a claim whose response was lost");
    }
}
