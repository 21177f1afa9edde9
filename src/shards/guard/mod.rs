//! What every call of a store goes through: the breaker, a limit to its time, and measurement.

mod doubt;
mod probe;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use tokio_util::sync::CancellationToken;

use crate::domain::ShardName;
use crate::metrics::ShardMetrics;
use crate::said::Said;
use crate::store::{self, Applied, Error, Request, Store, worst};

use super::breaker::{Breaker, Kind, Opened};
use super::op::Op;
use doubt::Doubt;

/// A failure that took so long counts like no answer at all.
const LATE: Duration = Duration::from_secs(1);

/// The same failure of the same operation is said so often at most; metrics have the others.
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
    doubt: Doubt,
    /// Failures by operation and reason.
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
        let (doubt, said) = (Doubt::default(), Said::new(SAY_EVERY));
        Guard { store, metrics, patience, breaker, down, closing, doubt, said }
    }

    pub(super) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    pub(super) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Refuses a call of `op` while the circuit breaker is open for it.
    pub(super) fn admit(&self, op: Op) -> store::Result<()> {
        let Some(error) = self.breaker.refuses(op.access()) else { return Ok(()) };
        self.metrics.error(op.name(), "BREAKER_OPEN");
        let whose = if self.breaker.is_open() { "" } else { " for reads" };
        Err(Error::Unavailable(format!("circuit breaker open{whose}; last error: {error}")))
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
        let kind = kind(&answer, took);
        let result = answer.unwrap_or_else(|_| Err(late(limit)));
        match &result {
            Ok(_) => self.breaker.succeeded(op.access()),
            Err(error) => self.failed(op, kind, error, begin),
        }
        result
    }

    /// Makes a call of `op` about many jobs, of at most `limit`. What it answers of the shard as a whole counts here; what
    /// is wrong with one job does not.
    pub(super) async fn call_each(
        self: &Arc<Self>,
        op: Op,
        limit: Duration,
        requests: Vec<Request>,
    ) -> Vec<store::Result<Applied>> {
        let (count, mut answers) = (requests.len(), None);
        let call = async {
            let applied = self.store.apply(requests).await;
            let said = worst(&applied).cloned().map_or(Ok(()), Err);
            answers = Some(applied);
            said
        };
        let said = self.call(op, limit, call).await;
        answers.unwrap_or_else(|| {
            let error = said.err().unwrap_or_else(|| late(limit));
            (0..count).map(|_| Err(error.clone())).collect()
        })
    }

    /// Makes a call of `op` that is many calls of the store, of `limit` altogether. That it takes long says nothing;
    /// meanwhile the shard is asked now and then whether it answers at all.
    ///
    /// # Errors
    /// As those of [`Guard::call`]; also once the shard is found not to answer.
    pub(super) async fn long_call<T>(
        self: &Arc<Self>,
        op: Op,
        limit: Duration,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        let asked = async {
            loop {
                tokio::time::sleep(LATE).await;
                self.doubt(None);
            }
        };
        tokio::select! {
            answer = self.call(op, limit, call) => answer,
            error = self.breaker.opens() => Err(Error::Unavailable(error)),
            () = asked => unreachable!("it asks until it is dropped"),
        }
    }

    /// Lets a prober end.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    fn name(&self) -> &ShardName {
        self.store.name()
    }

    fn failed(self: &Arc<Self>, op: Op, kind: Kind, error: &Error, begin: Instant) {
        self.metrics.error(op.name(), error.reason());
        tracing::debug!(shard = %self.name(), op = op.name(), %error, "a store call failed");
        if answers(error) {
            self.breaker.succeeded(op.access());
            self.tell_refusal(op, error);
            return;
        }
        match self.breaker.failed(op.access(), kind, words(error), begin) {
            Opened::All => self.leave_alone(error),
            Opened::Reads => self.refuse_reads(error),
            Opened::Nothing => {}
        }
        if !self.breaker.was_open_since(begin) {
            self.doubt(Some((op, error)));
        }
    }

    /// A full store refuses thousands of calls a second.
    fn tell_refusal(&self, op: Op, error: &Error) {
        let Some(news) = self.said.news(&[op.name(), error.reason()]) else { return };
        let (shard, op, suppressed) = (self.name(), op.name(), news.suppressed());
        if let Error::Corrupt(_) = error {
            tracing::error!(%shard, op, suppressed, %error, "a store call failed, and a part of it may be written");
        } else {
            tracing::warn!(%shard, op, suppressed, %error, "a store call was refused");
        }
    }
}

fn late(limit: Duration) -> Error {
    Error::Unknown(format!("no answer within {limit:?}"))
}

/// What a failure looks like that came, or did not come, after that time.
fn kind<T>(answer: &Result<T, Elapsed>, took: Duration) -> Kind {
    if answer.is_err() || took >= LATE { Kind::Late } else { Kind::Failed }
}

/// Whether a shard that says so answers for the rest.
fn answers(error: &Error) -> bool {
    match error {
        Error::Full(_) | Error::Late(_) | Error::Contention(_) | Error::Corrupt(_) => true,
        Error::Unavailable(_) | Error::Unknown(_) => false,
    }
}

/// What the shard itself said.
fn words(error: &Error) -> &str {
    match error {
        Error::Full(text)
        | Error::Unavailable(text)
        | Error::Late(text)
        | Error::Unknown(text)
        | Error::Contention(text)
        | Error::Corrupt(text) => text,
    }
}
