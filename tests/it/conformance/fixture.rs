//! A store on a clock that stands still, and the shortest ways to say what a case does with it.
//! Everything goes through the [`Store`] trait; only [`Backend`] knows which stores there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringq::clock::{Clock, ManualClock};
use ringq::domain::lifecycle::{Cause, lease_end};
use ringq::domain::{
    Job, JobId, JobKey, Keep, OnConflict, Payload, RetryPolicy, ShardName, Spec, State, Time,
    TopicName, When, limit,
};
use ringq::store::{
    Ask, Claim, Claimed, End, Enqueue, Extend, Lease, LeaseRef, Leased, NewJob, Refused, Settle,
    Settled, Stats, Store, Taker, Unclaim, sqlite,
};
use tempfile::TempDir;

/// The topic of a case that needs only one.
pub(crate) const TOPIC: &str = "t";
/// The replica that claims, where a case does not say.
pub(crate) const OWNER: u32 = 7;
/// Lease of [`taker`], for jobs that name none.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// Where every clock starts: some microsecond that is no round number.
pub(crate) const START: Time = Time(1_800_000_000_123_457);

/// A store, or why it could not be opened.
pub(crate) type Opened = Result<Arc<dyn Store>, String>;

/// Which store, and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// SQLite in a file of its own.
    SqliteFile,
    /// SQLite in memory: gone when it closes.
    SqliteMemory,
}

/// One store of its own for one case.
pub(crate) struct Fixture {
    /// The store under test.
    pub(crate) store: Arc<dyn Store>,
    /// Its clock.
    pub(crate) clock: ManualClock,
    backend: Backend,
    dir: TempDir,
    nonces: AtomicU32,
}

// === impl Backend ===

impl Backend {
    /// Whether what was written is there when the store is opened again.
    fn survives_reopening(self) -> bool {
        self == Backend::SqliteFile
    }

    fn open(self, name: &str, dir: &TempDir, clock: &ManualClock) -> Opened {
        let place = match self {
            Backend::SqliteFile => sqlite::Place::File(dir.path().join("ringq.db")),
            Backend::SqliteMemory => sqlite::Place::Memory,
        };
        let name = ShardName::try_new(name).unwrap();
        let clock = Clock::Manual(clock.clone());
        let store = sqlite::SqliteStore::open(sqlite::Config { name, place, clock });
        store.map(|store| Arc::new(store) as Arc<dyn Store>).map_err(|error| error.to_string())
    }
}

// === impl Fixture: opening, time ===

impl Fixture {
    /// A fresh, empty store.
    pub(crate) async fn open(backend: Backend) -> Fixture {
        let clock = ManualClock::new(START);
        let dir = TempDir::new().unwrap();
        let store = backend.open("s0", &dir, &clock).unwrap();
        Fixture { store, clock, backend, dir, nonces: AtomicU32::new(1) }
    }

    /// Whether what was written survives [`Fixture::reopen`].
    pub(crate) fn survives_reopening(&self) -> bool {
        self.backend.survives_reopening()
    }

    /// Whether this store can be reopened; says so when a case is skipped for it.
    pub(crate) fn can_reopen(&self) -> bool {
        let can = self.survives_reopening();
        if !can {
            println!("skipped: {:?} does not survive reopening", self.backend);
        }
        can
    }

    /// Closes the store and opens it again, as a new process would.
    pub(crate) async fn reopen(&mut self) {
        self.store.close().await;
        self.store = self.open_as("s0").unwrap();
    }

    /// Opens the same place once more under some name.
    pub(crate) fn open_as(&self, name: &str) -> Opened {
        self.backend.open(name, &self.dir, &self.clock)
    }

    /// The time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Moves the clock by so many seconds.
    pub(crate) fn sleep(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// Moves the clock to the last microsecond before `time`.
    pub(crate) fn until_just_before(&self, time: Time) {
        self.clock.set(Time(time.0 - 1));
    }

    /// Moves the clock to `time`.
    pub(crate) fn until(&self, time: Time) {
        self.clock.set(time);
    }
}

// === impl Fixture: verbs, one item each ===

impl Fixture {
    /// Enqueues one job.
    pub(crate) async fn put(&self, job: NewJob) -> Enqueue {
        one(self.store.enqueue(vec![job]).await.unwrap())
    }

