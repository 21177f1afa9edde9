//! What every call of a store goes through: the breaker, a limit to its time, and measurement.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::{JobId, JobKey, ShardName, Token, TopicName};
use crate::metrics::ShardMetrics;
use crate::said::Said;
use crate::store::{self, About, Error, Event, LeaseRef, Store, Unclaim};

use super::breaker::{Access, Breaker, Kind};
use super::op::Op;

/// A failure that took so long counts like no answer at all.
const LATE: Duration = Duration::from_secs(1);

/// The same failure of the same operation is said so often at most; metrics count the others.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// How patient this replica is with its shards.
#[derive(Clone, Debug)]
pub struct Patience {
    /// A call that is not answered within this has failed, with an unknown outcome. Far longer than a
    /// busy shard takes, because giving up does not make it less busy.
    pub answer: Duration,
    /// The same for a claim, which holds the credit of streams that other shards could use.
    pub claim: Duration,
    /// How long a question to all shards waits for the others, once one has answered.
    pub others: Duration,
    /// How long a write of unknown outcome is repeated on its shard at most, however late the caller's deadline is.
    pub repeats: Duration,
    /// How long all replicas must have served one ring before it is asked whether former ones are needed
    /// still. Longer than any call that began under those takes, see `answer` and `repeats`.
    pub agreement: Duration,
    /// First and longest pause between two probes of a shard that does not answer.
    pub probes: (Duration, Duration),
}

/// See the module.
pub(super) struct Guard {
    store: Arc<dyn Store>,
    metrics: ShardMetrics,
    patience: Patience,
    breaker: Breaker,
    /// How many shards of this replica do not answer.
    down: watch::Sender<usize>,
    closing: CancellationToken,
    /// Failures by operation, or without one where the shard itself is the cause.
    said: Said,
}

// === impl Patience ===

impl Patience {
    /// The longest that a call goes on under a ring.
    pub(super) fn call_max(&self) -> Duration {
        self.answer + self.repeats
    }
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            answer: Duration::from_secs(5),
            claim: Duration::from_secs(2),
            others: Duration::from_millis(750),
            repeats: Duration::from_secs(30),
            agreement: Duration::from_secs(60),
            probes: (Duration::from_millis(100), Duration::from_secs(5)),
        }
    }
}

// === impl Guard ===

impl Guard {
    pub(super) fn new(
        store: Arc<dyn Store>,
        metrics: ShardMetrics,
        patience: Patience,
        down: watch::Sender<usize>,
    ) -> Guard {
        metrics.set_breaker_open(false);
        let breaker = Breaker::new(patience.probes);
        let closing = CancellationToken::new();
        Guard { store, metrics, patience, breaker, down, closing, said: Said::new(SAY_EVERY) }
    }

    pub(super) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    pub(super) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Refuses a call of `op` while the shard is left alone.
    pub(super) fn admit(&self, op: Op) -> store::Result<()> {
        if !self.breaker.is_open() {
            return Ok(());
        }
        self.metrics.error(op.name(), "BREAKER_OPEN");
        Err(Error::Unavailable(format!(
            "it does not answer; the last failure: {}",
            self.breaker.error()
        )))
    }

    /// Makes a call of `op`, of at most `limit`.
    ///
    /// # Errors
    /// As the call's; [`Error::Unavailable`] when it was not made, [`Error::Unknown`] when it took too
    /// long.
    pub(super) async fn call<T>(
        self: &Arc<Self>,
        op: Op,
        limit: Duration,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        self.admit(op)?;
        let begin = Instant::now();
        let answer = tokio::time::timeout(limit, call).await;
        let took = begin.elapsed();
        self.metrics.op(op.name(), took);
        let kind = if answer.is_err() || took >= LATE { Kind::Late } else { Kind::Failed };
        let late = |_| Err(Error::Unknown(format!("no answer within {limit:?}")));
        let result = answer.unwrap_or_else(late);
        match &result {
            Ok(_) => self.breaker.succeeded(op.access()),
            Err(error) => self.failed(op, kind, error),
        }
        result
    }

