//! Limits of the bytes of stored jobs: the count and the write of a new job are one step, and a job gives its bytes back
//! when it leaves, in whichever way.

use std::sync::Arc;
use std::time::Duration;

use crate::store_calls::{LeaseSettlement, RedriveBatch, StoreCalls as _, TestJob, WriteResult};
use rand::prelude::*;
use ringq::domain::engine::{Command, NotWrittenReason};
use ringq::domain::{
    GroupName, JobId, OnConflict, Payload, RetentionRule, Spec, State, TopicName, When,
};
use ringq::store::{JobRequest, JobSum, LeasedJob, RoomQuery, SettleAction, all_or_worst_error};

use super::fixture::Fixture;
use super::values::{
    OWNER, RETENTION, TOPIC, ack, after, dead_lettered, failed_for, job_in, key, lease_ref,
    released, topic,
};

const KEEP: RetentionRule = RetentionRule::Record(RETENTION);

/// Builds a job with a payload of this size, which is counted without a limit.
fn sized(id: &str, bytes: usize) -> TestJob {
    let payload =
        Payload { text: true, body: "x".repeat(bytes).into(), content_type: String::new() };
    let spec = Spec { payload: Some(payload), ..Spec::default() };
    let retention = RetentionRule::Nothing;
    TestJob { spec, retention, max_bytes: Some(u64::MAX), ..job_in(TOPIC, id) }
}

/// Builds a job that is written only if the topic then has at most `max` bytes.
fn limited(id: &str, bytes: usize, max: u64) -> TestJob {
    TestJob { max_bytes: Some(max), ..sized(id, bytes) }
}

fn in_group(group: &str, job: TestJob) -> TestJob {
    let group = GroupName::try_new(group).ok();
    TestJob { spec: Spec { group, ..job.spec }, ..job }
}

fn is_full(written: &WriteResult) -> bool {
    written.not_written == Some(NotWrittenReason::TopicFull)
}

/// Checks that the store counts exactly this number of bytes: one more does not fit below a limit that all of them reach.
async fn assert_counted(q: &Fixture, name: &str, bytes: u64, what: &str) {
    let probe = |max| TestJob { key: key(name, "probe"), ..limited("probe", 1, max) };
    assert!(is_full(&q.put(probe(bytes)).await), "{what}: fewer than {bytes} are counted");
    assert!(!is_full(&q.put(probe(bytes + 1)).await), "{what}: more than {bytes} are counted");
    q.store.delete(vec![key(name, "probe").into()]).await.unwrap();
}

/// Makes room as a server does, if it can be made; returns the ids of the evicted jobs.
async fn evict(q: &Fixture, room: RoomQuery) -> Vec<String> {
    let Some(oldest) = q.store.oldest_waiting(topic(TOPIC), room).await.unwrap() else {
        return vec!["in vain".to_owned()];
    };
    let oldest = oldest.ids;
    let evict = Command::Evict { frees_bytes: true };
    let request = |id: &JobId| JobRequest::new(key(TOPIC, id.as_str()), evict.clone());
    let evicted = q.store.apply(oldest.iter().map(request).collect()).await;
    assert!(all_or_worst_error(evicted).unwrap().iter().all(|applied| applied.is_done()));
    oldest.iter().map(ToString::to_string).collect()
}

fn room_for(bytes: u64, max: u64) -> RoomQuery {
    RoomQuery { new: JobSum { jobs: 1, bytes }, max_bytes: Some(max), ..RoomQuery::default() }
}

pub(crate) async fn a_topic_without_room_for_the_bytes_takes_no_job(q: Fixture) {
    assert!(is_full(&q.put(limited("1", 11, 10)).await), "also one that does not exist");
    assert!(!is_full(&q.put(limited("1", 10, 10)).await));
    assert!(is_full(&q.put(limited("2", 1, 10)).await), "a call of one job");
    assert!(!is_full(&q.put(limited("2", 0, 10)).await), "a job without bytes needs no room");
    let jobs = [("3", 40), ("4", 60), ("5", 40), ("6", 41), ("7", 9), ("8", 2)];
    let jobs = jobs.map(|(id, bytes)| limited(id, bytes, 100)).into();
    let written: Vec<_> = q.store.enqueue(jobs).await.unwrap().iter().map(is_full).collect();
    assert_eq!(written, [false, true, false, true, false, true], "each that fits is written");
    assert_eq!(q.stats(TOPIC).await.enqueued_total, 5);
    assert_counted(&q, TOPIC, 99, "after all").await;
}

