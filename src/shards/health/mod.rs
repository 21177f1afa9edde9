//! Health of one shard: whether it can be used, and why not. Routing, readiness, the dispatcher, `shard list`,
//! metrics and the log all read the one [`ShardHealth`] that is kept here.
//!
//! ```text
//!         ┌─────────────────────────── a probe by a write succeeds ───────────────────────────┐
//!         ▼                                                                                   │
//!        UP ── 5 writes or probes fail in a row (2 without an answer), or ──────────────▶   DOWN   all calls refused;
//!        ▲ │     the store has not reached the shard when the server starts                   ▲    probed after
//!        │ │                                                                                  │    100 ms … 5 s, and
//!        │ ├─ 5 reads by users fail in a row (2 without an answer) ──▶ DEGRADED, such reads ──┤    at a sign of life
//!        │ │                                                            are refused           │
//!        │ └─ the store finds that new jobs would not be safe ───────▶ DEGRADED, new jobs ────┘
//!        │                                                              are refused
//!        └── a probe by a read succeeds; the store finds new jobs safe again
//! ```
//!
//! A failed call makes the shard suspect, and so does a lost subscription or a change for the worse that its store
//! finds: it is probed at once and every 100 ms until it answers or is down. A probe writes, because a shard that can
//! be read but not written is no use; failures of reads never refuse writes. Idea and name of refusing calls after
//! failures in a row: circuit breaker, M. Nygard, "Release It!"; linkerd2-proxy's `consecutive_failures`.
//!
//! - `state`: the state machine, pure
//! - `calls`: admits, limits and measures every call of a store
//! - `probe`: probes shards that are suspected or down
//! - `log`: log lines about the health of a shard

mod calls;
mod log;
mod probe;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Skew;
use crate::domain::Durability;
use crate::metrics::ShardMetrics;
use crate::store::{DataLoss, Error, EventKind, ShardProblem, ShardStatus, Store};

use super::ShardTimeouts;
use super::op::{Access, Op};
use super::queue_delay::Overload;
use log::HealthLog;
use state::{BreakerChange, BreakerState};

/// Duration from which a failure counts like a missing answer.
const SLOW_FAILURE: Duration = Duration::from_secs(1);

/// Health of a shard; all fields `None`: it is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardHealth {
    /// Reason why all calls are refused, if the shard is down.
    pub down: Option<String>,
    /// Reason why reads by users are refused, if they are.
    pub reads_refused: Option<String>,
    /// Reason why new jobs are refused, if they are.
    pub jobs_refused: Option<String>,
}

/// Keeps the health of one shard.
pub(super) struct HealthMonitor {
    store: Arc<dyn Store>,
    metrics: ShardMetrics,
    timeouts: ShardTimeouts,
    state: Mutex<BreakerState>,
    shard_status: watch::Receiver<ShardStatus>,
    health: watch::Sender<ShardHealth>,
    /// Error of the last enqueue, if the shard had no room for it. Such a shard stays in use: smaller jobs may fit.
    full: Mutex<Option<String>>,
    /// Number of shards of this server that are down.
    down: watch::Sender<usize>,
    /// Wakes the prober when the next probe may have changed.
    wake: Arc<Notify>,
    closing: CancellationToken,
    log: HealthLog,
    /// On while new jobs are refused because they wait too long: then reads by users are refused, too.
    overload: Overload,
}

// === impl ShardHealth ===

impl ShardHealth {
    /// Returns the reason why calls of this kind are refused, if they are.
    fn refuses(&self, access: Access) -> Option<&str> {
        let reads = self.reads_refused.as_ref().filter(|_| access == Access::Read);
        self.down.as_ref().or(reads).map(String::as_str)
    }

    /// Returns whether new jobs may be placed on the shard.
    #[must_use]
    pub fn takes_jobs(&self) -> bool {
        self.down.is_none() && self.jobs_refused.is_none()
    }

    /// Returns the reason why a shard that answers refuses all new jobs or reads, if it does.
    fn refusal(&self) -> Option<String> {
        let reads = || self.reads_refused.as_ref().map(|why| format!("reads are refused: {why}"));
        self.jobs_refused.clone().or_else(reads)
    }
}

// === impl HealthMonitor ===

impl HealthMonitor {
    /// Starts the monitor of a shard, which is down if its store reports that, else up. Probes run from now on.
    pub(super) fn start(
        store: Arc<dyn Store>,
        metrics: ShardMetrics,
        patience: ShardTimeouts,
        down: watch::Sender<usize>,
    ) -> Arc<HealthMonitor> {
        let (condition, events) = (store.status(), store.subscribe(EventKind::Shard));
        let monitor = Arc::new(HealthMonitor {
            state: Mutex::new(BreakerState::new(patience.probe_pauses)),
            shard_status: condition.clone(),
            health: watch::Sender::new(ShardHealth::default()),
            full: Mutex::default(),
            down,
            wake: Arc::default(),
            closing: CancellationToken::new(),
            log: HealthLog::new(store.identity().clone()),
            overload: Overload::default(),
            store,
            metrics,
            timeouts: patience,
        });
        let known = condition.borrow().clone();
        if let Some(ShardProblem::NeverConnected(error) | ShardProblem::Misconfigured(error)) =
            &known.problem
        {
            monitor.state.lock().take_down(error);
        }
        monitor.log.shard_status(&known);
        monitor.publish();
        tokio::spawn(probe::watch_store(Arc::downgrade(&monitor), condition, events));
        tokio::spawn(probe::probe_loop(&monitor));
        monitor
    }

    /// Returns the overload of the shard, which its queue sets.
    pub(super) fn overload(&self) -> &Overload {
        &self.overload
    }

