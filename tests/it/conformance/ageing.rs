//! Ageing: the order of due jobs in which waiting counts as much as priority.
//!
//! `RINGQ_SEED` repeats the random choices of a run.

use std::cmp::Reverse;
use std::time::Duration;

use crate::store_calls::{StoreCalls as _, TestJob};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use ringq::domain::explain::ReadyBefore;
use ringq::domain::{GroupName, PriorityAgeing, RetentionRule, Spec, Time, limit};
use ringq::store::{Claim, StreamDemand, TopicDemand, TopicLeases, TopicRemainder};

use super::fixture::Fixture;
use super::values::{
    LEASE, OWNER, TOPIC, after, failed_for, ids_of, key, new_job, one, plus, taker, text, topic,
};

/// Worth of a level of priority in most cases.
const MINUTE: u64 = 60;

fn ageing(seconds: u64) -> Option<PriorityAgeing> {
    PriorityAgeing::of_setting(Some(Duration::from_secs(seconds)))
}

fn ask(ageing: Option<PriorityAgeing>, streams: Vec<StreamDemand>) -> TopicDemand {
    TopicDemand { topic: topic(TOPIC), ageing, streams }
}

/// Claims this number of jobs for one taker, with a minute of ageing.
async fn claim(q: &Fixture, jobs: u32) -> Vec<String> {
    claim_by(q, ageing(MINUTE), jobs).await
}

async fn claim_by(q: &Fixture, ageing: Option<PriorityAgeing>, jobs: u32) -> Vec<String> {
    let claimed = q.claim_of(ask(ageing, vec![StreamDemand { jobs, ..taker() }])).await;
    ids_of(&one(claimed.by_stream))
}

/// Enqueues a plain job of this priority.
async fn put(q: &Fixture, id: &str, priority: u8) {
    q.put(ranked(id, priority)).await;
}

fn ranked(id: &str, priority: u8) -> TestJob {
    TestJob { priority: Some(priority), ..new_job(id) }
}

fn grouped(id: &str, group: &str, priority: u8) -> TestJob {
    let plain = ranked(id, priority);
    let spec = Spec { group: GroupName::stored(group), ..plain.spec.clone() };
    TestJob { spec, ..plain }
}

// === order ===

pub(crate) async fn an_old_job_goes_before_a_fresh_one_of_a_higher_priority(q: Fixture) {
    put(&q, "old", 0).await;
    let old = q.now();
    q.until_just_before(plus(old, 9 * MINUTE));
    put(&q, "a microsecond less", 9).await;
    q.until(plus(old, 9 * MINUTE));
    q.sleep(1);
    put(&q, "a second more", 9).await;
    put(&q, "middle", 5).await;
    assert_eq!(claim(&q, 1).await, ["a microsecond less"]);
    assert_eq!(claim(&q, 3).await, ["old", "a second more", "middle"]);
}

pub(crate) async fn without_ageing_levels_are_strict_however_long_a_job_has_waited(q: Fixture) {
    for (id, priority) in [("0", 0), ("3", 3), ("6", 6), ("9", 9)] {
        put(&q, id, priority).await;
        q.sleep(86_400);
    }
    // The setting may change between two claims, and counts at once for jobs that wait.
    assert_eq!(claim_by(&q, None, 1).await, ["9"]);
    assert_eq!(claim(&q, 1).await, ["0"]);
    assert_eq!(claim_by(&q, None, 2).await, ["6", "3"]);
}

pub(crate) async fn jobs_of_equal_age_go_by_priority_then_arrival(q: Fixture) {
    put(&q, "0-first", 0).await;
    put(&q, "0-second", 0).await;
    q.sleep(MINUTE);
    put(&q, "1-first", 1).await;
    put(&q, "1-second", 1).await;
    q.sleep(MINUTE);
    put(&q, "2", 2).await;
    let order = ["2", "1-first", "1-second", "0-first", "0-second"];
    for (index, id) in order.iter().enumerate() {
        let before = q.store.explain(key(TOPIC, id), ageing(MINUTE), 100).await.unwrap();
        let want = ReadyBefore { jobs: index as u64, has_more: false };
        assert_eq!(before.unwrap().ready_before, Some(want), "{id}");
    }
    assert_eq!(claim(&q, 2).await, order[..2]);
    assert_eq!(claim(&q, 9).await, order[2..]);
}

