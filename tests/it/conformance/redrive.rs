//! Redrive: terminal jobs that still have their payload are put back with fresh counters.

use std::time::Duration;

use crate::store_calls::{RedriveBatch, RedriveResult, StoreCalls as _, TestJob};
use ringq::domain::{Job, JobId, RetentionRule, Spec, State, When};
use ringq::store::{ListQuery, StatsOptions};

use super::fixture::Fixture;
use super::values::{
    TOPIC, after, dead_lettered, failed_for, job_in, key, new_job, plus, text, topic,
};

const KEEP: RetentionRule = RetentionRule::Record(Duration::from_secs(600));

fn ids(ids: &[&str]) -> RedriveBatch {
    RedriveBatch {
        topic: topic(TOPIC),
        ids: ids.iter().map(|id| JobId::stored(id)).collect(),
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        states: vec![State::Dead],
        target: None,
        ttl: None,
        dry_run: false,
        deadline: None,
    }
}

async fn redrive(q: &Fixture, redrive: RedriveBatch) -> (u64, u64) {
    let RedriveResult { redriven, skipped } = q.store.redrive(redrive).await.unwrap();
    (redriven, skipped)
}

/// Creates dead jobs, the first one due first.
async fn bury(q: &Fixture, ids: &[&str]) {
    for id in ids {
        let leased = q.running(id).await;
        q.end(&leased, dead_lettered()).await;
        q.sleep(1);
    }
}

async fn states(q: &Fixture, ids: &[&str]) -> Vec<Option<State>> {
    let mut states = Vec::new();
    for id in ids {
        states.push(q.state(id).await);
    }
    states
}

pub(crate) async fn a_redriven_job_is_like_new_but_for_what_it_is(q: Fixture) {
    q.put(TestJob { priority: Some(6), retention: KEEP, ..new_job("a") }).await;
    let leased = q.claim_one().await;
    q.end(&leased, failed_for(1)).await;
    q.sleep(1);
    let leased = q.claim_one().await;
    q.end(&leased, dead_lettered()).await;
    let before = q.job("a").await;
    q.sleep(5);
    assert_eq!(redrive(&q, ids(&["a"])).await, (1, 0));
    let job = q.job("a").await;
    assert_eq!((job.state, job.due_time, job.finish_time), (State::Ready, q.now(), None));
    assert_eq!((job.failures, job.deliveries), (0, 0));
    assert_eq!((job.spec, job.priority), (before.spec, 6));
    assert_eq!((job.generation, job.create_time), (before.generation, before.create_time));
    let leased = q.claim_one().await;
    assert_eq!((leased.failures, leased.deliveries), (0, 0));
    assert_eq!(q.lease(&leased).await.unwrap().attempt.first_start, q.now());
    q.ack(&leased).await;
    assert_eq!(q.job("a").await.spec.payload, Some(text("a")), "still kept as it asked");
}

pub(crate) async fn dead_letters_come_back_in_the_order_of_their_due_times(q: Fixture) {
    bury(&q, &["c", "a", "b"]).await;
    for expected in [&["c", "a"][..], &["b"], &[]] {
        let (topic, state) = (topic(TOPIC), State::Dead);
        let list = ListQuery { topic, state, group: None, full: false, limit: 2, after: None };
        let page = q.store.list(list).await.unwrap();
        let page: Vec<_> = page.jobs.iter().map(|found| found.job.key.id.as_str()).collect();
        assert_eq!(page, expected);
        assert_eq!(redrive(&q, ids(&page)).await, (page.len() as u64, 0));
    }
    assert_eq!(q.claim_ids().await, ["c", "a", "b"]);
}

pub(crate) async fn due_times_are_spaced_from_the_delay_on(q: Fixture) {
    bury(&q, &["a", "b", "c"]).await;
    let (spacing, delay) = (Duration::from_millis(250), Duration::from_secs(3));
    redrive(&q, RedriveBatch { spacing, delay, ..ids(&["b", "c", "a"]) }).await;
    for (n, id) in (0..).zip(["b", "c", "a"]) {
        let job = q.job(id).await;
        assert_eq!(job.due_time, plus(q.now(), 3).plus(spacing * n), "{id}");
        assert_eq!(job.state, State::Scheduled, "{id}");
    }
}

