//! Limits of waiting jobs: the count and the write of a new job are one step.

use std::sync::Arc;

use crate::store_calls::{StoreCalls as _, TestJob, WriteResult};
use rand::prelude::*;
use ringq::domain::engine::{Command, NotWrittenReason};
use ringq::domain::{EnqueueOutcome, GroupName, JobId, OnConflict, Spec, State};
use ringq::store::{
    CarriedHistory, JobRequest, JobSum, LeavingJobs, RoomQuery, all_or_worst_error,
};

use super::fixture::Fixture;
use super::values::{
    RETENTION, TOPIC, after, dead_lettered, failed_for, job_in, key, new_job, released, topic,
};

/// Builds a job that is written only if at most this number of jobs waits with it.
fn limited(id: &str, max: u64) -> TestJob {
    TestJob { max_waiting: Some(max), ..new_job(id) }
}

fn in_group(group: &str, job: TestJob) -> TestJob {
    let group = GroupName::try_new(group).ok();
    TestJob { spec: Spec { group, ..job.spec }, ..job }
}

fn is_full(written: &WriteResult) -> bool {
    written.not_written == Some(NotWrittenReason::TopicFull)
}

async fn put_all(q: &Fixture, jobs: Vec<TestJob>) -> Vec<bool> {
    let written = q.store.enqueue(jobs).await.unwrap();
    written.iter().map(|written| !is_full(written)).collect()
}

async fn waiting(q: &Fixture, name: &str) -> u64 {
    let stats = q.stats(name).await;
    stats.scheduled + stats.ready + stats.backoff
}

/// Makes room as a server does; returns the ids of the evicted jobs.
async fn evict(q: &Fixture, jobs: usize, max: u64) -> Vec<String> {
    let new = JobSum { jobs: jobs as u64, bytes: 0 };
    let room = RoomQuery { new, max_waiting: Some(max), ..RoomQuery::default() };
    let oldest = q.store.oldest_waiting(topic(TOPIC), room).await.unwrap().unwrap().ids;
    let evict = Command::Evict { frees_bytes: false };
    let request = |id: &JobId| JobRequest::new(key(TOPIC, id.as_str()), evict.clone());
    let evicted = q.store.apply(oldest.iter().map(request).collect()).await;
    assert!(all_or_worst_error(evicted).unwrap().iter().all(|applied| applied.is_done()));
    oldest.iter().map(ToString::to_string).collect()
}

pub(crate) async fn a_full_topic_takes_no_job(q: Fixture) {
    let jobs = ["1", "2", "3", "4", "5"].map(|id| limited(id, 3));
    assert_eq!(put_all(&q, jobs.into()).await, [true, true, true, false, false]);
    assert_eq!((q.state("4").await, waiting(&q, TOPIC).await), (None, 3));
    assert!(is_full(&q.put(limited("6", 3)).await), "a call of one job, too");
    assert_eq!(q.stats(TOPIC).await.enqueued_total, 3, "what was not written is not counted");
    assert!(!is_full(&q.put(new_job("7")).await), "without a limit");
    assert!(is_full(&q.put(limited("8", 4)).await), "it counts for the others all the same");
    assert!(!is_full(&q.put(limited("8", 5)).await));
    assert!(is_full(&q.put(limited("9", 0)).await));
}

pub(crate) async fn a_topic_that_does_not_exist_has_room_for_its_limit(q: Fixture) {
    assert!(is_full(&q.put(limited("1", 0)).await));
    assert!(!is_full(&q.put(limited("1", 1)).await));
    assert!(is_full(&q.put(limited("2", 1)).await));
}

