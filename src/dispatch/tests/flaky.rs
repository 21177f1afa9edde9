//! A store whose claims can be held back on their way, or lost, and whose detaches can fail; and which can
//! pretend that replicas share it, whose hints do not arrive unless the test sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

use crate::domain::{Durability, Job, JobKey, ShardName, TopicName};
use crate::store::sqlite::SqliteStore;
use crate::store::{
    Claim, Claims, Deleted, Enqueue, Error, Event, Extend, Info, Lease, LeaseRef, List, NewJob,
    Page, Pruned, Reaped, Redrive, Redriven, Refused, Reply, Reschedule, Rescheduled, Settle,
    Settled, Stats, Store, Topic, Unclaim,
};

pub(super) struct Flaky {
    store: SqliteStore,
    gate: Arc<Semaphore>,
    lost: AtomicUsize,
    failing: AtomicUsize,
    shared: AtomicBool,
    /// Where it is shared: the hints that arrive.
    pub(super) hints: broadcast::Sender<Event>,
    asked: AtomicUsize,
}

impl Flaky {
    pub(super) fn new(store: SqliteStore) -> Flaky {
        let gate = Arc::new(Semaphore::new(1));
        Flaky {
            store,
            gate,
            lost: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            shared: AtomicBool::new(false),
            hints: broadcast::Sender::new(16),
            asked: AtomicUsize::new(0),
        }
    }

    /// From now on other replicas use it too, whose hints are lost.
    pub(super) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// How often it was asked about leases.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// No claim is answered as long as this lives.
    pub(super) fn hold_claims(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.gate).try_acquire_owned().unwrap()
    }

    /// The answers of the next so many claims are lost.
    pub(super) fn lose_claims(&self, n: usize) {
        self.lost.store(n, Ordering::Relaxed);
    }

    /// The next so many detaches fail.
    pub(super) fn fail_detaches(&self, n: usize) {
        self.failing.store(n, Ordering::Relaxed);
    }

    /// How many of those are still to come.
    pub(super) fn detaches_to_fail(&self) -> usize {
        self.failing.load(Ordering::Relaxed)
    }
}

impl Store for Flaky {
    fn claim(&self, claim: Claim) -> Reply<'_, Claims> {
        Box::pin(async move {
            let claims = self.store.claim(claim).await?;
            let _passed = self.gate.acquire().await.unwrap();
            if one_less(&self.lost) { Err(Error::Unknown("lost".into())) } else { Ok(claims) }
        })
    }

    fn detach(&self, refs: Vec<LeaseRef>) -> Reply<'_, u64> {
        if one_less(&self.failing) {
            return Box::pin(async { Err(Error::Unknown("failed".into())) });
        }
        self.store.detach(refs)
    }

    fn name(&self) -> &ShardName {
        self.store.name()
    }

    fn durability(&self) -> Durability {
        self.store.durability()
    }

    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<'_, Vec<Enqueue>> {
        self.store.enqueue(jobs)
    }

    fn unclaim(&self, what: Unclaim) -> Reply<'_, u64> {
        self.store.unclaim(what)
    }

    fn leases(&self, refs: Vec<LeaseRef>) -> Reply<'_, Vec<Result<Lease, Refused>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.store.leases(refs)
    }

    fn settle(&self, items: Vec<Settle>) -> Reply<'_, Vec<Result<Settled, Refused>>> {
        self.store.settle(items)
    }

    fn extend(&self, items: Vec<Extend>) -> Reply<'_, Vec<Result<crate::domain::Time, Refused>>> {
        self.store.extend(items)
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>> {
        self.store.get(keys, full)
    }

    fn delete(&self, keys: Vec<JobKey>) -> Reply<'_, Vec<Option<Deleted>>> {
        self.store.delete(keys)
    }

    fn reschedule(&self, items: Vec<Reschedule>) -> Reply<'_, Vec<Rescheduled>> {
        self.store.reschedule(items)
    }

    fn redrive(&self, redrive: Redrive) -> Reply<'_, Redriven> {
        self.store.redrive(redrive)
    }

    fn reap(&self, limit: usize) -> Reply<'_, Reaped> {
        self.store.reap(limit)
    }

    fn orphans(&self, owner: u32) -> Reply<'_, Vec<Lease>> {
        self.store.orphans(owner)
    }

    fn prune(&self, limit: usize) -> Reply<'_, Pruned> {
        self.store.prune(limit)
    }

    fn list(&self, list: List) -> Reply<'_, Page> {
        self.store.list(list)
    }

    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> Reply<'_, Vec<Topic>> {
        self.store.topics(prefix, after, limit)
    }

    fn stats(&self, topics: Vec<TopicName>) -> Reply<'_, Vec<Option<Stats>>> {
        self.store.stats(topics)
    }

    fn info(&self) -> Reply<'_, Info> {
        self.store.info()
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        if self.is_shared() { self.hints.subscribe() } else { self.store.events() }
    }

    fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

fn one_less(left: &AtomicUsize) -> bool {
    let less = |n: usize| n.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}