pub(crate) async fn a_job_without_a_limit_counts_for_the_others(q: Fixture) {
    q.put(sized("1", 700)).await;
    q.put(TestJob { due: after(60), priority: Some(3), ..sized("2", 20) }).await;
    q.put(in_group("g", sized("3", 3))).await;
    assert_counted(&q, TOPIC, 723, "three jobs").await;
    q.store.enqueue(vec![sized("4", 1_000), sized("5", 2_000), sized("4", 5)]).await.unwrap();
    assert_counted(&q, TOPIC, 3_723, "and two more in one call").await;
}

pub(crate) async fn bytes_leave_with_the_job_however_it_ends(q: Fixture) {
    type End = fn(TestJob) -> TestJob;
    let shapes: [(&str, End); 6] = [
        ("plain", |job| job),
        ("tombstone", |job| TestJob { retention: RetentionRule::Tombstone(RETENTION), ..job }),
        ("grouped", |job| in_group("g", job)),
        ("first", |job| TestJob { priority: Some(9), ..job }),
        ("late", |job| TestJob { expire: Some(after(3_600)), ..job }),
        ("retried", |job| TestJob { request_code: Some(77 << 24), ..job }),
    ];
    for (shape, build) in shapes {
        for (end, bytes) in [("ack", 10), ("acks", 600), ("crash", 20), ("delete", 30), ("both", 7)]
        {
            let what = format!("{shape}, {end}");
            let id = format!("{shape}-{end}");
            q.put(build(sized(&id, bytes))).await;
            assert_counted(&q, TOPIC, bytes as u64, &what).await;
            match end {
                "ack" => _ = q.ack(&q.claim_one().await).await,
                "acks" => {
                    q.put(build(sized(&format!("{id}2"), bytes))).await;
                    let leased = q.claim(2).await;
                    let settled = q.store.settle(leased.iter().map(ack).collect()).await.unwrap();
                    assert!(settled.iter().all(Result::is_ok), "{what}");
                }
                "crash" => {
                    q.end(&q.claim_one().await, failed_for(0)).await;
                    assert_counted(&q, TOPIC, bytes as u64, &what).await;
                    q.ack(&q.claim_one().await).await;
                }
                "delete" => _ = q.delete(&id).await,
                _ => {
                    let leased = q.claim_one().await;
                    q.delete(&id).await;
                    let _ = q.settle(ack(&leased)).await;
                }
            }
            assert_counted(&q, TOPIC, 0, &what).await;
        }
    }
}

pub(crate) async fn a_record_that_is_kept_keeps_its_bytes(q: Fixture) {
    q.put(TestJob { retention: KEEP, ..sized("done", 100) }).await;
    q.ack(&q.claim_one().await).await;
    assert_counted(&q, TOPIC, 100, "a record").await;
    q.put(sized("dead", 1_000)).await;
    q.end(&q.claim_one().await, dead_lettered()).await;
    assert_counted(&q, TOPIC, 1_100, "and a dead letter").await;
    q.put(TestJob { expire: Some(after(1)), retention: KEEP, ..sized("late", 10) }).await;
    q.sleep(2);
    q.store.prune(100).await.unwrap();
    assert_counted(&q, TOPIC, 1_110, "and an expired job").await;
    q.delete("dead").await;
    assert_counted(&q, TOPIC, 110, "the dead letter is deleted").await;
    q.sleep(RETENTION.as_secs());
    q.store.prune(100).await.unwrap();
    assert_counted(&q, TOPIC, 0, "the retention is over").await;
}

