//! Calls to all shards.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use crate::clock::{Clock, ManualClock};
use crate::domain::ring::ShardState;
use crate::domain::{JobId, ShardName, State, Time, TopicName, When};
use crate::scheduler::{
    AckItem, Draft, JobsPage, ListJobs, ListPosition, NackItem, RedriveJobs, SetShardStateError,
};
use crate::shards::ShardError;
use crate::store::Error;
use crate::store::faulty_store::{FaultyStore, InjectedFault};

use super::receipts;
use super::test_ring::{TestRing, draft, draft_with_id, eventually, key, test_timeouts};

fn all_of(topic: &str, state: State, limit: usize) -> ListJobs {
    let (topic, after) = (TopicName::stored(topic), ListPosition::default());
    ListJobs { topic, state, full: false, limit, after }
}

/// Returns every page of a list.
async fn pages(ring: &TestRing, mut list: ListJobs) -> Vec<JobsPage> {
    let mut pages = Vec::new();
    loop {
        let page = ring.scheduler.operator.list_jobs(list.clone()).await.unwrap();
        assert!(page.jobs.len() <= list.limit);
        let next = page.next.clone();
        pages.push(page);
        match next {
            Some(next) => list.after = next,
            None => return pages,
        }
    }
}

#[tokio::test]
async fn a_list_goes_page_by_page_over_all_shards_in_the_order_of_due_times() {
    let ring = TestRing::new(4);
    let later = |n: u64| When::After(Duration::from_secs(1_000 + n * 7 % 100));
    let drafts = (0..100).map(|n| Draft { due: later(n), ..draft_with_id("t", &format!("n{n}")) });
    ring.enqueue_accepted(drafts.collect()).await;
    for limit in [1, 7, 50, 99, 100, 500] {
        let pages = pages(&ring, all_of("t", State::Scheduled, limit)).await;
        let jobs: Vec<_> =
            pages.iter().flat_map(|page| &page.jobs).map(|found| &found.job).collect();
        let ids: BTreeSet<_> = jobs.iter().map(|job| &job.key.id).collect();
        assert_eq!((jobs.len(), ids.len()), (100, 100), "each once, {limit} at a time");
        assert!(jobs.is_sorted_by_key(|job| job.due_time));
        let full = pages[..pages.len() - 1].iter().all(|page| page.jobs.len() == limit);
        assert!(full && pages.len() <= 100 / limit + 1, "{} pages", pages.len());
    }
}

#[tokio::test]
async fn a_list_names_who_is_missing_and_ends_all_the_same() {
    let ring = TestRing::new(3);
    for n in 0..3 {
        ring.enqueue_accepted(ring.owned_by(n, "t", 10)).await;
    }
    ring.stores[2].set_fault(InjectedFault::Hangs);
    let list = all_of("t", State::Ready, 6);
    let hanging = ring.owned_by(2, "t", 1).remove(0).id.unwrap();
    let first = tokio::select! {
        biased;
        first = ring.scheduler.operator.list_jobs(list.clone()) => first.unwrap(),
        hung = ring.scheduler.producer.get(key("t", hanging.as_str()), false) => {
            panic!("a list waits less long than a call: {hung:?}")
        }
    };
    assert_eq!((first.jobs.len(), &*first.unreachable), (6, &["s2".to_owned()][..]));
    let jobs: usize = pages(&ring, list.clone()).await.iter().map(|page| page.jobs.len()).sum();
    assert_eq!(jobs, 20);
    // Jobs of a shard are found as soon as it is back, also in the middle of a list.
    ring.until_down(2, true).await;
    ring.stores[2].set_fault(InjectedFault::None);
    ring.until_down(2, false).await;
    let rest = ListJobs { after: first.next.unwrap(), ..list.clone() };
    let jobs: usize = pages(&ring, rest).await.iter().map(|page| page.jobs.len()).sum();
    assert_eq!(jobs, 24);
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::Unreachable));
    assert!(ring.scheduler.operator.list_jobs(list).await.is_err(), "no shard answers");
}

