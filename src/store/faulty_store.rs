//! Store for tests: an in-memory SQLite store that fails, hangs or loses replies on demand. It can seem to be shared
//! with other replicas, with or without their hints. Without a fault it works as SQLite does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::engine::Command;
use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, PriorityAgeing, ReceiptKey, ShardName, Time, TopicName};
use crate::store::sqlite::{Config, Database, SqliteStore};
use crate::store::{
    Claim, ClaimResult, DocumentRemoval, DocumentWrite, DocumentWriteResult, DocumentsPage, Error,
    EventKind, ExplainedJob, GroupsQuery, Heartbeat, IdsPage, JobRequest, LeaseQuery,
    LeaseQueryResult, LeavingJobs, ListPage, ListQuery, PruneResult, PruneTopicsResult,
    ReplicaHeartbeat, RequestResult, RoomQuery, ShardEvent, ShardEvents, ShardGroupStats,
    ShardIdentity, ShardProblem, ShardStatus, ShardTopicStats, SharedState, StatsOptions, Store,
    StoreFuture, StoreInfo, StoreUsage, TopicInfo,
};

/// Fault of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// No fault.
    None,
    /// The shard does not answer.
    Unreachable,
    /// The shard has no room for new jobs.
    RejectsEnqueues,
    /// The shard has no room for anything, not even for the end of a lease.
    RejectsWrites,
    /// The shard rejects deletes.
    RejectsDeletes,
    /// Calls are executed, but their replies are lost.
    LosesReplies,
    /// Calls are neither executed nor answered, for ever.
    Hangs,
    /// Reads for users hang as in [`InjectedFault::Hangs`]; all other calls work.
    HangsReads,
}

/// Call that a feed made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedCall {
    Claim,
    Probe,
}

/// Fault of calls that undo a lost claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnclaimFault {
    Works,
    Fails,
    Hangs,
}

/// An in-memory shard with its faults.
pub(crate) struct FaultyStore {
    store: SqliteStore,
    /// Identity once others use the shard.
    shared_identity: ShardIdentity,
    status: watch::Sender<ShardStatus>,
    fault: watch::Sender<InjectedFault>,
    calls: AtomicUsize,
    enqueues: AtomicUsize,
    reads: AtomicUsize,
    refusals: AtomicUsize,
    /// Earliest deadline among the jobs of the last enqueue.
    enqueue_deadline: Mutex<Option<Instant>>,
    /// Gate that replies of claims pass.
    claim_gate: Arc<Semaphore>,
    claims_to_lose: AtomicUsize,
    detaches_to_fail: AtomicUsize,
    unclaim_fault: watch::Sender<UnclaimFault>,
    /// Heartbeats of replicas, once there can be several.
    heartbeats: Mutex<Option<BTreeMap<u32, ReplicaHeartbeat>>>,
    /// Hints that arrive while the store drops its own.
    pub(crate) events: ShardEvents,
    drops_events: AtomicBool,
    hides_topics: AtomicBool,
    lease_queries: AtomicUsize,
    feed_calls: Mutex<Vec<FeedCall>>,
}

// === impl FaultyStore ===

