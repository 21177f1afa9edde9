//! A store on a clock that stands still, and short helpers for the cases. Everything goes through the [`Store`]
//! trait; only [`Backend`] lists the stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::store_calls::{
    LeaseExtension, LeaseSettlement, StoreCalls as _, TestJob, Unclaim, WriteResult,
};
use ringq::clock::{Clock, ManualClock};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{Durability, Job, PolicyEffect, ShardName, State, Time, TopicName, limit};
use ringq::store::{
    Claim, GroupSetting, LeaseRefusal, LeasedJob, ListQuery, RunningLease, SettleCommandReply,
    ShardTopicStats, StatsOptions, Store, StreamDemand, TopicDemand, TopicEffect, TopicLeases,
    redis, sqlite,
};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::harness::{Program, Redis, Sentinel, within};

use super::values::{
    OWNER, TOPIC, ack, decide, ids_of, key, lease_ref, new_job, one, policy_write, taker, text,
    topic,
};

/// Start of every clock: a microsecond that is no round number.
pub(crate) const START: Time = Time(1_800_000_000_123_457);

/// Script of [`Fixture::make_unknown`].
const MAKE_UNKNOWN: &str = "
    local count = 0
    for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
        if string.sub(name, 1, #ARGV[1]) == ARGV[1] then
            redis.call('HSET', KEYS[1], 'other/' .. name, redis.call('HGET', KEYS[1], name))
            redis.call('ZADD', KEYS[2], redis.call('ZSCORE', KEYS[2], name), 'other/' .. name)
            redis.call('HDEL', KEYS[1], name)
            redis.call('ZREM', KEYS[2], name)
            name = 'other/' .. name
        end
        if string.sub(name, 1, 6) == 'other/' then count = count + 1 end
    end
    return count";

/// Arguments of a server that keeps nothing on disk.
const WITHOUT_FILES: [&str; 4] = ["--save", "", "--appendonly", "no"];

/// A store, or the reason why it could not be opened.
pub(crate) type Opened = Result<Arc<dyn Store>, String>;

/// A store under test, and its capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// SQLite in a file of its own.
    SqliteFile,
    /// SQLite in memory: gone when it closes.
    SqliteMemory,
    /// A Redis of its own, without persistence. It outlives the store, as a server does.
    Redis,
    /// The oldest supported Redis.
    Redis6,
    /// A new Redis.
    Redis8,
    /// Valkey.
    Valkey,
    /// A database of its own on the Redis behind Sentinel that all cases share.
    Sentinel,
}

/// A store for one case.
pub(crate) struct Fixture {
    /// The store under test.
    pub(crate) store: Arc<dyn Store>,
    /// Its clock.
    pub(crate) clock: ManualClock,
    /// Which store it is.
    pub(crate) backend: Backend,
    place: Place,
    nonces: AtomicU32,
}

/// The location of a store.
enum Place {
    Dir(TempDir),
    Redis(Redis),
    /// The url of a server that other tests use, too.
    Shared(String),
}

/// The Redis behind Sentinel, and the number of its databases in use.
static SENTINEL: OnceCell<Option<Sentinel>> = OnceCell::const_new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

// === impl Backend ===