pub(crate) async fn a_job_that_is_not_due_is_not_taken_whatever_its_priority(q: Fixture) {
    q.put(TestJob { due: after(10), ..ranked("later", 9) }).await;
    put(&q, "low", 1).await;
    let due = plus(q.now(), 10);
    let claimed = q.claim_of(ask(ageing(MINUTE), vec![taker()])).await;
    assert_eq!(ids_of(&claimed.by_stream[0]), ["low"]);
    assert_eq!(claimed.remainder, TopicRemainder::ReadyAt(due));
    q.until_just_before(due);
    assert!(claim(&q, 9).await.is_empty());
    q.until(due);
    put(&q, "plain", 0).await;
    let claimed = q.claim_of(ask(ageing(MINUTE), vec![StreamDemand { jobs: 1, ..taker() }])).await;
    let ids = ids_of(&claimed.by_stream[0]);
    assert_eq!((ids, claimed.remainder), (vec!["later".to_owned()], TopicRemainder::Ready));
    let claimed = q.claim_of(ask(ageing(MINUTE), vec![taker()])).await;
    assert_eq!(claimed.remainder, TopicRemainder::Empty);
}

pub(crate) async fn failed_jobs_wait_in_the_same_order(q: Fixture) {
    for (id, priority) in [("failed-0", 0), ("failed-2", 2)] {
        let leased = q.run(ranked(id, priority)).await;
        q.end(&leased, failed_for(1)).await;
    }
    put(&q, "line-0", 0).await;
    put(&q, "fresh-2", 2).await;
    q.sleep(2);
    put(&q, "later-0", 0).await;
    put(&q, "later-2", 2).await;
    q.sleep(2 * MINUTE - 1);
    put(&q, "last-2", 2).await;
    let order = ["fresh-2", "failed-2", "later-2", "line-0", "last-2", "failed-0", "later-0"];
    assert_eq!(claim(&q, 3).await, order[..3]);
    assert_eq!(claim(&q, 9).await, order[3..]);
}

pub(crate) async fn an_expired_job_is_passed_over(q: Fixture) {
    for n in 0..70 {
        let expire = Some(after(5));
        q.put(TestJob { expire, ..ranked(&format!("short-{n}"), n % 10) }).await;
    }
    put(&q, "low", 0).await;
    q.sleep(5);
    put(&q, "high", 3).await;
    assert_eq!(claim(&q, 1).await, ["high"]);
    assert_eq!(claim(&q, 1).await, ["low"]);
    assert!(claim(&q, 1).await.is_empty());
}

pub(crate) async fn a_job_that_fits_no_worker_is_not_overtaken(q: Fixture) {
    put(&q, "small", 0).await;
    let spec = Spec { payload: Some(text(&"x".repeat(100))), ..Spec::default() };
    q.put(TestJob { spec, ..ranked("large", 5) }).await;
    let narrow = || StreamDemand { bytes: 50, oversize: false, ..taker() };
    let claimed = q.claim_of(ask(ageing(MINUTE), vec![narrow()])).await;
    assert_eq!((claimed.by_stream[0].len(), claimed.remainder), (0, TopicRemainder::Ready));
    q.sleep(5 * MINUTE);
    put(&q, "fresh", 5).await;
    let wide = StreamDemand { jobs: 1, ..taker() };
    assert_eq!(ids_of(&q.claim_of(ask(ageing(MINUTE), vec![wide])).await.by_stream[0]), ["large"]);
    let claimed = q.claim_of(ask(ageing(MINUTE), vec![narrow()])).await;
    assert_eq!(ids_of(&claimed.by_stream[0]), ["fresh", "small"]);
}

