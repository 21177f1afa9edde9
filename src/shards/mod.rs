//! The ring of shards: which store owns a job, and the batchers in front of each. The only user of
//! the [`Store`] trait; one code for every kind of store.
//!
//! Today the ring has one member. Everything above asks for a shard by key or by name all the same,
//! so nothing changes there when it grows.

mod batcher;

use std::sync::Arc;

use crate::clock::Clock;
use crate::domain::{JobKey, ShardName};
use crate::metrics::{Metrics, ShardMetrics};
use crate::store::{self, End, Enqueue, NewJob, Refused, Settle, Settled, Store};

use batcher::Batcher;

/// All shards of this replica.
#[derive(Clone)]
pub struct Shards {
    members: Arc<[Shard]>,
}

/// One shard and the batchers in front of it. Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    store: Arc<dyn Store>,
    metrics: ShardMetrics,
    clock: Clock,
    enqueue: Batcher<NewJob, Enqueue>,
    settle: Batcher<Settle, Result<Settled, Refused>>,
}

// === impl Shards ===

impl Shards {
    /// A ring of these stores. Must be called within a runtime: each shard's batchers run on it.
    ///
    /// # Panics
    /// When `stores` is empty: a configuration without a shard is refused before.
    #[must_use]
    pub fn new(stores: Vec<Arc<dyn Store>>, clock: &Clock, metrics: &Metrics) -> Shards {
        assert!(!stores.is_empty(), "a ring has at least one shard");
        let shard = |store: Arc<dyn Store>| {
            let metrics = metrics.shard(store.name().as_str());
            Shard::new(store, clock.clone(), metrics)
        };
        let members = stores.into_iter().map(shard).collect();
        Shards { members }
    }

    /// The shard that owns `key`: the one that a server-made id names, else by the ring. `None` when
    /// the id names a shard that is not on it.
    #[must_use]
    pub fn owner(&self, key: &JobKey) -> Option<&Shard> {
        match key.id.shard() {
            Some(name) => self.named(&name),
            None => self.members.first(),
        }
    }

    /// The shard of that name.
    #[must_use]
    pub fn named(&self, name: &ShardName) -> Option<&Shard> {
        self.members.iter().find(|shard| shard.name() == name)
    }

    /// The shard on which the next jobs with server-made ids are placed.
    #[must_use]
    pub fn place(&self) -> &Shard {
        &self.members[0]
    }

    /// Every shard.
    #[must_use]
    pub fn all(&self) -> &[Shard] {
        &self.members
    }

    /// Closes every store after what it accepted.
    pub async fn close(&self) {
        for shard in self.members.iter() {
            shard.store.close().await;
        }
    }
}

// === impl Shard ===

impl Shard {
    fn new(store: Arc<dyn Store>, clock: Clock, metrics: ShardMetrics) -> Shard {
        let (enqueues, settles) = (Arc::clone(&store), Arc::clone(&store));
        Shard {
            enqueue: Batcher::spawn(job_bytes, move |jobs| {
                let store = Arc::clone(&enqueues);
                Box::pin(async move { store.enqueue(jobs).await })
            }),
            settle: Batcher::spawn(settle_bytes, move |items| {
                let store = Arc::clone(&settles);
                Box::pin(async move { store.settle(items).await })
            }),
            store,
            metrics,
            clock,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        self.store.name()
    }

    /// The store itself, for verbs that are not batched across callers.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// [`Store::enqueue`], together with whatever else waits.
    ///
    /// # Errors
    /// As the store's.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> store::Result<Vec<Enqueue>> {
        self.observe("enqueue", self.enqueue.call(jobs)).await
    }

    /// [`Store::settle`], together with whatever else waits.
    ///
    /// # Errors
    /// As the store's.
    pub async fn settle(&self, items: Vec<Settle>) -> store::Result<Vec<Result<Settled, Refused>>> {
        self.observe("settle", self.settle.call(items)).await
    }

    /// Whether it answers: a read of one row, cheap enough for whoever asks all the time.
    pub async fn answers(&self) -> bool {
        self.observe("topics", self.store.topics(String::new(), None, 1)).await.is_ok()
    }

    /// Measures a call of `op`: its time, and its error if it fails.
    ///
    /// # Errors
    /// As the call's.
    pub async fn observe<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        let begin = self.clock.now();
        let result = call.await;
        self.metrics.op(op, self.clock.now().since(begin));
        if let Err(error) = &result {
            self.metrics.error(op, error.reason());
            tracing::warn!(shard = %self.name(), op, %error, "store call failed");
        }
        result
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
