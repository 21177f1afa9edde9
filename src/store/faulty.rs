//! For tests: a store in memory that fails, hangs or forgets to answer on demand, and that other replicas seem to use,
//! too, whose hints arrive or not. What it is not told to do otherwise it does as SQLite does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::engine::Command;
use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, ShardName, Time, TopicName};
use crate::store::sqlite::{Config, Database, SqliteStore};
use crate::store::{
    About, Applied, Beat, Census, Claim, Claims, Condition, Error, Event, Events, Identity, Ids,
    Info, List, Page, Pruned, Reply, Request, Select, Selected, Sign, Stats, Store, Tidied, Topic,
    Trouble,
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
    /// It has no room for anything, not even for the end of a lease.
    NoRoom,
    /// It deletes nothing.
    KeepsAll,
    /// It does what it is asked for, but its answers do not arrive.
    Loses,
    /// Calls are neither done nor answered, for ever.
    Hangs,
    /// The same for those that users read by; all others work.
    ReadsHang,
}

/// What a feed asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Claim,
    Look,
}

/// What becomes of calls that undo a lost claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undoing {
    Works,
    Fails,
    Hangs,
}

/// A shard in memory, and how it is.
pub(crate) struct FaultStore {
    store: SqliteStore,
    /// Once others use it.
    shared: Identity,
    condition: watch::Sender<Condition>,
    fault: watch::Sender<Fault>,
    calls: AtomicUsize,
    enqueues: AtomicUsize,
    refusals: AtomicUsize,
    /// Until when the first of the jobs that were enqueued last may be written.
    until: Mutex<Option<Instant>>,
    /// Claims pass it on their way back.
    gate: Arc<Semaphore>,
    claims_to_lose: AtomicUsize,
    detaches_to_fail: AtomicUsize,
    undoing: watch::Sender<Undoing>,
    /// The signs of replicas, where there can be several.
    signs: Mutex<Option<BTreeMap<u32, Sign>>>,
    /// Where it is shared and nothing is heard of it: the hints that arrive all the same.
    pub(crate) hints: Events,
    is_unheard: AtomicBool,
    hides_topics: AtomicBool,
    leases_asked: AtomicUsize,
    asked: Mutex<Vec<Asked>>,
}

// === impl FaultStore ===

impl FaultStore {
    /// A shard that works.
    pub(crate) fn new(name: &str, clock: &Clock) -> Arc<FaultStore> {
        let name = ShardName::try_new(name).unwrap();
        let config = Config { name, database: Database::Memory, clock: clock.clone() };
        let store = SqliteStore::open(config).unwrap();
        Arc::new(FaultStore {
            shared: Identity { is_shared: true, ..store.identity().clone() },
            condition: watch::Sender::new(store.condition().borrow().clone()),
            store,
            fault: watch::Sender::new(Fault::None),
            calls: AtomicUsize::new(0),
            enqueues: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
            until: Mutex::default(),
            gate: Arc::new(Semaphore::new(1)),
            claims_to_lose: AtomicUsize::new(0),
            detaches_to_fail: AtomicUsize::new(0),
            undoing: watch::Sender::new(Undoing::Works),
            signs: Mutex::default(),
            hints: Events::new(),
            is_unheard: AtomicBool::new(false),
            hides_topics: AtomicBool::new(false),
            leases_asked: AtomicUsize::new(0),
            asked: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &ShardName {
        &self.identity().name
    }

    /// Calls that it refused because of the state that it is in.
    pub(crate) fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }

    /// From now on it is so.
    pub(crate) fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// From now on its store knows this of it.
    pub(crate) fn set_trouble(&self, trouble: Option<Trouble>) {
        self.condition.send_modify(|condition| condition.trouble = trouble);
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
    pub(crate) fn inner(&self) -> &dyn Store {
        &self.store
    }

    /// From now on others use it too, and hints are lost but for those that the test sends.
    pub(crate) fn share_unheard(&self) {
        self.share();
        self.is_unheard.store(true, Ordering::Relaxed);
    }

    /// From now on the names of its topics are never told.
    pub(crate) fn hang_topics(&self) {
        self.hides_topics.store(true, Ordering::Relaxed);
    }

    /// What its feed has asked since this was asked last.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// How often it was asked about leases.
    pub(crate) fn leases_asked(&self) -> usize {
        self.leases_asked.load(Ordering::Relaxed)
    }

    /// From now on it is a shard that others may use.
    pub(crate) fn share(&self) {
        self.signs.lock().unwrap().get_or_insert_default();
    }

    /// Another replica has shown itself then.
    pub(crate) fn show(&self, owner: u32, at: Time) {
        let mut signs = self.signs.lock().unwrap();
        signs.get_or_insert_default().insert(owner, Sign { owner, ring: 0, at });
    }

    /// Whether it knows the replica.
    pub(crate) fn knows(&self, owner: u32) -> bool {
        let signs = self.signs.lock().unwrap();
        signs.as_ref().is_some_and(|signs| signs.contains_key(&owner))
    }

    /// No claim is answered as long as this lives.
    pub(crate) fn hold_claims(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.gate).try_acquire_owned().unwrap()
    }

    /// The answers of the next so many claims are lost.
    pub(crate) fn lose_claims(&self, n: usize) {
        self.claims_to_lose.store(n, Ordering::Relaxed);
    }

    /// What becomes of calls that undo a lost claim from now on.
    pub(crate) fn set_undoing(&self, undoing: Undoing) {
        self.undoing.send_replace(undoing);
    }

    /// The next so many detaches fail.
    pub(crate) fn fail_detaches(&self, n: usize) {
        self.detaches_to_fail.store(n, Ordering::Relaxed);
    }

    /// How many of those are still to come.
    pub(crate) fn detaches_to_fail(&self) -> usize {
        self.detaches_to_fail.load(Ordering::Relaxed)
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a SqliteStore) -> Reply<'a, T> + Send + 'a,
    ) -> Reply<'a, T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = *self.fault.borrow();
        Box::pin(async move {
            match fault {
                Fault::None | Fault::Full | Fault::NoRoom | Fault::KeepsAll | Fault::ReadsHang => {
                    call(&self.store).await
                }
                Fault::Refuses => Err(refused()),
                Fault::Loses => {
                    call(&self.store).await?;
                    Err(Error::Unknown("connection lost".into()))
                }
                Fault::Hangs => std::future::pending().await,
            }
        })
    }

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