pub(crate) async fn jobs_of_a_group_age_within_their_group(q: Fixture) {
    q.put(grouped("a-old", "a", 0)).await;
    q.put(grouped("b-old", "b", 0)).await;
    put(&q, "old", 0).await;
    q.sleep(9 * MINUTE + 1);
    q.put(grouped("a-new", "a", 9)).await;
    put(&q, "new", 9).await;
    q.sleep(MINUTE);
    q.put(grouped("b-new", "b", 1)).await;
    q.put(TestJob { due: after(1), ..grouped("b-later", "b", 9) }).await;
    // Groups take turns, also with the jobs without one.
    let mut order = claim(&q, 3).await;
    order.sort();
    assert_eq!(order, ["a-old", "b-old", "old"]);
    let mut order = claim(&q, 9).await;
    order.sort();
    assert_eq!(order, ["a-new", "b-new", "new"]);
}

// === promises ===

pub(crate) async fn a_stream_of_urgent_jobs_does_not_starve_the_others(q: Fixture) {
    put(&q, "low", 0).await;
    let start = q.now();
    let mut urgent = 0;
    loop {
        // One job comes and one goes each second: behind strict levels the other would wait for ever.
        put(&q, &format!("urgent-{urgent}"), 9).await;
        let taken = claim(&q, 1).await;
        if taken == ["low"] {
            break;
        }
        assert_eq!(taken, [format!("urgent-{urgent}")]);
        urgent += 1;
        q.sleep(1);
        assert!(urgent <= 9 * MINUTE + 1, "it starves");
    }
    assert_eq!(
        q.now(),
        plus(start, 9 * MINUTE + 1),
        "the first urgent job that is younger by more"
    );
}

pub(crate) async fn topics_of_one_claim_have_each_their_own(q: Fixture) {
    let names = ["strict", "slow", "fast", "last"];
    let put = async |id, priority| {
        for name in names {
            q.put(TestJob { key: key(name, id), ..ranked(id, priority) }).await;
        }
    };
    put("old", 0).await;
    q.sleep(100);
    put("fresh", 1).await;
    let ask = |name, ageing| TopicDemand {
        topic: topic(name),
        ageing,
        streams: vec![StreamDemand { jobs: 1, ..taker() }, StreamDemand { jobs: 0, ..taker() }],
    };
    let (slow, fast) = (ask("slow", ageing(101)), ask("fast", ageing(99)));
    let topics = vec![ask("strict", None), slow, fast, ask("last", None)];
    let claim = Claim { nonce: q.nonce(), owner: OWNER, topics };
    let claimed = q.store.claim(claim).await.unwrap().topics;
    let first: Vec<_> = claimed.iter().map(|topic| ids_of(&topic.by_stream[0])).collect();
    assert_eq!(first, [["fresh"], ["fresh"], ["old"], ["fresh"]]);
    let leases = claimed.iter().flat_map(|topic| topic.by_stream.iter().flatten());
    assert!(leases.into_iter().all(|leased| leased.deadline == q.now().plus(LEASE)));
}

pub(crate) async fn the_longest_ageing_is_exact(q: Fixture) {
    let longest = PriorityAgeing::of_setting(Some(limit::PRIORITY_AGEING_MAX));
    let old = q.now();
    put(&q, "old", 0).await;
    q.put(TestJob { due: after(30), ..ranked("first", 9) }).await;
    q.until_just_before(old.plus(9 * limit::PRIORITY_AGEING_MAX));
    put(&q, "before", 9).await;
    q.until(Time(q.now().0 + 2));
    put(&q, "behind", 9).await;
    assert_eq!(claim_by(&q, longest, 9).await, ["first", "before", "old", "behind"]);
}

// === against a sort ===

/// A waiting job of the model.
#[derive(Clone, Debug)]
struct Waiting {
    id: String,
    priority: u8,
    due: Time,
    arrival: usize,
    bytes: u64,
}

/// A topic full of jobs, and what is known of them.
struct Backlog<'q> {
    q: &'q Fixture,
    random: StdRng,
    jobs: Vec<Waiting>,
}

