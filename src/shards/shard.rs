//! A shard as the rest of the server uses it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

use crate::backoff::{Backoff, BackoffRange};
use crate::clock::Skew;
use crate::domain::engine::Command;
use crate::domain::ring::ShardState;
use crate::domain::{Durability, JobId, JobKey, ReceiptKey, ShardName, StreamId, TopicName, limit};
use crate::metrics::{Metrics, ShardMetrics};
use crate::store::{
    self, Claim, ClaimResult, DataLoss, EventKind, JobRequest, LeaseQuery, LeaseRef, LeaseRefusal,
    LeavingJobs, RequestResult, RoomQuery, RunningLease, ShardEvent, ShardTopicStats, SharedState,
    StatsOptions, Store, StoreFuture, StoreInfo, StoreUsage, WriteDurability,
};

use super::batcher::{Batcher, CALLS_MAX, Patience};
use super::coalesced_read::CoalescedRead;
use super::health::{HealthMonitor, ShardHealth};
use super::op::Op;
use super::queue_delay::{Overload, QueueDelay, WAIT_MAX};
use super::timeouts::ShardTimeouts;
use super::{ShardError, ShardMember};

/// Time limit of a scan of all leases.
const ORPHANS_MAX: Duration = Duration::from_secs(60);
/// Time limit of counting everything, which is done in small pieces, of which there may be many.
const INFO_MAX: Duration = Duration::from_secs(60);
/// Time limit of a read of the bytes of topics, which goes through all their jobs.
const STORED_BYTES_MAX: Duration = Duration::from_secs(600);
/// Time limit of a read of the space used: less than a scrape of the metrics waits.
const USAGE_MAX: Duration = Duration::from_secs(1);

/// Statistics of topics by name; `None`: there is no such topic.
type StatsByTopic = Arc<HashMap<TopicName, Option<ShardTopicStats>>>;

/// A shard: its store, health monitor and batchers. Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    inner: Arc<ShardInner>,
}

struct ShardInner {
    store: Arc<dyn Store>,
    timeouts: ShardTimeouts,
    monitor: Arc<HealthMonitor>,
    index: usize,
    weight: u32,
    /// State that the shard itself reports, for all replicas; the configured one until it has answered.
    state: Mutex<ShardState>,
    /// Last answer of the shard to a heartbeat.
    shared_state: watch::Sender<Option<Arc<SharedState>>>,
    peer_updates: Mutex<PeerUpdates>,
    heartbeat_request: Notify,
    metrics: ShardMetrics,
    /// Batchers by the requested durability: callers that request none do not wait with those that do.
    enqueue: [Batcher<JobRequest, RequestResult>; 3],
    settle: Batcher<JobRequest, RequestResult>,
    /// Coalesced, because counting takes long where there is much to count.
    stats: CoalescedRead<BTreeSet<TopicName>, Result<StatsByTopic, ShardError>>,
    info: CoalescedRead<(), Result<StoreInfo, ShardError>>,
}

/// Other replicas to report to the shard with the next heartbeat.
#[derive(Default)]
struct PeerUpdates {
    seen: Vec<u32>,
    gone: Vec<u32>,
}

// === impl Shard ===

impl Shard {
    pub(super) fn new(
        index: usize,
        member: ShardMember,
        patience: &ShardTimeouts,
        down: &watch::Sender<usize>,
        metrics: &Metrics,
    ) -> Shard {
        let ShardMember { store, weight, state } = member;
        let metrics = metrics.shard(store.name().as_str());
        let health = HealthMonitor::start(
            Arc::clone(&store),
            metrics.clone(),
            patience.clone(),
            down.clone(),
        );
        let batcher = |op, calls, delay| {
            let (health, answer) = (Arc::clone(&health), patience.call);
            Batcher::spawn(calls, delay, JobRequest::bytes, move |mut requests: Vec<JobRequest>| {
                let health = Arc::clone(&health);
                // After the time limit of the call nothing may be written any more; a repeated settle changes
                // nothing.
                let end = Instant::now() + answer;
                if op == Op::Enqueue {
                    requests.iter_mut().for_each(|request| limit_write(request, end));
                }
                Box::pin(async move { health.apply(op, answer, requests).await })
            })
        };
        let confirmed = limit::CONFIRMED_CALLS_MAX;
        let delay = QueueDelay::new(WAIT_MAX, health.overload().clone());
        let confirmation = || QueueDelay::new(WAIT_MAX + limit::CONFIRM_MAX, Overload::default());
        let enqueue = [
            batcher(Op::Enqueue, CALLS_MAX, Some(delay)),
            batcher(Op::Enqueue, confirmed, Some(confirmation())),
            batcher(Op::Enqueue, confirmed, Some(confirmation())),
        ];
        // A lease that is not settled in time would run its job again: settles wait as long as they can.
        let settle = batcher(Op::Settle, CALLS_MAX, None);
        let (state, others, nudge) = (Mutex::new(state), Mutex::default(), Notify::new());
        let shared_state = watch::Sender::new(None);
        let inner = ShardInner {
            store,
            timeouts: patience.clone(),
            monitor: health,
            index,
            weight,
            state,
            shared_state,
            peer_updates: others,
            heartbeat_request: nudge,
            metrics,
            enqueue,
            settle,
            stats: CoalescedRead::default(),
            info: CoalescedRead::default(),
        };
        Shard { inner: Arc::new(inner) }
    }

