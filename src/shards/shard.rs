//! One shard as the rest of the server sees it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

use crate::clock::Skew;
use crate::domain::ring::ShardState;
use crate::domain::{Durability, ShardName, StreamId, Time, TopicName, limit};
use crate::metrics::{Metrics, ShardMetrics};
use crate::store::{
    self, About, Applied, Census, Claim, Claims, Enqueue, Event, Extend, Info, Lease, NewJob,
    Reach, Refused, Reply, Request, Settle, Stats, Store,
};

use super::batcher::{Batcher, CALLS_MAX};
use super::flight::Flight;
use super::health::{Health, Monitor};
use super::op::Op;
use super::patience::Patience;
use super::{Member, ShardError};

/// How long a look at all leases may take.
const ORPHANS_MAX: Duration = Duration::from_secs(60);
/// How long counting everything may take: it is done in small pieces, of which there may be many.
const INFO_MAX: Duration = Duration::from_secs(60);

/// Numbers of topics by name; `None` where there is no such topic.
type Numbers = Arc<HashMap<TopicName, Option<Stats>>>;

/// One shard and what stands in front of it. Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    patience: Patience,
    health: Arc<Monitor>,
    index: usize,
    weight: u32,
    /// As the shard itself says, for all replicas; until it does, as configured.
    state: Mutex<ShardState>,
    /// What it has said last of those who share it.
    census: watch::Sender<Option<Arc<Census>>>,
    others: Mutex<Others>,
    nudge: Notify,
    metrics: ShardMetrics,
    /// By what they have to wait for: those who ask for nothing do not wait with those who do.
    enqueue: [Batcher<Request, Applied>; 3],
    settle: Batcher<Request, Applied>,
    /// Counting takes as long as there is much to count.
    stats: Flight<BTreeSet<TopicName>, Result<Numbers, ShardError>>,
    info: Flight<(), Result<Info, ShardError>>,
}

/// Other replicas that the shard is still to be told of.
#[derive(Default)]
struct Others {
    met: Vec<u32>,
    gone: Vec<u32>,
}

// === impl Shard ===

impl Shard {
    pub(super) fn new(
        index: usize,
        member: Member,
        patience: &Patience,
        down: &watch::Sender<usize>,
        metrics: &Metrics,
    ) -> Shard {
        let Member { store, weight, state } = member;
        let metrics = metrics.shard(store.name().as_str());
        let health =
            Monitor::start(Arc::clone(&store), metrics.clone(), patience.clone(), down.clone());
        let batcher = |op, calls| {
            let (health, answer) = (Arc::clone(&health), patience.answer);
            Batcher::spawn(calls, Request::bytes, move |mut requests: Vec<Request>| {
                let health = Arc::clone(&health);
                // When the call is given up nothing may be written any more; a repeat of a settle changes nothing.
                let end = Instant::now() + answer;
                if op == Op::Enqueue {
                    requests.iter_mut().for_each(|request| until(request, end));
                }
                Box::pin(async move { health.call_each(op, answer, requests).await })
            })
        };
        let confirmed = limit::CONFIRMED_CALLS_MAX;
        let enqueue = [CALLS_MAX, confirmed, confirmed].map(|calls| batcher(Op::Enqueue, calls));
        let settle = batcher(Op::Settle, CALLS_MAX);
        let (state, others, nudge) = (Mutex::new(state), Mutex::default(), Notify::new());
        let census = watch::Sender::new(None);
        let inner = Inner {
            store,
            patience: patience.clone(),
            health,
            index,
            weight,
            state,
            census,
            others,
            nudge,
            metrics,
            enqueue,
            settle,
            stats: Flight::default(),
            info: Flight::default(),
        };
        Shard { inner: Arc::new(inner) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        self.inner.store.name()
    }

    /// Its place among [`Shards::all`](super::Shards::all).
    #[must_use]
    pub fn index(&self) -> usize {
        self.inner.index
    }

    /// Its part of the jobs, compared with the others'.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.inner.weight
    }

    /// Whether it takes new jobs.
    #[must_use]
    pub fn state(&self) -> ShardState {
        *lock(&self.inner.state)
    }

