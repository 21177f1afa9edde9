//! One shard as the rest of the server sees it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use crate::domain::ring::ShardState;
use crate::domain::{Durability, ShardName};
use crate::metrics::{Metrics, ShardMetrics};
use crate::store::{
    self, Claim, Claims, End, Enqueue, Event, NewJob, Refused, Reply, Settle, Settled, Store,
};

use super::Member;
use super::batcher::Batcher;
use super::guard::{Guard, Patience};

/// One shard and what stands in front of it. Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    weight: u32,
    /// As configured. Drained shards will say so themselves, for all replicas.
    state: ShardState,
    metrics: ShardMetrics,
    guard: Arc<Guard>,
    enqueue: Batcher<NewJob, Enqueue>,
    settle: Batcher<Settle, Result<Settled, Refused>>,
}

// === impl Shard ===

impl Shard {
    pub(super) fn new(
        member: Member,
        patience: &Patience,
        down: &watch::Sender<usize>,
        metrics: &Metrics,
    ) -> Shard {
        let Member { store, weight, state } = member;
        let metrics = metrics.shard(store.name().as_str());
        let guard = Arc::new(Guard::new(
            Arc::clone(&store),
            metrics.clone(),
            patience.clone(),
            down.clone(),
        ));
        let answer = patience.answer;
        let (enqueues, enqueue_guard) = (Arc::clone(&store), Arc::clone(&guard));
        let (settles, settle_guard) = (Arc::clone(&store), Arc::clone(&guard));
        let enqueue = Batcher::spawn(job_bytes, move |jobs| {
            let (store, guard) = (Arc::clone(&enqueues), Arc::clone(&enqueue_guard));
            Box::pin(async move {
                guard.call("enqueue", answer, async { store.enqueue(jobs).await }).await
            })
        });
        let settle = Batcher::spawn(settle_bytes, move |items| {
            let (store, guard) = (Arc::clone(&settles), Arc::clone(&settle_guard));
            Box::pin(async move {
                guard.call("settle", answer, async { store.settle(items).await }).await
            })
        });
        let inner = Inner { store, weight, state, metrics, guard, enqueue, settle };
        Shard { inner: Arc::new(inner) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        self.inner.store.name()
    }

    /// Its part of the jobs, compared with the others'.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.inner.weight
    }

    /// Whether it takes new jobs.
    #[must_use]
    pub fn state(&self) -> ShardState {
        self.inner.state
    }

    /// Whether it does not answer, so that its calls fail at once.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.inner.guard.breaker().is_open()
    }

    /// Its metrics.
    #[must_use]
    pub fn metrics(&self) -> &ShardMetrics {
        &self.inner.metrics
    }

    /// [`Store::durability`].
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.inner.store.durability()
    }

    /// [`Store::is_shared`].
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.store.is_shared()
    }

    /// [`Store::events`].
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.store.events()
    }

    /// [`Store::enqueue`], together with whatever else waits.
    ///
    /// # Errors
    /// As the store's.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> store::Result<Vec<Enqueue>> {
        self.inner.guard.admit("enqueue")?;
        self.inner.enqueue.call(jobs).await
    }

    /// [`Store::settle`], together with whatever else waits.
    ///
    /// # Errors
    /// As the store's.
    pub async fn settle(&self, items: Vec<Settle>) -> store::Result<Vec<Result<Settled, Refused>>> {
        self.inner.guard.admit("settle")?;
        self.inner.settle.call(items).await
    }

    /// [`Store::claim`].
    ///
    /// # Errors
    /// As the store's.
    pub async fn claim(&self, claim: Claim) -> store::Result<Claims> {
        let Inner { store, guard, .. } = &*self.inner;
        guard.call("claim", guard.patience().claim, async { store.claim(claim).await }).await
    }

    /// Any other verb, `op` by name.
    ///
    /// # Errors
    /// As the store's; [`store::Error::Unavailable`] when the shard is left alone,
    /// [`store::Error::Unknown`] when it takes too long.
    pub async fn call<'a, T>(
        &'a self,
        op: &'static str,
        call: impl FnOnce(&'a dyn Store) -> Reply<'a, T>,
    ) -> store::Result<T> {
        let Inner { store, guard, .. } = &*self.inner;
        // Within a block of its own, so that a call that is not admitted is not begun either.
        let call = async { call(&**store).await };
        guard.call(op, guard.patience().answer, call).await
    }

    /// Whether it answers: a read of one row, cheap enough for whoever asks all the time.
    pub async fn answers(&self) -> bool {
        self.call("topics", |store| store.topics(String::new(), None, 1)).await.is_ok()
    }

    /// Waits before a failed call of a loop is repeated: `pause`, and as long as the shard is left
    /// alone; but no longer than until it answers again.
    pub async fn wait_out(&self, pause: Duration) {
        let breaker = self.inner.guard.breaker();
        tokio::select! {
            () = tokio::time::sleep(pause) => breaker.closed().await,
            () = breaker.closes() => {}
        }
    }

    pub(super) async fn close(&self) {
        self.inner.guard.close();
        self.inner.store.close().await;
    }
}

fn job_bytes(job: &NewJob) -> usize {
    job.spec.bytes()
}

/// Bytes of the bodies that a settle writes.
fn settle_bytes(settle: &Settle) -> usize {
    match &settle.end {
        End::Ack { result, follow_ups } => {
            let result = result.as_ref().map_or(0, |result| result.body.len());
            result + follow_ups.iter().map(job_bytes).sum::<usize>()
        }
        End::Decided { .. } => 0,
    }
}