impl Backend {
    /// Returns the kind that the store reports.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Backend::SqliteFile | Backend::SqliteMemory => "sqlite",
            Backend::Redis
            | Backend::Redis6
            | Backend::Redis8
            | Backend::Valkey
            | Backend::Sentinel => "redis",
        }
    }

    /// Returns the durability of a write to it.
    pub(crate) fn durability(self) -> Durability {
        match self {
            Backend::SqliteFile => Durability::Fsynced,
            Backend::SqliteMemory
            | Backend::Redis
            | Backend::Redis6
            | Backend::Redis8
            | Backend::Valkey
            | Backend::Sentinel => Durability::Memory,
        }
    }

    /// Returns whether its data survives reopening.
    fn survives_reopening(self) -> bool {
        self != Backend::SqliteMemory
    }

    /// Creates a location for one store; `None` when there is no such server.
    async fn place(self) -> Option<Place> {
        match self {
            Backend::SqliteFile | Backend::SqliteMemory => {
                Some(Place::Dir(TempDir::new().unwrap()))
            }
            Backend::Redis => Redis::start().await.map(Place::Redis),
            Backend::Redis6 => Redis::of(Program::Redis6, &WITHOUT_FILES).await.map(Place::Redis),
            Backend::Redis8 => Redis::of(Program::Redis8, &WITHOUT_FILES).await.map(Place::Redis),
            Backend::Valkey => Redis::valkey().await.map(Place::Redis),
            Backend::Sentinel => {
                let sentinel = SENTINEL.get_or_init(shared_sentinel).await.as_ref()?;
                let database = DATABASES.fetch_add(1, Ordering::Relaxed);
                Some(Place::Shared(format!("{}/{database}", sentinel.url())))
            }
        }
    }

    async fn open(self, name: &str, place: &Place, clock: &ManualClock, owner: u32) -> Opened {
        let name = ShardName::try_new(name).unwrap();
        let clock = Clock::Manual(clock.clone());
        let on_redis = async |url: &str| {
            let (name, clock) = (name.clone(), clock.clone());
            let address = redis::RedisAddress::try_new(url).unwrap();
            opened(redis::RedisStore::open(redis::Config { name, address, clock, owner }).await)
        };
        let dir = match place {
            Place::Redis(server) => return on_redis(&server.url()).await,
            Place::Shared(url) => return on_redis(url).await,
            Place::Dir(dir) => dir,
        };
        let database = match self {
            Backend::SqliteFile => sqlite::Database::File(dir.path().join("ringq.db")),
            Backend::SqliteMemory => sqlite::Database::Memory,
            other => panic!("{other:?} lies in no directory"),
        };
        opened(sqlite::SqliteStore::open(sqlite::Config { name, database, clock }))
    }
}

async fn shared_sentinel() -> Option<Sentinel> {
    let sentinel = Sentinel::start().await?;
    sentinel.outlive_tests();
    Some(sentinel)
}

fn opened<S: Store + 'static, E: std::fmt::Display>(store: Result<S, E>) -> Opened {
    store.map(|store| Arc::new(store) as Arc<dyn Store>).map_err(|error| error.to_string())
}

// === impl Fixture: opening, time ===

impl Fixture {
    /// Opens a fresh, empty store; `None` when this machine cannot have one, which is printed.
    pub(crate) async fn open(backend: Backend) -> Option<Fixture> {
        let clock = ManualClock::new(START);
        let place = backend.place().await?;
        let store = backend.open("s0", &place, &clock, OWNER).await.unwrap();
        Some(Fixture { store, clock, backend, place, nonces: AtomicU32::new(1) })
    }

    /// Opens a store on the empty Redis at this url.
    pub(crate) async fn at(backend: Backend, url: &str) -> Fixture {
        Fixture::found(backend, url, START).await
    }

    /// Opens a store on the Redis at this url, which has data from before `now`.
    pub(crate) async fn found(backend: Backend, url: &str, now: Time) -> Fixture {
        let (clock, place) = (ManualClock::new(now), Place::Shared(url.to_owned()));
        let store = backend.open("s0", &place, &clock, OWNER).await.unwrap();
        Fixture { store, clock, backend, place, nonces: AtomicU32::new(1) }
    }

    /// Returns whether data survives [`Fixture::reopen`].
    pub(crate) fn survives_reopening(&self) -> bool {
        self.backend.survives_reopening()
    }

    /// Returns this fixture if its store survives reopening; prints when a case is skipped for it.
    pub(crate) fn lasting(self) -> Option<Fixture> {
        let lasts = self.survives_reopening();
        if !lasts {
            println!("skipped: {:?} does not survive reopening", self.backend);
        }
        lasts.then_some(self)
    }

    /// Closes the store and opens it again, as a new process would.
    pub(crate) async fn reopen(&mut self) {
        self.store.close().await;
        // A process that another test starts at this moment has a copy of the file lock until it calls exec.
        let opened = async {
            loop {
                match self.open_as("s0").await {
                    Err(error) if error.contains("is in use") => tokio::task::yield_now().await,
                    opened => break opened.unwrap(),
                }
            }
        };
        self.store = within("the former lock is released", opened).await;
    }

    /// Opens the same location once more under this name.
    pub(crate) async fn open_as(&self, name: &str) -> Opened {
        self.backend.open(name, &self.place, &self.clock, OWNER).await
    }

    /// Opens the store as another replica, with this nonce; `None` where there can be no other one.
    pub(crate) async fn elsewhere(&self, owner: u32) -> Option<Arc<dyn Store>> {
        if !self.store.is_shared() {
            println!("skipped: {:?} is one replica's alone", self.backend);
            return None;
        }
        if let Place::Shared(_) = self.place {
            println!(
                "skipped: channels are those of all databases, where others have the same nonces"
            );
            return None;
        }
        Some(self.backend.open("s0", &self.place, &self.clock, owner).await.unwrap())
    }

