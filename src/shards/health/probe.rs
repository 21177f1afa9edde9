//! Probes of a shard: while it is suspected, while it is down, and while its reads are refused.

use std::sync::{Arc, Weak};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::pauses::Pauses;
use crate::store::{Condition, Error, Event};

use super::state::{Kind, Probed};
use super::{LATE, Monitor};

/// The claim that a probe voids: none has this nonce, so the write changes nothing.
const NO_CLAIM: u32 = 0;

/// Probes a shard whenever a probe is due, for as long as it is open.
pub(super) fn run(monitor: &Arc<Monitor>) -> impl Future<Output = ()> + Send + use<> {
    let (weak, wake) = (Arc::downgrade(monitor), Arc::clone(&monitor.wake));
    let closing = monitor.closing.clone();
    async move {
        while let Some(next) = weak.upgrade().map(|monitor| monitor.state().next()) {
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

/// Follows what the store finds out by itself: its condition, and hints of the shard.
pub(super) async fn listen(
    monitor: Weak<Monitor>,
    mut condition: watch::Receiver<Condition>,
    mut events: broadcast::Receiver<Event>,
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
                // Cloned first: `learn` reads the watch again, and a second read lock on one thread deadlocks with a
                // writer that waits between the two.
                let condition = condition.borrow_and_update().clone();
                monitor.learn(&condition);
            }
            Some(Ok(Event::Lost)) => monitor.suspect(),
            Some(Ok(_) | Err(RecvError::Lagged(_))) => monitor.hint(),
            Some(Err(RecvError::Closed)) => return,
        }
    }
}

/// Reads one row, again and again, until the shard answers or is closed.
pub(super) fn reads(monitor: &Arc<Monitor>) -> impl Future<Output = ()> + Send + use<> {
    let (weak, closing) = (Arc::downgrade(monitor), monitor.closing.clone());
    let (first, longest) = monitor.patience.probes;
    let mut pauses = Pauses::new(first, longest);
    async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(pauses.pause()) => {}
                () = closing.cancelled() => return,
            }
            let Some(monitor) = weak.upgrade() else { return };
            if monitor.state().end_read_probes() {
                return;
            }
            let read = monitor.store.topics(String::new(), None, 1);
            if let Ok(Ok(_)) = tokio::time::timeout(monitor.patience.claim, read).await {
                monitor.state().accept_reads();
                monitor.publish();
                if monitor.state().end_read_probes() {
                    return;
                }
            }
        }
    }
}

// === impl Monitor ===

impl Monitor {
    /// The store has found something out.
    fn learn(&self, condition: &Condition) {
        self.log.condition(condition);
        self.publish();
        if condition.is_down() {
            self.suspect();
        } else {
            self.hint();
        }
    }

    /// Probes the shard once.
    async fn probe(self: &Arc<Self>) {
        self.state().begin_probe();
        let begin = Instant::now();
        let answer = self.ask(begin).await;
        let failure = answer.as_ref().map_err(|(kind, error)| {
            let is_answer = !error.outcome_unknown();
            (*kind, error.text(), is_answer)
        });
        let probed = self.state().end_probe(failure.copied(), begin);
        match (probed, answer) {
            (Probed::Recovered, _) => {
                self.log.recovered();
                self.publish();
            }
            (Probed::Answered(failed), _) => self.log.answered(&failed),
            (Probed::Failed(_), Ok(())) => {}
            (Probed::Failed(change), Err((_, error))) => {
                let shard = &self.store.identity().name;
                tracing::debug!(%shard, %error, "a probe of the shard failed");
                self.follow(change, error.text());
            }
        }
    }

    /// Whether the shard answers; not so when it answers that it cannot be used.
    async fn ask(&self, begin: Instant) -> Result<(), (Kind, Error)> {
        let limit = self.patience.claim;
        let answer = tokio::time::timeout(limit, self.store.void(NO_CLAIM)).await;
        let kind = if begin.elapsed() < LATE { Kind::Fast } else { Kind::Late };
        match answer {
            Ok(Err(error)) if error.is_of_shard() => Err((kind, error)),
            Ok(_) => Ok(()),
            Err(_) => Err((Kind::Late, Error::Unknown(format!("no answer within {limit:?}")))),
        }
    }
}