    /// Returns the health now.
    pub(super) fn health(&self) -> watch::Ref<'_, ShardHealth> {
        self.health.borrow()
    }

    /// Watches the health.
    pub(super) fn subscribe(&self) -> watch::Receiver<ShardHealth> {
        self.health.subscribe()
    }

    /// Returns the reason why a shard that answers refuses new jobs or reads, if it does.
    pub(super) fn refusal(&self) -> Option<String> {
        let refusal = self.health().refusal();
        refusal.or_else(|| self.full.lock().clone())
    }

    pub(super) fn is_down(&self) -> bool {
        self.health().down.is_some()
    }

    /// Refuses a call of `op` while the shard is down, or a read by a user while these are refused.
    pub(super) fn admit(&self, op: Op) -> Result<(), Error> {
        let health = self.health();
        let Some(error) = health.refuses(op.access()) else {
            self.admit_read(op)?;
            return self.admit_jobs(op, &health);
        };
        self.metrics.error(op.name(), "BREAKER_OPEN");
        let what = if health.down.is_some() { "" } else { " for reads" };
        Err(Error::Unavailable(format!("circuit breaker open{what}; last error: {error}")))
    }

    /// Refuses a read by a user while the shard is overloaded.
    fn admit_read(&self, op: Op) -> Result<(), Error> {
        if op.access() != Access::Read || !self.overload.is_on() {
            return Ok(());
        }
        let error = Error::Overloaded("calls wait too long for their turn".to_owned());
        self.metrics.error(op.name(), error.reason());
        Err(error)
    }

    /// Refuses new jobs before they reach the store: there they would count as failures of writes, and settles would
    /// be refused with them.
    fn admit_jobs(&self, op: Op, health: &ShardHealth) -> Result<(), Error> {
        let Some(why) = health.jobs_refused.as_ref().filter(|_| op == Op::Enqueue) else {
            return Ok(());
        };
        let error = Error::Unavailable(why.clone());
        self.metrics.error(op.name(), error.reason());
        Err(error)
    }

    /// Records the durability that a call requests.
    pub(super) fn note_durability(&self, durability: Durability) {
        self.log.note_durability(durability);
    }

    /// Requests a probe: the shard may be down, for another reason than a failed call.
    fn request_probe(&self) {
        self.state.lock().schedule_probe();
        self.wake.notify_one();
    }

    /// Probes a shard that is down at once, after a sign of life.
    fn probe_now(&self) {
        self.state.lock().probe_now();
        self.wake.notify_one();
    }

    /// Records by how much the clocks of the shard and this server differ.
    pub(super) fn compare_clocks(&self, skew: Skew) {
        self.metrics.set_clock_skew(skew.seconds());
        self.log.skew(skew);
    }

    /// Logs and counts that the shard has lost data.
    pub(super) fn note_data_loss(&self, loss: DataLoss) {
        self.metrics.data_lost();
        self.log.data_lost(loss);
    }

    /// Waits until the shard is not down.
    pub(super) async fn wait_until_usable(&self) {
        // Fails only without a sender, and this is one.
        let _ = self.subscribe().wait_for(|health| health.down.is_none()).await;
    }

    /// Waits for the next time that the shard is not down any more.
    pub(super) async fn wait_for_recovery(&self) {
        let mut health = self.subscribe();
        if health.wait_for(|health| health.down.is_some()).await.is_ok() {
            let _ = health.wait_for(|health| health.down.is_none()).await;
        }
    }

    /// Waits until the shard is down, and returns the reason.
    async fn wait_until_down(&self) -> String {
        let mut health = self.subscribe();
        let down = health.wait_for(|health| health.down.is_some()).await;
        down.ok().and_then(|health| health.down.clone()).unwrap_or_default()
    }

    /// Returns whether a probe is due or in flight though the shard is in use.
    #[cfg(test)]
    fn is_being_probed(&self) -> bool {
        self.state.lock().is_being_probed()
    }

    /// Ends the prober.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// Returns the status that the store reports.
    pub(super) fn shard_status(&self) -> watch::Ref<'_, ShardStatus> {
        self.shard_status.borrow()
    }

    /// Logs and publishes a change of the state.
    fn apply_change(self: &Arc<Self>, change: BreakerChange, error: &str) {
        match change {
            // The reason may have changed: first no process listened there, then another one does.
            BreakerChange::None if self.is_down() => {}
            BreakerChange::None => return,
            // The problem that the store has found is logged already, with what to do.
            BreakerChange::Down if self.shard_status().is_down() => {}
            BreakerChange::Down => self.log.down(error),
            BreakerChange::ReadsRefused => self.log.reads_refused(error),
        }
        self.publish();
        if change == BreakerChange::ReadsRefused && self.state.lock().begin_read_probes() {
            tokio::spawn(probe::probe_reads_loop(self));
        }
    }

    /// Updates the published health and its metrics.
    fn publish(&self) {
        let state = self.state.lock();
        let condition = self.shard_status();
        let health = ShardHealth {
            down: state.down().map(str::to_owned),
            reads_refused: state.reads_refused().map(str::to_owned),
            jobs_refused: match &condition.problem {
                Some(ShardProblem::RejectsEnqueues(error)) => Some(error.clone()),
                _ => None,
            },
        };
        // Under the lock of the state, so that the latest one is published last.
        let before = self.health.send_replace(health.clone());
        if before.down.is_some() != health.down.is_some() {
            let is_down = health.down.is_some();
            if is_down {
                self.metrics.breaker_opened();
            }
            self.down.send_modify(|down| *down = if is_down { *down + 1 } else { *down - 1 });
        }
        let (jobs, reads) = (health.jobs_refused.is_some(), health.reads_refused.is_some());
        self.metrics.set_health(health.down.is_some(), jobs, reads);
    }
}