impl FaultyStore {
    /// Creates a shard without faults.
    pub(crate) fn new(name: &str, clock: &Clock) -> Arc<FaultyStore> {
        let name = ShardName::try_new(name).unwrap();
        let config = Config { name, database: Database::Memory, clock: clock.clone() };
        let store = SqliteStore::open(config).unwrap();
        Arc::new(FaultyStore {
            shared_identity: ShardIdentity { is_shared: true, ..store.identity().clone() },
            status: watch::Sender::new(store.status().borrow().clone()),
            store,
            fault: watch::Sender::new(InjectedFault::None),
            calls: AtomicUsize::new(0),
            enqueues: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
            enqueue_deadline: Mutex::default(),
            claim_gate: Arc::new(Semaphore::new(1)),
            claims_to_lose: AtomicUsize::new(0),
            detaches_to_fail: AtomicUsize::new(0),
            unclaim_fault: watch::Sender::new(UnclaimFault::Works),
            heartbeats: Mutex::default(),
            events: ShardEvents::new(),
            drops_events: AtomicBool::new(false),
            hides_topics: AtomicBool::new(false),
            lease_queries: AtomicUsize::new(0),
            feed_calls: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &ShardName {
        &self.identity().name
    }

    /// Returns the number of calls rejected because of the fault.
    pub(crate) fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Sets the fault.
    pub(crate) fn set_fault(&self, fault: InjectedFault) {
        self.fault.send_replace(fault);
    }

    /// Sets the problem in the status of the store.
    pub(crate) fn set_problem(&self, trouble: Option<ShardProblem>) {
        self.status.send_modify(|condition| condition.problem = trouble);
    }

    /// Returns the number of calls that reached the shard, with any fault.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of enqueue calls: no probe is one.
    pub(crate) fn enqueues(&self) -> usize {
        self.enqueues.load(Ordering::Relaxed)
    }

    /// Returns the number of reads for users.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// Returns the earliest deadline among the jobs of the last enqueue.
    pub(crate) fn enqueue_deadline(&self) -> Option<Instant> {
        *self.enqueue_deadline.lock()
    }

    /// Returns the inner store, which always works.
    pub(crate) fn sqlite_store(&self) -> &dyn Store {
        &self.store
    }

    /// Shares the shard with others, and drops all hints but those that the test sends.
    pub(crate) fn share_without_events(&self) {
        self.share();
        self.drops_events.store(true, Ordering::Relaxed);
    }

    /// Makes [`Store::topics`] hang.
    pub(crate) fn hang_topics(&self) {
        self.hides_topics.store(true, Ordering::Relaxed);
    }

    /// Returns the calls of the feed since the last call of this function.
    pub(crate) fn take_feed_calls(&self) -> Vec<FeedCall> {
        std::mem::take(&mut *self.feed_calls.lock())
    }

    /// Returns the number of lease queries by reference.
    pub(crate) fn lease_queries(&self) -> usize {
        self.lease_queries.load(Ordering::Relaxed)
    }

    /// Makes the shard one that others may use.
    pub(crate) fn share(&self) {
        self.heartbeats.lock().get_or_insert_default();
    }

    /// Stores a heartbeat of another replica.
    pub(crate) fn add_heartbeat(&self, owner: u32, at: Time) {
        let mut signs = self.heartbeats.lock();
        signs.get_or_insert_default().insert(owner, ReplicaHeartbeat { owner, ring: 0, time: at });
    }

    /// Returns whether the shard has a heartbeat of the replica.
    pub(crate) fn has_heartbeat_of(&self, owner: u32) -> bool {
        let signs = self.heartbeats.lock();
        signs.as_ref().is_some_and(|signs| signs.contains_key(&owner))
    }

    /// Holds back the replies of claims while the permit lives.
    pub(crate) fn hold_claims(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.claim_gate).try_acquire_owned().unwrap()
    }

    /// Loses the replies of the next `n` claims.
    pub(crate) fn lose_claims(&self, n: usize) {
        self.claims_to_lose.store(n, Ordering::Relaxed);
    }

    /// Sets the fault of calls that undo a lost claim.
    pub(crate) fn set_unclaim_fault(&self, undoing: UnclaimFault) {
        self.unclaim_fault.send_replace(undoing);
    }

    /// Makes the next `n` detaches fail.
    pub(crate) fn fail_detaches(&self, n: usize) {
        self.detaches_to_fail.store(n, Ordering::Relaxed);
    }

    /// Returns how many of those are still to come.
    pub(crate) fn detaches_to_fail(&self) -> usize {
        self.detaches_to_fail.load(Ordering::Relaxed)
    }

    fn call_store<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a SqliteStore) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = *self.fault.borrow();
        Box::pin(async move {
            match fault {
                InjectedFault::None
                | InjectedFault::RejectsEnqueues
                | InjectedFault::RejectsWrites
                | InjectedFault::RejectsDeletes
                | InjectedFault::HangsReads => call(&self.store).await,
                InjectedFault::Unreachable => Err(unavailable_error()),
                InjectedFault::LosesReplies => {
                    call(&self.store).await?;
                    Err(Error::OutcomeUnknown("connection lost".into()))
                }
                InjectedFault::Hangs => std::future::pending().await,
            }
        })
    }

