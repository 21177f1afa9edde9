//! Topics, their statistics, and the information of a shard.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::store_calls::{StoreCalls as _, TestJob};
use ringq::domain::ring::ShardState;
use ringq::domain::{OnConflict, limit};
use ringq::store::{RecordCounts, ShardTopicStats, StatsOptions};

use super::fixture::{Backend, Fixture};
use super::values::{
    TOPIC, after, dead_lettered, failed_for, job_in, new_job, plus, released, text, topic,
};

async fn names(q: &Fixture, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let found = q.store.topics(prefix.to_owned(), after.map(topic), limit).await.unwrap();
    found.into_iter().map(|topic| topic.name.to_string()).collect()
}

// === topics ===

/// However many ids it has, and whatever the state of its jobs.
pub(crate) async fn all_ids_of_a_topic_are_in_its_parts(q: Fixture) {
    q.put(job_in("other", "x")).await;
    for jobs in [0, 1, 2, 3, 7, 700] {
        let name = format!("t{jobs}");
        let all: Vec<String> = (0..jobs).map(|n| format!("id-{n:03}")).collect();
        for part in all.chunks(limit::CALL_JOBS_MAX) {
            let part = part.iter().map(|id| job_in(&name, id)).collect();
            q.store.enqueue(part).await.unwrap();
        }
        let (mut found, mut from, mut parts) = (BTreeSet::new(), None, 0);
        loop {
            let part = q.store.ids(topic(&name), from, 2).await.unwrap();
            found.extend(part.ids.into_iter().map(|id| id.to_string()));
            (from, parts) = (part.cursor, parts + 1);
            assert!(parts <= jobs + 1, "{jobs}: it does not end");
            if from.is_none() {
                break;
            }
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), all, "{jobs}");
    }
}

pub(crate) async fn topics_come_in_the_order_of_their_names(q: Fixture) {
    let all = ["Z", "a", "a.b", "a.c", "a:", "a_", "b"];
    for name in ["a.c", "b", "a", "Z", "a_", "a.b", "a:"] {
        q.put(job_in(name, "x")).await;
    }
    let mut sorted = all;
    sorted.sort_unstable();
    assert_eq!(names(&q, "", None, 100).await, sorted);
}

pub(crate) async fn topics_are_found_by_prefix_and_paged_by_name(q: Fixture) {
    for name in ["a", "ab", "ab.c", "abc", "aB", "b"] {
        q.put(job_in(name, "x")).await;
    }
    assert_eq!(names(&q, "ab", None, 100).await, ["ab", "ab.c", "abc"]);
    assert_eq!(names(&q, "ab", Some("ab"), 100).await, ["ab.c", "abc"]);
    assert_eq!(names(&q, "ab", Some("ab"), 1).await, ["ab.c"]);
    assert_eq!(names(&q, "", Some("ab.c"), 100).await, ["abc", "b"]);
    assert_eq!(names(&q, "", Some("aa"), 2).await, ["ab", "ab.c"], "after one that is none");
    assert!(names(&q, "x", None, 100).await.is_empty());
    assert!(names(&q, "a%", None, 100).await.is_empty());
    assert!(names(&q, "a", Some("b"), 100).await.is_empty());
}

pub(crate) async fn an_underscore_in_a_prefix_is_an_underscore(q: Fixture) {
    for name in ["a_b", "axb"] {
        q.put(job_in(name, "x")).await;
    }
    assert_eq!(names(&q, "a_", None, 100).await, ["a_b"]);
}

pub(crate) async fn a_topic_comes_to_be_with_its_first_job_and_stays(q: Fixture) {
    let created = q.now();
    let leased = q.running("a").await;
    q.sleep(5);
    q.ack(&leased).await;
    q.put(new_job("b")).await;
    q.delete("b").await;
    q.delete("b").await;
    let found = q.store.topics(String::new(), None, 10).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].name.as_str(), found[0].create_time), (TOPIC, created));
    assert_eq!(q.stats(TOPIC).await.create_time, created);
}

// === statistics ===

pub(crate) async fn a_topic_that_does_not_exist_has_no_numbers(q: Fixture) {
    q.put(new_job("a")).await;
    let stats =
        q.store.stats(vec![topic("nowhere"), topic(TOPIC)], StatsOptions::default()).await.unwrap();
    assert_eq!(stats[0], None);
    assert_eq!(stats[1].unwrap().ready, 1);
}