#[tokio::test]
async fn topic_stats_are_sums_and_report_missing_shards() {
    let ring = TestRing::new(3);
    for n in 0..3 {
        ring.enqueue_accepted(ring.owned_by(n, "t", 10 + n)).await;
    }
    ring.enqueue_accepted(ring.owned_by(1, "lonely", 1)).await;
    let topic = async |name: &str| ring.scheduler.operator.topic(TopicName::stored(name)).await;
    let row = topic("t").await.unwrap().unwrap();
    assert_eq!((row.stats.ready, row.stats.enqueued_total, row.unreachable.len()), (33, 33, 0));
    let names = async |limit| {
        let rows = ring.scheduler.operator.topics("", None, limit).await.unwrap();
        rows.iter().map(|row| row.topic.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(9).await, ["lonely", "t"]);
    assert_eq!(names(1).await, ["lonely"]);

    ring.stores[1].set_fault(InjectedFault::Hangs);
    let row = topic("t").await.unwrap().unwrap();
    assert_eq!((row.stats.ready, &*row.unreachable), (22, &["s1".to_owned()][..]));
    assert!(topic("lonely").await.is_err(), "it is unknown whether there is such a topic");
    assert_eq!(names(9).await, ["t"]);
    ring.until_down(1, true).await;
    let reads = ring.stores[1].reads();
    assert_eq!(topic("t").await.unwrap().unwrap().stats.ready, 22);
    assert_eq!(ring.stores[1].reads(), reads, "it is not asked any more");
}

#[tokio::test]
async fn shard_infos_report_state_and_errors() {
    let ring =
        TestRing::with_states(&[ShardState::Active, ShardState::Draining, ShardState::Active]);
    ring.enqueue_accepted(vec![draft("t"); 10]).await;
    ring.stores[2].set_fault(InjectedFault::Unreachable);
    let infos = ring.scheduler.operator.shard_infos().await;
    let states: Vec<_> = infos.iter().map(|shard| (&*shard.name, shard.state)).collect();
    assert_eq!(states.len(), 3);
    assert!(states.contains(&("s1", ShardState::Draining)));
    let dead = infos.iter().find(|shard| shard.name == "s2").unwrap();
    assert!(dead.info.as_ref().unwrap_err().to_string().contains("connection refused"));
    for _ in 0..9 {
        ring.scheduler.operator.shard_infos().await;
    }
    ring.until_down(2, true).await;
    let infos = ring.scheduler.operator.shard_infos().await;
    let dead = infos.iter().find(|shard| shard.name == "s2").unwrap();
    let error = dead.info.as_ref().unwrap_err().to_string();
    assert!(error.contains("connection refused"), "also with an open circuit breaker: {error}");
    ring.stores[1].set_fault(InjectedFault::Unreachable);
    let infos = ring.scheduler.operator.shard_infos().await;
    let draining = infos.iter().find(|shard| shard.name == "s1").unwrap();
    assert_eq!((draining.info.is_err(), draining.state), (true, ShardState::Draining));
}

#[tokio::test]
async fn a_shard_is_drained_and_taken_back_unless_it_is_the_last() {
    let ring = TestRing::with_states(&[ShardState::Active, ShardState::Active]);
    let set = |name: &str, state| {
        ring.scheduler.operator.set_shard_state(ShardName::try_new(name).unwrap(), state, None)
    };
    for state in [ShardState::Draining, ShardState::Draining, ShardState::Active] {
        let shard = set("s1", state).await.unwrap();
        assert_eq!((&*shard.name, shard.state), ("s1", state));
        let stored = ring.stores[1].sqlite_store().info().await.unwrap().state;
        assert_eq!(stored, Some(state), "for all replicas");
    }
    let missing = set("s9", ShardState::Active).await.unwrap_err();
    assert_eq!(missing, SetShardStateError::NotFound(ShardName::try_new("s9").unwrap()));

    let ring = TestRing::with_states(&[ShardState::Active, ShardState::Draining]);
    let name = ShardName::try_new("s0").unwrap();
    let last =
        ring.scheduler.operator.set_shard_state(name.clone(), ShardState::Draining, None).await;
    assert_eq!(last.unwrap_err(), SetShardStateError::LastActive(name.clone()));
    assert_eq!(
        ring.stores[0].sqlite_store().info().await.unwrap().state,
        None,
        "nothing was written"
    );
}

#[tokio::test]
async fn the_state_of_a_shard_that_does_not_answer_is_not_set() {
    let ring = TestRing::with_states(&[ShardState::Active, ShardState::Active]);
    ring.stores[1].set_fault(InjectedFault::Unreachable);
    let name = ShardName::try_new("s1").unwrap();
    let refused = ring
        .scheduler
        .operator
        .set_shard_state(name, ShardState::Draining, None)
        .await
        .unwrap_err();
    assert!(
        matches!(
            &refused,
            SetShardStateError::Store(ShardError { error: Error::Unavailable(_), .. })
        ),
        "{refused:?}"
    );
    ring.stores[1].set_fault(InjectedFault::None);
    assert_eq!(ring.stores[1].sqlite_store().info().await.unwrap().state, None);
}

/// Makes dead letters of all jobs of a topic on every shard.
async fn dead_letter_all(ring: &TestRing, topic: &str) {
    for n in 0..ring.stores.len() {
        let receipts = super::receipts(ring, n, topic).await;
        let cause = crate::domain::lifecycle::LeaseEndCause::DeadLettered { error: "x".into() };
        let item = |receipt| NackItem { receipt, cause: cause.clone() };
        let results = ring.scheduler.settler.nack(receipts.into_iter().map(item).collect()).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

fn redrive(topic: &str, target: Option<&str>) -> RedriveJobs {
    RedriveJobs {
        topic: TopicName::stored(topic),
        ids: Vec::new(),
        states: vec![State::Dead],
        target: target.map(TopicName::stored),
        rate: None,
        ttl: None,
        dry_run: false,
    }
}

#[tokio::test]
async fn dead_letters_of_all_shards_go_back_or_to_the_owners_of_their_ids_elsewhere() {
    let ring = TestRing::new(4);
    let ids: Vec<String> = (0..60).map(|n| format!("n{n}")).collect();
    ring.enqueue_accepted(ids.iter().map(|id| draft_with_id("a", id)).collect()).await;
    ring.enqueue_accepted(vec![draft("a"); 20]).await;
    dead_letter_all(&ring, "a").await;
    let done = ring.scheduler.operator.redrive(redrive("a", None), None).await.unwrap();
    assert_eq!((done.redriven, done.skipped), (80, 0));
    dead_letter_all(&ring, "a").await;

    ring.enqueue_accepted(vec![draft_with_id("b", "n7")]).await;
    let only_count = RedriveJobs { dry_run: true, ..redrive("a", Some("b")) };
    let done = ring.scheduler.operator.redrive(only_count, None).await.unwrap();
    assert_eq!((done.redriven, done.skipped), (79, 1));
    let done = ring.scheduler.operator.redrive(redrive("a", Some("b")), None).await.unwrap();
    assert_eq!((done.redriven, done.skipped), (79, 1), "what is taken there stays");
    for id in &ids {
        let found = ring.scheduler.producer.get(key("b", id), false).await.unwrap().unwrap();
        assert_eq!(found.state, State::Ready);
        let left = ring.scheduler.producer.get(key("a", id), false).await.unwrap();
        assert_eq!(left.is_some(), id == "n7");
    }
    let ready: u64 = ring.stats("b").await.iter().map(|stats| stats.ready).sum();
    assert_eq!(ready, 80);
}

/// Deaths of jobs are compared by the clock of their shard.
#[tokio::test]
async fn redrive_finds_dead_letters_despite_clock_skew() {
    for micros in [-3_600_000_000, 3_600_000_000] {
        let there = ManualClock::new(Time(Clock::system().now().0 + micros));
        let stores = vec![FaultyStore::new("s0", &Clock::Manual(there))];
        let ring = TestRing::with_stores(stores, &[ShardState::Active], 1);
        ring.enqueue_accepted(vec![draft("a"); 3]).await;
        dead_letter_all(&ring, "a").await;
        let done = ring.scheduler.operator.redrive(redrive("a", None), None).await.unwrap();
        assert_eq!((done.redriven, done.skipped), (3, 0), "{micros} us ahead");
    }
}

/// A job that moves to another shard expires by the clock of its shard, as one that stays there does.
#[tokio::test]
async fn a_redrive_to_other_shards_goes_by_the_clock_of_the_shards() {
    const TTL: Duration = Duration::from_secs(10);
    for micros in [-3_600_000_000, 3_600_000_000] {
        let there = ManualClock::new(Time(Clock::system().now().0 + micros));
        let store = |n| FaultyStore::new(&format!("s{n}"), &Clock::Manual(there.clone()));
        let ring = TestRing::with_stores((0..3).map(store).collect(), &[ShardState::Active; 3], 1);
        let expire = Some(When::After(Duration::from_secs(60)));
        let ids: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
        let draft = |id: &String| Draft { expire, ..draft_with_id("a", id) };
        ring.enqueue_accepted(ids.iter().map(draft).collect()).await;
        dead_letter_all(&ring, "a").await;
        let count = |ttl| RedriveJobs { ttl, dry_run: true, ..redrive("a", Some("b")) };
        for (ttl, want) in [(None, 40), (Some(TTL), 40)] {
            let done = ring.scheduler.operator.redrive(count(ttl), None).await.unwrap();
            assert_eq!((done.redriven, done.skipped), (want, 40 - want), "{micros} us ahead");
        }
        there.advance(Duration::from_secs(61));
        let done = ring.scheduler.operator.redrive(redrive("a", Some("b")), None).await.unwrap();
        assert_eq!((done.redriven, done.skipped), (0, 40), "{micros} us ahead");
        let with_ttl = RedriveJobs { ttl: Some(TTL), ..redrive("a", Some("b")) };
        let done = ring.scheduler.operator.redrive(with_ttl, None).await.unwrap();
        assert_eq!((done.redriven, done.skipped), (40, 0), "{micros} us ahead");
        for id in &ids {
            let moved = ring.scheduler.producer.get(key("b", id), false).await.unwrap().unwrap();
            assert_eq!(moved.state, State::Ready);
            assert_eq!(moved.expire_time, Some(there.now().plus(TTL)), "{id}");
        }
    }
}

/// Jobs can be put back by one rule, whether their shard does that alone or another one takes them.
#[tokio::test]
async fn redrive_moves_kept_jobs_to_other_shards_but_no_tombstones() {
    let ring = TestRing::new(3);
    let ids = |prefix: &str| -> Vec<JobId> {
        (0..20).map(|n| JobId::stored(&format!("{prefix}{n}"))).collect()
    };
    let (kept, dropped) = (ids("kept"), ids("dropped"));
    for id in kept.iter().chain(&dropped) {
        let mut draft = draft_with_id("a", id.as_str());
        draft.spec.payload = None;
        draft.spec.retention = kept.contains(id).then_some(Duration::from_secs(3600));
        ring.enqueue_accepted(vec![draft]).await;
        ring.scheduler.producer.delete(key("a", id.as_str()), None).await.unwrap();
    }
    let (ids, states) = ([kept.clone(), dropped].concat(), vec![State::Cancelled]);
    let all = RedriveJobs { ids, states, ..redrive("a", Some("b")) };
    let done = ring.scheduler.operator.redrive(all, None).await.unwrap();
    assert_eq!((done.redriven, done.skipped), (20, 20));
    for id in kept {
        let found = ring.scheduler.producer.get(key("b", id.as_str()), false).await.unwrap();
        assert_eq!(found.map(|job| job.state), Some(State::Ready), "{id}");
    }
}

#[tokio::test]
async fn a_partial_redrive_reports_unreachable_shards() {
    let ring = TestRing::new(3);
    for n in 0..3 {
        ring.enqueue_accepted(ring.owned_by(n, "t", 5)).await;
    }
    dead_letter_all(&ring, "t").await;
    ring.stores[0].set_fault(InjectedFault::Unreachable);
    let only_count = RedriveJobs { dry_run: true, ..redrive("t", None) };
    let named = |n| {
        let ids = ring.owned_by(n, "t", 5).into_iter().map(|draft| draft.id.unwrap()).collect();
        RedriveJobs { ids, ..redrive("t", None) }
    };
    let (done, unreachable) = ((10, 0), vec!["s0".to_owned()]);
    for all in [only_count, redrive("t", None)] {
        let found = ring.scheduler.operator.redrive(all, None).await.unwrap();
        assert_eq!(((found.redriven, found.skipped), &found.unreachable), (done, &unreachable));
    }
    let again = ring.scheduler.operator.redrive(redrive("t", None), None).await.unwrap();
    assert_eq!((again.redriven, again.unreachable), (0, unreachable), "there may be more");
    assert!(ring.scheduler.operator.redrive(named(0), None).await.is_err(), "nothing was done");
    let ready: Vec<_> = ring.stats("t").await.iter().map(|stats| stats.ready).collect();
    assert_eq!(ready, [0, 5, 5]);
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::Unreachable));
    assert!(
        ring.scheduler.operator.redrive(redrive("t", None), None).await.is_err(),
        "no shard answers"
    );
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::None));
    for n in 0..3 {
        ring.until_down(n, false).await;
    }
    let done = ring.scheduler.operator.redrive(named(0), None).await.unwrap();
    assert_eq!((done.redriven, done.unreachable.len()), (5, 0));
    let items: Vec<AckItem> =
        super::receipts(&ring, 0, "t").await.into_iter().map(super::ack).collect();
    assert_eq!(items.len(), 5);
}