/// Only jobs in the states that a redrive names are put back, whether it counts them or not.
pub(crate) async fn only_jobs_in_the_named_states_are_put_back(q: Fixture) {
    bury(&q, &["dead"]).await;
    let leased = q.run(TestJob { retention: KEEP, ..new_job("succeeded") }).await;
    q.ack(&leased).await;
    q.put(TestJob { retention: KEEP, expire: Some(after(1)), ..new_job("expired") }).await;
    q.sleep(1);
    q.put(TestJob { retention: KEEP, ..new_job("cancelled") }).await;
    q.delete("cancelled").await;
    q.put(TestJob { due: after(99), ..new_job("scheduled") }).await;
    let all = ["succeeded", "expired", "cancelled", "dead", "scheduled"];
    let are = [State::Succeeded, State::Expired, State::Cancelled, State::Dead, State::Scheduled];
    for target in [None, Some(topic("u"))] {
        for (named, count) in [(vec![], 0), (are[..3].to_vec(), 3), (are.to_vec(), 4)] {
            let ttl = Some(Duration::from_secs(9));
            let meant = RedriveBatch { states: named, ttl, target: target.clone(), ..ids(&all) };
            let dry_run = RedriveBatch { dry_run: true, ..meant };
            assert_eq!(redrive(&q, dry_run).await, (count, 5 - count));
        }
    }
    assert_eq!(states(&q, &all).await, are.map(Some));
    for (state, id) in are[..4].iter().zip(all) {
        let ttl = Some(Duration::from_secs(9));
        let meant = || RedriveBatch { states: vec![*state], ttl, ..ids(&all) };
        assert_eq!(redrive(&q, meant()).await, (1, 4), "{id}");
        assert_eq!(redrive(&q, meant()).await, (0, 5), "{id}");
        assert_eq!(q.state(id).await, Some(State::Ready));
    }
    assert_eq!(q.claim_ids().await.len(), 4);
}

pub(crate) async fn a_redriven_job_does_not_show_its_former_end(q: Fixture) {
    let leased = q.run(TestJob { retention: KEEP, ..new_job("a") }).await;
    let end = ringq::store::SettleAction::Ack { result: Some(text("r")), follow_ups: Vec::new() };
    let settle = crate::store_calls::LeaseSettlement { action: end, ..super::values::ack(&leased) };
    q.settle(settle).await.unwrap();
    redrive(&q, RedriveBatch { states: vec![State::Succeeded], ..ids(&["a"]) }).await;
    let job = q.job("a").await;
    assert_eq!((job.result, job.finish_time, &*job.last_error), (None, None, ""));
}

pub(crate) async fn what_is_not_terminal_or_not_there_is_skipped(q: Fixture) {
    q.running("running").await;
    q.put(new_job("ready")).await;
    q.put(TestJob { due: after(9), ..new_job("scheduled") }).await;
    let all = ["running", "ready", "scheduled", "missing"];
    let before = states(&q, &all).await;
    assert_eq!(redrive(&q, ids(&all)).await, (0, 4));
    assert_eq!(states(&q, &all).await, before);
}

pub(crate) async fn tombstones_are_skipped(q: Fixture) {
    let leased = q.running("succeeded").await;
    q.ack(&leased).await;
    q.put(new_job("cancelled")).await;
    q.delete("cancelled").await;
    q.put(TestJob { expire: Some(after(1)), ..new_job("expired") }).await;
    q.sleep(1);
    let all = ["succeeded", "cancelled", "expired"];
    let named = vec![State::Succeeded, State::Cancelled, State::Expired];
    assert_eq!(redrive(&q, RedriveBatch { states: named, ..ids(&all) }).await, (0, 3));
    let kept = [State::Succeeded, State::Cancelled, State::Expired].map(Some);
    assert_eq!(states(&q, &all).await, kept);
}

pub(crate) async fn a_kept_job_that_never_had_a_payload_is_no_tombstone(q: Fixture) {
    let job = TestJob { spec: Spec::default(), retention: KEEP, ..new_job("a") };
    let leased = q.run(job).await;
    q.ack(&leased).await;
    let meant = RedriveBatch { states: vec![State::Succeeded], ..ids(&["a"]) };
    assert_eq!(redrive(&q, meant).await, (1, 0));
    assert_eq!(q.state("a").await, Some(State::Ready));
}

