//! What every call of a store goes through: the health of its shard, a limit to its time, and measurement.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::ShardMetrics;
use crate::store::{self, Applied, Error, Request, Store, worst};

use super::health::{Kind, LATE, Monitor};
use super::op::Op;

/// How patient this server is with its shards.
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
    /// How long all servers must have served one ring before former ones are closed. Longer than any call that began
    /// under those takes, see `answer` and `repeats`.
    pub agreement: Duration,
    /// First and longest pause between two probes of a shard that is down.
    pub probes: (Duration, Duration),
}

/// Makes the calls of one store.
pub(super) struct Guard {
    store: Arc<dyn Store>,
    metrics: ShardMetrics,
    health: Arc<Monitor>,
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
    pub(super) fn new(store: Arc<dyn Store>, metrics: ShardMetrics, health: Arc<Monitor>) -> Guard {
        Guard { store, metrics, health }
    }

    #[cfg(test)]
    pub(super) fn health(&self) -> &Arc<Monitor> {
        &self.health
    }

    /// Makes a call of `op`, of at most `limit`.
    ///
    /// # Errors
    /// As the call's; [`Error::Unavailable`] when it was not made, [`Error::Unknown`] when it took too
    /// long.
    pub(super) async fn call<T>(
        &self,
        op: Op,
        limit: Duration,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        self.health.admit(op)?;
        let begin = Instant::now();
        let answer = tokio::time::timeout(limit, call).await;
        let took = begin.elapsed();
        self.metrics.op(op.name(), took);
        let kind = if answer.is_err() || took >= LATE { Kind::Late } else { Kind::Fast };
        let result = answer.unwrap_or_else(|_| Err(late(limit)));
        match &result {
            Ok(_) => self.health.succeeded(op),
            Err(error) => self.failed(op, kind, error, begin),
        }
        result
    }

    /// Makes a call of `op` about many jobs, of at most `limit`. Errors of the shard as a whole count here; those of one
    /// job do not.
    pub(super) async fn call_each(
        &self,
        op: Op,
        limit: Duration,
        requests: Vec<Request>,
    ) -> Vec<store::Result<Applied>> {
        let count = requests.len();
        let mut answers = None;
        let call = async {
            let applied = self.store.apply(requests).await;
            let result = worst(&applied).cloned().map_or(Ok(()), Err);
            answers = Some(applied);
            result
        };
        let result = self.call(op, limit, call).await;
        answers.unwrap_or_else(|| {
            let error = result.err().unwrap_or_else(|| late(limit));
            (0..count).map(|_| Err(error.clone())).collect()
        })
    }

    /// Makes a call of `op` that is many calls of the store, of `limit` altogether. That it takes long is no failure;
    /// meanwhile the shard is probed now and then.
    ///
    /// # Errors
    /// As those of [`Guard::call`]; also once the shard is down.
    pub(super) async fn long_call<T>(
        &self,
        op: Op,
        limit: Duration,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        let probes = async {
            loop {
                tokio::time::sleep(LATE).await;
                self.health.suspect();
            }
        };
        tokio::select! {
            answer = self.call(op, limit, call) => answer,
            error = self.health.fails() => Err(Error::Unavailable(error)),
            () = probes => unreachable!("the loop has no end"),
        }
    }

    fn failed(&self, op: Op, kind: Kind, error: &Error, begin: Instant) {
        self.metrics.error(op.name(), error.reason());
        let shard = &self.store.identity().name;
        tracing::debug!(%shard, op = op.name(), %error, "a store call failed");
        if error.is_of_shard() {
            self.health.failed(op, kind, error, begin);
        } else {
            self.health.refused(op, error);
        }
    }
}

fn late(limit: Duration) -> Error {
    Error::Unknown(format!("no answer within {limit:?}"))
}