pub(crate) async fn a_job_that_changes_counts_as_it_is(q: Fixture) {
    q.put(sized("1", 100)).await;
    let replaced =
        |bytes, max| TestJob { on_conflict: OnConflict::Replace, ..limited("1", bytes, max) };
    assert!(is_full(&q.put(replaced(201, 200)).await), "it needs room for what it grows by");
    assert_counted(&q, TOPIC, 100, "unchanged").await;
    assert!(!is_full(&q.put(replaced(200, 200)).await));
    assert!(!is_full(&q.put(replaced(150, 100)).await), "a smaller one needs none");
    assert_counted(&q, TOPIC, 150, "replaced").await;
    let leased = q.claim_one().await;
    q.save(&leased, "a checkpoint").await.unwrap();
    assert_counted(&q, TOPIC, 162, "with a checkpoint").await;
    q.save(&leased, "short").await.unwrap();
    assert_counted(&q, TOPIC, 155, "with another one").await;
    q.put(replaced(1_000, u64::MAX)).await;
    assert_counted(&q, TOPIC, 155, "a generation waits behind it").await;
    q.ack(&leased).await;
    let leased = q.claim_one().await;
    let bytes = 1_000 + leased.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.body.len());
    assert_counted(&q, TOPIC, bytes as u64, "the generation runs").await;
    q.ack(&leased).await;
    assert_counted(&q, TOPIC, 0, "all is done").await;
}