/// A job keeps an expire time that is ahead of its new due time; with another one it is put back only if it gets time.
pub(crate) async fn a_redriven_job_keeps_its_expire_time(q: Fixture) {
    for target in [None, Some(topic("u"))] {
        let name = target.as_ref().map_or(TOPIC, |target| target.as_str()).to_owned();
        let expires = plus(q.now(), 30);
        let all = ["far", "near", "past", "never"];
        for (id, seconds) in all.into_iter().zip([Some(30), Some(12), Some(5), None]) {
            let id = format!("{id}-{name}");
            let leased = q.run(TestJob { expire: seconds.map(after), ..new_job(&id) }).await;
            q.end(&leased, dead_lettered()).await;
        }
        q.sleep(10);
        let named = all.map(|id| format!("{id}-{name}"));
        let named = || ids(&named.each_ref().map(String::as_str));
        let delay = Duration::from_secs(5);
        let late = || RedriveBatch { delay, target: target.clone(), ..named() };
        assert_eq!(redrive(&q, RedriveBatch { dry_run: true, ..late() }).await, (2, 2));
        assert_eq!(redrive(&q, late()).await, (2, 2));
        let expire = async |id: &str| {
            let job = q.get_in(&name, &format!("{id}-{name}")).await.unwrap();
            (job.state, job.expire_time)
        };
        assert_eq!(expire("far").await, (State::Scheduled, Some(expires)));
        assert_eq!(expire("never").await, (State::Scheduled, None));
        let ttl = Some(Duration::from_secs(7));
        assert_eq!(
            redrive(&q, RedriveBatch { ttl, ..late() }).await,
            (2, 2),
            "two are back already"
        );
        for id in ["near", "past"] {
            assert_eq!(expire(id).await, (State::Scheduled, Some(plus(q.now(), 12))), "{id}");
        }
        q.sleep(12);
        let claimed = q.claim_for(&name, vec![super::taker()]).await;
        let claimed = super::values::ids_of(&claimed.by_stream[0]);
        assert_eq!(claimed.len(), 2, "the other two have expired: {claimed:?}");
        q.sleep(1_000);
        q.store.prune(100).await.unwrap();
    }
}

/// The due time of each job depends on how many are put back before it, also where they are only counted.
pub(crate) async fn a_dry_run_with_a_rate_counts_what_is_put_back(q: Fixture) {
    let expire = Some(When::After(Duration::from_secs(60)));
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    for id in names {
        q.put(TestJob { expire, ..new_job(id) }).await;
        let leased = q.claim_one().await;
        q.end(&leased, dead_lettered()).await;
    }
    let spaced = || RedriveBatch { spacing: Duration::from_secs(20), ..ids(&names) };
    for target in [None, Some(topic("elsewhere"))] {
        let dry_run = RedriveBatch { dry_run: true, target, ..spaced() };
        assert_eq!(redrive(&q, dry_run).await, (3, 4));
    }
    assert_eq!(redrive(&q, spaced()).await, (3, 4));
}

pub(crate) async fn a_dry_run_counts_and_changes_nothing(q: Fixture) {
    bury(&q, &["a", "b", "c"]).await;
    let read = async || {
        let keys = ["a", "b", "c"].map(|id| key(TOPIC, id)).to_vec();
        (q.store.get(keys, true).await.unwrap(), q.stats(TOPIC).await)
    };
    let before = read().await;
    let dry_run = true;
    assert_eq!(redrive(&q, RedriveBatch { dry_run, ..ids(&["a", "b", "c"]) }).await, (3, 0));
    assert_eq!(redrive(&q, RedriveBatch { dry_run, ..ids(&["a", "x"]) }).await, (1, 1));
    let target = Some(topic("u"));
    assert_eq!(
        redrive(&q, RedriveBatch { dry_run, target, ..ids(&["a", "b", "c"]) }).await,
        (3, 0)
    );
    assert_eq!(read().await, before);
    assert_eq!(q.store.stats(vec![topic("u")], StatsOptions::default()).await.unwrap(), [None]);
}