pub(crate) async fn a_job_that_leaves_makes_room_and_one_that_returns_takes_it(q: Fixture) {
    q.put(limited("1", 1)).await;
    let leased = q.claim_one().await;
    assert!(!is_full(&q.put(limited("2", 1)).await), "a running job does not wait");
    q.end(&leased, failed_for(60)).await;
    assert_eq!(waiting(&q, TOPIC).await, 2, "a retry is not held back");
    assert!(is_full(&q.put(limited("3", 2)).await));
    q.delete("1").await;
    assert!(!is_full(&q.put(limited("3", 2)).await));
    let leased = q.claim_one().await;
    q.end(&leased, released()).await;
    assert!(is_full(&q.put(limited("4", 2)).await));
    let leased = q.claim_one().await;
    q.ack(&leased).await;
    assert!(!is_full(&q.put(limited("4", 2)).await));
}

pub(crate) async fn a_request_that_adds_no_waiting_job_succeeds_in_a_full_topic(q: Fixture) {
    q.put(limited("waits", 1)).await;
    let again = |on_conflict| TestJob { on_conflict, ..limited("waits", 1) };
    for (on_conflict, outcome) in [
        (OnConflict::Keep, Some(EnqueueOutcome::Unchanged)),
        (OnConflict::Replace, Some(EnqueueOutcome::Replaced)),
        (OnConflict::Reschedule, Some(EnqueueOutcome::Rescheduled)),
        (OnConflict::Reject, None),
    ] {
        let written = q.put(again(on_conflict)).await;
        assert_eq!((written.outcome, written.not_written), (outcome, None), "{on_conflict:?}");
    }
    let leased = q.claim_one().await;
    q.put(limited("other", 1)).await;
    let deferred = q.put(again(OnConflict::Replace)).await;
    assert_eq!(deferred.outcome, Some(EnqueueOutcome::Deferred), "it waits behind a running job");
    q.ack(&leased).await;
}

pub(crate) async fn a_job_that_would_wait_again_needs_room(q: Fixture) {
    for (id, on_conflict) in [("dead", OnConflict::Reschedule), ("done", OnConflict::Replace)] {
        let kept = ringq::domain::RetentionRule::Record(RETENTION);
        let leased = q.run(TestJob { retention: kept, ..new_job(id) }).await;
        let _ = match id {
            "dead" => q.end(&leased, dead_lettered()).await,
            _ => q.ack(&leased).await,
        };
        let again = |max| TestJob { on_conflict, retention: kept, ..limited(id, max) };
        let before = q.state(id).await;
        assert!(is_full(&q.put(again(0)).await), "{id}");
        assert_eq!(q.state(id).await, before, "{id} is unchanged");
        assert!(!is_full(&q.put(again(1)).await), "{id}");
        assert_eq!(q.state(id).await, Some(State::Ready));
        q.delete(id).await;
    }
}

pub(crate) async fn every_waiting_job_counts_once(q: Fixture) {
    let retried = q.run(new_job("failed")).await;
    q.end(&retried, failed_for(60)).await;
    let grouped_retry = q.run(in_group("g", new_job("group-failed"))).await;
    q.end(&grouped_retry, failed_for(60)).await;
    q.put(TestJob { due: after(60), ..new_job("scheduled") }).await;
    q.put(TestJob { priority: Some(9), ..new_job("first") }).await;
    q.put(TestJob { priority: Some(5), due: after(9), ..new_job("later") }).await;
    for (n, group) in ["g", "g", "h"].iter().enumerate() {
        let job = TestJob { priority: Some(n as u8), ..new_job(&format!("grouped{n}")) };
        q.put(in_group(group, job)).await;
    }
    q.put_ids(&["1", "2", "3"]).await;
    // A gap in the line, for stores that have one.
    q.delete("2").await;
    assert_eq!(waiting(&q, TOPIC).await, 10);
    assert!(is_full(&q.put(limited("x", 10)).await));
    assert!(is_full(&q.put(in_group("new", limited("x", 10))).await));
    assert!(!is_full(&q.put(in_group("new", limited("x", 11))).await));
    assert!(is_full(&q.put(limited("y", 11)).await));
}