pub(crate) async fn a_job_that_moves_takes_its_bytes_along(q: Fixture) {
    q.put(sized("1", 600)).await;
    q.end(&q.claim_one().await, dead_lettered()).await;
    q.put(TestJob { key: key("other", "2"), ..sized("2", 10) }).await;
    let redrive = |from: &str, to: &str| RedriveBatch {
        topic: topic(from),
        ids: vec![JobId::stored("1")],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        states: vec![State::Dead],
        target: Some(topic(to)),
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    assert_eq!(q.store.redrive(redrive(TOPIC, "other")).await.unwrap().redriven, 1);
    assert_counted(&q, TOPIC, 0, "the source").await;
    assert_counted(&q, "other", 610, "the target").await;
    // A job that was not counted is, once it comes to a topic that counts.
    q.put(TestJob { max_bytes: None, key: key("plain", "1"), ..sized("1", 5) }).await;
    let taker = vec![super::values::taker()];
    let leased = super::values::one(q.claim_for("plain", taker).await.by_stream).remove(0);
    q.end(&leased, dead_lettered()).await;
    q.store.delete(vec![key("other", "1").into()]).await.unwrap();
    assert_eq!(q.store.redrive(redrive("plain", "other")).await.unwrap().redriven, 1);
    assert_counted(&q, "other", 15, "it came from a topic without a count").await;
}

pub(crate) async fn follow_ups_count_and_are_not_held_back(q: Fixture) {
    q.put(sized("1", 10)).await;
    let leased = q.claim_one().await;
    let next = [sized("2", 20), sized("3", 700)].map(TestJob::new_job);
    let action = SettleAction::Ack { result: None, follow_ups: next.into() };
    let (lease, owner, deadline) = (lease_ref(&leased), OWNER, None);
    q.settle(LeaseSettlement { lease, owner, action, deadline }).await.unwrap();
    assert_counted(&q, TOPIC, 720, "two follow-ups").await;
}

pub(crate) async fn calls_at_once_never_exceed_the_bytes(q: Fixture) {
    let q = Arc::new(q);
    let calls = (0..6).map(|call| {
        let q = Arc::clone(&q);
        tokio::spawn(async move {
            let mut written = 0;
            for n in 0..10 {
                let job = |at: usize| {
                    // Also by the path of jobs whose ids may be in use.
                    let on_conflict = [OnConflict::Keep, OnConflict::Replace][at % 2];
                    let id = format!("{call}-{n}-{at}");
                    TestJob { on_conflict, ..limited(&id, 10 + 7 * (at % 3), 1_000) }
                };
                let jobs: Vec<TestJob> = (0..5).map(job).collect();
                let sizes: Vec<_> = jobs.iter().map(|job| job.spec.bytes()).collect();
                let done = q.store.enqueue(jobs).await.unwrap();
                let done = done.iter().zip(sizes).filter(|(written, _)| !is_full(written));
                written += done.map(|(_, bytes)| bytes as u64).sum::<u64>();
            }
            written
        })
    });
    let written = futures::future::join_all(calls).await;
    let written = written.into_iter().map(Result::unwrap).sum::<u64>();
    assert!((991..=1_000).contains(&written), "{written}");
    assert_counted(&q, TOPIC, written, "all calls").await;
}

pub(crate) async fn the_oldest_jobs_leave_until_there_is_room(q: Fixture) {
    for (id, bytes, priority) in
        [("a", 100, 0), ("b", 200, 0), ("none", 0, 0), ("c", 300, 0), ("d", 50, 4), ("e", 50, 9)]
    {
        let retention = KEEP;
        q.put(TestJob { priority: Some(priority), retention, ..sized(id, bytes) }).await;
    }
    assert_eq!(evict(&q, room_for(300, 1_000)).await, [""; 0], "there is room");
    assert_eq!(evict(&q, room_for(301, 1_000)).await, ["a"]);
    assert_eq!(q.state("a").await, Some(State::Expired));
    assert_counted(&q, TOPIC, 600, "only a tombstone is left").await;
    assert_eq!(evict(&q, room_for(300, 500)).await, ["b", "c"]);
    // Two jobs leave for the number of jobs, of which one has no bytes, and one more for the bytes.
    let new = JobSum { jobs: 2, bytes: 50 };
    let room = RoomQuery { new, max_waiting: Some(3), ..room_for(50, 100) };
    assert_eq!(evict(&q, room).await, ["none", "d"]);
    assert_eq!(evict(&q, room_for(60, 100)).await, ["e"]);
    assert_counted(&q, TOPIC, 0, "nothing is left").await;
}

pub(crate) async fn no_job_leaves_in_vain(q: Fixture) {
    q.put(sized("dead", 600)).await;
    q.end(&q.claim_one().await, dead_lettered()).await;
    q.put(sized("runs", 300)).await;
    let leased = q.claim_one().await;
    assert_eq!(evict(&q, room_for(200, 1_000)).await, ["in vain"], "nothing waits");
    for n in 0..10 {
        q.put(sized(&format!("{n}"), 10)).await;
    }
    assert_eq!(evict(&q, room_for(101, 1_000)).await, ["in vain"]);
    assert_eq!(evict(&q, room_for(30, 1_000)).await, ["0", "1", "2"]);
    q.ack(&leased).await;
    assert_eq!(evict(&q, room_for(330, 1_000)).await, [""; 0], "there is room");
    assert_eq!(evict(&q, room_for(331, 1_000)).await, ["3"]);
    assert_counted(&q, TOPIC, 660, "what is left").await;
}

pub(crate) async fn at_most_512_jobs_leave_for_one(q: Fixture) {
    for part in 0..3 {
        let job = |n: usize| sized(&format!("{:05}", 300 * part + n), 10);
        q.store.enqueue((0..300).map(job).collect()).await.unwrap();
    }
    assert_eq!(evict(&q, room_for(5_121, 9_000)).await, ["in vain"]);
    let evicted = evict(&q, room_for(5_120, 9_000)).await;
    assert_eq!((evicted.len(), &*evicted[511]), (512, "00511"));
}

pub(crate) async fn jobs_from_before_the_limit_count_soon(q: Fixture) {
    let plain = |id: &str, bytes| TestJob { max_bytes: None, ..sized(id, bytes) };
    let running = [
        plain("runs", 1),
        in_group("g", plain("grouped", 2)),
        TestJob { retention: RetentionRule::Tombstone(RETENTION), ..plain("kept", 4) },
        plain("large", 1_000),
    ];
    let mut leased = Vec::new();
    for job in running {
        leased.push(q.run(job).await);
    }
    let dead = q.run(plain("dead", 8)).await;
    q.end(&dead, dead_lettered()).await;
    let done =
        q.run(TestJob { retention: RetentionRule::Tombstone(RETENTION), ..plain("done", 99) });
    q.ack(&done.await).await;
    for part in 0..4 {
        let job = |n: usize| {
            let job = plain(&format!("{part}-{n}"), 10);
            if n.is_multiple_of(2) { in_group("h", job) } else { TestJob { due: after(9), ..job } }
        };
        q.store.enqueue((0..350).map(job).collect()).await.unwrap();
    }
    for _ in 0..12 {
        q.put(limited("none", 0, 1 << 40)).await;
    }
    q.delete("none").await;
    assert_counted(&q, TOPIC, 15_015, "what was there").await;
    for leased in &leased {
        q.save(leased, "12345").await.unwrap();
    }
    assert_counted(&q, TOPIC, 15_035, "with checkpoints").await;
    // By single acks and by one call, each of a lease that began before.
    q.ack(&leased[0]).await;
    let acked = q.store.settle(leased[1..].iter().map(ack).collect()).await.unwrap();
    assert!(acked.iter().all(Result::is_ok));
    assert_counted(&q, TOPIC, 14_008, "without those that ran").await;
    let mut count = 0;
    while count < 700 {
        let groups = q.claim(100).await;
        count += groups.len();
        q.store.settle(groups.iter().map(ack).collect()).await.unwrap();
    }
    assert_counted(&q, TOPIC, 7_008, "without those of the group").await;
}

pub(crate) async fn a_lease_from_before_the_limit_ends_as_ever(q: Fixture) {
    let plain = |id: &str| TestJob { max_bytes: None, ..sized(id, 10) };
    let shapes = [plain("1"), in_group("g", plain("2")), plain("3"), plain("4")];
    let mut leased = Vec::new();
    for job in shapes {
        leased.push(q.run(job).await);
    }
    q.put(limited("first", 1, 1_000)).await;
    assert_counted(&q, TOPIC, 41, "all run").await;
    q.ack(&leased[0]).await;
    let again = q.settle(ack(&leased[0])).await;
    assert!(again.is_err(), "it is gone");
    q.end(&leased[1], failed_for(60)).await;
    q.end(&leased[2], released()).await;
    assert_counted(&q, TOPIC, 31, "one is done").await;
    assert!(q.unclaim(&leased[3]).await);
    let ids = q.claim(10).await;
    assert_eq!(ids.len(), 3, "the released one, the one that was not claimed, and the new one");
    q.store.settle(ids.iter().map(ack).collect()).await.unwrap();
    assert_counted(&q, TOPIC, 10, "one waits for its retry").await;
}

/// A topic over its bytes loses twice the bytes of the new job, or as many as come where it has no more, or nothing.
pub(crate) async fn a_topic_over_its_bytes_loses_twice_what_comes(q: Fixture) {
    q.put(sized("dead", 600)).await;
    q.end(&q.claim_one().await, dead_lettered()).await;
    for n in 0..7 {
        q.put(sized(&n.to_string(), 100)).await;
    }
    let found = async |bytes, max| {
        let found = q.store.oldest_waiting(topic(TOPIC), room_for(bytes, max)).await.unwrap();
        found.map(|found| (found.ids.len(), found.is_over))
    };
    // 1,300 are stored, 700 of them wait.
    assert_eq!(found(100, 1_400).await, Some((0, false)));
    assert_eq!(found(100, 1_200).await, Some((2, false)), "down to the limit");
    assert_eq!(found(100, 1_199).await, Some((2, true)));
    assert_eq!(found(100, 100).await, Some((2, true)));
    assert_eq!(found(350, 350).await, Some((7, true)));
    assert_eq!(found(400, 400).await, Some((7, true)), "there are fewer than twice as many");
    assert_eq!(found(700, 700).await, Some((7, true)));
    assert_eq!(found(701, 701).await, None, "it would have more than before");
    assert_eq!(found(701, 1_300).await, None, "it has its limit, and would have more");
}

pub(crate) async fn a_limit_of_bytes_that_comes_counts_what_was_left_out(q: Fixture) {
    for id in ["1", "2"] {
        q.put(limited(id, 10, 1_000)).await;
    }
    // By a server that does not have the limit.
    q.put(TestJob { max_bytes: None, ..sized("3", 100) }).await;
    q.set_settings(topic(TOPIC), Some(1_000)).await.unwrap();
    q.put(limited("4", 1, 1_000)).await;
    assert_counted(&q, TOPIC, 121, "all of them").await;
    // Another change keeps the count; a limit that comes again counts anew.
    q.set_settings(topic(TOPIC), Some(2_000)).await.unwrap();
    assert_counted(&q, TOPIC, 121, "still").await;
    q.set_settings(topic(TOPIC), None).await.unwrap();
    q.put(TestJob { max_bytes: None, ..sized("5", 100) }).await;
    q.set_settings(topic(TOPIC), Some(2_000)).await.unwrap();
    q.put(limited("6", 1, 1_000)).await;
    assert_counted(&q, TOPIC, 222, "those of the time without the limit, too").await;
}

pub(crate) async fn a_topic_above_its_bytes_takes_what_does_not_grow_it(q: Fixture) {
    q.put(sized("1", 100)).await;
    q.put(TestJob { max_bytes: None, ..sized("2", 100) }).await;
    assert!(!is_full(&q.put(limited("none", 0, 50)).await));
    let again = |id, bytes| TestJob { on_conflict: OnConflict::Replace, ..limited(id, bytes, 50) };
    assert!(!is_full(&q.put(TestJob { max_waiting: Some(9), ..again("1", 90) }).await));
    assert!(!is_full(&q.put(again("2", 100)).await), "also one that was not counted before");
    let moved = TestJob { on_conflict: OnConflict::Reschedule, ..limited("2", 100, 50) };
    assert!(!is_full(&q.put(TestJob { due: after(5), ..moved }).await));
    assert!(is_full(&q.put(again("1", 91)).await));
    assert_counted(&q, TOPIC, 190, "both count now").await;
}

pub(crate) async fn room_for_bytes_is_made_among_groups_and_many_jobs(q: Fixture) {
    let jobs: Vec<_> = (0..1_200)
        .map(|n| match n % 3 {
            0 => in_group("g", sized(&format!("{n:05}"), 10)),
            _ => sized(&format!("{n:05}"), 10),
        })
        .collect();
    for part in jobs.chunks(300) {
        q.store.enqueue(part.to_vec()).await.unwrap();
    }
    assert_eq!(evict(&q, room_for(10, 12_000)).await, ["00000"]);
    let mut gone = 1;
    for _ in 0..9 {
        let evicted = evict(&q, room_for(1_000, 12_000 - 10 * gone)).await;
        let expected: Vec<_> = (gone..gone + 100).map(|n| format!("{n:05}")).collect();
        assert_eq!(evicted, expected);
        gone += 100;
    }
    assert_counted(&q, TOPIC, 12_000 - 10 * gone, "what is left").await;
}

/// Jobs that a random test handles, with its leases.
struct Run {
    q: Fixture,
    random: StdRng,
    leases: Vec<LeasedJob>,
}

impl Run {
    fn id(&mut self) -> String {
        format!("j{}", self.random.random_range(0..12))
    }

    fn topic(&mut self) -> TopicName {
        topic(["t", "t", "u"].choose(&mut self.random).unwrap())
    }

    fn job(&mut self) -> TestJob {
        let random = &mut self.random;
        let bytes = [0, 1, 90, 511, 513, 1_500].choose(random).copied().unwrap();
        let retention =
            [RetentionRule::Nothing, KEEP, RetentionRule::Tombstone(RETENTION)].choose(random);
        let on_conflict =
            [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject]
                .choose(random);
        let (retention, on_conflict) = (*retention.unwrap(), *on_conflict.unwrap());
        let max = [u64::MAX, 2_000, 5_000].choose(random).copied();
        let due = if random.random_bool(0.2) { after(2) } else { When::Now };
        let expire = random.random_bool(0.2).then(|| after(random.random_range(1..9)));
        let priority = random.random_bool(0.3).then(|| random.random_range(0..10));
        let id = self.id();
        let key = key(self.topic().as_str(), &id);
        let job =
            TestJob { key, retention, on_conflict, due, expire, priority, ..sized("", bytes) };
        let job = TestJob { max_bytes: max, ..job };
        if self.random.random_bool(0.3) { in_group("g", job) } else { job }
    }

    async fn step(&mut self) {
        match self.random.random_range(0..12) {
            0..3 => {
                let job = self.job();
                self.q.put(job).await;
            }
            3 => {
                let jobs = (0..4).map(|_| self.job()).collect();
                self.q.store.enqueue(jobs).await.unwrap();
            }
            4..6 => {
                let (name, taker) = (self.topic(), super::values::taker());
                let leased = self.q.claim_for(name.as_str(), vec![taker]).await.by_stream;
                self.leases.extend(leased.into_iter().flatten());
            }
            6..9 => self.end_one().await,
            9 => {
                let key = key(self.topic().as_str(), &self.id());
                self.q.store.delete(vec![key.into()]).await.unwrap();
            }
            10 => self.redrive().await,
            _ => self.q.sleep(self.random.random_range(1..4)),
        }
    }

    async fn end_one(&mut self) {
        let Some(leased) = self.leases.pop() else { return };
        if self.q.lease(&leased).await.is_err() {
            return;
        }
        match self.random.random_range(0..6) {
            0..2 => _ = self.q.ack(&leased).await,
            2 => _ = self.q.end(&leased, failed_for(1)).await,
            3 => _ = self.q.end(&leased, dead_lettered()).await,
            4 => _ = self.q.end(&leased, released()).await,
            _ => {
                let body = "c".repeat(self.random.random_range(0..40));
                let _ = self.q.save(&leased, &body).await;
                self.leases.push(leased);
            }
        }
    }

    async fn redrive(&mut self) {
        let (from, to) = (self.topic(), self.topic());
        let redrive = RedriveBatch {
            topic: from,
            ids: (0..12).map(|n| JobId::stored(&format!("j{n}"))).collect(),
            spacing: Duration::ZERO,
            delay: Duration::ZERO,
            states: vec![State::Dead, State::Succeeded, State::Cancelled, State::Expired],
            target: Some(to),
            ttl: None,
            dry_run: false,
            deadline: None,
        };
        self.q.store.redrive(redrive).await.unwrap();
    }

    /// Sums the bytes of all jobs of a topic.
    async fn sum(&self, name: &str) -> u64 {
        self.q.store.prune(1_000).await.unwrap();
        let keys = (0..12).map(|n| key(name, &format!("j{n}"))).collect();
        let jobs = self.q.store.get(keys, true).await.unwrap();
        let bytes = jobs.into_iter().flatten().map(|job| {
            let checkpoint = job.checkpoint.as_ref().map_or(0, |saved| saved.body.len());
            (job.spec.bytes() + checkpoint) as u64
        });
        bytes.sum()
    }
}

pub(crate) async fn the_bytes_are_those_of_the_jobs_whatever_happens_to_them(q: Fixture) {
    let seed = rand::rng().random();
    println!("seed {seed}");
    let (random, leases) = (StdRng::seed_from_u64(seed), Vec::new());
    let mut run = Run { q, random, leases };
    // Both topics count from the beginning.
    run.q.put(sized("j0", 1)).await;
    run.q.put(TestJob { key: key("u", "j0"), ..sized("j0", 1) }).await;
    for step in 0..300 {
        run.step().await;
        if step % 3 == 0 {
            for name in ["t", "u"] {
                let sum = run.sum(name).await;
                assert_counted(&run.q, name, sum, &format!("seed {seed}, step {step}")).await;
            }
        }
    }
}
