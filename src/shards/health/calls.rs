//! Calls of a store: each is admitted, limited in time and measured, and its result counts for the health of the
//! shard.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{self, Error, JobRequest, RequestResult, worst_error};

use super::super::op::Op;
use super::state::FailureKind;
use super::{HealthMonitor, SLOW_FAILURE};

// === impl HealthMonitor ===

impl HealthMonitor {
    /// Makes a call of `op` with the time limit `limit`.
    ///
    /// # Errors
    /// Errors of the call; [`Error::Unavailable`] when it was not made, [`Error::OutcomeUnknown`] when it took too
    /// long.
    pub(in crate::shards) async fn call<T>(
        self: &Arc<Self>,
        op: Op,
        limit: Duration,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        self.admit(op)?;
        let begin = Instant::now();
        let answer = tokio::time::timeout(limit, call).await;
        let is_late = answer.is_err();
        let result = answer.unwrap_or_else(|_| Err(timeout_error(limit)));
        self.record(op, begin, is_late, result.as_ref().err());
        result
    }

    /// Applies commands of `op` with the time limit `limit`. Errors of the shard as a whole count here; those of one job
    /// do not.
    pub(in crate::shards) async fn apply(
        self: &Arc<Self>,
        op: Op,
        limit: Duration,
        requests: Vec<JobRequest>,
    ) -> Vec<store::Result<RequestResult>> {
        let count = requests.len();
        if let Err(error) = self.admit(op) {
            return vec![Err(error); count];
        }
        let begin = Instant::now();
        let answer = tokio::time::timeout(limit, self.store.apply(requests)).await;
        let is_late = answer.is_err();
        let applied = answer.unwrap_or_else(|_| vec![Err(timeout_error(limit)); count]);
        self.record(op, begin, is_late, worst_error(&applied));
        applied
    }

    /// Counts a call that began at `begin` and has ended now.
    fn record(self: &Arc<Self>, op: Op, begin: Instant, is_late: bool, error: Option<&Error>) {
        let took = begin.elapsed();
        self.metrics.op(op.name(), took);
        let kind =
            if is_late || took >= SLOW_FAILURE { FailureKind::Slow } else { FailureKind::Fast };
        match error {
            None => self.record_success(op),
            Some(error) => self.record_failure(op, kind, error, begin),
        }
    }

    /// Makes a call of `op` that is many calls of the store, with the time limit `limit` for all of them. A long
    /// duration is no failure; meanwhile the shard is probed every second.
    ///
    /// # Errors
    /// Errors of [`HealthMonitor::call`]; also [`Error::Unavailable`] once the shard is down.
    pub(in crate::shards) async fn long_call<T>(
        self: &Arc<Self>,
        op: Op,
        limit: Duration,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        let probes = async {
            loop {
                tokio::time::sleep(SLOW_FAILURE).await;
                self.request_probe();
            }
        };
        tokio::select! {
            answer = self.call(op, limit, call) => answer,
            error = self.wait_until_down() => Err(Error::Unavailable(error)),
            () = probes => unreachable!("the loop has no end"),
        }
    }

    fn record_success(&self, op: Op) {
        self.state.lock().record_success(op.access());
        if op == Op::Enqueue && self.full.lock().take().is_some() {
            self.log.has_room();
        }
    }

    fn record_failure(self: &Arc<Self>, op: Op, kind: FailureKind, error: &Error, begin: Instant) {
        self.metrics.error(op.name(), error.reason());
        let shard = &self.store.identity().name;
        tracing::debug!(%shard, op = op.name(), %error, "a store call failed");
        if error.is_shard_failure() {
            let change = self.state.lock().record_failure(op, kind, error.message(), begin);
            self.apply_change(change, error.message());
            self.wake.notify_one();
        } else {
            self.state.lock().record_success(op.access());
            if let (Op::Enqueue, Error::Full(_)) = (op, error) {
                *self.full.lock() = Some(format!("the last new job was refused: {error}"));
            }
            self.log.refused(op, error);
        }
    }
}

fn timeout_error(limit: Duration) -> Error {
    Error::OutcomeUnknown(format!("no answer within {limit:?}"))
}