pub(crate) async fn topics_of_one_call_have_limits_of_their_own(q: Fixture) {
    let job = |name: &str, id: &str, max_waiting| TestJob { max_waiting, ..job_in(name, id) };
    let jobs = vec![
        job("a", "1", Some(1)),
        job("b", "1", None),
        job("a", "2", Some(1)),
        job("c", "1", Some(2)),
        job("b", "2", None),
        job("c", "1", Some(2)),
        job("c", "2", Some(2)),
        job("c", "3", Some(2)),
    ];
    let written = put_all(&q, jobs).await;
    assert_eq!(written, [true, true, false, true, true, true, true, false]);
    for (name, count) in [("a", 1), ("b", 2), ("c", 2)] {
        assert_eq!(waiting(&q, name).await, count, "{name}");
    }
}

pub(crate) async fn calls_at_once_never_exceed_a_limit(q: Fixture) {
    let q = Arc::new(q);
    let calls = (0..8).map(|call| {
        let q = Arc::clone(&q);
        tokio::spawn(async move {
            let mut written = 0;
            for n in 0..10 {
                let job = |at: usize| {
                    let id = format!("{call}-{n}-{at}");
                    // Also by the path of jobs whose ids may be in use.
                    let on_conflict = [OnConflict::Keep, OnConflict::Replace][at % 2];
                    TestJob { on_conflict, ..limited(&id, 100) }
                };
                written +=
                    put_all(&q, (0..5).map(job).collect()).await.iter().filter(|is| **is).count();
            }
            written
        })
    });
    let written = futures::future::join_all(calls).await;
    assert_eq!(written.into_iter().map(Result::unwrap).sum::<usize>(), 100);
    assert_eq!(waiting(&q, TOPIC).await, 100);
}

pub(crate) async fn a_limit_holds_whatever_happens_to_jobs(q: Fixture) {
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut leases, max) = (Vec::new(), 12);
    q.put(new_job("j0")).await;
    for step in 0..400 {
        match random.random_range(0..10) {
            0..5 => {
                let mut job = limited(&format!("j{}", random.random_range(0..40)), max);
                job.priority = random.random_bool(0.3).then(|| random.random_range(0..10));
                job.due = after(if random.random_bool(0.3) { 2 } else { 0 });
                job.expire = random.random_bool(0.2).then(|| after(random.random_range(1..9)));
                job.on_conflict = *[OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule]
                    .choose(&mut random)
                    .unwrap();
                if random.random_bool(0.4) {
                    let group = ["a", "b", "c"].choose(&mut random).unwrap();
                    job = in_group(group, job);
                }
                q.store.prune(1_000).await.unwrap();
                let before = waiting(&q, TOPIC).await;
                let had = q.state(job.key.id.as_str()).await;
                let waited = matches!(had, Some(State::Ready | State::Scheduled | State::Backoff));
                let written = q.put(job).await;
                let after = waiting(&q, TOPIC).await;
                assert!(after <= before.max(max), "step {step}: {after} wait");
                let adds = !waited && before >= max;
                assert!(!is_full(&written) || adds, "step {step}: it has room: {before} wait");
                assert!(after == before || after == before + 1 || after + 1 == before, "{step}");
            }
            5..7 => leases.extend(q.claim(random.random_range(1..4)).await),
            7 => {
                let Some(leased) = leases.pop() else { continue };
                let end = [failed_for(3), released(), dead_lettered()].choose(&mut random).cloned();
                let _ = q.end(&leased, end.unwrap()).await;
            }
            8 => {
                if let Some(leased) = leases.pop() {
                    q.ack(&leased).await;
                }
                q.delete(&format!("j{}", random.random_range(0..40))).await;
                leases.clear();
            }
            _ => q.sleep(1),
        }
    }
}