    fn call_store_read<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a SqliteStore) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if *self.fault.borrow() == InjectedFault::HangsReads {
            self.calls.fetch_add(1, Ordering::Relaxed);
            return Box::pin(std::future::pending());
        }
        self.call_store(call)
    }

    /// Executes a call that undoes a lost claim.
    fn call_store_unclaim<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a SqliteStore) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let mut undoing = self.unclaim_fault.subscribe();
            let now = *undoing.wait_for(|undoing| *undoing != UnclaimFault::Hangs).await.unwrap();
            match now {
                UnclaimFault::Fails => Err(Error::Unavailable("failed".into())),
                UnclaimFault::Works | UnclaimFault::Hangs => self.call_store(call).await,
            }
        })
    }

    /// Returns the error of a command that the fault rejects.
    fn refusal(&self, command: &Command) -> Option<Error> {
        match (*self.fault.borrow(), command) {
            (InjectedFault::RejectsEnqueues, Command::Enqueue(_))
            | (InjectedFault::RejectsWrites, _) => Some(Error::Full("no room".into())),
            (InjectedFault::RejectsDeletes, Command::Delete { .. }) => Some(unavailable_error()),
            _ => None,
        }
    }
}

fn unavailable_error() -> Error {
    Error::Unavailable("connection refused".into())
}