    /// Name of the shard.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        self.inner.store.name()
    }

    /// Index of the shard in [`Shards::all`](super::Shards::all).
    #[must_use]
    pub fn index(&self) -> usize {
        self.inner.index
    }

    /// Weight: its part of the jobs, relative to the other shards.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.inner.weight
    }

    /// Returns whether the shard takes new jobs.
    #[must_use]
    pub fn state(&self) -> ShardState {
        *self.inner.state.lock()
    }

    /// Returns whether other replicas may use the shard, too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.store.is_shared()
    }

    /// Health of the shard.
    #[must_use]
    pub fn health(&self) -> watch::Ref<'_, ShardHealth> {
        self.inner.monitor.health()
    }

    /// Returns the reason why the shard, though it answers, refuses new jobs or reads, if it does.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.inner.monitor.refusal()
    }

    /// Returns whether all calls of the shard are refused.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.inner.monitor.is_down()
    }

    /// Address of the shard, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.inner.store.identity().address
    }

    /// Key of its receipts, see [`Store::receipt_key`].
    #[must_use]
    pub fn receipt_key(&self) -> Option<ReceiptKey> {
        self.inner.store.receipt_key()
    }

    /// Metrics of the shard.
    #[must_use]
    pub fn metrics(&self) -> &ShardMetrics {
        &self.inner.metrics
    }

    /// Durability of writes, as far as it is known.
    #[must_use]
    pub fn write_durability(&self) -> WriteDurability {
        self.inner.monitor.shard_status().write_durability()
    }

    /// Durability of writes, if it is known.
    #[must_use]
    pub fn known_write_durability(&self) -> Option<WriteDurability> {
        self.inner.monitor.shard_status().write_durability
    }

    /// Subscribes to events of the store, see [`Store::subscribe`].
    #[must_use]
    pub fn events(&self, about: EventKind) -> broadcast::Receiver<ShardEvent> {
        self.inner.store.subscribe(about)
    }

    /// Applies commands of one kind, see [`Store::apply`]; results are per command. New jobs and settles are applied in one
    /// call with all others that wait, new jobs with those that request the same durability. New jobs with a deadline are
    /// refused after a long wait; the others are those of an Ack, which must not fail for that.
    pub async fn apply(&self, requests: Vec<JobRequest>) -> Vec<Result<RequestResult, ShardError>> {
        let Some(first) = requests.first() else { return Vec::new() };
        let (op, monitor) = (Op::from(&first.command), &self.inner.monitor);
        let applied = match self.batcher(op, &requests) {
            None => monitor.apply(op, self.inner.timeouts.call, requests).await,
            // Admitted before the wait for the batch; the call of the batch is admitted once more.
            Some((batcher, patience)) => match monitor.admit(op) {
                Ok(()) => batcher.call(requests, patience).await,
                Err(error) => vec![Err(error); requests.len()],
            },
        };
        // Refused before a call, whose errors the monitor counts.
        if let (Op::Enqueue, Some(Err(error @ store::Error::Overloaded(_)))) = (op, applied.first())
        {
            self.inner.metrics.error(op.name(), error.reason());
        }
        applied.into_iter().map(|applied| self.with_shard_name(applied)).collect()
    }

    /// Applies commands as [`Shard::apply`] does, where one error fails them all.
    ///
    /// # Errors
    /// The error that matters most, see [`all_or_worst_error`](store::all_or_worst_error).
    pub async fn apply_all(
        &self,
        requests: Vec<JobRequest>,
    ) -> Result<Vec<RequestResult>, ShardError> {
        let applied = self.apply(requests).await.into_iter();
        let applied = applied.map(|applied| applied.map_err(|failed| failed.error)).collect();
        self.with_shard_name(store::all_or_worst_error(applied))
    }

    /// Applies commands as [`Shard::apply`] does, and returns how many were applied, see
    /// [`count_done`](store::count_done).
    ///
    /// # Errors
    /// Errors of the shard, and of single jobs if no command was applied.
    pub async fn apply_counted(&self, requests: Vec<JobRequest>) -> Result<u64, ShardError> {
        let applied = self.apply(requests).await.into_iter();
        let applied = applied.map(|applied| applied.map_err(|failed| failed.error)).collect();
        self.with_shard_name(store::count_done(applied))
    }

    /// Returns the batcher for commands of this kind, and the patience of their caller; `None`: each has a call of its own.
    fn batcher(
        &self,
        op: Op,
        requests: &[JobRequest],
    ) -> Option<(&Batcher<JobRequest, RequestResult>, Patience)> {
        match op {
            Op::Settle => Some((&self.inner.settle, Patience::Unlimited)),
            Op::Enqueue => {
                let asked = requests.iter().filter_map(|request| request.durability).max();
                if let Some(asked) = asked {
                    self.inner.monitor.note_durability(asked);
                }
                let is_limited = requests.iter().any(|request| request.deadline.is_some());
                let patience = if is_limited { Patience::Limited } else { Patience::Unlimited };
                Some((&self.inner.enqueue[self.queue(asked)], patience))
            }
            _ => None,
        }
    }

    /// Returns the index of the batcher for the requested durability.
    fn queue(&self, asked: Option<Durability>) -> usize {
        match asked.filter(|&asked| asked > self.write_durability().by_default) {
            None | Some(Durability::Memory) => 0,
            Some(Durability::Fsynced) => 1,
            Some(Durability::Replicated) => 2,
        }
    }

    /// Reads these running leases; the error is the reason why there is no such lease.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn running_leases(
        &self,
        refs: Vec<LeaseRef>,
    ) -> Result<Vec<Result<RunningLease, LeaseRefusal>>, ShardError> {
        let query = LeaseQuery::ByRef(refs.clone());
        let found = self.call(Op::Leases, |store| store.query_leases(query)).await?;
        Ok(found.into_results(&refs))
    }

    /// Makes the oldest waiting jobs of a topic EXPIRED for new ones, see [`Store::oldest_waiting`], and returns those that
    /// have left: it is over its limits only if all of them have. `None`: none, because the new ones get no room by that.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn evict(
        &self,
        topic: &TopicName,
        room: RoomQuery,
    ) -> Result<Option<LeavingJobs>, ShardError> {
        let name = topic.clone();
        let found = self.call(Op::OldestWaiting, |store| store.oldest_waiting(name, room)).await?;
        let Some(LeavingJobs { ids, is_over }) = found else { return Ok(None) };
        // A record that stays would keep its bytes.
        let evict = Command::Evict { frees_bytes: room.max_bytes.is_some() };
        let key = |id: &JobId| JobKey { topic: topic.clone(), id: id.clone() };
        let requests = ids.iter().map(|id| JobRequest::new(key(id), evict.clone())).collect();
        let (found, mut left, mut failed) = (ids.len(), Vec::with_capacity(ids.len()), None);
        for (id, evicted) in ids.into_iter().zip(self.apply(requests).await) {
            match evicted {
                Ok(evicted) => left.extend(evicted.is_done().then_some(id)),
                Err(error) => failed = Some(error),
            }
        }
        // One job that cannot be read does not keep the others.
        if let Some(error) = failed.filter(|_| left.is_empty()) {
            return Err(error);
        }
        let is_over = is_over && left.len() == found;
        Ok(Some(LeavingJobs { ids: left, is_over }))
    }

    /// Claims jobs, see [`Store::claim`].
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn claim(&self, claim: Claim) -> Result<ClaimResult, ShardError> {
        let ShardInner { store, monitor: health, .. } = &*self.inner;
        let limit = self.inner.timeouts.claim;
        self.with_shard_name(
            health.call(Op::Claim, limit, async { store.claim(claim).await }).await,
        )
    }

    /// Returns orphaned leases, see [`LeaseQuery::Orphaned`]. The query goes through all
    /// leases of the shard in many small steps; a long duration is no failure.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn orphans(&self, living: Vec<u32>) -> Result<Vec<RunningLease>, ShardError> {
        let ShardInner { store, monitor: health, .. } = &*self.inner;
        let query = LeaseQuery::Orphaned { live_owners: living };
        let call = async { store.query_leases(query).await };
        let found = health.long_call(Op::Orphans, ORPHANS_MAX, call).await;
        Ok(self.with_shard_name(found)?.leases)
    }

    /// Returns statistics of topics, by one [`Store::stats`] for all callers that wait for it.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn stats(
        &self,
        topics: Vec<TopicName>,
    ) -> Result<Vec<Option<ShardTopicStats>>, ShardError> {
        self.with_shard_name(self.inner.monitor.admit(Op::Stats))?;
        let shard = self.clone();
        let read = async move |names: BTreeSet<TopicName>| shard.read_stats(names).await;
        let names = topics.iter().cloned();
        let numbers = self.inner.stats.read(|asked| asked.extend(names), read).await;
        let numbers = numbers.unwrap_or_else(|| Err(self.closing()))?;
        Ok(topics.iter().map(|topic| numbers.get(topic).copied().flatten()).collect())
    }

    /// Returns statistics of topics with their stored bytes, see [`StatsOptions::stored_bytes`]. The read ends when the
    /// shard is found down.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn stats_with_stored_bytes(
        &self,
        topics: Vec<TopicName>,
    ) -> Result<Vec<Option<ShardTopicStats>>, ShardError> {
        let ShardInner { store, monitor: health, .. } = &*self.inner;
        let options = StatsOptions { stored_bytes: true, ..StatsOptions::default() };
        let call = async { store.stats(topics, options).await };
        self.with_shard_name(health.long_call(Op::StoredBytes, STORED_BYTES_MAX, call).await)
    }

    /// Reads statistics in pieces, each with the time limit of a call.
    async fn read_stats(&self, names: BTreeSet<TopicName>) -> Result<StatsByTopic, ShardError> {
        let mut numbers = HashMap::with_capacity(names.len());
        let names: Vec<TopicName> = names.into_iter().collect();
        for piece in names.chunks(limit::CALL_JOBS_MAX) {
            let options = StatsOptions::default();
            let stats = self.call(Op::Stats, |store| store.stats(piece.to_vec(), options)).await?;
            numbers.extend(piece.iter().cloned().zip(stats));
        }
        Ok(Arc::new(numbers))
    }

    /// Returns [`Store::info`], by one read for all callers that wait for it. The read goes through all topics in
    /// many small steps, which may take longer than any other call; it ends when the shard is found down.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn info(&self) -> Result<StoreInfo, ShardError> {
        self.with_shard_name(self.inner.monitor.admit(Op::Info))?;
        let shard = self.clone();
        let read = async move |()| shard.read_info().await;
        let info = self.inner.info.read(|()| {}, read).await;
        info.unwrap_or_else(|| Err(self.closing()))
    }

    async fn read_info(&self) -> Result<StoreInfo, ShardError> {
        let ShardInner { store, monitor: health, .. } = &*self.inner;
        let info = health.long_call(Op::Info, INFO_MAX, async { store.info().await });
        self.with_shard_name(info.await)
    }

    /// Returns the space that the store uses and has, see [`Store::usage`].
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn usage(&self) -> Result<StoreUsage, ShardError> {
        let ShardInner { store, monitor, .. } = &*self.inner;
        let usage = monitor.call(Op::Usage, USAGE_MAX, async { store.usage().await });
        self.with_shard_name(usage.await)
    }

    fn closing(&self) -> ShardError {
        ShardError::unavailable(self.name(), "the server is shutting down")
    }

    /// Returns the leases of these streams, see [`LeaseQuery::OfStreams`]. The query
    /// may go through all leases like [`Shard::orphans`].
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn leases_of(&self, streams: Vec<StreamId>) -> Result<Vec<RunningLease>, ShardError> {
        let ShardInner { store, monitor: health, .. } = &*self.inner;
        let call = async { store.query_leases(LeaseQuery::OfStreams(streams)).await };
        let found = health.long_call(Op::LeasesOf, ORPHANS_MAX, call).await;
        Ok(self.with_shard_name(found)?.leases)
    }

    /// Calls any other verb, named by `op`, with the time limit of a call.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Unavailable`](store::Error::Unavailable) when the circuit breaker is open,
    /// [`Error::OutcomeUnknown`](store::Error::OutcomeUnknown) when the call takes too long.
    pub async fn call<'a, T>(
        &'a self,
        op: Op,
        call: impl FnOnce(&'a dyn Store) -> StoreFuture<'a, T>,
    ) -> Result<T, ShardError> {
        let ShardInner { store, monitor: health, .. } = &*self.inner;
        // Within a block of its own, so that a call that is not admitted is not begun either.
        let call = async { call(&**store).await };
        self.with_shard_name(health.call(op, self.inner.timeouts.call, call).await)
    }

    /// Adds the name of the shard to an error.
    fn with_shard_name<T>(&self, result: store::Result<T>) -> Result<T, ShardError> {
        result.map_err(|error| ShardError::new(self.name(), error))
    }

    /// Repeats a call until it succeeds, with these pauses in between.
    pub(crate) async fn retry<T, F>(&self, pauses: BackoffRange, mut call: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, ShardError>>,
    {
        let mut pauses = Backoff::new(pauses);
        loop {
            match call().await {
                Ok(done) => return done,
                Err(_) => self.pause_before_retry(pauses.next_delay()).await,
            }
        }
    }

    /// Waits before a failed call of a loop is retried: for `pause` and while the shard is down, but no longer than
    /// until it recovers.
    pub async fn pause_before_retry(&self, pause: Duration) {
        let health = &self.inner.monitor;
        tokio::select! {
            () = tokio::time::sleep(pause) => health.wait_until_usable().await,
            () = health.wait_for_recovery() => {}
        }
    }

    /// Watches the state that replicas share through the shard; `None` until it has answered.
    #[must_use]
    pub fn watch_shared_state(&self) -> watch::Receiver<Option<Arc<SharedState>>> {
        self.inner.shared_state.subscribe()
    }

    /// Reports to the shard that it has leases of these replicas; one without a record there gets the usual time to
    /// send a heartbeat.
    pub fn report_replicas(&self, owners: &[u32]) {
        self.inner.peer_updates.lock().seen.extend(owners);
        self.inner.heartbeat_request.notify_one();
    }

    /// Reports to the shard that no lease of these replicas is left there.
    pub fn report_gone(&self, owners: &[u32]) {
        self.inner.peer_updates.lock().gone.extend(owners);
        self.inner.heartbeat_request.notify_one();
    }

    pub(super) fn shared_state(&self) -> Option<Arc<SharedState>> {
        self.inner.shared_state.borrow().clone()
    }

    pub(super) fn set_shared_state(&self, shared_state: SharedState) {
        self.inner.shared_state.send_replace(Some(Arc::new(shared_state)));
    }

    /// Records the skew between the clocks of the shard and this server.
    pub(super) fn compare_clocks(&self, skew: Skew) {
        self.inner.monitor.compare_clocks(skew);
    }

    /// Reports that the shard has lost data.
    pub(super) fn note_data_loss(&self, loss: DataLoss) {
        self.inner.monitor.note_data_loss(loss);
    }

    pub(super) fn set_state(&self, state: ShardState) {
        *self.inner.state.lock() = state;
    }

    /// Waits until there are peer updates to send.
    pub(super) async fn heartbeat_requested(&self) {
        self.inner.heartbeat_request.notified().await;
    }

    /// Returns the replicas to report as seen, and those to report as gone.
    pub(super) fn peer_updates(&self) -> (Vec<u32>, Vec<u32>) {
        let others = self.inner.peer_updates.lock();
        (others.seen.clone(), others.gone.clone())
    }

    /// Removes peer updates that the shard has received.
    pub(super) fn clear_peer_updates(&self, seen: &[u32], gone: &[u32]) {
        let mut others = self.inner.peer_updates.lock();
        others.seen.retain(|owner| !seen.contains(owner));
        others.gone.retain(|owner| !gone.contains(owner));
    }

    pub(super) async fn close(&self) {
        self.inner.monitor.close();
        self.inner.store.close().await;
    }
}

/// Limits a request: nothing is written for it after `end`.
fn limit_write(request: &mut JobRequest, end: Instant) {
    request.deadline = request.deadline.into_iter().chain([end]).min();
}
