//! Calls that arrive after their own deadline, by the clocks of the stores: none of them is executed.

use std::time::Duration;

use crate::store_calls::{
    JobDeletion, JobReschedule, LeaseExtension, RedriveBatch, StoreCalls as _, TestJob,
};
use ringq::clock::Clock;
use ringq::domain::ring::ShardState;
use ringq::domain::{Durability, JobId, ShardName, State, When};
use ringq::store::{
    Claim, Error, JobRequest, LeasedJob, Result, Store, TopicDemand, WritePrecondition, redis,
    sqlite,
};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::conformance::OWNER;
use crate::conformance::values::{
    TOPIC, dead_lettered, decide, key, lease_ref, new_job, one, taker, topic,
};
use crate::harness::Redis;

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn a_file_executes_no_call_late() {
    let dir = TempDir::new().unwrap();
    let database = sqlite::Database::File(dir.path().join("s0.db"));
    let config = sqlite::Config { name: name(), database, clock: Clock::system() };
    executes_no_call_late(&sqlite::SqliteStore::open(config).unwrap()).await;
}

#[tokio::test]
async fn what_comes_late_to_a_file_holds_up_nothing_else() {
    let dir = TempDir::new().unwrap();
    let database = sqlite::Database::File(dir.path().join("s0.db"));
    let config = sqlite::Config { name: name(), database, clock: Clock::system() };
    let store = sqlite::SqliteStore::open(config).unwrap();
    holds_up_nothing_else(&store, Durability::Fsynced).await;
}

#[tokio::test]
async fn what_comes_late_to_a_redis_holds_up_nothing_else() {
    let Some(redis) = Redis::durable().await else { return };
    let address = redis::RedisAddress::try_new(&redis.url()).unwrap();
    let config = redis::Config { name: name(), address, clock: Clock::system(), owner: OWNER };
    let store = redis::RedisStore::open(config).await.unwrap();
    for durability in [Durability::Memory, Durability::Fsynced] {
        holds_up_nothing_else(&store, durability).await;
    }
}

#[tokio::test]
async fn a_redis_executes_no_call_late() {
    let Some(redis) = Redis::start().await else { return };
    let address = redis::RedisAddress::try_new(&redis.url()).unwrap();
    let config = redis::Config { name: name(), address, clock: Clock::system(), owner: OWNER };
    executes_no_call_late(&redis::RedisStore::open(config).await.unwrap()).await;
}

/// A server checks in this way whether a shard accepts writes again.
#[tokio::test]
async fn to_void_a_claim_shows_whether_a_redis_takes_writes() {
    let Some(redis) = Redis::start().await else { return };
    let address = redis::RedisAddress::try_new(&redis.url()).unwrap();
    let config = redis::Config { name: name(), address, clock: Clock::system(), owner: OWNER };
    let store = redis::RedisStore::open(config).await.unwrap();
    let ask = async || store.cancel_lost_claim(0).await;
    ask().await.unwrap();
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let refused = ask().await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    ask().await.unwrap();
}

/// Checks one call with all paths of an enqueue: late ones first, last and in the middle.
async fn holds_up_nothing_else(store: &dyn Store, durability: Durability) {
    let (now, later) = (Instant::now(), Some(Instant::now() + HOUR));
    let job =
        |id: &str, until| TestJob { durability: Some(durability), deadline: until, ..new_job(id) };
    let again =
        |id: &str, until| TestJob { precondition: WritePrecondition::SameJob, ..job(id, until) };
    for ways in 0..8 {
        let late = |n: u32, id: &str| {
            let id = format!("{id}-{ways}");
            if ways & 1 << n == 0 { job(&id, Some(now)) } else { again(&id, Some(now)) }
        };
        let jobs = vec![
            late(0, "first"),
            job(&format!("a-{ways}"), later),
            late(1, "middle"),
            job(&format!("b-{ways}"), later),
            late(2, "last"),
        ];
        let ids: Vec<_> = jobs.iter().map(|job| job.key.clone()).collect();
        let answers = store.apply(jobs.into_iter().map(JobRequest::from).collect()).await;
        for (at, answer) in answers.iter().enumerate() {
            match at {
                1 | 3 => assert!(answer.as_ref().unwrap().durability >= durability, "{ways} {at}"),
                _ => assert!(
                    matches!(answer, Err(Error::DeadlineExceeded(_))),
                    "{ways} {at}: {answer:?}"
                ),
            }
        }
        let there = store.get(ids, false).await.unwrap().into_iter().map(|job| job.is_some());
        assert_eq!(there.collect::<Vec<_>>(), [false, true, false, true, false], "{ways}");
    }
}