    /// Lets a prober end.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    fn name(&self) -> &ShardName {
        self.store.name()
    }

    fn failed(self: &Arc<Self>, op: Op, kind: Kind, error: &Error) {
        self.metrics.error(op.name(), error.reason());
        if self.is_news(op, error) {
            tracing::warn!(shard = %self.name(), op = op.name(), %error, "store calls fail");
        } else {
            tracing::debug!(shard = %self.name(), op = op.name(), %error, "a store call failed");
        }
        if answers(error) {
            self.breaker.succeeded(op.access());
        } else if self.breaker.failed(op.access(), kind, words(error)) {
            tracing::warn!(
                shard = %self.name(), error = words(error),
                "the shard does not answer; its calls fail at once until it does"
            );
            self.leave_alone(true);
        }
    }

    /// Whether that was not said just now: a full store refuses thousands of calls a second, and one that does not
    /// answer fails calls of every kind.
    fn is_news(&self, op: Op, error: &Error) -> bool {
        let op = if answers(error) { op.name() } else { "" };
        self.said.is_news((op, error.reason()))
    }

    /// The store is known not to answer, and has said so: nobody has to find out first. For a breaker that
    /// nobody has used yet.
    pub(super) fn begin_down(self: &Arc<Self>, error: &str) {
        while !self.breaker.failed(Access::Write, Kind::Late, error) {}
        self.leave_alone(false);
    }

    /// The breaker has just opened; `told`: the log was told, and is when it closes.
    fn leave_alone(self: &Arc<Self>, told: bool) {
        self.changed(true);
        let events = self.store.events(About::Shard);
        tokio::spawn(Arc::clone(self).probe(events, told));
    }

    /// Asks, once at a time, until the shard answers or is closed. A shard that is heard of is asked at once: its
    /// hints may come back before the next pause is over. That makes no pause longer.
    async fn probe(self: Arc<Self>, mut events: broadcast::Receiver<Event>, told: bool) {
        let mut pause = pin!(tokio::time::sleep(self.breaker.pause()));
        loop {
            let is_over = tokio::select! {
                () = &mut pause => true,
                () = heard(&mut events) => false,
                () = self.closing.cancelled() => return,
            };
            let limit = self.patience.claim;
            match tokio::time::timeout(limit, self.store.unclaim(nothing())).await {
                Ok(Err(error)) if !answers(&error) => {
                    // What it says may have changed: nobody there, then somebody wrong.
                    self.breaker.failed(Access::Write, Kind::Failed, words(&error));
                    tracing::debug!(shard = %self.name(), %error, "the shard still does not answer");
                }
                Err(_) => tracing::debug!(shard = %self.name(), "the shard still does not answer"),
                Ok(_) => break,
            }
            if is_over {
                pause.as_mut().reset(Instant::now() + self.breaker.pause());
            }
        }
        self.changed(false);
        self.breaker.close();
        if told {
            tracing::info!(shard = %self.name(), "the shard answers again");
        }
    }

    fn changed(&self, open: bool) {
        self.metrics.set_breaker_open(open);
        self.down.send_modify(|down| *down = if open { *down + 1 } else { *down - 1 });
    }
}

/// Waits for the next sign of life.
async fn heard(events: &mut broadcast::Receiver<Event>) {
    if let Err(RecvError::Closed) = events.recv().await {
        std::future::pending().await
    }
}

/// Whether a shard that says so answers for the rest.
fn answers(error: &Error) -> bool {
    match error {
        Error::Full(_) | Error::Corrupt(_) => true,
        Error::Unavailable(_) | Error::Unknown(_) => false,
    }
}

/// What the shard itself said.
fn words(error: &Error) -> &str {
    match error {
        Error::Full(text)
        | Error::Unavailable(text)
        | Error::Unknown(text)
        | Error::Corrupt(text) => text,
    }
}

/// A write that changes nothing, because no topic of a user has this name: a shard that can be read
/// but not written is no use.
fn nothing() -> Unclaim {
    let key = JobKey { topic: TopicName::stored("ringq.probe"), id: JobId::stored("probe") };
    Unclaim::Leases(vec![LeaseRef { key, token: Token(0) }])
}

#[cfg(test)]
mod tests {
    use crate::clock::Clock;
    use crate::domain::ring::ShardState;
    use crate::metrics::Metrics;
    use crate::shards::faulty::{Fault, Faulty};

    use super::*;

    #[tokio::test]
    async fn a_shard_that_is_heard_of_is_asked_at_once() {
        let late = Duration::from_secs(60);
        let store = Faulty::new("s0", &Clock::system());
        let patience = Patience { probes: (late, late), ..Patience::default() };
        let metrics = Metrics::new().shard("s0");
        let (shard, down) = (Arc::clone(&store), watch::Sender::new(0));
        let guard = Arc::new(Guard::new(shard, metrics, patience, down));
        store.set(Fault::Refuses);
        while !guard.breaker().is_open() {
            assert!(guard.call(Op::Info, late, store.info()).await.is_err());
        }
        store.set(Fault::None);
        store.inner().set_state(ShardState::Active).await.unwrap();
        let closed = tokio::time::timeout(late / 3, guard.breaker().closed()).await;
        assert!(closed.is_ok(), "the pause went by");
    }
}