    /// Deletes everything on the shard behind its servers; returns false where that cannot happen.
    pub(crate) async fn wipe(&self) -> bool {
        let Place::Redis(server) = &self.place else { return false };
        server.command(&["FLUSHALL"]).await;
        true
    }

    /// Returns the time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Moves the clock by this number of seconds.
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
    pub(crate) async fn put(&self, job: TestJob) -> WriteResult {
        one(self.store.enqueue(vec![job]).await.unwrap())
    }

    /// Enqueues plain jobs with these ids, in this order.
    pub(crate) async fn put_ids(&self, ids: &[&str]) {
        self.store.enqueue(ids.iter().map(|id| new_job(id)).collect()).await.unwrap();
    }

    /// Claims from one topic for these takers.
    pub(crate) async fn claim_for(&self, name: &str, takers: Vec<StreamDemand>) -> TopicLeases {
        self.claim_of(TopicDemand { topic: topic(name), ageing: None, streams: takers }).await
    }

    /// Claims from one topic.
    pub(crate) async fn claim_of(&self, ask: TopicDemand) -> TopicLeases {
        let claim = Claim { nonce: self.nonce(), owner: OWNER, topics: vec![ask] };
        one(self.store.claim(claim).await.unwrap().topics)
    }

    /// Claims at most `jobs` jobs of [`TOPIC`] for one taker.
    pub(crate) async fn claim(&self, jobs: u32) -> Vec<LeasedJob> {
        one(self.claim_for(TOPIC, vec![StreamDemand { jobs, ..taker() }]).await.by_stream)
    }

    /// Claims the next job of [`TOPIC`], which must be there.
    pub(crate) async fn claim_one(&self) -> LeasedJob {
        one(self.claim(1).await)
    }

    /// Claims everything that [`TOPIC`] has; returns the ids in the order of their leases.
    pub(crate) async fn claim_ids(&self) -> Vec<String> {
        ids_of(&self.claim(10_000).await)
    }

    /// Enqueues a plain job and claims it.
    pub(crate) async fn running(&self, id: &str) -> LeasedJob {
        self.run(new_job(id)).await
    }

    /// Enqueues a job and claims it; nothing else may be ready.
    pub(crate) async fn run(&self, job: TestJob) -> LeasedJob {
        let key = job.key.clone();
        self.put(job).await;
        let leased = one(self.claim_for(key.topic.as_str(), vec![taker()]).await.by_stream);
        let leased = one(leased);
        assert_eq!(leased.key, key, "another job was ready");
        leased
    }

    /// Settles one lease.
    pub(crate) async fn settle(
        &self,
        settle: LeaseSettlement,
    ) -> Result<SettleCommandReply, LeaseRefusal> {
        one(self.store.settle(vec![settle]).await.unwrap())
    }

    /// Acks a lease, which must be live.
    pub(crate) async fn ack(&self, leased: &LeasedJob) -> SettleCommandReply {
        self.settle(ack(leased)).await.unwrap()
    }

    /// Decides and settles the end of a lease, which must be live.
    pub(crate) async fn end(&self, leased: &LeasedJob, cause: LeaseEndCause) -> SettleCommandReply {
        let settle = self.decide(leased, cause).await;
        self.settle(settle).await.unwrap()
    }

    /// Builds the settle that ends a lease for `cause`, without jitter.
    pub(crate) async fn decide(&self, leased: &LeasedJob, cause: LeaseEndCause) -> LeaseSettlement {
        decide(&self.lease(leased).await.unwrap(), cause)
    }

    /// Reads one lease.
    pub(crate) async fn lease(&self, leased: &LeasedJob) -> Result<RunningLease, LeaseRefusal> {
        one(self.store.running_leases(vec![lease_ref(leased)]).await.unwrap())
    }

    /// Extends one lease.
    pub(crate) async fn extend(
        &self,
        leased: &LeasedJob,
        duration: Option<Duration>,
        progress: Option<&str>,
    ) -> Result<Time, LeaseRefusal> {
        let progress = progress.map(str::to_owned);
        let extend = LeaseExtension {
            lease: lease_ref(leased),
            duration,
            progress,
            checkpoint: None,
            outage_expiry: None,
            write_deadline: None,
        };
        one(self.store.extend(vec![extend]).await.unwrap())
    }

