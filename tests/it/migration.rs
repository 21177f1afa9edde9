//! Files of former versions: a shard opens them, keeps their data and continues.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::store_calls::{LeaseSettlement, StoreCalls as _};
use ringq::clock::{Clock, ManualClock};
use ringq::domain::{JobId, JobKey, Payload, ShardName, State, Time, Token, TopicName};
use ringq::store::sqlite::{Config, Database, SqliteOpenError, SqliteStore};
use ringq::store::{
    Claim, LeaseRef, LeaseRefusal, SettleAction, StatsOptions, Store, StreamDemand, TopicDemand,
};

/// The schema of version 1. Once there is a later migration, this becomes a copy of it.
const VERSION_1: &str = include_str!("../../src/store/sqlite/migrations/0001_init.sql");
/// Jobs as version 1 wrote them: waiting, leased, in backoff with a checkpoint, acknowledged and kept, dead, with a
/// large payload, and leased with a waiting generation. `x'08011204626f6479'` is the text `body`.
const JOBS_OF_VERSION_1: &str = "
    INSERT INTO shard (name) VALUES ('s0');
    INSERT INTO topics (key, name, created, enqueued, succeeded, dead)
    VALUES (1, 'mail', 900000000, 7, 1, 1);
    INSERT INTO jobs (key, topic, id, phase, rank, due, failed, created, alarm, keep, bytes, large, next, finished,
                      token, owner, stream, lease, started, worker, life, attempts, payload)
    VALUES
    (1, 1, 'waiting', 0, 9, 950000000, 0, 950000000, NULL, 60000000, 4, 0, 0, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, x'08011204626f6479'),
    (2, 1, 'leased', 1, 9, 960000000, 0, 960000000, 1020000000, 60000000, 4, 0, 0, NULL,
     -2, 7, 1, 30000000, 990000000, 'w', NULL, NULL, x'08011204626f6479'),
    (3, 1, 'backoff', 0, 9, 1000000000, 1, 970000000, NULL, 60000000, 8, 0, 0, NULL,
     NULL, 7, 1, 30000000, 980000000, 'w',
     x'100118012080baa6d3032a017732026e6f4209fffffffffffffffd024a01135804',
     x'0a11080110808d81d30318808dd1d603220177', x'08011204626f6479'),
    (4, 1, 'acked', 2, 9, 960000000, 0, 960000000, 1050000000, 60000000, 4, 0, 0, 991000000,
     NULL, 7, 1, 30000000, 990000000, 'w', x'18012080e788d8032a01774209000000000000000401', NULL,
     x'08011204626f6479'),
    (5, 1, 'dead', 3, 9, 960000000, 1, 960000000, 2000000000, 0, 4, 0, 0, 991000000,
     NULL, 7, 1, 30000000, 990000000, 'w',
     x'100118012080e788d8032a017732026e6f420900000000000000050a', NULL, x'08011204626f6479'),
    (6, 1, 'large', 0, 9, 2000000000, 0, 980000000, NULL, 0, 4, 1, 0, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (7, 1, 'next', 1, 9, 970000000, 0, 970000000, 1020000000, 60000000, 4, 0, 1, NULL,
     7, 7, 1, 30000000, 990000000, 'w',
     x'080152171080e788d8032080e788d8032a0908809c9c3910042801', NULL, x'08011204626f6479');
    INSERT INTO bodies VALUES (12, x'08011204626f6479'), (15, x'08011204626f6479');
    UPDATE jobs SET checkpoint = 1 WHERE id = 'backoff';
    INSERT INTO checkpoints VALUES (3, x'0801120468616c66');
    UPDATE shard SET started = 990000000;
    PRAGMA user_version = 1;";
/// Time at which the file is opened.
const NOW: Time = Time(1_000_000_000);

const JOBS: [(&str, State); 7] = [
    ("waiting", State::Ready),
    ("leased", State::Running),
    ("backoff", State::Ready),
    ("acked", State::Succeeded),
    ("dead", State::Dead),
    ("large", State::Scheduled),
    ("next", State::Running),
];

fn write_version_1(path: &Path) {
    let file = rusqlite::Connection::open(path).unwrap();
    file.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    file.execute_batch(VERSION_1).unwrap();
    file.execute_batch(JOBS_OF_VERSION_1).unwrap();
}

/// Attempts to open a file: more than a process takes from fork to exec.
const COPIED_MAX: usize = 10_000;

fn open(path: &Path) -> Arc<dyn Store> {
    let name = ShardName::try_new("s0").unwrap();
    let (database, clock) = (Database::File(path.to_owned()), Clock::Manual(ManualClock::new(NOW)));
    let config = Config { name, database, clock };
    // A process that another test starts at this moment has a copy of the lock until it calls exec.
    let free = (0..COPIED_MAX).find_map(|_| match SqliteStore::open(config.clone()) {
        Err(SqliteOpenError::Locked(_)) => {
            std::thread::yield_now();
            None
        }
        opened => Some(opened.unwrap()),
    });
    Arc::new(free.expect("it is let go of"))
}

fn key(id: &str) -> JobKey {
    JobKey { topic: TopicName::stored("mail"), id: JobId::stored(id) }
}

fn ack(id: &str, token: Token) -> LeaseSettlement {
    let end = SettleAction::Ack { result: None, follow_ups: Vec::new() };
    LeaseSettlement {
        lease: LeaseRef { key: key(id), token },
        owner: 1,
        action: end,
        deadline: None,
    }
}

/// Leases all ready jobs; returns ids and tokens.
async fn claim(store: &dyn Store, nonce: u32) -> Vec<(String, Token)> {
    let taker = StreamDemand {
        stream: 1,
        worker_id: "w".into(),
        lease: Duration::from_secs(30),
        grace: None,
        jobs: 100,
        bytes: 1 << 20,
        oversize: true,
    };
    let asks =
        vec![TopicDemand { topic: TopicName::stored("mail"), ageing: None, streams: vec![taker] }];
    let claims = store.claim(Claim { nonce, owner: 8, topics: asks }).await.unwrap();
    let leased = claims.topics.into_iter().flat_map(|claimed| claimed.by_stream).flatten();
    leased.map(|leased| (leased.key.id.to_string(), leased.token)).collect()
}

#[tokio::test]
async fn a_file_of_version_1_keeps_its_jobs_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s0.db");
    write_version_1(&path);
    let store = open(&path);

    let found = store.get(JOBS.map(|(id, _)| key(id)).into(), true).await.unwrap();
    for (job, (id, state)) in found.into_iter().zip(JOBS) {
        let job = job.unwrap_or_else(|| panic!("{id} is lost"));
        assert_eq!(job.state, state, "{id}");
        let body = Payload { text: true, body: "body".into(), content_type: String::new() };
        assert_eq!(job.spec.payload, Some(body), "{id}");
        assert_eq!(job.attempts.len(), usize::from(id == "backoff"), "{id}");
        let half = Payload { text: true, body: "half".into(), content_type: String::new() };
        assert_eq!(job.checkpoint, Some(half).filter(|_| id == "backoff"), "{id}");
    }

    // The last leases are stored: they are live, or a repeat of their end is recognized.
    let settles = vec![
        ack("leased", Token(2_u64.wrapping_neg())),
        ack("acked", Token(4)),
        ack("dead", Token(5)),
        ack("next", Token(7)),
    ];
    let settled = store.settle(settles.clone()).await.unwrap();
    let repeated: Vec<_> = settled.into_iter().map(|s| s.map(|s| (s.repeated, s.state))).collect();
    let expected = [
        Ok((false, State::Succeeded)),
        Ok((true, State::Succeeded)),
        Err(LeaseRefusal::Stale),
        Ok((false, State::Ready)),
    ];
    assert_eq!(repeated, expected);

    // The jobs continue, and their earlier leases are stored beside the current ones.
    let leased = claim(&*store, 1).await;
    let ids: Vec<_> = leased.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["waiting", "next", "backoff"]);
    let repeats = store.settle(settles).await.unwrap();
    let repeated: Vec<_> = repeats.into_iter().map(|s| s.map(|s| (s.repeated, s.state))).collect();
    let done = Ok((true, State::Succeeded));
    assert_eq!(repeated, [done, done, Err(LeaseRefusal::Stale), Ok((true, State::Running))]);
    let acks = leased.iter().map(|(id, token)| ack(id, *token)).collect();
    for settled in store.settle(acks).await.unwrap() {
        assert_eq!(settled.map(|s| (s.repeated, s.state)), Ok((false, State::Succeeded)));
    }

    // Opened again there is nothing left to migrate.
    store.close().await;
    let store = open(&path);
    let stats =
        store.stats(vec![TopicName::stored("mail")], StatsOptions::default()).await.unwrap();
    let stats = stats[0].unwrap();
    assert_eq!((stats.scheduled, stats.dead, stats.running, stats.ready), (1, 1, 0, 0));
    assert_eq!((stats.succeeded_total, stats.enqueued_total), (6, 7));
}