pub(crate) async fn numbers_follow_every_transition(q: Fixture) {
    let count = async || {
        let s = q.stats(TOPIC).await;
        (s.scheduled, s.ready, s.running, s.backoff, s.dead)
    };
    q.put_ids(&["a", "b", "c", "d"]).await;
    q.put(TestJob { due: after(10), ..new_job("e") }).await;
    assert_eq!(count().await, (1, 4, 0, 0, 0));
    let leased = q.claim(4).await;
    assert_eq!(count().await, (1, 0, 4, 0, 0));
    q.ack(&leased[0]).await;
    q.end(&leased[1], failed_for(20)).await;
    q.end(&leased[2], dead_lettered()).await;
    q.end(&leased[3], released()).await;
    assert_eq!(count().await, (1, 1, 0, 1, 1));
    q.sleep(10);
    assert_eq!(count().await, (0, 2, 0, 1, 1));
    q.sleep(10);
    assert_eq!(count().await, (0, 3, 0, 0, 1));
    q.delete("c").await;
    q.delete("e").await;
    assert_eq!(count().await, (0, 2, 0, 0, 0));
    q.claim_ids().await;
    assert_eq!(count().await, (0, 0, 2, 0, 0));
    q.delete("b").await;
    assert_eq!(count().await, (0, 0, 1, 0, 0));
}

pub(crate) async fn jobs_that_are_due_soon_are_counted_up_to_the_requested_time(q: Fixture) {
    let due_soon = async |secs| q.stats_due_within(TOPIC, Duration::from_secs(secs)).await.due_soon;
    q.put_ids(&["ready", "leased", "failed"]).await;
    for (id, secs, priority) in [("a", 10, 0), ("b", 20, 0), ("c", 20, 9), ("d", 3_600, 3)] {
        q.put(TestJob { due: after(secs), priority: Some(priority), ..new_job(id) }).await;
    }
    assert_eq!(
        (due_soon(0).await, due_soon(9).await, due_soon(10).await, due_soon(20).await),
        (0, 0, 1, 3)
    );
    let leased = q.claim(2).await;
    q.end(&leased[1], failed_for(15)).await;
    assert_eq!((due_soon(14).await, due_soon(15).await, due_soon(3_600).await), (1, 2, 5));
    q.sleep(10);
    let stats = q.stats_due_within(TOPIC, Duration::from_secs(5)).await;
    assert_eq!((stats.due_soon, stats.ready, stats.scheduled, stats.backoff), (1, 2, 3, 1));
    q.delete("b").await;
    assert_eq!((due_soon(5).await, due_soon(10).await), (1, 2));
}

pub(crate) async fn an_expired_job_is_in_no_number(q: Fixture) {
    q.put(TestJob { expire: Some(after(5)), ..new_job("ready") }).await;
    q.put(TestJob { due: after(60), expire: Some(after(5)), ..new_job("scheduled") }).await;
    q.sleep(5);
    let stats = q.stats(TOPIC).await;
    assert_eq!((stats.ready, stats.scheduled, stats.oldest_ready), (0, 0, None));
}

pub(crate) async fn kept_records_are_counted_if_that_is_asked_for(q: Fixture) {
    super::list::every_state(&q).await;
    for id in ["cancelled-2", "cancelled-3"] {
        q.put(TestJob { due: after(99), ..new_job(id) }).await;
        q.delete(id).await;
    }
    let kept = StatsOptions { kept: true, ..StatsOptions::default() };
    let topics = vec![topic(TOPIC), topic("nowhere"), topic("u")];
    let stats = q.store.stats(topics, kept).await.unwrap();
    let count = |s: ShardTopicStats| (s.succeeded, s.cancelled, s.expired);
    assert_eq!(stats[0].map(count), Some((1, 3, 1)));
    assert_eq!((stats[1], stats[2].map(count)), (None, Some((0, 0, 0))));
    let plain = q.stats(TOPIC).await;
    assert_eq!(count(plain), (0, 0, 0));
    let rest = ShardTopicStats { succeeded: 0, cancelled: 0, expired: 0, ..stats[0].unwrap() };
    assert_eq!(rest, plain, "the other numbers are the same");
    q.sleep(60);
    assert_eq!(
        q.store.stats(vec![topic(TOPIC)], kept).await.unwrap()[0].map(count),
        Some((0, 0, 0))
    );
}