pub(crate) async fn jobs_move_to_another_topic(q: Fixture) {
    bury(&q, &["a", "b"]).await;
    let target = Some(topic("u"));
    assert_eq!(redrive(&q, RedriveBatch { target, ..ids(&["a", "b"]) }).await, (2, 0));
    assert_eq!(states(&q, &["a", "b"]).await, [None, None]);
    let moved: Job = q.get_in("u", "a").await.unwrap();
    assert_eq!((moved.state, moved.spec.payload), (State::Ready, Some(text("a"))));
    assert_eq!(q.stats(TOPIC).await.dead, 0);
    assert_eq!(q.stats("u").await.ready, 2);
    let claimed = q.claim_for("u", vec![super::taker()]).await;
    assert_eq!(super::values::ids_of(&claimed.by_stream[0]), ["a", "b"]);
}

pub(crate) async fn a_job_that_moves_arrives_after_those_that_are_there(q: Fixture) {
    bury(&q, &["a"]).await;
    let due = || When::At(q.now());
    q.put(TestJob { due: due(), ..job_in("u", "b") }).await;
    assert_eq!(redrive(&q, RedriveBatch { target: Some(topic("u")), ..ids(&["a"]) }).await, (1, 0));
    q.put(TestJob { due: due(), ..job_in("u", "c") }).await;
    let claimed = q.claim_for("u", vec![super::taker()]).await;
    assert_eq!(super::values::ids_of(&claimed.by_stream[0]), ["b", "a", "c"]);
}

pub(crate) async fn a_job_that_moves_takes_a_large_payload_along(q: Fixture) {
    let large = || Some(text(&"x".repeat(100_000)));
    q.put(TestJob { spec: Spec { payload: large(), ..Spec::default() }, ..new_job("a") }).await;
    q.end(&q.claim_one().await, dead_lettered()).await;
    q.put(job_in("u", "b")).await;
    assert_eq!(redrive(&q, RedriveBatch { target: Some(topic("u")), ..ids(&["a"]) }).await, (1, 0));
    assert_eq!(q.get_in("u", "a").await.unwrap().spec.payload, large());
    let claimed = q.claim_for("u", vec![super::taker()]).await;
    assert_eq!(claimed.by_stream[0][1].spec.payload, large());
}

pub(crate) async fn an_id_that_is_taken_in_the_target_stays(q: Fixture) {
    bury(&q, &["a", "b"]).await;
    q.put(job_in("u", "a")).await;
    let target = || Some(topic("u"));
    assert_eq!(redrive(&q, RedriveBatch { target: target(), ..ids(&["a", "b"]) }).await, (1, 1));
    assert_eq!(states(&q, &["a", "b"]).await, [Some(State::Dead), None]);
    assert_eq!(q.get_in("u", "b").await.unwrap().state, State::Ready);
    assert_eq!(redrive(&q, RedriveBatch { target: target(), ..ids(&["a"]) }).await, (0, 1));
    assert_eq!(q.state("a").await, Some(State::Dead));
}

pub(crate) async fn the_own_topic_as_target_is_no_move(q: Fixture) {
    bury(&q, &["a"]).await;
    let target = Some(topic(TOPIC));
    assert_eq!(redrive(&q, RedriveBatch { target, ..ids(&["a"]) }).await, (1, 0));
    assert_eq!(q.state("a").await, Some(State::Ready));
}

pub(crate) async fn a_topic_that_does_not_exist_has_nothing_to_redrive(q: Fixture) {
    assert_eq!(redrive(&q, ids(&["a"])).await, (0, 1));
    assert_eq!(q.store.topics(String::new(), None, 10).await.unwrap(), []);
}

pub(crate) async fn an_id_named_twice_is_redriven_once(q: Fixture) {
    bury(&q, &["a", "b"]).await;
    let spacing = Duration::from_secs(1);
    let twice = || RedriveBatch { spacing, ..ids(&["a", "a", "b"]) };
    assert_eq!(redrive(&q, RedriveBatch { dry_run: true, ..twice() }).await, (2, 1));
    assert_eq!(redrive(&q, twice()).await, (2, 1));
    assert_eq!(q.job("a").await.due_time, q.now());
    assert_eq!(q.job("b").await.due_time, plus(q.now(), 1));
}