    /// Extends one lease with a checkpoint.
    pub(crate) async fn save(&self, leased: &LeasedJob, body: &str) -> Result<Time, LeaseRefusal> {
        let (lease, checkpoint) = (lease_ref(leased), Some(text(body)));
        let (duration, progress, lapsed, until) = (None, None, None, None);
        let extend = LeaseExtension {
            lease,
            duration,
            progress,
            checkpoint,
            outage_expiry: lapsed,
            write_deadline: until,
        };
        one(self.store.extend(vec![extend]).await.unwrap())
    }

    /// Undoes one lease; returns whether it existed.
    pub(crate) async fn unclaim(&self, leased: &LeasedJob) -> bool {
        self.undo(Unclaim::Leases(vec![lease_ref(leased)])).await.unwrap() == 1
    }

    /// Undoes leases, of a lost claim part by part; returns their number.
    pub(crate) async fn undo(&self, mut what: Unclaim) -> ringq::store::Result<u64> {
        let mut leases = 0;
        loop {
            let undone = self.store.unclaim(what.clone()).await?;
            leases += undone.leases;
            match (&mut what, undone.cursor) {
                (Unclaim::Claim(lost), Some(next)) => lost.cursor = Some(next),
                (_, next) => {
                    assert_eq!(next, None);
                    return Ok(leases);
                }
            }
        }
    }