    /// Enqueues plain jobs with these ids, in this order.
    pub(crate) async fn put_ids(&self, ids: &[&str]) {
        self.store.enqueue(ids.iter().map(|id| new_job(id)).collect()).await.unwrap();
    }

    /// Claims from one topic for these takers.
    pub(crate) async fn claim_for(&self, name: &str, takers: Vec<Taker>) -> Claimed {
        let asks = vec![Ask { topic: topic(name), takers }];
        let claim = Claim { nonce: self.nonce(), owner: OWNER, asks };
        one(self.store.claim(claim).await.unwrap().topics)
    }

    /// Claims at most so many jobs of [`TOPIC`] for one taker.
    pub(crate) async fn claim(&self, jobs: u32) -> Vec<Leased> {
        one(self.claim_for(TOPIC, vec![Taker { jobs, ..taker() }]).await.leased)
    }

    /// Claims the next job of [`TOPIC`], which must be there.
    pub(crate) async fn claim_one(&self) -> Leased {
        one(self.claim(1).await)
    }

    /// Claims everything that [`TOPIC`] has; the ids in the order of their leases.
    pub(crate) async fn claim_ids(&self) -> Vec<String> {
        ids_of(&self.claim(10_000).await)
    }

    /// Enqueues a plain job and claims it.
    pub(crate) async fn running(&self, id: &str) -> Leased {
        self.run(new_job(id)).await
    }

    /// Enqueues a job and claims it; nothing else may be ready.
    pub(crate) async fn run(&self, job: NewJob) -> Leased {
        let key = job.key.clone();
        self.put(job).await;
        let leased = one(self.claim_for(key.topic.as_str(), vec![taker()]).await.leased);
        let leased = one(leased);
        assert_eq!(leased.key, key, "another job was ready");
        leased
    }

    /// Settles one lease.
    pub(crate) async fn settle(&self, settle: Settle) -> Result<Settled, Refused> {
        one(self.store.settle(vec![settle]).await.unwrap())
    }

    /// Acknowledges a lease, which must hold.
    pub(crate) async fn ack(&self, leased: &Leased) -> Settled {
        self.settle(ack(leased)).await.unwrap()
    }

    /// Decides and settles the end of a lease, which must hold.
    pub(crate) async fn end(&self, leased: &Leased, cause: Cause) -> Settled {
        let settle = self.decide(leased, cause).await;
        self.settle(settle).await.unwrap()
    }

    /// The settle that ends a lease for `cause`, without jitter.
    pub(crate) async fn decide(&self, leased: &Leased, cause: Cause) -> Settle {
        decide(&self.lease(leased).await.unwrap(), cause)
    }

    /// Reads one lease.
    pub(crate) async fn lease(&self, leased: &Leased) -> Result<Lease, Refused> {
        one(self.store.leases(vec![lease_ref(leased)]).await.unwrap())
    }

    /// Extends one lease.
    pub(crate) async fn extend(
        &self,
        leased: &Leased,
        duration: Option<Duration>,
        progress: Option<&str>,
    ) -> Result<Time, Refused> {
        let progress = progress.map(str::to_owned);
        let extend = Extend { lease: lease_ref(leased), duration, progress };
        one(self.store.extend(vec![extend]).await.unwrap())
    }

    /// Undoes one lease; whether it was there.
    pub(crate) async fn unclaim(&self, leased: &Leased) -> bool {
        self.store.unclaim(Unclaim::Leases(vec![lease_ref(leased)])).await.unwrap() == 1
    }

    /// Deletes a job of [`TOPIC`]; the state that it was in.
    pub(crate) async fn delete(&self, id: &str) -> Option<State> {
        one(self.store.delete(vec![key(TOPIC, id)]).await.unwrap()).map(|deleted| deleted.previous)
    }

    /// Reads a job of [`TOPIC`] in full.
    pub(crate) async fn get(&self, id: &str) -> Option<Job> {
        self.get_in(TOPIC, id).await
    }

    /// Reads a job in full.
    pub(crate) async fn get_in(&self, topic: &str, id: &str) -> Option<Job> {
        one(self.store.get(vec![key(topic, id)], true).await.unwrap())
    }

    /// Reads a job of [`TOPIC`] that must be there.
    pub(crate) async fn job(&self, id: &str) -> Job {
        self.get(id).await.unwrap_or_else(|| panic!("no job {id}"))
    }