impl Backlog<'_> {
    /// Enqueues jobs of random priorities, due times and sizes; some fail or are deleted at once.
    async fn fill(&mut self, rounds: usize) {
        for round in 0..rounds {
            let mut batch = Vec::new();
            for n in 0..20 {
                let (id, random) = (format!("{round}-{n}"), &mut self.random);
                let (priority, bytes) = (random.random_range(0..=9), random.random_range(0..100));
                let due = if random.random_bool(0.4) {
                    after(random.random_range(0..9))
                } else {
                    after(0)
                };
                let spec = Spec { payload: Some(text(&"x".repeat(bytes))), ..Spec::default() };
                // A level in two of three jobs, so that the line of plain jobs is long, too.
                let priority = if random.random_bool(0.3) { 0 } else { priority };
                let retention = RetentionRule::Nothing;
                batch.push(TestJob { due, spec, retention, ..ranked(&id, priority) });
                let arrival = self.jobs.len();
                let due = due.due(self.q.now());
                self.jobs.push(Waiting { id, priority, due, arrival, bytes: bytes as u64 });
            }
            self.q.store.enqueue(batch).await.unwrap();
            self.fail_some().await;
            self.delete_some().await;
            self.q.clock.advance(Duration::from_millis(self.random.random_range(0..3_000)));
        }
    }

    /// Lets the next job fail, with a due time that no other job has.
    async fn fail_some(&mut self) {
        let claimed = self.q.claim_of(ask(ageing(2), vec![StreamDemand { jobs: 1, ..taker() }]));
        for leased in claimed.await.by_stream.remove(0) {
            let delay = self.random.random_range(1..4);
            self.q.clock.advance(Duration::from_micros(1));
            self.q.end(&leased, failed_for(delay)).await;
            let due = self.q.job(leased.key.id.as_str()).await.due_time;
            let id = leased.key.id.as_str();
            self.jobs.iter_mut().find(|job| job.id == id).unwrap().due = due;
        }
    }

    async fn delete_some(&mut self) {
        for _ in 0..3 {
            let index = self.random.random_range(0..self.jobs.len());
            let gone = self.jobs.remove(index);
            self.q.delete(&gone.id).await.unwrap();
        }
    }

    /// Returns the jobs that are due, in the order of a sort.
    fn sorted(&self, ageing: PriorityAgeing) -> Vec<Waiting> {
        let mut due = self.jobs.clone();
        due.retain(|job| job.due <= self.q.now());
        let levels = |job: &Waiting| ageing.micros() * i64::from(job.priority);
        due.sort_by_key(|job| (job.due.0 - levels(job), Reverse(job.priority), job.arrival));
        due
    }

    /// Claims for streams with random limits, and compares with the sort.
    async fn claim(&mut self, ageing: PriorityAgeing) {
        let sorted = self.sorted(ageing);
        let count = self.random.random_range(1..4);
        let jobs = if self.random.random_bool(0.3) { 1 } else { self.random.random_range(1..60) };
        let bytes = self.random.random_range(0..3_000);
        let one = StreamDemand { jobs, bytes, oversize: true, ..taker() };
        let streams: Vec<_> = (0..count).map(|_| one.clone()).collect();
        let want = expected(&sorted, &streams);
        let claimed = self.claim_on(ask(Some(ageing), streams)).await;
        let came: Vec<_> = claimed.by_stream.iter().map(|leased| ids_of(leased)).collect();
        assert_eq!(came, want);
        self.jobs.retain(|job| !came.iter().flatten().any(|id| *id == job.id));
        let left = sorted.len() - came.iter().flatten().count();
        assert_eq!(claimed.remainder == TopicRemainder::Ready, left > 0, "{:?}", claimed.remainder);
    }

    /// Claims, and claims again as long as the claim was spent on gaps, as streams do.
    async fn claim_on(&self, ask: TopicDemand) -> TopicLeases {
        loop {
            let claimed = self.q.claim_of(ask.clone()).await;
            let nothing = claimed.by_stream.iter().all(Vec::is_empty);
            if !nothing || claimed.remainder != TopicRemainder::Unknown {
                return claimed;
            }
        }
    }

    /// Compares the number of jobs before some job with its place in the sort.
    async fn explain(&mut self, ageing: PriorityAgeing) {
        let sorted = self.sorted(ageing);
        if sorted.is_empty() {
            return;
        }
        let place = self.random.random_range(0..sorted.len());
        let found = self.q.store.explain(key(TOPIC, &sorted[place].id), Some(ageing), 10_000);
        let before = found.await.unwrap().unwrap().ready_before;
        assert_eq!(before, Some(ReadyBefore { jobs: place as u64, has_more: false }));
    }
}