    /// Whether other replicas may use it, too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.store.is_shared()
    }

    /// Its health.
    #[must_use]
    pub fn health(&self) -> watch::Ref<'_, Health> {
        self.inner.health.now()
    }

    /// Whether all its calls are refused.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.inner.health.is_down()
    }

    /// Its address without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.inner.store.identity().address
    }

    /// Its metrics.
    #[must_use]
    pub fn metrics(&self) -> &ShardMetrics {
        &self.inner.metrics
    }

    /// Durability of its writes, as far as it is known.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.inner.health.known().reach()
    }

    /// Durability of its writes, if it is known.
    #[must_use]
    pub fn known_reach(&self) -> Option<Reach> {
        self.inner.health.known().reach
    }

    /// [`Store::events`].
    #[must_use]
    pub fn events(&self, about: About) -> broadcast::Receiver<Event> {
        self.inner.store.events(about)
    }

    /// Writes jobs, together with whatever else waits and asks for the same durability. Each answer is its own.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueue, ShardError>> {
        // Before it waits with others; their call is admitted once more.
        let admitted = self.inner.health.admit(Op::Enqueue);
        let asked = jobs.iter().filter_map(|job| job.durability).max();
        if let Some(asked) = asked {
            self.inner.health.asked(asked);
        }
        let batcher = &self.inner.enqueue[self.queue(asked)];
        self.batch(admitted, batcher, jobs, |applied| applied.enqueued()).await
    }

    async fn batch<T>(
        &self,
        admitted: store::Result<()>,
        batcher: &Batcher<Request, Applied>,
        items: Vec<impl Into<Request>>,
        answer: impl Fn(Applied) -> T,
    ) -> Vec<Result<T, ShardError>> {
        let answers = match admitted {
            Ok(()) => batcher.call(items.into_iter().map(Into::into).collect()).await,
            Err(error) => items.iter().map(|_| Err(error.clone())).collect(),
        };
        answers.into_iter().map(|applied| self.named(applied.map(&answer))).collect()
    }

    /// Which of the queues serves those who ask for so much.
    fn queue(&self, asked: Option<Durability>) -> usize {
        match asked.filter(|&asked| asked > self.reach().plain) {
            None | Some(Durability::Memory) => 0,
            Some(Durability::Fsynced) => 1,
            Some(Durability::Replicated) => 2,
        }
    }

    /// Ends leases, together with whatever else waits. Each answer is its own: a [`Applied::settled`].
    pub async fn settle(&self, items: Vec<Settle>) -> Vec<Result<Applied, ShardError>> {
        // As for an enqueue.
        let admitted = self.inner.health.admit(Op::Settle);
        self.batch(admitted, &self.inner.settle, items, |applied| applied).await
    }

    /// Moves deadlines. Each answer is its own.
    pub async fn extend(
        &self,
        items: Vec<Extend>,
    ) -> Vec<Result<Result<Time, Refused>, ShardError>> {
        let health = &self.inner.health;
        let requests = items.into_iter().map(Request::from).collect();
        let extended = health.call_each(Op::Extend, self.inner.patience.answer, requests).await;
        let named = extended.into_iter().map(|answer| self.named(answer));
        named.map(|answer| answer.map(|applied| applied.extended())).collect()
    }

    /// [`Store::claim`].
    ///
    /// # Errors
    /// As the store's.
    pub async fn claim(&self, claim: Claim) -> Result<Claims, ShardError> {
        let Inner { store, health, .. } = &*self.inner;
        let limit = self.inner.patience.claim;
        self.named(health.call(Op::Claim, limit, async { store.claim(claim).await }).await)
    }

    /// The orphans, see [`Select::Orphans`](store::Select::Orphans), which goes through all leases of the shard in many small steps: what takes long
    /// because they are many has not failed.
    ///
    /// # Errors
    /// As the store's.
    pub async fn orphans(&self, living: Vec<u32>) -> Result<Vec<Lease>, ShardError> {
        let Inner { store, health, .. } = &*self.inner;
        let call = async { store.orphans(living).await };
        self.named(health.long_call(Op::Orphans, ORPHANS_MAX, call).await)
    }

    /// [`Store::stats`], by one read for all callers that wait for it.
    ///
    /// # Errors
    /// As the store's.
    pub async fn stats(&self, topics: Vec<TopicName>) -> Result<Vec<Option<Stats>>, ShardError> {
        self.named(self.inner.health.admit(Op::Stats))?;
        let shard = self.clone();
        let read = async move |names: BTreeSet<TopicName>| shard.read_stats(names).await;
        let names = topics.iter().cloned();
        let numbers = self.inner.stats.ask(|asked| asked.extend(names), read).await;
        let numbers = numbers.unwrap_or_else(|| Err(self.closing()))?;
        Ok(topics.iter().map(|topic| numbers.get(topic).copied().flatten()).collect())
    }

    /// Each piece has the time of a call.
    async fn read_stats(&self, names: BTreeSet<TopicName>) -> Result<Numbers, ShardError> {
        let mut numbers = HashMap::with_capacity(names.len());
        let names: Vec<TopicName> = names.into_iter().collect();
        for piece in names.chunks(limit::CALL_JOBS_MAX) {
            let stats = self.call(Op::Stats, |store| store.stats(piece.to_vec())).await?;
            numbers.extend(piece.iter().cloned().zip(stats));
        }
        Ok(Arc::new(numbers))
    }

    /// [`Store::info`], by one read for all callers that wait for it. It goes through all topics in many small
    /// steps, which may take longer than any other call; a shard that is found not to answer ends it.
    ///
    /// # Errors
    /// As the store's.
    pub async fn info(&self) -> Result<Info, ShardError> {
        self.named(self.inner.health.admit(Op::Info))?;
        let shard = self.clone();
        let read = async move |()| shard.read_info().await;
        let info = self.inner.info.ask(|()| {}, read).await;
        info.unwrap_or_else(|| Err(self.closing()))
    }

    async fn read_info(&self) -> Result<Info, ShardError> {
        let Inner { store, health, .. } = &*self.inner;
        let info = health.long_call(Op::Info, INFO_MAX, async { store.info().await });
        self.named(info.await)
    }

    fn closing(&self) -> ShardError {
        ShardError::unavailable(self.name(), "the server is shutting down")
    }

    /// The leases of these streams, see [`Select::OfStreams`](store::Select::OfStreams), which may go through all leases like [`Shard::orphans`].
    ///
    /// # Errors
    /// As the store's.
    pub async fn leases_of(&self, streams: Vec<StreamId>) -> Result<Vec<Lease>, ShardError> {
        let Inner { store, health, .. } = &*self.inner;
        let call = async { store.leases_of(streams).await };
        self.named(health.long_call(Op::LeasesOf, ORPHANS_MAX, call).await)
    }

    /// Any other verb, which is `op`.
    pub(super) async fn call<'a, T>(
        &'a self,
        op: Op,
        call: impl FnOnce(&'a dyn Store) -> Reply<'a, T>,
    ) -> Result<T, ShardError> {
        let Inner { store, health, .. } = &*self.inner;
        // Within a block of its own, so that a call that is not admitted is not begun either.
        let call = async { call(&**store).await };
        self.named(health.call(op, self.inner.patience.answer, call).await)
    }

    /// Says of a failure where it was.
    fn named<T>(&self, result: store::Result<T>) -> Result<T, ShardError> {
        result.map_err(|error| ShardError::new(self.name(), error))
    }

    /// Waits before a failed call of a loop is repeated: `pause`, and as long as the shard is down; but no longer than
    /// until it recovers.
    pub async fn wait_out(&self, pause: Duration) {
        let health = &self.inner.health;
        tokio::select! {
            () = tokio::time::sleep(pause) => health.usable().await,
            () = health.recovers() => {}
        }
    }

    /// What those who share it know of each other; `None` until it has answered.
    #[must_use]
    pub fn watch_census(&self) -> watch::Receiver<Option<Arc<Census>>> {
        self.inner.census.subscribe()
    }

    /// Leases of these replicas lie there; one that is not known is given its time to show itself.
    pub fn meet(&self, owners: &[u32]) {
        lock(&self.inner.others).met.extend(owners);
        self.inner.nudge.notify_one();
    }

    /// Nothing of these replicas is left there.
    pub fn forget(&self, owners: &[u32]) {
        lock(&self.inner.others).gone.extend(owners);
        self.inner.nudge.notify_one();
    }

    pub(super) fn census(&self) -> Option<Arc<Census>> {
        self.inner.census.borrow().clone()
    }

    pub(super) fn set_census(&self, census: Census) {
        self.inner.census.send_replace(Some(Arc::new(census)));
    }

    /// Its clock was compared with this server's.
    pub(super) fn compare_clocks(&self, skew: Skew) {
        self.inner.health.compare_clocks(skew);
    }

    pub(super) fn set_state(&self, state: ShardState) {
        *lock(&self.inner.state) = state;
    }

    /// Somebody has something to tell it.
    pub(super) async fn nudged(&self) {
        self.inner.nudge.notified().await;
    }

    /// Replicas that were met, and those that are gone.
    pub(super) fn others(&self) -> (Vec<u32>, Vec<u32>) {
        let others = lock(&self.inner.others);
        (others.met.clone(), others.gone.clone())
    }

    /// It has been told of these.
    pub(super) fn told(&self, met: &[u32], gone: &[u32]) {
        let mut others = lock(&self.inner.others);
        others.met.retain(|owner| !met.contains(owner));
        others.gone.retain(|owner| !gone.contains(owner));
    }

    pub(super) async fn close(&self) {
        self.inner.health.close();
        self.inner.store.close().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing is written for it after `end`.
fn until(request: &mut Request, end: Instant) {
    request.until = request.until.into_iter().chain([end]).min();
}