    /// The state of a job of [`TOPIC`].
    pub(crate) async fn state(&self, id: &str) -> Option<State> {
        self.get(id).await.map(|job| job.state)
    }

    /// Numbers of a topic that must be there.
    pub(crate) async fn stats(&self, name: &str) -> Stats {
        one(self.store.stats(vec![topic(name)]).await.unwrap()).expect("no such topic")
    }

    /// A nonce that no other claim of this fixture has.
    pub(crate) fn nonce(&self) -> u32 {
        self.nonces.fetch_add(1, Ordering::Relaxed)
    }
}

// === values ===

/// A plain job of [`TOPIC`]: ready at once, with a payload, remembered by a tombstone.
pub(crate) fn new_job(id: &str) -> NewJob {
    job_in(TOPIC, id)
}

/// A plain job.
pub(crate) fn job_in(topic: &str, id: &str) -> NewJob {
    NewJob {
        key: key(topic, id),
        spec: Spec { payload: Some(text(id)), ..Spec::default() },
        due: When::Now,
        priority: None,
        expire: None,
        keep: Keep::Tombstone(limit::TOMBSTONE),
        on_conflict: OnConflict::Keep,
        request: None,
    }
}

/// A payload of text.
pub(crate) fn text(body: &str) -> Payload {
    Payload { text: true, body: body.to_owned().into(), content_type: String::new() }
}

/// A taker of [`LEASE`] with room for everything.
pub(crate) fn taker() -> Taker {
    Taker {
        stream: 1,
        worker_id: "worker-1".into(),
        lease: LEASE,
        grace: Some(limit::ORPHAN_GRACE_DEFAULT),
        jobs: 10_000,
        bytes: u64::MAX >> 1,
        oversize: true,
    }
}

/// The settle that acknowledges a lease.
pub(crate) fn ack(leased: &Leased) -> Settle {
    let end = End::Ack { result: None, follow_ups: Vec::new() };
    Settle { lease: lease_ref(leased), end, deadline: None }
}

/// The settle that ends a lease for `cause`, without jitter.
pub(crate) fn decide(lease: &Lease, cause: Cause) -> Settle {
    let policy = RetryPolicy::default().merge(&lease.record.retry);
    let end = lease_end(cause, &lease.record, &policy, lease.now, 0.0);
    Settle {
        lease: LeaseRef { key: lease.key.clone(), token: lease.token },
        end: End::Decided { end, dead_retention: limit::DEAD_RETENTION },
        deadline: None,
    }
}

/// A failed attempt, retried by policy.
pub(crate) fn failed() -> Cause {
    Cause::Failed { delay: None, error: "it failed".into() }
}

/// A failed attempt, retried after so many seconds.
pub(crate) fn failed_for(seconds: u64) -> Cause {
    Cause::Failed { delay: Some(Duration::from_secs(seconds)), error: "it failed".into() }
}

/// An attempt handed back.
pub(crate) fn released() -> Cause {
    Cause::Released { delay: None, error: String::new() }
}

/// An attempt that ends its job.
pub(crate) fn dead_lettered() -> Cause {
    Cause::DeadLettered { error: "hopeless".into() }
}

/// Names a lease.
pub(crate) fn lease_ref(leased: &Leased) -> LeaseRef {
    LeaseRef { key: leased.key.clone(), token: leased.token }
}

/// The identity of a job.
pub(crate) fn key(name: &str, id: &str) -> JobKey {
    JobKey { topic: topic(name), id: JobId::stored(id) }
}

/// A topic's name.
pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::try_new(name).unwrap()
}

/// So many seconds from now.
pub(crate) fn after(seconds: u64) -> When {
    When::After(Duration::from_secs(seconds))
}

/// `time` plus so many seconds.
pub(crate) fn plus(time: Time, seconds: u64) -> Time {
    time.plus(Duration::from_secs(seconds))
}

/// The ids of leases, in order.
pub(crate) fn ids_of(leased: &[Leased]) -> Vec<String> {
    leased.iter().map(|leased| leased.key.id.to_string()).collect()
}

/// The only item.
pub(crate) fn one<T>(items: Vec<T>) -> T {
    let [item] = <[T; 1]>::try_from(items)
        .unwrap_or_else(|items| panic!("{} items where one is expected", items.len()));
    item
}
