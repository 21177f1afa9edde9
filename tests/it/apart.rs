//! Damage to one job of a call: the other jobs of the call are done, and each is answered by itself.

use std::time::Duration;

use crate::store_calls::{
    JobDeletion, JobReschedule, LeaseSettlement, LostClaim, StoreCalls as _, TestJob, Unclaim,
};
use ringq::clock::{Clock, ManualClock};
use ringq::domain::{ShardName, Spec, State, StreamId, Time, When};
use ringq::store::{
    Claim, Error, JobRequest, LeaseRefusal, LeasedJob, RequestResult, Result, RunningLease,
    SettleAction, Store, TopicDemand, redis, sqlite,
};
use tempfile::TempDir;

use crate::conformance::OWNER;
use crate::conformance::values::{
    TOPIC, ack, decide, failed, job_in, key, lease_ref, new_job, one, taker, text, topic,
};
use crate::harness::Redis;

/// Takes away what the record of a job ends with.
const CUT: &str =
    "redis.call('HSET', KEYS[1], ARGV[1], string.sub(redis.call('HGET', KEYS[1], ARGV[1]), 1, -2))";

#[tokio::test]
async fn a_damaged_job_of_a_file_fails_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s0.db");
    let database = sqlite::Database::File(path.clone());
    let config = sqlite::Config { name: name(), database, clock: Clock::system() };
    let store = sqlite::SqliteStore::open(config).unwrap();
    a_damaged_job_fails_alone(&store, async |id| {
        let other = rusqlite::Connection::open(&path).unwrap();
        other.busy_timeout(Duration::from_secs(5)).unwrap();
        let damaged = other.execute("UPDATE jobs SET rank = 300 WHERE id = ?", [id]).unwrap();
        assert_eq!(damaged, 1);
    })
    .await;
}

#[tokio::test]
async fn searches_leave_a_damaged_job_of_a_file_out() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s0.db");
    let database = sqlite::Database::File(path.clone());
    let config = sqlite::Config { name: name(), database, clock: Clock::system() };
    let store = sqlite::SqliteStore::open(config).unwrap();
    searches_for_leases_leave_a_damaged_job_out(&store, async |id| {
        let other = rusqlite::Connection::open(&path).unwrap();
        other.busy_timeout(Duration::from_secs(5)).unwrap();
        other.execute("UPDATE jobs SET rank = 300 WHERE id = ?", [id]).unwrap();
    })
    .await;
}

#[tokio::test]
async fn searches_leave_a_damaged_job_of_a_redis_out() {
    let Some(redis) = Redis::start().await else { return };
    let store = open(&redis).await;
    searches_for_leases_leave_a_damaged_job_out(&store, async |id| {
        redis.command(&["EVAL", CUT, "1", "ringq:{s0}:jobs:t", id]).await;
    })
    .await;
}

#[tokio::test]
async fn a_damaged_job_of_a_redis_fails_alone() {
    let Some(redis) = Redis::start().await else { return };
    let store = open(&redis).await;
    a_damaged_job_fails_alone(&store, async |id| {
        redis.command(&["EVAL", CUT, "1", "ringq:{s0}:jobs:t", id]).await;
    })
    .await;
}

/// One damaged job would otherwise keep the leases of a dead replica, of a stream and of a lost claim for ever.
async fn searches_for_leases_leave_a_damaged_job_out(
    store: &dyn Store,
    damage: impl AsyncFn(&str),
) {
    for id in ["first", "hurt", "last"] {
        let headers = vec![("name".to_owned(), "value".to_owned())];
        let spec = Spec { headers, ..Spec::default() };
        store.enqueue(vec![TestJob { spec, ..new_job(id) }]).await.unwrap();
    }
    let nonce: u32 = rand::random();
    let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: vec![taker()] }];
    let claimed = store.claim(Claim { nonce, owner: OWNER, topics: asks }).await.unwrap();
    let held = one(one(claimed.topics).by_stream);
    damage("hurt").await;
    let sound = |leases: Vec<RunningLease>| {
        let mut ids: Vec<String> = leases.iter().map(|lease| lease.key.id.to_string()).collect();
        ids.sort();
        assert_eq!(ids, ["first", "last"]);
    };
    sound(store.orphaned_leases(vec![OWNER + 1]).await.unwrap());
    sound(store.leases_of_streams(vec![StreamId { owner: OWNER, stream: 1 }]).await.unwrap());
    let named = store.running_leases(held.iter().map(lease_ref).collect()).await.unwrap();
    assert!(matches!(named[..], [Ok(_), Err(LeaseRefusal::Stale), Ok(_)]), "{named:?}");
    let mut lost = LostClaim { nonce, topics: [topic(TOPIC)].into(), cursor: None };
    let mut undone = 0;
    loop {
        let part = store.unclaim(Unclaim::Claim(lost.clone())).await.unwrap();
        undone += part.leases;
        lost.cursor = part.cursor;
        if lost.cursor.is_none() {
            break;
        }
    }
    assert_eq!(undone, 2);
}