    /// Deletes a job of [`TOPIC`]; returns its state before.
    pub(crate) async fn delete(&self, id: &str) -> Option<State> {
        one(self.store.delete(vec![key(TOPIC, id).into()]).await.unwrap())
            .map(|deleted| deleted.previous)
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

    /// Returns the state of a job of [`TOPIC`].
    pub(crate) async fn state(&self, id: &str) -> Option<State> {
        self.get(id).await.map(|job| job.state)
    }

    /// Returns the statistics of a topic that must exist.
    pub(crate) async fn stats(&self, name: &str) -> ShardTopicStats {
        self.stats_due_within(name, Duration::ZERO).await
    }

    /// Returns the statistics of a topic that must exist; jobs are due soon within `due_within`.
    pub(crate) async fn stats_due_within(
        &self,
        name: &str,
        due_within: Duration,
    ) -> ShardTopicStats {
        let stats = self.store.stats(vec![topic(name)], StatsOptions::due_within(due_within)).await;
        one(stats.unwrap()).expect("no such topic")
    }

    /// Replaces the settings of the groups of a topic, by a policy that has nothing else.
    pub(crate) async fn configure_groups(
        &self,
        name: TopicName,
        groups: Vec<GroupSetting>,
    ) -> ringq::store::Result<()> {
        self.set_policy(name, groups, None).await
    }

    /// Gives a topic settings, with a limit of bytes or without.
    pub(crate) async fn set_settings(
        &self,
        name: TopicName,
        max_stored_bytes: Option<u64>,
    ) -> ringq::store::Result<()> {
        self.set_policy(name, Vec::new(), Some(max_stored_bytes.is_some())).await
    }

    async fn set_policy(
        &self,
        name: TopicName,
        groups: Vec<GroupSetting>,
        limits_bytes: Option<bool>,
    ) -> ringq::store::Result<()> {
        let mut write = policy_write(name.as_str(), 0, 0, PolicyEffect::Deliver);
        let stored = self.store.documents(0, limit::CALL_JOBS_MAX).await?.documents;
        let stored = stored.iter().find(|document| document.name == write.name);
        write.expected = stored.map_or(0, |document| document.version);
        write.version = write.expected + 1;
        let effect = write.effect.take();
        write.effect = effect.map(|effect| TopicEffect { groups, limits_bytes, ..effect });
        let written = self.store.write_documents(vec![write], None).await?;
        assert!(written[0].is_written);
        Ok(())
    }

    /// Gives the documents whose names begin like this a kind that no build knows, as another version of ringq may have
    /// stored them. Returns how many there are of it; `None` where that is not possible.
    pub(crate) async fn make_unknown(&self, names: &str) -> Option<u64> {
        match &self.place {
            Place::Redis(redis) => {
                let keys =
                    ["documents", "documents.order"].map(|key| format!("ringq:{{s0}}:{key}"));
                let call = ["EVAL", MAKE_UNKNOWN, "2", &keys[0], &keys[1], names];
                let count = redis.command(&call).await;
                count.trim().trim_start_matches(':').parse().ok()
            }
            Place::Dir(dir) if self.backend == Backend::SqliteFile => {
                let file = rusqlite::Connection::open(dir.path().join("ringq.db")).unwrap();
                let rename =
                    "UPDATE documents SET name = 'other/' || name WHERE name LIKE ?1 || '%'";
                file.execute(rename, [names]).unwrap();
                let count = "SELECT count(*) FROM documents WHERE name LIKE 'other/%'";
                file.query_row(count, [], |row| row.get(0)).ok()
            }
            Place::Dir(_) | Place::Shared(_) => None,
        }
    }

    /// Returns how many parts of jobs of [`TOPIC`] are stored apart, bodies and checkpoints, read from the store
    /// itself; `None` where that is not possible.
    pub(crate) async fn parts(&self) -> Option<u64> {
        match &self.place {
            Place::Redis(redis) => {
                let count = redis.command(&["HLEN", "ringq:{s0}:more:t"]).await;
                count.trim().trim_start_matches(':').parse().ok()
            }
            Place::Dir(dir) if self.backend == Backend::SqliteFile => {
                let file = rusqlite::Connection::open(dir.path().join("ringq.db")).unwrap();
                let count =
                    "SELECT (SELECT count(*) FROM bodies) + (SELECT count(*) FROM checkpoints)";
                file.query_row(count, [], |row| row.get(0)).ok()
            }
            Place::Dir(_) | Place::Shared(_) => None,
        }
    }

    /// Returns how many keys or rows belong to lanes of [`TOPIC`], read from the store itself; `None` where that is not
    /// possible.
    pub(crate) async fn lanes(&self) -> Option<u64> {
        match &self.place {
            Place::Redis(redis) => {
                let mut found = 0;
                for name in ["groups:t", "lanes:t", "ready:t", "later:t", "grouped:?:t", "*:t\0*"] {
                    let keys = redis.command(&["KEYS", &format!("ringq:{{s0}}:{name}")]).await;
                    let count = keys.lines().next().map(|line| line.trim().trim_start_matches('*'));
                    found += count?.parse::<u64>().ok()?;
                }
                Some(found)
            }
            Place::Dir(dir) if self.backend == Backend::SqliteFile => {
                let file = rusqlite::Connection::open(dir.path().join("ringq.db")).unwrap();
                let count = "SELECT (SELECT count(*) FROM lanes) + (SELECT count(*) FROM lane_jobs)
                             + (SELECT count(*) FROM lane_totals)";
                file.query_row(count, [], |row| row.get(0)).ok()
            }
            Place::Dir(_) | Place::Shared(_) => None,
        }
    }

    /// Removes a job of [`TOPIC`] as a person with redis-cli would; returns false where that is not possible.
    pub(crate) async fn remove_by_hand(&self, id: &str) -> bool {
        let Place::Redis(redis) = &self.place else { return false };
        redis.command(&["HDEL", "ringq:{s0}:jobs:t", id]).await.trim() == ":1"
    }

    /// Removes the value of a document as a person with redis-cli would; returns false where that is not possible.
    pub(crate) async fn remove_document_by_hand(&self, name: &str) -> bool {
        let Place::Redis(redis) = &self.place else { return false };
        redis.command(&["HDEL", "ringq:{s0}:documents", name]).await.trim() == ":1"
    }

    /// Returns the memory that its Redis uses, if it has one of its own.
    pub(crate) async fn memory(&self) -> Option<u64> {
        match &self.place {
            Place::Redis(redis) => Some(redis.info("memory", "used_memory").await),
            Place::Dir(_) | Place::Shared(_) => None,
        }
    }

    /// Claims the next job of [`TOPIC`], which must be this one.
    pub(crate) async fn run_next(&self, id: &str) -> LeasedJob {
        let leased = self.claim_one().await;
        assert_eq!(leased.key.id.as_str(), id);
        leased
    }

    /// Lists the ids of [`TOPIC`] in one state.
    pub(crate) async fn list_ids(&self, state: State) -> Vec<String> {
        let list = ListQuery {
            topic: topic(TOPIC),
            state,
            group: None,
            full: false,
            limit: 100,
            after: None,
        };
        let page = self.store.list(list).await.unwrap();
        page.jobs.into_iter().map(|listed| listed.job.key.id.to_string()).collect()
    }

    /// Returns a nonce that no other claim of this fixture has.
    pub(crate) fn nonce(&self) -> u32 {
        self.nonces.fetch_add(1, Ordering::Relaxed)
    }
}