pub(crate) async fn the_oldest_jobs_of_the_lowest_priority_leave_first(q: Fixture) {
    for (id, priority, delay) in
        [("low2", 0, 2), ("low1", 0, 0), ("mid", 4, 0), ("high", 9, 0), ("low3", 0, 3)]
    {
        q.put(TestJob { priority: Some(priority), due: after(delay), ..new_job(id) }).await;
    }
    q.put(in_group("g", TestJob { due: after(1), ..new_job("grouped") })).await;
    q.put(in_group("g", TestJob { priority: Some(2), ..new_job("grouped-mid") })).await;
    assert_eq!(evict(&q, 1, 8).await, [""; 0], "there is room");
    assert_eq!(evict(&q, 1, 7).await, ["low1"]);
    assert_eq!(evict(&q, 3, 6).await, ["grouped", "low2", "low3"]);
    // Three wait; more than the limit are made room for all the same.
    assert_eq!(evict(&q, 5, 3).await, ["grouped-mid", "mid", "high"]);
    assert_eq!(waiting(&q, TOPIC).await, 0);
}

pub(crate) async fn an_evicted_job_is_expired_and_one_that_runs_stays(q: Fixture) {
    let kept = ringq::domain::RetentionRule::Record(RETENTION);
    q.put(TestJob { retention: kept, ..new_job("kept") }).await;
    let running = q.claim_one().await;
    assert_eq!(evict(&q, 1, 0).await, [""; 0], "nothing waits");
    let evicted = JobRequest::new(key(TOPIC, "kept"), Command::Evict { frees_bytes: false });
    let applied = all_or_worst_error(q.store.apply(vec![evicted]).await).unwrap();
    assert!(!applied[0].is_done(), "a job that has been claimed meanwhile stays");
    q.end(&running, released()).await;
    assert_eq!(evict(&q, 1, 1).await, ["kept"]);
    assert_eq!(q.state("kept").await, Some(State::Expired));
    q.sleep(RETENTION.as_secs());
    assert_eq!(q.state("kept").await, None);
}

pub(crate) async fn jobs_past_their_expire_time_leave_first_and_make_room(q: Fixture) {
    q.put(TestJob { expire: Some(after(1)), ..new_job("late") }).await;
    q.put(TestJob { priority: Some(1), ..new_job("other") }).await;
    q.sleep(2);
    // Until a prune they take room: a server prunes right away.
    q.store.prune(100).await.unwrap();
    assert!(!is_full(&q.put(limited("new", 2)).await));
    assert_eq!(waiting(&q, TOPIC).await, 2);
}

pub(crate) async fn a_limit_holds_for_the_jobs_that_have_it_alone(q: Fixture) {
    let free = |id: &str| new_job(id);
    let jobs = vec![limited("1", 1), free("2"), limited("3", 1), free("4")];
    assert_eq!(put_all(&q, jobs).await, [true, true, false, true]);
    let jobs = vec![free("5"), limited("6", 4), free("7"), limited("8", 6)];
    assert_eq!(put_all(&q, jobs).await, [true, false, true, true]);
    assert_eq!(waiting(&q, TOPIC).await, 6);
}

pub(crate) async fn room_is_made_again_and_again_without_a_claim(q: Fixture) {
    // More than a store looks at in one call, all of them due at once and in the order of their ids.
    const MAX: usize = 1_200;
    let ids = |range: std::ops::Range<usize>| range.map(|n| format!("{n:05}")).collect::<Vec<_>>();
    let put = async |range| {
        let jobs: Vec<TestJob> = ids(range).iter().map(|id| limited(id, MAX as u64)).collect();
        for part in jobs.chunks(400) {
            assert!(put_all(&q, part.to_vec()).await.iter().all(|is_written| *is_written));
        }
    };
    q.put(TestJob { priority: Some(9), ..new_job("first") }).await;
    let (mut oldest, mut next) = (0, MAX - 1);
    put(0..next).await;
    for round in 0..40 {
        let count = if round % 8 == 0 { 1 } else { 100 };
        assert_eq!(evict(&q, count, MAX as u64).await, ids(oldest..oldest + count), "{round}");
        oldest += count;
        put(next..next + count).await;
        next += count;
    }
    assert_eq!((q.state("first").await, waiting(&q, TOPIC).await), (Some(State::Ready), 1_200));
}