/// Every command that reads the damaged job, with sound neighbours before and behind it.
async fn a_damaged_job_fails_alone(store: &dyn Store, damage: impl AsyncFn(&str)) {
    let headers = vec![("name".to_owned(), "value".to_owned())];
    for id in ["acked", "broken-lease", "nacked"] {
        let spec = Spec { headers: headers.clone(), ..Spec::default() };
        store.enqueue(vec![TestJob { spec, ..new_job(id) }]).await.unwrap();
    }
    let held = claim(store).await;
    let [acked, broken, nacked] = &held[..] else { panic!("{held:?}") };
    for id in ["moved", "broken", "deleted"] {
        let spec = Spec { headers: headers.clone(), ..Spec::default() };
        let due = When::After(Duration::from_secs(3_600));
        store.enqueue(vec![TestJob { spec, due, ..new_job(id) }]).await.unwrap();
    }
    let nack = async |leased: &LeasedJob| {
        let lease = one(store.running_leases(vec![lease_ref(leased)]).await.unwrap()).unwrap();
        JobRequest::from(decide(&lease, failed()))
    };
    let (broken, nacked) = (nack(broken).await, nack(nacked).await);
    damage("broken").await;
    damage("broken-lease").await;
    let requests = vec![
        moved("moved"),
        with_result(acked).into(),
        moved("broken"),
        broken,
        JobDeletion::from(key(TOPIC, "broken")).into(),
        JobDeletion::from(key(TOPIC, "deleted")).into(),
        nacked,
        new_job("new").into(),
    ];
    let answers = store.apply(requests).await;
    assert_eq!(answers.len(), 8);
    for (at, answer) in answers.iter().enumerate() {
        match at {
            2..=4 => assert!(matches!(answer, Err(Error::Corrupt(_))), "{at}: {answer:?}"),
            _ => assert!(answer.is_ok(), "{at}: {answer:?}"),
        }
    }
    let states = [
        ("moved", State::Ready),
        ("acked", State::Succeeded),
        ("deleted", State::Cancelled),
        ("nacked", State::Backoff),
        ("new", State::Ready),
    ];
    for (id, state) in states {
        assert_eq!(state_of(store, id).await, Some(state), "{id}");
    }
}

/// A script fails where a key of one job has another type: in the middle, after others of the call were written.
#[tokio::test]
async fn a_job_that_a_script_fails_at_fails_alone() {
    let Some(redis) = Redis::start().await else { return };
    let store = open(&redis).await;
    let store: &dyn Store = &store;
    let topics = ["pa", "pb", "pc"];
    let mut held = Vec::new();
    for name in topics {
        store.enqueue(vec![job_in(name, name)]).await.unwrap();
        held.extend(claim_of(store, name).await);
    }
    let leases = store.running_leases(held.iter().map(lease_ref).collect()).await.unwrap();
    let nacks = leases.into_iter().map(|lease| JobRequest::from(decide(&lease.unwrap(), failed())));
    redis.command(&["SET", "ringq:{s0}:more:pb", "no hash"]).await;
    let answers = store.apply(nacks.collect()).await;
    assert!(matches!(answers[..], [Ok(_), Err(Error::Corrupt(_)), Ok(_)]), "{answers:?}");
    for (name, state) in topics.into_iter().zip([State::Backoff, State::Running, State::Backoff]) {
        let job = one(store.get(vec![key(name, name)], false).await.unwrap());
        assert_eq!(job.unwrap().state, state, "{name}");
    }
}