fn take_one(n: &AtomicUsize) -> bool {
    n.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

impl Store for FaultyStore {
    fn identity(&self) -> &ShardIdentity {
        if self.heartbeats.lock().is_some() { &self.shared_identity } else { self.store.identity() }
    }

    fn receipt_key(&self) -> Option<ReceiptKey> {
        self.store.receipt_key()
    }

    fn status(&self) -> watch::Receiver<ShardStatus> {
        self.status.subscribe()
    }

    fn apply(&self, requests: Vec<JobRequest>) -> BoxFuture<'_, Vec<Result<RequestResult, Error>>> {
        let count = requests.len();
        let all = move |error: Error| (0..count).map(|_| Err(error.clone())).collect();
        if let Some(error) = requests.iter().find_map(|request| self.refusal(&request.command)) {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Box::pin(async move { all(error) });
        }
        let is_detach = |request: &JobRequest| matches!(request.command, Command::Detach { .. });
        if requests.iter().any(is_detach) && take_one(&self.detaches_to_fail) {
            return Box::pin(async move { all(Error::OutcomeUnknown("failed".into())) });
        }
        if requests.iter().any(|request| matches!(request.command, Command::Enqueue(_))) {
            self.enqueues.fetch_add(1, Ordering::Relaxed);
            *self.enqueue_deadline.lock() =
                requests.iter().filter_map(|request| request.deadline).min();
        }
        let applied = self.call_store(|store| Box::pin(async { Ok(store.apply(requests).await) }));
        Box::pin(async move { applied.await.unwrap_or_else(all) })
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, ClaimResult> {
        let is_look = claim.topics.iter().all(|ask| ask.streams.is_empty());
        self.feed_calls.lock().push(if is_look { FeedCall::Probe } else { FeedCall::Claim });
        let claims = self.call_store(|store| store.claim(claim));
        Box::pin(async move {
            let claims = claims.await?;
            let _passed = self.claim_gate.acquire().await.unwrap();
            let is_lost = take_one(&self.claims_to_lose);
            if is_lost { Err(Error::OutcomeUnknown("lost".into())) } else { Ok(claims) }
        })
    }

    fn cancel_lost_claim(&self, nonce: u32) -> StoreFuture<'_, ()> {
        // Nonce 0 is a probe.
        match nonce {
            0 => self.call_store(move |store| store.cancel_lost_claim(nonce)),
            _ => self.call_store_unclaim(move |store| store.cancel_lost_claim(nonce)),
        }
    }

    fn query_leases(&self, what: LeaseQuery) -> StoreFuture<'_, LeaseQueryResult> {
        match what {
            LeaseQuery::OfLostClaim { .. } => {
                self.call_store_unclaim(|store| store.query_leases(what))
            }
            LeaseQuery::ByRef(_) => {
                self.lease_queries.fetch_add(1, Ordering::Relaxed);
                self.call_store(|store| store.query_leases(what))
            }
            _ => self.call_store(|store| store.query_leases(what)),
        }
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> StoreFuture<'_, Vec<Option<Job>>> {
        self.call_store_read(move |store| store.get(keys, full))
    }

    fn explain(
        &self,
        key: JobKey,
        ageing: Option<PriorityAgeing>,
        limit: u64,
    ) -> StoreFuture<'_, Option<ExplainedJob>> {
        self.call_store_read(move |store| store.explain(key, ageing, limit))
    }

    fn prune(&self, limit: usize) -> StoreFuture<'_, PruneResult> {
        self.call_store(move |store| store.prune(limit))
    }

    fn prune_topics(
        &self,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, PruneTopicsResult> {
        self.call_store(move |store| store.prune_topics(after, limit))
    }

    fn list(&self, list: ListQuery) -> StoreFuture<'_, ListPage> {
        self.call_store_read(|store| store.list(list))
    }

    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<TopicInfo>> {
        self.feed_calls.lock().push(FeedCall::Probe);
        if self.hides_topics.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        self.call_store_read(move |store| store.topics(prefix, after, limit))
    }

    fn ids(
        &self,
        topic: TopicName,
        from: Option<String>,
        limit: usize,
    ) -> StoreFuture<'_, IdsPage> {
        self.call_store_read(move |store| store.ids(topic, from, limit))
    }

    fn stats(
        &self,
        topics: Vec<TopicName>,
        options: StatsOptions,
    ) -> StoreFuture<'_, Vec<Option<ShardTopicStats>>> {
        self.call_store_read(move |store| store.stats(topics, options))
    }

    fn oldest_waiting(
        &self,
        topic: TopicName,
        room: RoomQuery,
    ) -> StoreFuture<'_, Option<LeavingJobs>> {
        self.call_store(move |store| store.oldest_waiting(topic, room))
    }

    fn groups(&self, query: GroupsQuery) -> StoreFuture<'_, Vec<ShardGroupStats>> {
        self.call_store_read(|store| store.groups(query))
    }

    fn info(&self) -> StoreFuture<'_, StoreInfo> {
        self.call_store_read(|store| store.info())
    }

    fn usage(&self) -> StoreFuture<'_, StoreUsage> {
        self.call_store_read(|store| store.usage())
    }

    fn subscribe(&self, about: EventKind) -> broadcast::Receiver<ShardEvent> {
        let drops_events = self.drops_events.load(Ordering::Relaxed);
        if drops_events { self.events.subscribe(about) } else { self.store.subscribe(about) }
    }

    fn heartbeat(&self, beat: Heartbeat) -> StoreFuture<'_, SharedState> {
        let (owner, ring) = (beat.owner, beat.ring);
        let (seen, gone) = (beat.seen_owners.clone(), beat.removed_owners.clone());
        let shared_state = self.call_store(move |store| store.heartbeat(beat));
        Box::pin(async move {
            let mut shared_state = shared_state.await?;
            if let Some(signs) = &mut *self.heartbeats.lock() {
                let at = shared_state.now;
                signs.insert(owner, ReplicaHeartbeat { owner, ring, time: at });
                for owner in seen {
                    signs.entry(owner).or_insert(ReplicaHeartbeat { owner, ring: 0, time: at });
                }
                signs.retain(|owner, _| !gone.contains(owner));
                shared_state.replicas = signs.values().copied().collect();
            }
            Ok(shared_state)
        })
    }

    fn set_state(&self, state: ShardState, until: Option<Instant>) -> StoreFuture<'_, ()> {
        self.call_store(move |store| store.set_state(state, until))
    }

    fn write_documents(
        &self,
        documents: Vec<DocumentWrite>,
        until: Option<Instant>,
    ) -> StoreFuture<'_, Vec<DocumentWriteResult>> {
        self.call_store(move |store| store.write_documents(documents, until))
    }

    fn documents(&self, after: u64, limit: usize) -> StoreFuture<'_, DocumentsPage> {
        self.call_store(move |store| store.documents(after, limit))
    }

    fn forget_documents(
        &self,
        removal: DocumentRemoval,
        until: Option<Instant>,
    ) -> StoreFuture<'_, bool> {
        self.call_store(move |store| store.forget_documents(removal, until))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