/// Whatever the numbers: either the new jobs are written after the jobs that are found have left, and no more wait than
/// before or than the limit allows, or none is found. A topic over its limit loses two for each new job at most.
pub(crate) async fn jobs_leave_for_jobs_that_are_written_then(q: Fixture) {
    let mut cases = 0;
    for (waits, new) in [0, 1, 2, 7, 40].into_iter().flat_map(|w| [1, 2, 7].map(|new| (w, new))) {
        for max in [1, 2, 7, 40].into_iter().filter(|max| *max >= new) {
            for in_groups in [false, true] {
                cases += 1;
                let name = format!("case{cases}");
                let job = |id: String, max_waiting| match in_groups {
                    true => in_group("g", TestJob { max_waiting, ..job_in(&name, &id) }),
                    false => TestJob { max_waiting, ..job_in(&name, &id) },
                };
                let old = (0..waits).map(|n| job(format!("{n:03}"), None)).collect();
                put_all(&q, old).await;
                let found = leaving(&q, &name, new, max).await;
                let what = format!("{waits} wait, {new} come, {max} may wait: {found:?}");
                let excess = (waits + new).saturating_sub(max);
                let goes = excess.min(2 * new).min(waits);
                let ids: Vec<String> = found.ids.iter().map(ToString::to_string).collect();
                let first: Vec<String> = (0..goes).map(|n| format!("{n:03}")).collect();
                assert_eq!((ids, found.is_over), (first, goes < excess), "{what}");
                let limit = if found.is_over { None } else { Some(max) };
                let jobs = (0..new).map(|n| job(format!("new{n}"), limit)).collect();
                assert!(put_all(&q, jobs).await.iter().all(|is_written| *is_written), "{what}");
                let now = waiting(&q, &name).await;
                assert_eq!(now, waits + new - goes, "{what}");
                assert!(now <= waits.max(max) && (now <= max || now + new == waits), "{what}");
            }
        }
    }
}

/// Finds the jobs that leave for new ones, and makes them leave.
async fn leaving(q: &Fixture, name: &str, new: u64, max: u64) -> LeavingJobs {
    let new = JobSum { jobs: new, bytes: 0 };
    let room = RoomQuery { new, max_waiting: Some(max), ..RoomQuery::default() };
    let found = q.store.oldest_waiting(topic(name), room).await.unwrap().unwrap();
    let evict =
        |id: &JobId| JobRequest::new(key(name, id.as_str()), Command::Evict { frees_bytes: false });
    let evicted = q.store.apply(found.ids.iter().map(evict).collect()).await;
    assert!(all_or_worst_error(evicted).unwrap().iter().all(|applied| applied.is_done()));
    found
}

pub(crate) async fn room_for_other_callers_is_made_only_down_to_the_limit(q: Fixture) {
    q.put_ids(&["1", "2", "3", "4", "5", "6", "7", "8"]).await;
    let found = async |max, others| {
        let new = JobSum { jobs: 1, bytes: 0 };
        let others = JobSum { jobs: others, bytes: 0 };
        let room = RoomQuery { new, max_waiting: Some(max), max_bytes: None, others };
        let found = q.store.oldest_waiting(topic(TOPIC), room).await.unwrap().unwrap();
        (found.ids.len(), found.is_over)
    };
    assert_eq!(found(9, 5).await, (0, false), "there is room");
    assert_eq!(found(8, 5).await, (6, false));
    assert_eq!(found(7, 5).await, (7, false));
    assert_eq!(found(7, 500).await, (8, false));
    assert_eq!(found(6, 5).await, (2, true), "each caller for itself");
    assert_eq!(found(0, 5).await, (2, true));
}