pub(crate) async fn totals_only_rise(q: Fixture) {
    let totals = async || {
        let ShardTopicStats { enqueued_total, succeeded_total, dead_total, .. } =
            q.stats(TOPIC).await;
        (enqueued_total, succeeded_total, dead_total)
    };
    let leased = q.running("a").await;
    assert_eq!(totals().await, (1, 0, 0));
    q.ack(&leased).await;
    assert_eq!(totals().await, (1, 1, 0));
    q.put(new_job("a")).await;
    assert_eq!(totals().await, (1, 1, 0), "nothing was written");
    let leased = q.running("b").await;
    q.end(&leased, dead_lettered()).await;
    assert_eq!(totals().await, (2, 1, 1));
    q.put(TestJob { on_conflict: OnConflict::Replace, ..new_job("b") }).await;
    assert_eq!(totals().await, (3, 1, 1));
    q.delete("b").await;
    q.sleep(3600);
    q.store.prune(100).await.unwrap();
    assert_eq!(totals().await, (3, 1, 1));
}

pub(crate) async fn the_oldest_ready_job_is_the_one_that_became_due_first(q: Fixture) {
    q.put(TestJob { due: after(60), ..new_job("scheduled") }).await;
    assert_eq!(q.stats(TOPIC).await.oldest_ready, None);
    q.put(new_job("urgent-but-younger")).await;
    q.sleep(5);
    q.put(TestJob { priority: Some(9), ..new_job("a") }).await;
    q.clock.advance(Duration::from_micros(1));
    assert_eq!(q.stats(TOPIC).await.oldest_ready, Some(Duration::from_micros(5_000_001)));
    q.claim(2).await;
    assert_eq!(q.stats(TOPIC).await.oldest_ready, None);
    q.sleep(60);
    let oldest = q.stats(TOPIC).await.oldest_ready;
    assert_eq!(oldest, Some(Duration::from_micros(5_000_001)));
}

// === the shard ===

pub(crate) async fn a_shard_reports_what_it_is(q: Fixture) {
    let before = q.store.info().await.unwrap();
    assert_eq!((before.kind, before.jobs), (q.backend.kind(), 0));
    assert!(!q.store.identity().address.is_empty());
    q.put_ids(&["a", "b"]).await;
    q.put(job_in("u", "a")).await;
    let after = q.store.info().await.unwrap();
    assert_eq!(after.jobs, 3);
    assert!(after.bytes > 0);
}

pub(crate) async fn a_shard_reports_the_space_that_jobs_take(q: Fixture) {
    const JOBS: u64 = 32;
    const PAYLOAD: u64 = 64 << 10;
    let usage = async || q.store.usage().await.unwrap();
    let empty = usage().await;
    let job = |n: u64| {
        let mut job = new_job(&format!("n{n}"));
        job.spec.payload = Some(text(&"x".repeat(PAYLOAD as usize)));
        job
    };
    for first in (0..JOBS).step_by(8) {
        q.store.enqueue((first..first + 8).map(job).collect()).await.unwrap();
    }
    let full = usage().await;
    let expected = empty.bytes + JOBS * PAYLOAD..empty.bytes + 4 * JOBS * PAYLOAD;
    assert!(expected.contains(&full.bytes), "{empty:?} {full:?}");
    // Memory without a limit is full when the machine is.
    match (q.backend, full.max_bytes) {
        (Backend::SqliteFile, Some(max)) => assert!(max > full.bytes, "{full:?}"),
        (Backend::SqliteFile, None) => panic!("a file system has a size: {full:?}"),
        (_, max) => assert_eq!(max, None),
    }
    for n in 0..JOBS {
        q.delete(&format!("n{n}")).await;
    }
    q.sleep(2 * 86_400);
    q.store.prune(100).await.unwrap();
    // The log of a SQLite file keeps its size; Redis gives memory back later.
    if q.backend == Backend::SqliteMemory {
        assert!(usage().await.bytes < full.bytes - JOBS * PAYLOAD / 2, "{full:?}");
    }
}

