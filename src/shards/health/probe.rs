//! Probes of a shard: while it is suspected, while it is down, and while its reads are refused.

use std::sync::{Arc, Weak};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::store::{Error, ShardEvent, ShardStatus};

use super::state::{FailureKind, ProbeOutcome};
use super::{HealthMonitor, SLOW_FAILURE};

/// Nonce of the claim that a probe cancels: no claim has it, so the write changes nothing.
const NO_CLAIM: u32 = 0;

/// Probes a shard whenever a probe is due, until the shard is closed.
pub(super) fn probe_loop(monitor: &Arc<HealthMonitor>) -> impl Future<Output = ()> + Send + use<> {
    let (weak, wake) = (Arc::downgrade(monitor), Arc::clone(&monitor.wake));
    let closing = monitor.closing.clone();
    async move {
        while let Some(next) = weak.upgrade().map(|monitor| monitor.state.lock().next_probe()) {
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = closing.cancelled() => return,
                () = wake.notified() => continue,
                () = due => {}
            }
            let Some(monitor) = weak.upgrade() else { return };
            monitor.probe().await;
        }
    }
}

/// Applies what the store reports by itself: its status, and events of the shard.
pub(super) async fn watch_store(
    monitor: Weak<HealthMonitor>,
    mut condition: watch::Receiver<ShardStatus>,
    mut events: broadcast::Receiver<ShardEvent>,
) {
    loop {
        let event = tokio::select! {
            changed = condition.changed() => match changed {
                Ok(()) => None,
                Err(_) => return,
            },
            event = events.recv() => Some(event),
        };
        let Some(monitor) = monitor.upgrade() else { return };
        match event {
            None => {
                // Cloned first: `apply_shard_status` reads the watch again, and a second read lock on one thread
                // deadlocks with a writer that waits between the two.
                let condition = condition.borrow_and_update().clone();
                monitor.apply_shard_status(&condition);
            }
            Some(Ok(ShardEvent::Disconnected)) => monitor.request_probe(),
            Some(Ok(_) | Err(RecvError::Lagged(_))) => monitor.probe_now(),
            Some(Err(RecvError::Closed)) => return,
        }
    }
}

/// Reads one row again and again, until the shard answers or is closed.
pub(super) fn probe_reads_loop(
    monitor: &Arc<HealthMonitor>,
) -> impl Future<Output = ()> + Send + use<> {
    let (weak, closing) = (Arc::downgrade(monitor), monitor.closing.clone());
    let mut pauses = Backoff::new(monitor.timeouts.probe_pauses);
    async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(pauses.next_delay()) => {}
                () = closing.cancelled() => return,
            }
            let Some(monitor) = weak.upgrade() else { return };
            if monitor.state.lock().end_read_probes() {
                return;
            }
            let read = monitor.store.topics(String::new(), None, 1);
            if let Ok(Ok(_)) = tokio::time::timeout(monitor.timeouts.claim, read).await {
                monitor.state.lock().accept_reads();
                monitor.publish();
                if monitor.state.lock().end_read_probes() {
                    return;
                }
            }
        }
    }
}

// === impl HealthMonitor ===

impl HealthMonitor {
    /// Applies a status that the store reports, and requests a probe.
    fn apply_shard_status(&self, condition: &ShardStatus) {
        self.log.shard_status(condition);
        self.publish();
        if condition.is_down() {
            self.request_probe();
        } else {
            self.probe_now();
        }
    }

    /// Probes the shard once.
    async fn probe(self: &Arc<Self>) {
        self.state.lock().begin_probe();
        let begin = Instant::now();
        let answer = self.probe_call(begin).await;
        let failure = answer.as_ref().map_err(|(kind, error)| {
            let is_answer = !error.outcome_unknown();
            (*kind, error.message(), is_answer)
        });
        let probed = self.state.lock().end_probe(failure.copied(), begin);
        match (probed, answer) {
            (ProbeOutcome::Recovered, _) => {
                self.log.recovered();
                self.publish();
            }
            (ProbeOutcome::Answered(failed), _) => self.log.suspicion_cleared(&failed),
            (ProbeOutcome::Failed(_), Ok(())) => {}
            (ProbeOutcome::Failed(change), Err((_, error))) => {
                let shard = &self.store.identity().name;
                tracing::debug!(%shard, %error, "a probe of the shard failed");
                self.apply_change(change, error.message());
            }
        }
    }

    /// Returns an error if the shard does not answer, or answers that it cannot be used.
    async fn probe_call(&self, begin: Instant) -> Result<(), (FailureKind, Error)> {
        let limit = self.timeouts.claim;
        let answer = tokio::time::timeout(limit, self.store.cancel_lost_claim(NO_CLAIM)).await;
        let kind =
            if begin.elapsed() < SLOW_FAILURE { FailureKind::Fast } else { FailureKind::Slow };
        match answer {
            Ok(Err(error)) if error.is_shard_failure() => Err((kind, error)),
            Ok(_) => Ok(()),
            Err(_) => Err((
                FailureKind::Slow,
                Error::OutcomeUnknown(format!("no answer within {limit:?}")),
            )),
        }
    }
}
