//! Returns leases that reached no client: undone as soon as the shard answers, so that the jobs keep their place in
//! the topic's order and nothing is counted.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, BackoffRange};
use crate::domain::engine::Command;
use crate::domain::{Time, limit};
use crate::scheduler::Settler;
use crate::shards::Shard;
use crate::store::{JobRequest, LeaseRef};

/// First and longest pause after a failed call.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Leases that wait to go back to one shard. They were claimed, so the credit of the streams bounds their number;
/// leases that expire meanwhile are dropped.
#[derive(Default)]
pub(in crate::dispatch) struct ReturnQueue {
    waiting: Mutex<Vec<(LeaseRef, Time)>>,
    added: Notify,
}

// === impl ReturnQueue ===

impl ReturnQueue {
    /// Adds a lease that goes back; after `deadline` it has expired anyway.
    pub(in crate::dispatch) fn add(&self, lease: LeaseRef, deadline: Time) {
        self.waiting.lock().push((lease, deadline));
        self.added.notify_one();
    }

    fn take(&self) -> Vec<(LeaseRef, Time)> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Returns queued leases to the shard until `stop` is cancelled and the queue is empty.
pub(in crate::dispatch) async fn run(
    settler: Settler,
    shard: Shard,
    returns: Arc<ReturnQueue>,
    stop: CancellationToken,
) {
    loop {
        let leases = returns.take();
        if !leases.is_empty() {
            return_leases(&settler, &shard, &returns, leases, &stop).await;
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

/// Undoes leases, one call's worth at a time, with those that are added meanwhile: one that fails again and again
/// must not delay the others. After `stop` a failed call is not retried: the leases are released like the others of a
/// stopped replica.
async fn return_leases(
    settler: &Settler,
    shard: &Shard,
    returns: &ReturnQueue,
    mut leases: Vec<(LeaseRef, Time)>,
    stop: &CancellationToken,
) {
    let mut pauses = Backoff::new(RETRY_DELAYS);
    while !leases.is_empty() {
        // New ones go first.
        leases.splice(..0, returns.take());
        let part = leases.len().min(limit::CALL_JOBS_MAX);
        let unclaim = |(LeaseRef { key, token }, _): &(LeaseRef, Time)| {
            JobRequest::new(key.clone(), Command::Unclaim(*token))
        };
        match shard.apply_counted(leases[..part].iter().map(unclaim).collect()).await {
            Ok(undone) => {
                tracing::debug!(shard = %shard.name(), leases = undone, "undelivered leases returned");
                pauses.reset();
                leases.drain(..part);
            }
            Err(_) if stop.is_cancelled() => return,
            Err(error) => {
                if !error.error.is_shard_failure() {
                    // The error concerns this part only: try the others first.
                    leases.rotate_left(part);
                }
                tokio::select! {
                    () = shard.pause_before_retry(pauses.next_delay()) => {}
                    () = stop.cancelled() => {}
                }
                let now = settler.clock().now();
                leases.retain(|(_, deadline)| *deadline > now);
            }
        }
    }
}