pub(crate) async fn a_shard_counts_its_jobs_by_state(q: Fixture) {
    let content = async || {
        q.store.prune(100).await.unwrap();
        let info = q.store.info().await.unwrap();
        assert_eq!(info.jobs, info.counts.total(), "{info:?}");
        let RecordCounts { scheduled, ready, running, backoff, dead, finished, .. } = info.counts;
        [scheduled, ready, running, backoff, dead, finished]
    };
    assert_eq!(content().await, [0; 6]);
    q.put_ids(&["a", "b", "c", "d"]).await;
    q.put(TestJob { due: after(10), priority: Some(9), ..job_in("u", "e") }).await;
    assert_eq!(content().await, [1, 4, 0, 0, 0, 0]);
    let leased = q.claim(4).await;
    assert_eq!(content().await, [1, 0, 4, 0, 0, 0]);
    q.ack(&leased[0]).await;
    q.end(&leased[1], failed_for(20)).await;
    q.end(&leased[2], dead_lettered()).await;
    assert_eq!(content().await, [1, 0, 1, 1, 1, 1]);
    q.delete("d").await;
    assert_eq!(content().await, [1, 0, 0, 1, 1, 2], "cancelled jobs are finished ones");
    q.put(TestJob { expire: Some(after(5)), ..new_job("f") }).await;
    q.sleep(5);
    assert_eq!(content().await, [1, 0, 0, 1, 1, 3], "expired ones too");
    q.sleep(15);
    assert_eq!(content().await, [0, 2, 0, 0, 1, 3]);
    q.sleep(60);
    assert_eq!(content().await, [0, 2, 0, 0, 1, 0], "tombstones go by themselves");
}

pub(crate) async fn a_shard_counts_the_jobs_of_all_its_topics(q: Fixture) {
    const TOPICS: u64 = 300;
    let job = |n| job_in(&format!("t{n:03}"), "a");
    q.store.enqueue((0..TOPICS).map(job).collect()).await.unwrap();
    let last = TestJob { due: after(TOPICS), ..job(150) };
    q.put(TestJob { on_conflict: OnConflict::Replace, ..last }).await;
    let info = q.store.info().await.unwrap();
    let content = RecordCounts {
        ready: TOPICS - 1,
        scheduled: 1,
        latest_due: Some(plus(q.now(), TOPICS)),
        ..RecordCounts::default()
    };
    assert_eq!((info.jobs, info.counts), (TOPICS, content));
}

pub(crate) async fn a_shard_states_until_when_jobs_stay(q: Fixture) {
    let stay = async || {
        let content = q.store.info().await.unwrap().counts;
        (content.latest_due, content.latest_forget)
    };
    q.put_ids(&["a", "b"]).await;
    assert_eq!(stay().await, (None, None), "what is ready may be gone at once");
    let begin = q.now();
    q.put(TestJob { due: after(100), ..new_job("later") }).await;
    q.put(TestJob { due: after(50), priority: Some(9), ..job_in("u", "soon") }).await;
    assert_eq!(stay().await, (Some(plus(begin, 100)), None));
    let leased = q.claim(2).await;
    q.end(&leased[0], failed_for(200)).await;
    assert_eq!(stay().await, (Some(plus(begin, 200)), None));
    q.ack(&leased[1]).await;
    assert_eq!(stay().await, (Some(plus(begin, 200)), Some(plus(begin, 60))));
    q.put(TestJob { expire: Some(after(5_000)), ..new_job("expires") }).await;
    assert_eq!(stay().await.1, Some(plus(begin, 60)), "an expire time is none of a kept job");
    let leased = q.run(job_in("v", "dead")).await;
    q.end(&leased, dead_lettered()).await;
    assert_eq!(stay().await.1, Some(plus(begin, 14 * 86_400)));
    q.sleep(200);
    assert_eq!(stay().await, (None, Some(plus(begin, 14 * 86_400))));
}

pub(crate) async fn a_kept_job_is_found_behind_many_that_expire_later(q: Fixture) {
    let leased = q.running("kept").await;
    q.ack(&leased).await;
    let forget = plus(q.now(), 60);
    let job = |n: u64| TestJob { expire: Some(after(100 + n)), ..new_job(&format!("j{n}")) };
    q.store.enqueue((0..1_000).map(job).collect()).await.unwrap();
    assert_eq!(q.store.info().await.unwrap().counts.latest_forget, Some(forget));
}

pub(crate) async fn a_shard_states_whether_it_takes_new_jobs(q: Fixture) {
    let state = async || q.store.info().await.unwrap().state;
    assert_eq!(state().await, None, "no state was set yet");
    for set in [ShardState::Draining, ShardState::Draining, ShardState::Active] {
        q.store.set_state(set, None).await.unwrap();
        assert_eq!(state().await, Some(set));
    }
}

pub(crate) async fn a_store_states_what_a_write_reaches(q: Fixture) {
    let expected = q.backend.durability();
    assert_eq!(q.store.write_durability().by_default, expected);
    assert_eq!(q.put(new_job("a")).await.durability, expected);
    assert_eq!(q.put(new_job("a")).await.durability, expected, "also unchanged");
}