/// A damaged lease does not keep the other leases of the file from ending.
#[tokio::test]
async fn a_lease_of_a_file_that_cannot_be_read_is_passed_over() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s0.db");
    let clock = ManualClock::new(Time(1_800_000_000_000_000));
    let database = sqlite::Database::File(path.clone());
    let config = sqlite::Config { name: name(), database, clock: Clock::Manual(clock.clone()) };
    let store = sqlite::SqliteStore::open(config).unwrap();
    let store: &dyn Store = &store;
    for id in ["sound", "broken", "behind"] {
        store.enqueue(vec![new_job(id)]).await.unwrap();
    }
    assert_eq!(claim(store).await.len(), 3);
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute("UPDATE jobs SET rank = 300 WHERE id = 'broken'", []).unwrap();
    clock.advance(Duration::from_secs(3_600));
    let reaped = store.overdue_leases(10).await.unwrap();
    let ids = reaped.leases.iter().map(|lease| lease.key.id.to_string());
    assert_eq!(ids.collect::<Vec<_>>(), ["sound", "behind"]);
}

/// A full store takes what ends a job, but nothing of an ack whose follow-ups have no room: its lease runs on.
#[tokio::test]
async fn an_ack_whose_follow_ups_have_no_room_is_refused_alone_and_whole() {
    let Some(redis) = Redis::start().await else { return };
    let store = open(&redis).await;
    let store: &dyn Store = &store;
    for id in ["before", "followed", "behind"] {
        store.enqueue(vec![new_job(id)]).await.unwrap();
    }
    let held = claim(store).await;
    let follow_ups = vec![new_job("follow-up").new_job()];
    let end = SettleAction::Ack { result: Some(text("done")), follow_ups };
    let followed = LeaseSettlement { action: end, ..ack(&held[1]) };
    let settle = async || -> Vec<Result<RequestResult>> {
        let settles = [ack(&held[0]), followed.clone(), ack(&held[2])];
        store.apply(settles.into_iter().map(JobRequest::from).collect()).await
    };
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let answers = settle().await;
    assert!(matches!(answers[..], [Ok(_), Err(Error::Full(_)), Ok(_)]), "{answers:?}");
    assert_eq!(state_of(store, "followed").await, Some(State::Running));
    assert_eq!(state_of(store, "follow-up").await, None);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let answers = settle().await.into_iter().map(|answer| answer.unwrap().settle_result().unwrap());
    let repeated: Vec<bool> = answers.map(|settled| settled.repeated).collect();
    assert_eq!(repeated, [true, false, true]);
    assert_eq!(state_of(store, "followed").await, Some(State::Succeeded));
    assert_eq!(state_of(store, "follow-up").await, Some(State::Ready));
}

fn name() -> ShardName {
    ShardName::try_new("s0").unwrap()
}

async fn open(redis: &Redis) -> redis::RedisStore {
    let address = redis::RedisAddress::try_new(&redis.url()).unwrap();
    let config = redis::Config { name: name(), address, clock: Clock::system(), owner: OWNER };
    redis::RedisStore::open(config).await.unwrap()
}

async fn claim(store: &dyn Store) -> Vec<LeasedJob> {
    claim_of(store, TOPIC).await
}

async fn claim_of(store: &dyn Store, name: &str) -> Vec<LeasedJob> {
    let asks = vec![TopicDemand { topic: topic(name), ageing: None, streams: vec![taker()] }];
    let claim = Claim { nonce: rand::random(), owner: OWNER, topics: asks };
    one(one(store.claim(claim).await.unwrap().topics).by_stream)
}

/// Due at once.
fn moved(id: &str) -> JobRequest {
    let due = Some(When::Now);
    JobReschedule { key: key(TOPIC, id), due, priority: None, deadline: None }.into()
}

fn with_result(leased: &LeasedJob) -> LeaseSettlement {
    let end = SettleAction::Ack { result: Some(text("done")), follow_ups: Vec::new() };
    LeaseSettlement { action: end, ..ack(leased) }
}

async fn state_of(store: &dyn Store, id: &str) -> Option<State> {
    one(store.get(vec![key(TOPIC, id)], false).await.unwrap()).map(|job| job.state)
}
