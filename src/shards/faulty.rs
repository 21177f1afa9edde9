//! For tests: a store that fails or hangs on demand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, ShardName, StreamId, Time, TopicName};
use crate::store::sqlite::{Config, Database, SqliteStore};
use crate::store::{
    About, Adopt, Beat, Census, Claim, Claims, Delete, Deleted, Enqueue, Error, Event, Extend, Ids,
    Info, Lease, LeaseRef, List, NewJob, Page, Pruned, Reach, Reaped, Redrive, Redriven, Refused,
    Reply, Reschedule, Rescheduled, Settle, Settled, Stats, Store, Tidied, Tied, Topic, Unclaim,
    Undone,
};

/// How a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It works.
    None,
    /// Nobody is there.
    Refuses,
    /// It has no room for new jobs.
    Full,
    /// It deletes nothing.
    KeepsAll,
    /// It does what it is asked for, but its answers do not arrive.
    Loses,
    /// Calls are neither done nor answered, for ever.
    Hangs,
    /// The same for those that users read by; all others work.
    ReadsHang,
}

/// A shard in memory, and how it is.
pub(crate) struct Faulty {
    store: SqliteStore,
    fault: watch::Sender<Fault>,
    calls: AtomicUsize,
    enqueues: AtomicUsize,
    /// Until when the first of the jobs that were enqueued last may be written.
    until: Mutex<Option<Instant>>,
}

impl Faulty {
    /// A shard that works.
    pub(crate) fn new(name: &str, clock: &Clock) -> Arc<Faulty> {
        let name = ShardName::try_new(name).unwrap();
        let config = Config { name, database: Database::Memory, clock: clock.clone() };
        let store = SqliteStore::open(config).unwrap();
        let (calls, enqueues) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (fault, until) = (watch::Sender::new(Fault::None), Mutex::default());
        Arc::new(Faulty { store, fault, calls, enqueues, until })
    }

    /// From now on it is so.
    pub(crate) fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Calls that reached it, in whatever state it was.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Those among them that enqueue: nobody probes by them.
    pub(crate) fn enqueues(&self) -> usize {
        self.enqueues.load(Ordering::Relaxed)
    }

    /// Until when the first of the jobs of the last one may be written.
    pub(crate) fn until(&self) -> Option<Instant> {
        *self.until.lock().unwrap()
    }

    /// The store itself, which always works.
    pub(crate) fn inner(&self) -> &SqliteStore {
        &self.store
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a SqliteStore) -> Reply<'a, T> + Send + 'a,
    ) -> Reply<'a, T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = *self.fault.borrow();
        Box::pin(async move {
            match fault {
                Fault::None | Fault::Full | Fault::KeepsAll | Fault::ReadsHang => {
                    call(&self.store).await
                }
                Fault::Refuses => Err(Error::Unavailable("connection refused".into())),
                Fault::Loses => {
                    call(&self.store).await?;
                    Err(Error::Unknown("connection lost".into()))
                }
                Fault::Hangs => std::future::pending().await,
            }
        })
    }
}

impl Faulty {
    fn pass_read<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a SqliteStore) -> Reply<'a, T> + Send + 'a,
    ) -> Reply<'a, T> {
        if *self.fault.borrow() == Fault::ReadsHang {
            self.calls.fetch_add(1, Ordering::Relaxed);
            return Box::pin(std::future::pending());
        }
        self.pass(call)
    }
}

impl Store for Faulty {
    fn name(&self) -> &ShardName {
        self.store.name()
    }

    fn address(&self) -> String {
        self.store.address()
    }

    fn reach(&self) -> Reach {
        self.store.reach()
    }

    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<'_, Vec<Enqueue>> {
        if *self.fault.borrow() == Fault::Full {
            return Box::pin(async { Err(Error::Full("no room".into())) });
        }
        self.enqueues.fetch_add(1, Ordering::Relaxed);
        *self.until.lock().unwrap() = jobs.iter().filter_map(|job| job.until).min();
        self.pass(|store| store.enqueue(jobs))
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Claims> {
        self.pass(|store| store.claim(claim))
    }

    fn unclaim(&self, what: Unclaim) -> Reply<'_, Undone> {
        self.pass(|store| store.unclaim(what))
    }

    fn leases(&self, refs: Vec<LeaseRef>) -> Reply<'_, Vec<Result<Lease, Refused>>> {
        self.pass(|store| store.leases(refs))
    }

    fn settle(&self, items: Vec<Settle>) -> Reply<'_, Vec<Result<Settled, Refused>>> {
        self.pass(|store| store.settle(items))
    }

    fn extend(&self, items: Vec<Extend>) -> Reply<'_, Vec<Result<Time, Refused>>> {
        self.pass(|store| store.extend(items))
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>> {
        self.pass_read(move |store| store.get(keys, full))
    }

    fn delete(&self, items: Vec<Delete>) -> Reply<'_, Vec<Option<Deleted>>> {
        if *self.fault.borrow() == Fault::KeepsAll {
            return Box::pin(async { Err(Error::Unavailable("connection refused".into())) });
        }
        self.pass(|store| store.delete(items))
    }

    fn reschedule(&self, items: Vec<Reschedule>) -> Reply<'_, Vec<Rescheduled>> {
        self.pass(|store| store.reschedule(items))
    }

    fn redrive(&self, redrive: Redrive) -> Reply<'_, Redriven> {
        self.pass(|store| store.redrive(redrive))
    }

    fn detach(&self, leases: Vec<Tied>) -> Reply<'_, u64> {
        self.pass(|store| store.detach(leases))
    }

    fn adopt(&self, adopt: Adopt) -> Reply<'_, Vec<bool>> {
        self.pass(|store| store.adopt(adopt))
    }

    fn leases_of(&self, streams: Vec<StreamId>) -> Reply<'_, Vec<Lease>> {
        self.pass(|store| store.leases_of(streams))
    }

    fn reap(&self, limit: usize) -> Reply<'_, Reaped> {
        self.pass(move |store| store.reap(limit))
    }

    fn orphans(&self, living: Vec<u32>) -> Reply<'_, Vec<Lease>> {
        self.pass(move |store| store.orphans(living))
    }

    fn prune(&self, limit: usize) -> Reply<'_, Pruned> {
        self.pass(move |store| store.prune(limit))
    }

    fn tidy(&self, after: Option<TopicName>, limit: usize) -> Reply<'_, Tidied> {
        self.pass(move |store| store.tidy(after, limit))
    }

    fn list(&self, list: List) -> Reply<'_, Page> {
        self.pass_read(|store| store.list(list))
    }

    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> Reply<'_, Vec<Topic>> {
        self.pass_read(move |store| store.topics(prefix, after, limit))
    }

    fn ids(&self, topic: TopicName, from: Option<String>, limit: usize) -> Reply<'_, Ids> {
        self.pass_read(move |store| store.ids(topic, from, limit))
    }

    fn stats(&self, topics: Vec<TopicName>) -> Reply<'_, Vec<Option<Stats>>> {
        self.pass_read(|store| store.stats(topics))
    }

    fn info(&self) -> Reply<'_, Info> {
        self.pass_read(|store| store.info())
    }

    fn events(&self, about: About) -> broadcast::Receiver<Event> {
        self.store.events(about)
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    fn beat(&self, beat: Beat) -> Reply<'_, Census> {
        self.pass(move |store| store.beat(beat))
    }

    fn set_state(&self, state: ShardState, until: Option<Instant>) -> Reply<'_, ()> {
        self.pass(move |store| store.set_state(state, until))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
