//! The way back of leases that reached nobody: undone as soon as the shard answers, so that the jobs
//! are in their old place and nothing is counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::domain::{Time, limit};
use crate::scheduler::Scheduler;
use crate::shards::Shard;
use crate::store::{LeaseRef, Unclaim};

/// First and longest pause after a failed call.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What waits to go back to one shard. It holds leases that were claimed, so the credit of the
/// streams bounds it, and what has run out meanwhile is dropped.
#[derive(Default)]
pub(super) struct ReturnQueue {
    waiting: Mutex<Vec<(LeaseRef, Time)>>,
    added: Notify,
}

// === impl Returns ===

impl ReturnQueue {
    /// This lease goes back; after `deadline` it is over anyway.
    pub(super) fn add(&self, lease: LeaseRef, deadline: Time) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push((lease, deadline));
        self.added.notify_one();
    }

    fn take(&self) -> Vec<(LeaseRef, Time)> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Gives back to the shard what comes, until `stop` and nothing is left.
pub(super) async fn run(
    scheduler: Scheduler,
    shard: Shard,
    returns: Arc<ReturnQueue>,
    stop: CancellationToken,
) {
    loop {
        let leases = returns.take();
        if !leases.is_empty() {
            return_leases(&scheduler, &shard, &returns, leases, &stop).await;
        } else if stop.is_cancelled() {
            return;
        } else {
            tokio::select! {
                () = returns.added.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

/// Undoes leases, a call's worth at a time, with those that are added meanwhile: one that fails again and again must not
/// hold up the others. At the end of the replica one try must do: the leases then go with it.
async fn return_leases(
    scheduler: &Scheduler,
    shard: &Shard,
    returns: &ReturnQueue,
    mut leases: Vec<(LeaseRef, Time)>,
    stop: &CancellationToken,
) {
    let mut pauses = Backoff::new(RETRY_DELAYS.0, RETRY_DELAYS.1);
    while !leases.is_empty() {
        // New ones go first.
        leases.splice(..0, returns.take());
        let part = leases.len().min(limit::CALL_JOBS_MAX);
        let refs = leases[..part].iter().map(|(lease, _)| lease.clone()).collect();
        match shard.unclaim(Unclaim::Leases(refs)).await {
            Ok(undone) => {
                tracing::debug!(shard = %shard.name(), leases = undone.leases, "leases given back");
                pauses.reset();
                leases.drain(..part);
            }
            Err(_) if stop.is_cancelled() => return,
            Err(error) => {
                if !error.error.is_shard_failure() {
                    // They keep none of the others.
                    leases.rotate_left(part);
                }
                tokio::select! {
                    () = shard.pause_before_retry(pauses.next_delay()) => {}
                    () = stop.cancelled() => {}
                }
                let now = scheduler.clock().now();
                leases.retain(|(_, deadline)| *deadline > now);
            }
        }
    }
}
