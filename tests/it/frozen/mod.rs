//! Data of a former build in a Redis, byte by byte: this build must read it unchanged, and continue with it.
//!
//! `tests/fixtures/redis/format-<n>.txt` is the whole of a small store, as commands that redis-cli accepts, too. When
//! a new format is introduced, `RINGQ_BLESS=1 cargo test --test it -- frozen` writes its file; after that no file is
//! ever changed. Beside each the same store is filled anew, and both must answer and behave alike.

mod fill;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::store_calls::{JobReschedule, LeaseSettlement, RedriveBatch, StoreCalls as _};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{EnqueueOutcome, JobId, JobKey, State, Token, When};
use ringq::store::{
    Claim, LeaseRef, LeasedJob, ListQuery, RunningLease, SettleAction, TopicDemand,
    WritePrecondition,
};

use crate::conformance::values::{
    OWNER, TOPIC, ack, decide, failed, ids_of, key, new_job, one, released, taker, topic,
};
use crate::conformance::{Backend, Fixture};
use crate::harness::Redis;

/// The formats that builds have written and this one reads.
const FORMATS: [u32; 1] = [1];
const DUMP: &str = include_str!("dump.lua");
/// Every remaining job of the store, and its state.
const STATES: [(&str, State); 23] = [
    ("succeeded", State::Succeeded),
    ("tombstone", State::Succeeded),
    ("dead", State::Dead),
    ("cancelled", State::Cancelled),
    ("expired", State::Expired),
    ("backoff", State::Backoff),
    ("retried", State::Ready),
    ("second", State::Running),
    ("extended", State::Running),
    ("next", State::Running),
    ("own-lease", State::Running),
    ("leased", State::Running),
    ("delayed", State::Scheduled),
    ("was-delayed", State::Ready),
    ("urgent", State::Ready),
    ("expires", State::Ready),
    ("asked", State::Ready),
    ("trace", State::Ready),
    ("bytes", State::Ready),
    ("large", State::Ready),
    ("first", State::Ready),
    ("gap", State::Cancelled),
    ("last", State::Ready),
];

fn file(format: u32) -> PathBuf {
    let name = format!("tests/fixtures/redis/format-{format}.txt");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Splits a command into words. A quoted word has `\x00` for a byte that is no text.
fn words(line: &str) -> Vec<Vec<u8>> {
    let parts = line.split('"').enumerate();
    let words = parts.map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().map(|word| word.as_bytes().to_vec()).collect(),
        _ => vec![unescaped(part)],
    });
    words.collect::<Vec<_>>().concat()
}

fn unescaped(word: &str) -> Vec<u8> {
    let mut parts = word.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    bytes
}

/// Opens a store as a build of this format left it.
async fn frozen(redis: &Redis, format: u32) -> Fixture {
    let text = fs::read_to_string(file(format)).unwrap();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let answer = redis.command(&words(line)).await;
        assert!(!answer.starts_with('-'), "{line}: {answer}");
    }
    Fixture::found(Backend::Redis, &redis.url(), fill::end()).await
}

/// Opens the same store as this build writes it.
async fn fresh(redis: &Redis) -> Fixture {
    let q = Fixture::at(Backend::Redis, &redis.url()).await;
    fill::fill(&q).await;
    q
}

/// Reads everything that can be read of a store, except the tokens of leases, which are random.
async fn seen(q: &Fixture) -> Vec<String> {
    let mut seen = Vec::new();
    let keys = STATES.map(|(id, _)| key(TOPIC, id)).into_iter();
    let keys: Vec<JobKey> = keys.chain([key("other", "alone")]).collect();
    for job in q.store.get(keys, true).await.unwrap() {
        seen.push(format!("{job:#?}"));
    }
    for state in State::ALL {
        let list = ListQuery {
            topic: topic(TOPIC),
            state,
            group: None,
            full: true,
            limit: 100,
            after: None,
        };
        seen.push(format!("{:#?}", q.store.list(list).await.unwrap()));
    }
    let leases = leases(q).await.into_iter();
    let leases: Vec<_> = leases.map(|lease| RunningLease { token: Token(0), ..lease }).collect();
    seen.push(format!("{leases:#?}"));
    seen.push(format!("{:#?}", q.store.topics(String::new(), None, 10).await.unwrap()));
    seen.push(format!("{:#?}", (q.stats(TOPIC).await, q.stats("other").await)));
    seen.push(format!("{:#?}", q.store.info().await.unwrap().jobs));
    seen.push(format!("{:#?}", q.store.heartbeat(fill::beat()).await.unwrap()));
    seen
}

/// Returns the running leases, by id.
async fn leases(q: &Fixture) -> Vec<RunningLease> {
    let mut leases = q.store.orphaned_leases(Vec::new()).await.unwrap();
    leases.sort_by_key(|lease| lease.key.to_string());
    leases
}

/// Ends the lease of each running job and returns the results.
async fn settle_all(q: &Fixture) -> Vec<String> {
    let settles = leases(q).await.into_iter().map(|lease| match lease.key.id.as_str() {
        "own-lease" => decide(&lease, released()),
        "second" => decide(&lease, failed()),
        _ => LeaseSettlement {
            lease: LeaseRef { key: lease.key, token: lease.token },
            owner: lease.owner,
            action: SettleAction::Ack { result: None, follow_ups: Vec::new() },
            deadline: None,
        },
    });
    let settles: Vec<LeaseSettlement> = settles.collect();
    assert_eq!(settles.len(), 5);
    let mut results = Vec::new();
    // Twice: the ends of the leases are stored.
    for repeated in [false, true] {
        for (settled, settle) in q.store.settle(settles.clone()).await.unwrap().iter().zip(&settles)
        {
            let id = settle.lease.key.id.as_str();
            // No record of that one is left.
            if (id, repeated) != ("leased", true) {
                assert_eq!(settled.map(|settled| settled.repeated), Ok(repeated), "{id}");
            }
            results.push(format!("{id}: {settled:?}"));
        }
    }
    results
}