    /// Passes a call that undoes a lost claim.
    fn pass_undoing<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a SqliteStore) -> Reply<'a, T> + Send + 'a,
    ) -> Reply<'a, T> {
        Box::pin(async move {
            let mut undoing = self.undoing.subscribe();
            let now = *undoing.wait_for(|undoing| *undoing != Undoing::Hangs).await.unwrap();
            match now {
                Undoing::Fails => Err(Error::Unavailable("failed".into())),
                Undoing::Works | Undoing::Hangs => self.pass(call).await,
            }
        })
    }

    /// Why it refuses a command, in the state that it is in.
    fn refusal(&self, command: &Command) -> Option<Error> {
        match (*self.fault.borrow(), command) {
            (Fault::Full, Command::Enqueue(_)) | (Fault::NoRoom, _) => {
                Some(Error::Full("no room".into()))
            }
            (Fault::KeepsAll, Command::Delete { .. }) => Some(refused()),
            _ => None,
        }
    }
}

fn refused() -> Error {
    Error::Unavailable("connection refused".into())
}

fn one_less(n: &AtomicUsize) -> bool {
    n.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

impl Store for FaultStore {
    fn identity(&self) -> &Identity {
        if self.signs.lock().unwrap().is_some() { &self.shared } else { self.store.identity() }
    }

    fn condition(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    fn apply(&self, requests: Vec<Request>) -> BoxFuture<'_, Vec<Result<Applied, Error>>> {
        let count = requests.len();
        let all = move |error: Error| (0..count).map(|_| Err(error.clone())).collect();
        if let Some(error) = requests.iter().find_map(|request| self.refusal(&request.command)) {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Box::pin(async move { all(error) });
        }
        let is_detach = |request: &Request| matches!(request.command, Command::Detach { .. });
        if requests.iter().any(is_detach) && one_less(&self.detaches_to_fail) {
            return Box::pin(async move { all(Error::Unknown("failed".into())) });
        }
        if requests.iter().any(|request| matches!(request.command, Command::Enqueue(_))) {
            self.enqueues.fetch_add(1, Ordering::Relaxed);
            *self.until.lock().unwrap() = requests.iter().filter_map(|request| request.until).min();
        }
        let applied = self.pass(|store| Box::pin(async { Ok(store.apply(requests).await) }));
        Box::pin(async move { applied.await.unwrap_or_else(all) })
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Claims> {
        let is_look = claim.asks.iter().all(|ask| ask.takers.is_empty());
        self.asked.lock().unwrap().push(if is_look { Asked::Look } else { Asked::Claim });
        let claims = self.pass(|store| store.claim(claim));
        Box::pin(async move {
            let claims = claims.await?;
            let _passed = self.gate.acquire().await.unwrap();
            let is_lost = one_less(&self.claims_to_lose);
            if is_lost { Err(Error::Unknown("lost".into())) } else { Ok(claims) }
        })
    }

    fn void(&self, nonce: u32) -> Reply<'_, ()> {
        // By the nonce 0 it is asked whether it works.
        match nonce {
            0 => self.pass(move |store| store.void(nonce)),
            _ => self.pass_undoing(move |store| store.void(nonce)),
        }
    }

    fn select(&self, what: Select) -> Reply<'_, Selected> {
        match what {
            Select::OfClaim { .. } => self.pass_undoing(|store| store.select(what)),
            Select::Named(_) => {
                self.leases_asked.fetch_add(1, Ordering::Relaxed);
                self.pass(|store| store.select(what))
            }
            _ => self.pass(|store| store.select(what)),
        }
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>> {
        self.pass_read(move |store| store.get(keys, full))
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
        self.asked.lock().unwrap().push(Asked::Look);
        if self.hides_topics.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
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
        let is_unheard = self.is_unheard.load(Ordering::Relaxed);
        if is_unheard { self.hints.about(about) } else { self.store.events(about) }
    }

    fn beat(&self, beat: Beat) -> Reply<'_, Census> {
        let (owner, ring) = (beat.owner, beat.ring);
        let (met, gone) = (beat.met.clone(), beat.gone.clone());
        let census = self.pass(move |store| store.beat(beat));
        Box::pin(async move {
            let mut census = census.await?;
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

    fn set_state(&self, state: ShardState, until: Option<Instant>) -> Reply<'_, ()> {
        self.pass(move |store| store.set_state(state, until))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