fn name() -> ShardName {
    ShardName::try_new("s0").unwrap()
}

/// Checks every verb with such a deadline.
async fn executes_no_call_late(store: &dyn Store) {
    let dead = run(store, "dead").await;
    let lease = one(store.running_leases(vec![lease_ref(&dead)]).await.unwrap()).unwrap();
    store.settle(vec![decide(&lease, dead_lettered())]).await.unwrap();
    let held = run(store, "held").await;
    for id in ["deleted", "moved"] {
        let later = TestJob { due: When::After(HOUR), ..new_job(id) };
        store.enqueue(vec![later]).await.unwrap();
    }
    let before = seen(store, &held).await;
    for answer in write(store, &held, Instant::now()).await {
        answer.unwrap_err();
    }
    assert_eq!(seen(store, &held).await, before);
    for answer in write(store, &held, Instant::now() + HOUR).await {
        answer.unwrap();
    }
    let after = seen(store, &held).await;
    let same = before.iter().zip(&after).filter(|(before, after)| before == after);
    assert_eq!(same.count(), 0, "{before:?}\n{after:?}");
}

/// Enqueues a job and claims it.
async fn run(store: &dyn Store, id: &str) -> LeasedJob {
    store.enqueue(vec![new_job(id)]).await.unwrap();
    let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: vec![taker()] }];
    let claim = Claim { nonce: rand::random(), owner: OWNER, topics: asks };
    one(one(one(store.claim(claim).await.unwrap().topics).by_stream))
}

async fn write(store: &dyn Store, held: &LeasedJob, until: Instant) -> Vec<Result<()>> {
    let until = Some(until);
    let redrive = RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![JobId::stored("dead")],
        states: vec![State::Dead],
        spacing: Duration::ZERO,
        delay: HOUR,
        target: None,
        ttl: None,
        dry_run: false,
        deadline: until,
    };
    let extend = LeaseExtension {
        lease: lease_ref(held),
        duration: Some(HOUR),
        progress: None,
        checkpoint: None,
        outage_expiry: None,
        write_deadline: until,
    };
    let moved = JobReschedule {
        key: key(TOPIC, "moved"),
        due: Some(When::After(2 * HOUR)),
        priority: None,
        deadline: until,
    };
    let delete = JobDeletion { key: key(TOPIC, "deleted"), finished: None, deadline: until };
    vec![
        store.enqueue(vec![TestJob { deadline: until, ..new_job("new") }]).await.map(drop),
        store.extend(vec![extend]).await.map(drop),
        store.delete(vec![delete]).await.map(drop),
        store.reschedule(vec![moved]).await.map(drop),
        store.redrive(redrive).await.map(drop),
        store.set_state(ShardState::Draining, until).await,
    ]
}

/// Returns the state that each of them changes, in their order.
async fn seen(store: &dyn Store, held: &LeasedJob) -> [String; 6] {
    let ids = ["new", "deleted", "moved", "dead"].map(|id| key(TOPIC, id));
    let found = store.get(ids.into(), false).await.unwrap();
    let [new, deleted, moved, dead] = &found[..] else { panic!("{found:?}") };
    let lease = one(store.running_leases(vec![lease_ref(held)]).await.unwrap()).unwrap();
    [
        format!("{:?}", new.is_some()),
        format!("{:?}", lease.deadline),
        format!("{:?}", deleted.as_ref().map(|job| job.state)),
        format!("{:?}", moved.as_ref().map(|job| job.due_time)),
        format!("{:?}", dead.as_ref().map(|job| job.state)),
        format!("{:?}", store.info().await.unwrap().state),
    ]
}
