//! Claims whose responses were lost: the shard may have leased jobs that no stream has. Their leases are searched
//! part by part and undone, beside the feed, which keeps claiming.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::BackoffRange;
use crate::domain::TopicName;
use crate::domain::engine::Command;
use crate::shards::{self, Op, Shard};
use crate::store::{JobRequest, LeaseQuery};

/// First and longest pause after a failed call.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(2) };
/// Lost claims of one shard at most. Each may hold as many jobs as one call takes, so a shard with this many gets no
/// further claim until one is undone.
const LOST_CLAIMS_MAX: usize = 16;

/// A claim whose reply was lost.
#[derive(Clone, Debug)]
pub(in crate::dispatch) struct LostClaim {
    /// Nonce of the claim.
    pub(in crate::dispatch) nonce: u32,
    /// The topics of the claim.
    pub(in crate::dispatch) topics: Arc<[TopicName]>,
}

/// Lost claims of one shard.
#[derive(Default)]
pub(in crate::dispatch) struct LostClaims {
    /// Queue of claims; the first one is being undone.
    claims: Mutex<VecDeque<LostClaim>>,
    added: Notify,
}

// === impl LostClaims ===

impl LostClaims {
    /// Adds a claim whose response was lost.
    pub(in crate::dispatch) fn add(&self, claim: LostClaim) {
        self.claims.lock().push_back(claim);
        self.added.notify_one();
    }

    /// Returns whether the limit is reached, so that no further claim may be sent.
    pub(in crate::dispatch) fn is_full(&self) -> bool {
        self.claims.lock().len() >= LOST_CLAIMS_MAX
    }

    fn first(&self) -> Option<LostClaim> {
        self.claims.lock().front().cloned()
    }

    fn remove_first(&self) {
        self.claims.lock().pop_front();
    }
}

/// Undoes the lost claims in order until `stop`. Leases that are not undone by then are released like the others of a
/// stopped replica.
pub(in crate::dispatch) async fn run(shard: Shard, lost: Arc<LostClaims>, stop: CancellationToken) {
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

/// Undoes a lost claim: first cancels it, so that it takes nothing if it arrives later; then searches all running leases
/// for its own, in parts. Failed calls are retried.
async fn undo_claim(shard: &Shard, claim: LostClaim) {
    let cancel = || shard.call(Op::Unclaim, |store| store.cancel_lost_claim(claim.nonce));
    shard.retry(RETRY_DELAYS, cancel).await;
    let mut leases = 0;
    let mut next = (!claim.topics.is_empty()).then(String::new);
    while let Some(cursor) = &next {
        let undo = || undo_part(shard, &claim, cursor.clone());
        let (undone, behind) = shard.retry(RETRY_DELAYS, undo).await;
        leases += undone;
        next = behind;
    }
    if leases > 0 {
        tracing::info!(shard = %shard.name(), leases, "undid the leases of a claim whose response was lost");
    }
}

/// Undoes the leases of a lost claim in one part of all running leases. Returns their number, and the end of the part.
async fn undo_part(
    shard: &Shard,
    LostClaim { nonce, topics }: &LostClaim,
    cursor: String,
) -> shards::Result<(u64, Option<String>)> {
    let query = LeaseQuery::OfLostClaim { nonce: *nonce, topics: Arc::clone(topics), cursor };
    let found = shard.call(Op::Unclaim, |store| store.query_leases(query)).await?;
    let unclaim = found.leases.into_iter();
    let unclaim = unclaim.map(|lease| JobRequest::new(lease.key, Command::Unclaim(lease.token)));
    Ok((shard.apply_counted(unclaim.collect()).await?, found.cursor))
}
