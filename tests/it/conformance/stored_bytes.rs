//! Bytes that the topics of a shard take: an estimate, for quotas.

use std::time::Duration;

use crate::store_calls::{LeaseSettlement, StoreCalls as _, TestJob};
use rand::prelude::*;
use ringq::domain::{
    CrashTopic, GroupName, OnConflict, Payload, RetentionRule, RetryOverrides, Spec, limit,
};
use ringq::store::{LeasedJob, SettleAction, StatsOptions};

use super::fixture::{Backend, Fixture};
use super::values::{
    OWNER, RETENTION, TOPIC, dead_lettered, failed_for, job_in, lease_ref, new_job, one, text,
    topic,
};

/// Bytes of a large part of a job.
const LARGE: u64 = 100_000;

impl Fixture {
    /// Returns the stored bytes of a topic.
    async fn stored(&self, name: &str) -> u64 {
        let options = StatsOptions { stored_bytes: true, ..StatsOptions::default() };
        let stats = one(self.store.stats(vec![topic(name)], options).await.unwrap());
        stats.map_or(0, |stats| stats.stored_bytes.expect("the store knows it"))
    }

    /// Enqueues jobs with payloads of these sizes.
    async fn put_sizes(&self, name: &str, sizes: &[usize]) {
        let job = |(n, size): (usize, &usize)| with_bytes(name, &id(n), *size);
        let jobs: Vec<_> = sizes.iter().enumerate().map(job).collect();
        for part in jobs.chunks(100) {
            self.store.enqueue(part.to_vec()).await.unwrap();
        }
    }

    /// Acks a lease with a large result.
    async fn ack_with_result(&self, leased: &LeasedJob) {
        let result = Some(text(&"r".repeat(LARGE as usize)));
        let action = SettleAction::Ack { result, follow_ups: Vec::new() };
        let ack =
            LeaseSettlement { lease: lease_ref(leased), owner: OWNER, action, deadline: None };
        self.settle(ack).await.unwrap();
    }
}

/// Returns an id as long as those that servers make.
fn id(n: usize) -> String {
    format!("{n:036}")
}

fn with_bytes(name: &str, id: &str, size: usize) -> TestJob {
    let mut job = job_in(name, id);
    job.spec.payload = Some(text(&"x".repeat(size)));
    job
}

/// Returns sizes of payloads from 10 to 10,000 bytes, in a mixed order.
fn mixed(jobs: usize) -> Vec<usize> {
    (0..jobs).map(|n| 10 + n * 7_919 % 9_991).collect()
}

/// Bytes that jobs with these payloads should take.
fn sum(sizes: &[usize]) -> u64 {
    sizes.iter().map(|size| *size as u64 + limit::STORED_JOB_BYTES).sum()
}

/// Checks that a number is what was expected, from `less` to `more` per cent of it.
#[track_caller]
fn assert_about(found: u64, expected: u64, (less, more): (u64, u64)) {
    let range = expected * less / 100..=expected * more / 100;
    assert!(range.contains(&found), "{found} bytes, {expected} expected");
}

/// Up to [`limit::CALL_LOOKS_MAX`] jobs are measured one by one.
pub(crate) async fn few_jobs_take_their_bytes_and_those_of_their_records(q: Fixture) {
    for (name, sizes, range) in [
        ("equal", vec![100; 1_000], (75, 130)),
        // Records take a little less than the average where a shard has few.
        ("tiny", vec![10; 10], (55, 130)),
        ("mixed", mixed(1_000), (90, 125)),
        ("large", [vec![100; 50], vec![LARGE as usize; 5]].concat(), (90, 125)),
    ] {
        q.put_sizes(name, &sizes).await;
        assert_about(q.stored(name).await, sum(&sizes), range);
    }
}

pub(crate) async fn many_jobs_are_estimated(q: Fixture) {
    let sizes = mixed(4_500);
    q.put_sizes(TOPIC, &sizes).await;
    assert_about(q.stored(TOPIC).await, sum(&sizes), (75, 145));
}

pub(crate) async fn topics_are_counted_apart_and_only_if_that_is_asked_for(q: Fixture) {
    q.put_sizes("a", &[10_000; 10]).await;
    q.put_sizes("b", &[1_000; 10]).await;
    let options = StatsOptions { stored_bytes: true, ..StatsOptions::default() };
    let names = ["b", "nowhere", "a"].map(topic).to_vec();
    let stats = q.store.stats(names.clone(), options).await.unwrap();
    let bytes = |n: usize| stats[n].unwrap().stored_bytes.unwrap();
    assert_eq!(stats[1], None);
    assert_about(bytes(0), sum(&[1_000; 10]), (75, 130));
    assert_about(bytes(2), sum(&[10_000; 10]), (75, 130));
    assert_eq!(stats[2].unwrap().ready, 10, "all other numbers are there, too");
    let stats = q.store.stats(names, StatsOptions::default()).await.unwrap();
    assert_eq!(stats[0].unwrap().stored_bytes, None);
}