#[tokio::test]
async fn reads_that_hang_are_refused_alone_and_writes_go_on() {
    let ring = TestRing::new(1);
    ring.enqueue_accepted(ring.owned_by(0, "t", 1)).await;
    ring.stores[0].set_fault(InjectedFault::HangsReads);
    let (read, written) = (AtomicBool::new(true), AtomicUsize::new(0));
    let reads = async {
        // Until one of them fails at once.
        loop {
            let begin = Instant::now();
            let all = (0..40).map(async |n| match n % 2 {
                0 => ring.scheduler.producer.get(key("t", "n0"), false).await.is_ok(),
                _ => ring.scheduler.operator.topic(TopicName::stored("t")).await.is_ok(),
            });
            assert!(join_all(all).await.iter().all(|read| !read), "it hangs");
            if begin.elapsed() < test_timeouts().call / 2 {
                return read.store(false, Ordering::Relaxed);
            }
        }
    };
    let writes = async {
        while read.load(Ordering::Relaxed) {
            ring.enqueue_accepted(vec![draft("t")]).await;
            written.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::join!(reads, writes);
    let written = written.into_inner();
    assert!(written > 20, "{written}");
    let shard = &ring.scheduler.shards().all()[0];
    let refuses_reads = || {
        let gauge = |value| format!("ringq_shard_refuses_reads{{shard=\"s0\"}} {value}");
        let metrics = ring.scheduler.metrics().render();
        let is_shown = [gauge(0), gauge(1)].map(|gauge| metrics.contains(&gauge));
        let refusal = shard.refusal();
        assert_eq!(is_shown, [refusal.is_none(), refusal.is_some()], "{refusal:?}");
        refusal.is_some_and(|refusal| refusal.starts_with("reads are refused: no answer within"))
    };
    assert!(!shard.is_down() && refuses_reads() && shard.health().takes_jobs());
    let acks = receipts(&ring, 0, "t").await.into_iter().map(super::ack).collect();
    assert!(
        ring.scheduler.settler.ack(acks).await.iter().all(Result::is_ok),
        "its jobs can be settled"
    );
    ring.stores[0].set_fault(InjectedFault::None);
    eventually("reads are answered", async || {
        ring.scheduler.producer.get(key("t", "n0"), false).await.ok().flatten()
    })
    .await;
    assert!(!refuses_reads());
}