fn all_ended() -> RedriveBatch {
    RedriveBatch {
        topic: topic(TOPIC),
        ids: Vec::new(),
        states: State::ALL.into_iter().filter(|state| state.is_terminal()).collect(),
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        target: None,
        ttl: None,
        dry_run: false,
        deadline: None,
    }
}

/// Formats a delivery without its token.
fn describe(leased: &LeasedJob) -> String {
    format!("{:#?}", LeasedJob { token: Token(0), ..leased.clone() })
}

/// Ends and begins all jobs that it can, and returns the results.
async fn go_on(q: &Fixture) -> Vec<String> {
    let mut results = settle_all(q).await;
    // A repeated write is recognized.
    for job in [fill::asked(), new_job("tombstone")] {
        assert_eq!(q.put(job).await.outcome, Some(EnqueueOutcome::Unchanged));
    }
    // The claim that was given up takes nothing, whenever it arrives.
    let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: vec![taker()] }];
    let void = Claim { nonce: fill::VOID, owner: OWNER, topics: asks };
    assert_eq!(ids_of(&one(one(q.store.claim(void).await.unwrap().topics).by_stream)), [""; 0]);

    let taken = q.claim(100).await;
    let order = [
        "urgent",
        "next",
        "own-lease",
        "expires",
        "asked",
        "trace",
        "bytes",
        "large",
        "first",
        "last",
        "was-delayed",
        "retried",
    ];
    assert_eq!(ids_of(&taken), order);
    results.extend(taken.iter().map(describe));
    for settled in q.store.settle(taken.iter().map(ack).collect()).await.unwrap() {
        assert_eq!(settled.unwrap().state, State::Succeeded);
    }

    let reschedule = JobReschedule {
        key: key(TOPIC, "delayed"),
        due: Some(When::Now),
        priority: Some(1),
        deadline: None,
    };
    results.push(format!("{:#?}", q.store.reschedule(vec![reschedule]).await.unwrap()));
    let ids = ["dead", "expired", "succeeded", "tombstone"].map(JobId::stored).into();
    let (spacing, delay) = (Duration::ZERO, Duration::ZERO);
    let redrive =
        RedriveBatch { ids, spacing, delay, ttl: Some(Duration::from_secs(3_600)), ..all_ended() };
    results.push(format!("{:#?}", q.store.redrive(redrive).await.unwrap()));
    results.push(format!("{:?}", q.delete("backoff").await));
    let taken = q.claim(100).await;
    assert_eq!(ids_of(&taken), ["delayed", "succeeded", "dead", "expired"]);
    results.extend(taken.iter().map(describe));
    results.extend(seen(q).await);

    // Unsettled jobs come back, and expired records are removed.
    q.sleep(31);
    for lease in q.store.overdue_leases(10).await.unwrap().leases {
        results.push(format!("{:?}", q.settle(decide(&lease, LeaseEndCause::Expired)).await));
    }
    q.sleep(7_200);
    while q.store.prune(100).await.unwrap().pruned > 0 {}
    results.extend(seen(q).await);
    results
}

fn assert_same(frozen: &[String], fresh: &[String]) {
    for (frozen, fresh) in frozen.iter().zip(fresh) {
        assert!(frozen == fresh, "the frozen store answers\n{frozen}\nand should answer\n{fresh}");
    }
    assert_eq!(frozen.len(), fresh.len());
}

#[tokio::test]
async fn what_every_format_left_is_read_as_it_was_and_goes_on() {
    for format in FORMATS {
        let (Some(one), Some(other)) = (Redis::start().await, Redis::start().await) else { return };
        let (frozen, fresh) = (frozen(&one, format).await, fresh(&other).await);
        for (id, state) in STATES {
            assert_eq!(frozen.state(id).await, Some(state), "{id} of format {format}");
        }
        assert_same(&seen(&frozen).await, &seen(&fresh).await);
        // A server-made id is recognized.
        let repeated = frozen.put(fill::made(WritePrecondition::SameJob)).await;
        let unchanged = (Some(EnqueueOutcome::Unchanged), None);
        assert_eq!((repeated.outcome, repeated.not_written), unchanged, "format {format}");
        assert_same(&go_on(&frozen).await, &go_on(&fresh).await);
        let newest = FORMATS.last().unwrap().to_string();
        assert_eq!(one.command(&["HGET", "ringq:shard", "format"]).await, newest, "it is raised");
    }
}

#[tokio::test]
async fn the_format_of_this_build_is_frozen() {
    let Some(redis) = Redis::start().await else { return };
    fresh(&redis).await;
    let format = redis.command(&["HGET", "ringq:shard", "format"]).await;
    assert_eq!(format, FORMATS.last().unwrap().to_string(), "a new format: freeze it");
    let file = file(format.parse().unwrap());
    if file.exists() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "whether to write is no configuration")]
    let bless = std::env::var("RINGQ_BLESS").is_ok();
    assert!(bless, "{} is missing; RINGQ_BLESS=1 writes it", file.display());
    let head = format!(
        "# Format {format}: the store of tests/it/frozen/fill.rs, as the build wrote it with which the format came.\n\
         # It is never changed; its purpose is described in tests/it/frozen/mod.rs.\n"
    );
    fs::write(file, head + &redis.command(&["EVAL", DUMP, "0"]).await + "\n").unwrap();
}