pub(crate) async fn a_job_that_returns_past_its_expire_time_needs_room(q: Fixture) {
    let job = |max| TestJob { on_conflict: OnConflict::Replace, ..limited("late", max) };
    let late = TestJob { expire: Some(after(1)), ..job(9) };
    q.put(late.clone()).await;
    q.put(TestJob { priority: Some(9), ..new_job("other") }).await;
    q.sleep(2);
    assert!(is_full(&q.put(job(1)).await));
    q.store.prune(100).await.unwrap();
    assert!(is_full(&q.put(job(1)).await));
    assert!(!is_full(&q.put(job(2)).await));
    // A claim takes a job that has expired out of the line, before a prune writes its end.
    q.delete("late").await;
    q.put(late).await;
    q.sleep(2);
    assert_eq!(q.claim_ids().await, ["other"]);
    assert!(!is_full(&q.put(limited("new", 1)).await));
    assert!(is_full(&q.put(job(1)).await));
    assert_eq!(waiting(&q, TOPIC).await, 1);
}

pub(crate) async fn a_refused_job_creates_no_topic(q: Fixture) {
    assert_eq!(put_all(&q, vec![limited("1", 0), limited("2", 0)]).await, [false, false]);
    let topics = async || q.store.topics(String::new(), None, 10).await.unwrap().len();
    assert_eq!(topics().await, 0);
    assert_eq!(put_all(&q, vec![limited("1", 0), new_job("2")]).await, [false, true]);
    assert_eq!((topics().await, q.stats(TOPIC).await.enqueued_total), (1, 1));
}

pub(crate) async fn jobs_of_a_call_arrive_and_count_in_their_order_whatever_their_limits(
    q: Fixture,
) {
    let jobs = vec![new_job("1"), limited("2", 9), new_job("3"), limited("4", 3), new_job("5")];
    assert_eq!(put_all(&q, jobs).await, [true, true, true, false, true]);
    assert_eq!(q.claim_ids().await, ["1", "2", "3", "5"]);
    // Also where the engine decides about each, as of a job that has been here before.
    let kept = ringq::domain::RetentionRule::Record(RETENTION);
    q.put(TestJob { retention: kept, ..new_job("dead") }).await;
    let leased = q.claim_one().await;
    q.end(&leased, dead_lettered()).await;
    let again = |max| TestJob { on_conflict: OnConflict::Reschedule, ..limited("dead", max) };
    let crashed = CarriedHistory { last_error: "it crashed".to_owned(), checkpoint: None };
    let history = crashed.boxed();
    let first = TestJob { history: history.clone(), ..limited("first", 1) };
    let second = TestJob { history, ..again(1) };
    assert_eq!(put_all(&q, vec![first, second]).await, [true, false]);
    assert_eq!(q.state("dead").await, Some(State::Dead));
}

pub(crate) async fn an_id_that_comes_again_is_decided_by_its_own_limit(q: Fixture) {
    let kept = ringq::domain::RetentionRule::Record(RETENTION);
    let job =
        |max| TestJob { on_conflict: OnConflict::Replace, retention: kept, ..limited("a", max) };
    for first in [0, 5] {
        q.put(TestJob { max_waiting: None, ..job(0) }).await;
        q.delete("a").await;
        let late = TestJob { expire: Some(after(0)), ..job(1) };
        let jobs = vec![late, job(first), job(1), limited("b", 1), job(0)];
        assert_eq!(put_all(&q, jobs).await, [true, first > 0, true, false, true], "{first}");
        assert_eq!((q.state("b").await, waiting(&q, TOPIC).await), (None, 1));
    }
    // More of them than a store tries again after a conflict with other servers.
    q.delete("a").await;
    let jobs = (0..20).flat_map(|n| [limited(&format!("c{n}"), 0), limited(&format!("c{n}"), 0)]);
    assert!(put_all(&q, jobs.collect()).await.iter().all(|is_written| !is_written));
    assert!(put_all(&q, (0..20).map(|_| job(0)).collect()).await.iter().all(|is| !is));
}