/// Each part is as large as ten other jobs.
pub(crate) async fn all_parts_of_a_job_count_and_go_with_it(q: Fixture) {
    let grown = async |before: u64, what: &str| {
        let now = q.stored(TOPIC).await;
        let range = before + LARGE * 95 / 100..before + LARGE * 140 / 100;
        assert!(range.contains(&now), "{what}: {before} before, {now} now");
        now
    };
    let retention = RetentionRule::Record(RETENTION);
    let job = TestJob { retention, ..with_bytes(TOPIC, "a", LARGE as usize) };
    let leased = q.run(job.clone()).await;
    let stored = grown(0, "payload").await;
    q.save(&leased, &"c".repeat(LARGE as usize)).await.unwrap();
    let stored = grown(stored, "checkpoint").await;
    q.put(TestJob { on_conflict: OnConflict::Replace, ..job.clone() }).await;
    let with_next = grown(stored, "payload of the generation that waits").await;
    q.end(&leased, failed_for(0)).await;
    let stored = q.stored(TOPIC).await;
    assert!(stored < with_next - LARGE, "one payload and the checkpoint have gone: {stored}");
    let leased = q.claim_one().await;
    q.ack_with_result(&leased).await;
    grown(stored, "result").await;
    q.delete("a").await;
    assert_about(q.stored(TOPIC).await, 0, (0, 0));
}

/// Each field whose size a client chooses counts with what it takes: a random job of every field, beside one of the same
/// kind with hardly anything in it.
pub(crate) async fn a_job_of_every_field_counts_whole(q: Fixture) {
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..8 {
        let mut filled = 0;
        let mut fill = |random: &mut StdRng, max: usize| {
            let size = random.random_range(max / 2..=max);
            filled += size as u64;
            "f".repeat(size)
        };
        let (large, small) = (format!("large{round}"), format!("small{round}"));
        let base = |name: &str, id: &str| {
            let plain = job_in(name, id);
            let group = GroupName::try_new("g").ok();
            TestJob { spec: Spec { group, payload: Some(text("")), ..plain.spec }, ..plain }
        };
        let id = fill(&mut random, 128);
        let mut job = base(&large, &id);
        // The index has it, too.
        let ids = id.len() as u64;
        // Below and above what lies apart.
        let body = fill(&mut random, if round % 2 == 0 { 500 } else { 20_000 });
        let content_type = fill(&mut random, 255);
        job.spec.payload = Some(Payload { content_type, ..text(&body) });
        job.spec.headers = (0..8).map(|n| (format!("h{n}"), fill(&mut random, 1_000))).collect();
        job.spec.group = GroupName::try_new(&fill(&mut random, 64)).ok();
        let delays = vec![Duration::from_micros(315_360_000_000_001); 100];
        let crash_topic = Some(CrashTopic::stored(&fill(&mut random, 100)));
        job.spec.retry = RetryOverrides { delays, crash_topic, ..Default::default() }.boxed();
        // A wait of this length takes seven bytes.
        let filled = filled + ids + 7 * 100;
        q.put(base(&small, "s")).await;
        q.put(job).await;
        let counted = q.stored(&large).await - q.stored(&small).await;
        // A Redis rounds sizes up, and takes more for each key and entry that is not tiny.
        let is_sqlite = matches!(q.backend, Backend::SqliteFile | Backend::SqliteMemory);
        let most = if is_sqlite { 105 } else { 160 };
        assert_about(counted, filled, (95, most));
    }
}

pub(crate) async fn errors_of_attempts_count(q: Fixture) {
    let leased = q.running("a").await;
    let before = q.stored(TOPIC).await;
    q.end(&leased, dead_lettered()).await;
    let after = q.stored(TOPIC).await;
    assert!(after + 200 > before && after < before + 1_000, "{before} {after}");
}

pub(crate) async fn a_topic_whose_jobs_are_done_takes_almost_nothing(q: Fixture) {
    let sizes = [5_000; 100];
    q.put_sizes(TOPIC, &sizes).await;
    assert_about(q.stored(TOPIC).await, sum(&sizes), (75, 130));
    let leased = q.claim(50).await;
    assert_about(q.stored(TOPIC).await, sum(&sizes), (75, 135));
    for lease in &leased {
        q.ack(lease).await;
    }
    // Tombstones stay a while.
    let tombstones = 50 * limit::STORED_JOB_BYTES;
    assert_about(q.stored(TOPIC).await, sum(&sizes[..50]) + tombstones, (70, 130));
    for n in 50..100 {
        q.delete(&id(n)).await;
    }
    assert!(q.stored(TOPIC).await < 3 * tombstones, "{}", q.stored(TOPIC).await);
    q.sleep(limit::TOMBSTONE.as_secs());
    q.store.prune(1_000).await.unwrap();
    // A deleted job may leave its place in an order, until a claim comes there.
    assert!(q.stored(TOPIC).await <= 50 * 64, "{}", q.stored(TOPIC).await);
    assert!(q.claim(1).await.is_empty());
    assert_eq!(q.stored(TOPIC).await, 0);
    q.put(new_job("next")).await;
    assert!(q.stored(TOPIC).await < 1_000, "the estimate follows");
}