/// Returns the ids that each stream gets of jobs in this order: in turn, each while it has room.
fn expected(sorted: &[Waiting], streams: &[StreamDemand]) -> Vec<Vec<String>> {
    let mut left: Vec<_> = streams.to_vec();
    let mut turn: Vec<usize> = (0..streams.len()).collect();
    let mut got = vec![Vec::new(); streams.len()];
    for job in sorted {
        let fits = |stream: &StreamDemand| job.bytes <= stream.bytes || stream.oversize;
        let Some(place) = turn.iter().position(|&index| fits(&left[index])) else { break };
        let index = turn.remove(place);
        let stream = &mut left[index];
        (stream.jobs, stream.oversize) = (stream.jobs - 1, false);
        stream.bytes = stream.bytes.saturating_sub(job.bytes);
        if stream.jobs > 0 {
            turn.push(index);
        }
        got[index].push(job.id.clone());
    }
    got
}

#[expect(clippy::disallowed_methods, reason = "what to test is no configuration of the product")]
fn seed() -> u64 {
    let value = std::env::var("RINGQ_SEED").ok();
    value.map_or_else(rand::random, |value| value.parse().expect("RINGQ_SEED is no number"))
}

pub(crate) async fn many_jobs_come_in_the_order_of_a_sort(q: Fixture) {
    let seed = seed();
    println!("RINGQ_SEED={seed}");
    let mut backlog = Backlog { q: &q, random: StdRng::seed_from_u64(seed), jobs: Vec::new() };
    backlog.fill(30).await;
    while !backlog.jobs.is_empty() {
        // The setting changes while jobs wait.
        let seconds = [1, 2, 5, 30][backlog.random.random_range(0..4)];
        let ageing = ageing(seconds).unwrap();
        backlog.explain(ageing).await;
        backlog.claim(ageing).await;
        let millis = backlog.random.random_range(0..900);
        q.clock.advance(Duration::from_millis(millis));
    }
}

pub(crate) async fn the_number_before_a_job_of_a_group_is_its_place_there(q: Fixture) {
    let ages = [(0, 0), (3, 0), (9, 30), (1, 30), (2, 60), (0, 90)];
    let mut late = 0;
    for (n, (priority, second)) in ages.into_iter().enumerate() {
        q.sleep(second - late);
        late = second;
        q.put(grouped(&format!("a{n}"), "a", priority)).await;
        q.put(grouped(&format!("b{n}"), "b", priority)).await;
    }
    q.put(TestJob { due: after(60), ..grouped("later", "a", 9) }).await;
    put(&q, "plain", 9).await;
    for (worth, order) in [
        (None, ["a2", "a1", "a4", "a3", "a0", "a5"]),
        (ageing(20), ["a2", "a1", "a0", "a3", "a4", "a5"]),
        (ageing(1), ["a1", "a0", "a2", "a3", "a4", "a5"]),
    ] {
        for (place, id) in order.iter().enumerate() {
            let found = q.store.explain(key(TOPIC, id), worth, 100).await.unwrap().unwrap();
            let want = ReadyBefore { jobs: place as u64, has_more: false };
            assert_eq!(found.ready_before, Some(want), "{worth:?}: {id}");
        }
    }
}
