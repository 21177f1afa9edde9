//! A store whose claims can be held back on their way, or lost, and whose detaches can fail; and which
//! other replicas seem to use, too, whose hints arrive or not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};

use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, ShardName, StreamId, Time, TopicName};
use crate::store::sqlite::SqliteStore;
use crate::store::{
    About, Adopt, Beat, Census, Claim, Claims, Delete, Deleted, Enqueue, Error, Event, Events,
    Extend, Ids, Info, Lease, LeaseRef, List, NewJob, Page, Pruned, Reach, Reaped, Redrive,
    Redriven, Refused, Reply, Reschedule, Rescheduled, Settle, Settled, Sign, Stats, Store, Tidied,
    Tied, Topic, Unclaim, Undone,
};

pub(super) struct Flaky {
    store: SqliteStore,
    gate: Arc<Semaphore>,
    lost: AtomicUsize,
    failing: AtomicUsize,
    undoing: watch::Sender<Undoing>,
    /// The signs of replicas, where there can be several.
    signs: Mutex<Option<BTreeMap<u32, Sign>>>,
    /// Where it is shared and nothing is heard of it: the hints that arrive all the same.
    pub(super) hints: Events,
    deaf: AtomicBool,
    mute: AtomicBool,
    asked: AtomicUsize,
    calls: Mutex<Vec<Call>>,
}

/// What a feed asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Claim,
    Look,
}

/// What becomes of calls that undo a lost claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undoing {
    Works,
    Fails,
    Hangs,
}

impl Flaky {
    pub(super) fn new(store: SqliteStore) -> Flaky {
        let gate = Arc::new(Semaphore::new(1));
        Flaky {
            store,
            gate,
            lost: AtomicUsize::new(0),
            failing: AtomicUsize::new(0),
            undoing: watch::Sender::new(Undoing::Works),
            signs: Mutex::default(),
            hints: Events::new(),
            deaf: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            calls: Mutex::default(),
        }
    }

    /// From now on others use it too, and hints are lost but for those that the test sends.
    pub(super) fn share_unheard(&self) {
        self.share();
        self.deaf.store(true, Ordering::Relaxed);
    }

    /// From now on the names of its topics are never told.
    pub(super) fn hang_topics(&self) {
        self.mute.store(true, Ordering::Relaxed);
    }

    /// The calls of the feed since this was asked last.
    pub(super) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// How often it was asked about leases.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// From now on it is a shard that others may use.
    pub(super) fn share(&self) {
        self.signs.lock().unwrap().get_or_insert_default();
    }

    /// Another replica has shown itself then.
    pub(super) fn show(&self, owner: u32, at: Time) {
        let mut signs = self.signs.lock().unwrap();
        signs.get_or_insert_default().insert(owner, Sign { owner, ring: 0, at });
    }

    /// Whether it knows the replica.
    pub(super) fn knows(&self, owner: u32) -> bool {
        let signs = self.signs.lock().unwrap();
        signs.as_ref().is_some_and(|signs| signs.contains_key(&owner))
    }

    /// No claim is answered as long as this lives.
    pub(super) fn hold_claims(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.gate).try_acquire_owned().unwrap()
    }

    /// The answers of the next so many claims are lost.
    pub(super) fn lose_claims(&self, n: usize) {
        self.lost.store(n, Ordering::Relaxed);
    }

    /// What becomes of calls that undo a lost claim from now on.
    pub(super) fn set_undoing(&self, undoing: Undoing) {
        self.undoing.send_replace(undoing);
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
        let is_look = claim.asks.iter().all(|ask| ask.takers.is_empty());
        self.calls.lock().unwrap().push(if is_look { Call::Look } else { Call::Claim });
        Box::pin(async move {
            let claims = self.store.claim(claim).await?;
            let _passed = self.gate.acquire().await.unwrap();
            if one_less(&self.lost) { Err(Error::Unknown("lost".into())) } else { Ok(claims) }
        })
    }

    fn detach(&self, leases: Vec<Tied>) -> Reply<'_, u64> {
        if one_less(&self.failing) {
            return Box::pin(async { Err(Error::Unknown("failed".into())) });
        }
        self.store.detach(leases)
    }

    fn adopt(&self, adopt: Adopt) -> Reply<'_, Vec<bool>> {
        self.store.adopt(adopt)
    }

    fn leases_of(&self, streams: Vec<StreamId>) -> Reply<'_, Vec<Lease>> {
        self.store.leases_of(streams)
    }

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
        self.store.enqueue(jobs)
    }

    fn unclaim(&self, what: Unclaim) -> Reply<'_, Undone> {
        let fault = match what {
            Unclaim::Claim(_) => *self.undoing.borrow(),
            Unclaim::Leases(_) => Undoing::Works,
        };
        Box::pin(async move {
            match fault {
                Undoing::Works => self.store.unclaim(what).await,
                Undoing::Fails => Err(Error::Unavailable("failed".into())),
                Undoing::Hangs => {
                    let mut undoing = self.undoing.subscribe();
                    undoing.wait_for(|undoing| *undoing != Undoing::Hangs).await.unwrap();
                    self.store.unclaim(what).await
                }
            }
        })
    }

    fn leases(&self, refs: Vec<LeaseRef>) -> Reply<'_, Vec<Result<Lease, Refused>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.store.leases(refs)
    }

    fn settle(&self, items: Vec<Settle>) -> Reply<'_, Vec<Result<Settled, Refused>>> {
        self.store.settle(items)
    }

    fn extend(&self, items: Vec<Extend>) -> Reply<'_, Vec<Result<Time, Refused>>> {
        self.store.extend(items)
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>> {
        self.store.get(keys, full)
    }

    fn delete(&self, items: Vec<Delete>) -> Reply<'_, Vec<Option<Deleted>>> {
        self.store.delete(items)
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

    fn orphans(&self, living: Vec<u32>) -> Reply<'_, Vec<Lease>> {
        self.store.orphans(living)
    }

    fn prune(&self, limit: usize) -> Reply<'_, Pruned> {
        self.store.prune(limit)
    }

    fn tidy(&self, after: Option<TopicName>, limit: usize) -> Reply<'_, Tidied> {
        self.store.tidy(after, limit)
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
        self.calls.lock().unwrap().push(Call::Look);
        if self.mute.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        self.store.topics(prefix, after, limit)
    }

    fn ids(&self, topic: TopicName, from: Option<String>, limit: usize) -> Reply<'_, Ids> {
        self.store.ids(topic, from, limit)
    }

    fn stats(&self, topics: Vec<TopicName>) -> Reply<'_, Vec<Option<Stats>>> {
        self.store.stats(topics)
    }

    fn info(&self) -> Reply<'_, Info> {
        self.store.info()
    }

    fn events(&self, about: About) -> broadcast::Receiver<Event> {
        if self.deaf.load(Ordering::Relaxed) {
            self.hints.about(about)
        } else {
            self.store.events(about)
        }
    }

    fn is_shared(&self) -> bool {
        self.signs.lock().unwrap().is_some()
    }

    fn beat(&self, beat: Beat) -> Reply<'_, Census> {
        Box::pin(async move {
            let (owner, ring) = (beat.owner, beat.ring);
            let (met, gone) = (beat.met.clone(), beat.gone.clone());
            let mut census = self.store.beat(beat).await?;
            if let Some(signs) = &mut *self.signs.lock().unwrap() {
                let at = census.now;
                signs.insert(owner, Sign { owner, ring, at });
                for owner in met {
                    signs.entry(owner).or_insert(Sign { owner, ring: 0, at });
                }
                signs.retain(|owner, _| !gone.contains(owner));
                census.replicas = signs.values().copied().collect();
            }
            Ok(census)
        })
    }

    fn set_state(&self, state: ShardState, until: Option<tokio::time::Instant>) -> Reply<'_, ()> {
        self.store.set_state(state, until)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

fn one_less(left: &AtomicUsize) -> bool {
    let less = |n: usize| n.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}
