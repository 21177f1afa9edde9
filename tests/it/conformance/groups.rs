//! Groups: whose turn it is, what a lane counts, pauses and weights, and that idle groups leave nothing.

use std::time::Duration;

use crate::harness::within;
use crate::store_calls::{JobReschedule, LeaseSettlement, RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::engine::{CrashMove, Unacked};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{
    GroupName, OnConflict, RetentionRule, RetryPolicy, Spec, State, When, limit, turns,
};
use ringq::store::{
    EventKind, GroupSetting, GroupsQuery, LeasedJob, SettleAction, ShardEvent, ShardGroupStats,
    StreamDemand, TopicRemainder,
};

use super::fixture::Fixture;
use super::values::{
    OWNER, TOPIC, after, dead_lettered, failed, failed_for, ids_of, key, lease_ref, new_job, one,
    plus, released, taker, topic,
};

fn group(name: &str) -> Option<GroupName> {
    GroupName::stored(name)
}

/// Builds a plain job of a group that leaves nothing. The group is the id up to its digits.
fn job(id: &str) -> TestJob {
    let name = id.trim_end_matches(|c: char| c.is_ascii_digit());
    of(name, id)
}

fn of(name: &str, id: &str) -> TestJob {
    let plain = new_job(id);
    let spec = Spec { group: group(name), ..plain.spec.clone() };
    TestJob { spec, retention: RetentionRule::Nothing, ..plain }
}

fn setting(name: &str, weight: u8, paused: bool) -> GroupSetting {
    GroupSetting { group: group(name), weight, paused }
}

async fn put(q: &Fixture, ids: &[&str]) {
    q.store.enqueue(ids.iter().map(|id| job(id)).collect()).await.unwrap();
}

async fn configure(q: &Fixture, settings: &[GroupSetting]) {
    q.configure_groups(topic(TOPIC), settings.to_vec()).await.unwrap();
}

async fn groups(q: &Fixture) -> Vec<ShardGroupStats> {
    let query = GroupsQuery { topic: topic(TOPIC), after: None, limit: 1_000 };
    q.store.groups(query).await.unwrap()
}

/// Returns name, ready, scheduled and running jobs of every group.
async fn counts(q: &Fixture) -> Vec<(String, u64, u64, u64)> {
    let count = |stats: ShardGroupStats| {
        let name = GroupName::text(stats.group.as_ref()).to_owned();
        (name, stats.ready, stats.scheduled, stats.running)
    };
    groups(q).await.into_iter().map(count).collect()
}

fn counted(name: &str, ready: u64, scheduled: u64, running: u64) -> (String, u64, u64, u64) {
    (name.to_owned(), ready, scheduled, running)
}

/// Claims this number of jobs, one call each; returns the ids.
async fn one_by_one(q: &Fixture, jobs: usize) -> Vec<LeasedJob> {
    let mut leased = Vec::new();
    for _ in 0..jobs {
        leased.push(q.claim_one().await);
    }
    leased
}

/// Checks that the topic has no lane, and that nothing of one is stored.
async fn nothing_is_left(q: &Fixture, what: &str) {
    assert_eq!(counts(q).await, [], "{what}");
    assert_eq!(q.lanes().await.unwrap_or(0), 0, "{what}: stored lanes");
}

// === turns ===

pub(crate) async fn the_group_with_the_least_running_jobs_is_next(q: Fixture) {
    put(&q, &["a1", "a2", "a3", "a4", "b1", "b2", "c1"]).await;
    let order = one_by_one(&q, 7).await;
    assert_eq!(ids_of(&order), ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
    // What ends gives its group the next turn.
    put(&q, &["a5", "b3", "c2", "b4"]).await;
    q.ack(&order[4]).await;
    q.ack(&order[1]).await;
    assert_eq!(ids_of(&one_by_one(&q, 4).await), ["b3", "c2", "b4", "a5"]);
}

pub(crate) async fn one_claim_of_many_jobs_takes_turns(q: Fixture) {
    put(&q, &["a1", "a2", "a3", "a4", "b1", "b2", "c1"]).await;
    assert_eq!(q.claim_ids().await, ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
}

pub(crate) async fn among_equals_the_group_that_was_served_longest_ago_is_next(q: Fixture) {
    put(&q, &["a1", "a2", "a3", "b1", "b2", "b3", "c1"]).await;
    for expected in ["a1", "b1", "c1", "a2", "b2"] {
        let leased = q.claim_one().await;
        assert_eq!(leased.key.id.as_str(), expected);
        q.ack(&leased).await;
    }
    // A group whose jobs come one by one waits for one turn of each other group at most, and they for one of its.
    put(&q, &["c2"]).await;
    for expected in ["a3", "c2", "b3"] {
        let leased = q.claim_one().await;
        assert_eq!(leased.key.id.as_str(), expected);
        q.ack(&leased).await;
    }
}

pub(crate) async fn a_group_whose_jobs_come_one_by_one_starves_no_other(q: Fixture) {
    put(&q, &["a1", "a2", "a3"]).await;
    let mut order = Vec::new();
    for n in 1..=3 {
        put(&q, &[&format!("b{n}")]).await;
        for _ in 0..2 {
            let leased = q.claim_one().await;
            q.ack(&leased).await;
            order.push(leased.key.id.to_string());
        }
    }
    assert_eq!(order.iter().filter(|id| id.starts_with('a')).count(), 3, "{order:?}");
}

pub(crate) async fn jobs_without_a_group_are_one_group(q: Fixture) {
    q.put_ids(&["1", "2", "3"]).await;
    put(&q, &["a1", "a2", "a3"]).await;
    let order = ids_of(&one_by_one(&q, 6).await);
    assert_eq!(order.iter().filter(|id| id.starts_with('a')).count(), 3);
    for pair in order.chunks(2) {
        assert_ne!(pair[0].starts_with('a'), pair[1].starts_with('a'), "{order:?}");
    }
    assert_eq!(counts(&q).await, [counted("", 0, 0, 3), counted("a", 0, 0, 3)]);
}

pub(crate) async fn a_group_alone_is_delivered_in_the_order_of_its_jobs(q: Fixture) {
    let jobs = [("a1", 0, 0), ("a2", 5, 0), ("a3", 9, 0), ("a4", 9, 1), ("a5", 0, 0)];
    for (id, priority, delay) in jobs {
        q.put(TestJob { priority: Some(priority), due: after(delay), ..job(id) }).await;
    }
    put(&q, &["b1"]).await;
    q.sleep(1);
    // Priorities order the jobs of a group; they win no turn against another one.
    let order = q.claim_ids().await;
    let own: Vec<_> = order.iter().filter(|id| id.starts_with('a')).collect();
    assert_eq!(own, ["a3", "a4", "a2", "a1", "a5"]);
    assert!(order.iter().position(|id| id == "b1").unwrap() < 2, "{order:?}");
}

/// Other groups with a backlog, whose jobs end at once.
const BUSY_GROUPS: usize = 64;

/// A group with jobs that never end, and others with a backlog. Returns the number of turns until one of its own jobs
/// is delivered.
async fn turns_beside_hung_jobs(q: &Fixture, topic: &str, name: &str, hung: usize) -> usize {
    let put = async |jobs: Vec<(String, String)>| {
        let jobs = jobs.into_iter().map(|(group, id)| {
            let plain = of(&group, &id);
            TestJob { key: key(topic, &id), ..plain }
        });
        for part in jobs.collect::<Vec<_>>().chunks(limit::CALL_JOBS_MAX) {
            q.store.enqueue(part.to_vec()).await.unwrap();
        }
    };
    let claim = async |jobs: usize| {
        let stream = StreamDemand { jobs: u32::try_from(jobs).unwrap(), ..taker() };
        one(q.claim_for(topic, vec![stream]).await.by_stream)
    };
    put((0..hung).map(|n| (name.to_owned(), format!("hung{n}"))).collect()).await;
    assert_eq!(claim(hung).await.len(), hung);
    let turns = usize::try_from(turns::TURNS_PER_RUNNING_JOB).unwrap();
    let backlog = turns * hung / BUSY_GROUPS + 2;
    let busy = (0..backlog).flat_map(|n| {
        (0..BUSY_GROUPS).map(move |group| (format!("busy{group}"), format!("b{group}-{n}")))
    });
    put(busy.collect()).await;
    put(vec![(name.to_owned(), "waits".to_owned())]).await;
    let mut delivered = 0;
    loop {
        // As many as there are groups, so that none but the one has running jobs.
        let leased = claim(BUSY_GROUPS).await;
        assert!(!leased.is_empty(), "{name:?}: no turn beside {hung} hung jobs in {delivered}");
        let place = leased.iter().position(|leased| leased.key.id.as_str() == "waits");
        if let Some(place) = place {
            return delivered + place + 1;
        }
        delivered += leased.len();
        let acks = leased.iter().map(super::values::ack).collect();
        q.store.settle(acks).await.unwrap();
    }
}

pub(crate) async fn jobs_that_never_end_delay_their_group_by_a_number_of_turns(q: Fixture) {
    let own = usize::try_from(turns::TURNS_PER_RUNNING_JOB).unwrap();
    for (topic, name, hung) in [("t1", "g", 1), ("t2", "g", 2), ("t7", "g", 7), ("t0", "", 1)] {
        let turn = turns_beside_hung_jobs(&q, topic, name, hung).await;
        assert!(turn <= hung * own + BUSY_GROUPS + 1, "{name:?}, {hung} hung jobs: turn {turn}");
        assert!(turn >= (hung - 1) * own, "running jobs count against their group: turn {turn}");
    }
}

pub(crate) async fn a_retried_job_waits_in_its_group_in_due_order(q: Fixture) {
    let leased = q.run(job("a1")).await;
    q.end(&leased, failed_for(2)).await;
    q.put(TestJob { due: after(1), ..job("a2") }).await;
    q.put(TestJob { due: after(3), ..job("a3") }).await;
    assert_eq!(counts(&q).await, [counted("a", 0, 3, 0)]);
    assert_eq!(q.stats(TOPIC).await.backoff, 1);
    let rest = q.claim_for(TOPIC, vec![taker()]).await.remainder;
    assert_eq!(rest, TopicRemainder::ReadyAt(plus(q.now(), 1)));
    q.sleep(3);
    assert_eq!(q.claim_ids().await, ["a2", "a1", "a3"]);
}

pub(crate) async fn a_weight_is_a_share_of_the_turns(q: Fixture) {
    configure(&q, &[setting("b", 3, false)]).await;
    let ids: Vec<String> =
        (0..80).map(|n| format!("{}{n}", if n % 2 == 0 { 'a' } else { 'b' })).collect();
    q.store.enqueue(ids.iter().map(|id| job(id)).collect()).await.unwrap();
    let leased = q.claim(40).await;
    let of_b = leased.iter().filter(|leased| leased.key.id.as_str().starts_with('b')).count();
    assert_eq!(of_b, 30, "three of four jobs that run at once");
    // A new weight holds for lanes that exist.
    configure(&q, &[setting("a", 3, false)]).await;
    let leased = q.claim(20).await;
    let of_b = leased.iter().filter(|leased| leased.key.id.as_str().starts_with('b')).count();
    assert_eq!(of_b, 0, "a has 10 of 30 by now, b has 30 of 10");
    let weights: Vec<u8> = groups(&q).await.iter().map(|stats| stats.weight).collect();
    assert_eq!(weights, [3, 1]);
    configure(&q, &[setting("a", 0, false), setting("b", u8::MAX, false)]).await;
    let weights: Vec<u8> = groups(&q).await.iter().map(|stats| stats.weight).collect();
    assert_eq!(weights, [1, limit::GROUP_WEIGHT_MAX]);
}

pub(crate) async fn turns_go_round_the_streams_too(q: Fixture) {
    put(&q, &["a1", "a2", "a3", "b1"]).await;
    let takers =
        vec![StreamDemand { jobs: 2, ..taker() }, StreamDemand { stream: 2, jobs: 2, ..taker() }];
    let claimed = q.claim_for(TOPIC, takers).await;
    let shares: Vec<_> = claimed.by_stream.iter().map(|leased| ids_of(leased)).collect();
    assert_eq!(shares, [["a1", "a2"], ["b1", "a3"]]);
    assert_eq!(claimed.remainder, TopicRemainder::Empty);
}

pub(crate) async fn a_job_that_fits_no_stream_is_not_overtaken(q: Fixture) {
    put(&q, &["a1", "b1"]).await;
    let narrow = StreamDemand { bytes: 1, oversize: false, ..taker() };
    let claimed = q.claim_for(TOPIC, vec![narrow]).await;
    assert!(claimed.by_stream[0].is_empty());
    assert_eq!(claimed.remainder, TopicRemainder::Ready);
    assert_eq!(q.claim_for(TOPIC, Vec::new()).await.remainder, TopicRemainder::Ready);
    assert_eq!(ids_of(&q.claim(1).await), ["a1"]);
}

pub(crate) async fn a_lane_waits_for_its_first_due_time(q: Fixture) {
    q.put(TestJob { due: after(10), ..job("a1") }).await;
    q.put(TestJob { due: after(5), ..job("b1") }).await;
    q.put(TestJob { due: after(20), ..job("c1") }).await;
    let rest = async || q.claim_for(TOPIC, vec![taker()]).await;
    assert_eq!(rest().await.remainder, TopicRemainder::ReadyAt(plus(q.now(), 5)));
    q.delete("b1").await.unwrap();
    assert_eq!(rest().await.remainder, TopicRemainder::ReadyAt(plus(q.now(), 10)));
    q.sleep(10);
    let claimed = rest().await;
    assert_eq!(ids_of(&one(claimed.by_stream)), ["a1"]);
    assert_eq!(claimed.remainder, TopicRemainder::ReadyAt(plus(q.now(), 10)));
}

pub(crate) async fn a_small_group_is_not_behind_a_large_one(q: Fixture) {
    let large = (0..2_000).map(|n| job(&format!("large{n}")));
    let small =
        (0..20).flat_map(|g| (0..5).map(move |n| of(&format!("s{g}"), &format!("s{g}-{n}"))));
    let jobs: Vec<_> = large.chain(small).collect();
    for part in jobs.chunks(limit::CALL_JOBS_MAX) {
        q.store.enqueue(part.to_vec()).await.unwrap();
    }
    let mut delivered = Vec::new();
    while delivered.len() < 200 {
        delivered.extend(ids_of(&q.claim(20).await));
    }
    let last = delivered.iter().rposition(|id| id.starts_with("s")).unwrap();
    assert_eq!(delivered.iter().filter(|id| id.starts_with("s")).count(), 100);
    assert!(last < 105, "the last job of a small group is number {last}");
}

// === counts ===

/// Every way in which a lease ends gives its place back.
pub(crate) async fn every_end_of_a_lease_is_counted(q: Fixture) {
    let ends: [(&str, LeaseEndCause, (u64, u64)); 6] = [
        ("nack", failed(), (0, 1)),
        ("release", released(), (1, 0)),
        ("expiry", LeaseEndCause::Expired, (0, 1)),
        ("broken", LeaseEndCause::StreamBroken, (1, 0)),
        ("unserved", LeaseEndCause::Unserved, (1, 0)),
        ("dead", dead_lettered(), (0, 0)),
    ];
    for (what, cause, (ready, scheduled)) in ends {
        let leased = q.run(of("g", what)).await;
        put(&q, &["g2"]).await;
        assert_eq!(counts(&q).await, [counted("g", 1, 0, 1)], "{what}");
        q.end(&leased, cause).await;
        let left = counted("g", 1 + ready, scheduled, 0);
        assert_eq!(counts(&q).await, [left], "{what}");
        q.delete("g2").await.unwrap();
        q.delete(what).await.unwrap();
        nothing_is_left(&q, what).await;
    }
}

pub(crate) async fn an_ack_a_delete_and_an_unclaim_are_counted(q: Fixture) {
    let keeps = [
        RetentionRule::Nothing,
        RetentionRule::Tombstone(limit::TOMBSTONE),
        RetentionRule::Record(Duration::from_secs(60)),
    ];
    for (n, retention) in keeps.into_iter().enumerate() {
        let id = format!("g{n}");
        let leased = q.run(TestJob { retention, ..job(&id) }).await;
        assert_eq!(counts(&q).await, [counted("g", 0, 0, 1)]);
        q.ack(&leased).await;
        nothing_is_left(&q, &format!("{retention:?}")).await;
        let expected = (n > 0).then_some(State::Succeeded);
        assert_eq!(q.state(&id).await, expected);
    }
    let leased = q.run(job("g7")).await;
    q.delete("g7").await.unwrap();
    nothing_is_left(&q, "delete of a running job").await;
    assert!(q.settle(super::values::ack(&leased)).await.is_err());
    let leased = q.run(job("g8")).await;
    assert!(q.unclaim(&leased).await);
    assert_eq!(counts(&q).await, [counted("g", 1, 0, 0)]);
    let leased = q.claim_one().await;
    assert!(q.extend(&leased, None, Some("half")).await.is_ok());
    assert!(q.save(&leased, "checkpoint").await.is_ok());
    assert_eq!(counts(&q).await, [counted("g", 0, 0, 1)]);
    q.ack(&leased).await;
    nothing_is_left(&q, "an ack after an extend").await;
}

pub(crate) async fn many_acks_of_many_groups_are_counted(q: Fixture) {
    let jobs = (0..60).map(|n| {
        let kept = RetentionRule::Tombstone(limit::TOMBSTONE);
        let retention = if n % 2 == 0 { RetentionRule::Nothing } else { kept };
        TestJob { retention, ..of(["", "a", "b", "c"][n % 4], &format!("j{n}")) }
    });
    q.store.enqueue(jobs.collect()).await.unwrap();
    let leased = q.claim(1_000).await;
    assert_eq!(leased.len(), 60);
    let (first, rest) = leased.split_at(30);
    q.store.settle(first.iter().map(super::values::ack).collect()).await.unwrap();
    let running: u64 = counts(&q).await.iter().map(|(_, _, _, running)| running).sum();
    assert_eq!(running, 30);
    // By another server, which has to notify the owner.
    let elsewhere =
        rest.iter().map(|l| LeaseSettlement { owner: OWNER + 1, ..super::values::ack(l) });
    q.store.settle(elsewhere.collect()).await.unwrap();
    nothing_is_left(&q, "acks").await;
    assert_eq!(q.stats(TOPIC).await.succeeded_total, 60);
}

pub(crate) async fn a_job_changes_its_group_by_a_replacement(q: Fixture) {
    put(&q, &["a1"]).await;
    let replace =
        |id: &str, name: &str| TestJob { on_conflict: OnConflict::Replace, ..of(name, id) };
    q.put(replace("a1", "b")).await;
    assert_eq!(counts(&q).await, [counted("b", 1, 0, 0)]);
    q.put(replace("a1", "")).await;
    assert_eq!(counts(&q).await, [counted("", 1, 0, 0)]);
    q.put(replace("a1", "c")).await;
    assert_eq!(q.job("a1").await.spec.group, group("c"));
    // While the job runs the lease counts in its own group, and the next generation waits in the other one.
    let leased = q.claim_one().await;
    assert_eq!(leased.spec.group, group("c"));
    q.put(replace("a1", "d")).await;
    assert_eq!(counts(&q).await, [counted("c", 0, 0, 1)]);
    q.ack(&leased).await;
    assert_eq!(counts(&q).await, [counted("d", 1, 0, 0)]);
    let leased = q.claim_one().await;
    assert_eq!(leased.spec.group, group("d"));
    q.ack(&leased).await;
    nothing_is_left(&q, "the last generation").await;
}

pub(crate) async fn a_move_in_the_order_keeps_the_group(q: Fixture) {
    put(&q, &["a1"]).await;
    let reschedule = |due, priority| JobReschedule {
        key: key(TOPIC, "a1"),
        due: Some(due),
        priority: Some(priority),
        deadline: None,
    };
    q.store.reschedule(vec![reschedule(after(10), 4)]).await.unwrap();
    assert_eq!(counts(&q).await, [counted("a", 0, 1, 0)]);
    assert!(q.claim_ids().await.is_empty());
    q.store.reschedule(vec![reschedule(When::Now, 0)]).await.unwrap();
    assert_eq!(counts(&q).await, [counted("a", 1, 0, 0)]);
    let leased = q.claim_one().await;
    q.end(&leased, dead_lettered()).await;
    nothing_is_left(&q, "a dead letter").await;
    // In another topic, too.
    let redrive = RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![key(TOPIC, "a1").id],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        states: vec![State::Dead],
        ttl: None,
        target: Some(topic("other")),
        dry_run: false,
        deadline: None,
    };
    assert_eq!(q.store.redrive(redrive).await.unwrap().redriven, 1);
    nothing_is_left_in_source(&q).await;
    let query = GroupsQuery { topic: topic("other"), after: None, limit: 10 };
    let found = one(q.store.groups(query).await.unwrap());
    assert_eq!((found.group, found.ready), (group("a"), 1));
    let leased = one(one(q.claim_for("other", vec![taker()]).await.by_stream));
    assert_eq!(leased.spec.group, group("a"));
}

async fn nothing_is_left_in_source(q: &Fixture) {
    assert_eq!(counts(q).await, []);
}

pub(crate) async fn expired_jobs_leave_their_lane(q: Fixture) {
    for id in ["a1", "a2", "a3"] {
        let expire = (id != "a2").then(|| after(5));
        q.put(TestJob { expire, ..job(id) }).await;
    }
    q.put(TestJob { due: after(60), expire: Some(after(70)), ..job("b1") }).await;
    q.sleep(5);
    assert_eq!(counts(&q).await, [counted("a", 1, 0, 0), counted("b", 0, 1, 0)]);
    let leased = q.claim_one().await;
    assert_eq!(leased.key.id.as_str(), "a2");
    q.ack(&leased).await;
    q.sleep(65);
    let claimed = q.claim_for(TOPIC, vec![taker()]).await;
    assert!(claimed.by_stream[0].is_empty());
    q.store.prune(100).await.unwrap();
    nothing_is_left(&q, "expired jobs").await;
}

pub(crate) async fn a_claim_passes_jobs_of_a_lane_that_have_expired(q: Fixture) {
    for n in 0..20 {
        q.put(TestJob { expire: Some(after(5)), ..job(&format!("a{n}")) }).await;
    }
    put(&q, &["a99", "b1"]).await;
    q.sleep(5);
    assert_eq!(q.claim_ids().await, ["a99", "b1"]);
    assert_eq!(counts(&q).await, [counted("a", 0, 0, 1), counted("b", 0, 0, 1)]);
}

pub(crate) async fn follow_ups_join_their_groups(q: Fixture) {
    let leased = q.run(job("a1")).await;
    let follow_ups = vec![job("b1").new_job(), of("", "plain").new_job()];
    let ack = LeaseSettlement {
        lease: lease_ref(&leased),
        owner: OWNER,
        action: SettleAction::Ack { result: None, follow_ups },
        deadline: None,
    };
    q.settle(ack).await.unwrap();
    assert_eq!(counts(&q).await, [counted("", 1, 0, 0), counted("b", 1, 0, 0)]);
}

pub(crate) async fn a_topic_counts_and_lists_the_jobs_of_its_groups(q: Fixture) {
    put(&q, &["a1", "b1"]).await;
    q.put_ids(&["plain"]).await;
    q.put(TestJob { due: after(30), ..job("b2") }).await;
    let leased = q.run_next("a1").await;
    q.end(&leased, failed_for(60)).await;
    let stats = q.stats_due_within(TOPIC, Duration::from_secs(40)).await;
    assert_eq!((stats.ready, stats.scheduled, stats.backoff), (2, 1, 1));
    assert_eq!((stats.running, stats.due_soon), (0, 1));
    for (state, expected) in [
        (State::Ready, vec!["b1", "plain"]),
        (State::Scheduled, vec!["b2"]),
        (State::Backoff, vec!["a1"]),
    ] {
        let mut found = q.list_ids(state).await;
        found.sort();
        assert_eq!(found, expected, "{state:?}");
    }
    let info = q.store.info().await.unwrap().counts;
    assert_eq!((info.ready, info.scheduled, info.backoff), (2, 1, 1));
}

// === settings ===

pub(crate) async fn jobs_of_a_paused_group_wait(q: Fixture) {
    let leased = q.run(job("a0")).await;
    put(&q, &["a1", "b1"]).await;
    configure(&q, &[setting("a", 1, true)]).await;
    put(&q, &["a2"]).await;
    assert_eq!(q.claim_ids().await, ["b1"]);
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, TopicRemainder::Empty);
    // What runs goes on, and comes back to wait.
    q.end(&leased, released()).await;
    assert_eq!(counts(&q).await, [counted("a", 3, 0, 0), counted("b", 0, 0, 1)]);
    assert!(groups(&q).await[0].paused);
    assert!(q.claim_ids().await.is_empty());
    let mut events = q.store.subscribe(EventKind::Jobs);
    configure(&q, &[]).await;
    resumed(&q, &mut events).await;
    assert!(!groups(&q).await[0].paused);
    let mut found = q.claim_ids().await;
    found.sort();
    assert_eq!(found, ["a0", "a1", "a2"]);
}

/// Waits for the hint that jobs can be claimed now.
async fn resumed(q: &Fixture, events: &mut tokio::sync::broadcast::Receiver<ShardEvent>) {
    let now = q.now();
    let found = async {
        loop {
            match events.recv().await.unwrap() {
                ShardEvent::Claimable { topic, at } if topic.as_str() == TOPIC && at <= now => {
                    return;
                }
                _ => {}
            }
        }
    };
    within("the resume is announced", found).await;
}

pub(crate) async fn jobs_without_a_group_can_be_paused(q: Fixture) {
    configure(&q, &[setting("", 1, true)]).await;
    q.put_ids(&["plain"]).await;
    assert!(q.claim_ids().await.is_empty(), "the topic was created paused");
    put(&q, &["a1"]).await;
    assert_eq!(q.claim_ids().await, ["a1"]);
    let leased = q.run(job("a2")).await;
    q.ack(&leased).await;
    q.put_ids(&["more"]).await;
    assert!(q.claim_ids().await.is_empty());
    let mut events = q.store.subscribe(EventKind::Jobs);
    configure(&q, &[]).await;
    resumed(&q, &mut events).await;
    assert_eq!(q.claim_ids().await, ["plain", "more"]);
}

pub(crate) async fn a_scheduled_lane_is_resumed_for_its_due_time(q: Fixture) {
    configure(&q, &[setting("a", 1, true)]).await;
    q.put(TestJob { due: after(10), ..job("a1") }).await;
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, TopicRemainder::Empty);
    configure(&q, &[setting("a", 2, false)]).await;
    let due = plus(q.now(), 10);
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, TopicRemainder::ReadyAt(due));
    q.until(due);
    assert_eq!(q.claim_ids().await, ["a1"]);
}

pub(crate) async fn settings_do_not_depend_on_jobs(q: Fixture) {
    configure(&q, &[setting("a", 7, false), setting("b", 1, true)]).await;
    nothing_is_left(&q, "settings are no groups").await;
    for _ in 0..2 {
        let leased = q.run(job("a1")).await;
        assert_eq!(groups(&q).await[0].weight, 7);
        q.ack(&leased).await;
        nothing_is_left(&q, "idle again").await;
    }
    put(&q, &["b1"]).await;
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn settings_and_lanes_survive_reopening(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    configure(&q, &[setting("a", 3, false), setting("b", 1, true), setting("", 1, true)]).await;
    q.put_ids(&["plain"]).await;
    put(&q, &["a1", "a2", "b1", "c1"]).await;
    let leased = q.claim_one().await;
    let before = groups(&q).await;
    q.reopen().await;
    assert_eq!(groups(&q).await, before);
    q.ack(&leased).await;
    let mut found = q.claim_ids().await;
    found.sort();
    assert_eq!(found, ["a2", "c1"]);
    configure(&q, &[]).await;
    let mut found = q.claim_ids().await;
    found.sort();
    assert_eq!(found, ["b1", "plain"]);
}

pub(crate) async fn many_settings_are_replaced_as_a_whole(q: Fixture) {
    let many = |paused| {
        (0..limit::GROUP_SETTINGS_MAX).map(|n| setting(&format!("g{n}"), 2, paused)).collect()
    };
    let settings: Vec<GroupSetting> = many(true);
    configure(&q, &settings).await;
    put(&q, &["g1", "g2", "other1"]).await;
    assert!(q.claim(10).await.len() == 3, "groups are named by their letters here");
    q.put(of("g999", "x")).await;
    assert!(q.claim_ids().await.is_empty());
    configure(&q, &[]).await;
    assert_eq!(q.claim_ids().await, ["x"]);
}

// === pages, restarts, clocks ===

pub(crate) async fn groups_are_listed_page_by_page(q: Fixture) {
    put(&q, &["c1", "a1", "b1", "d1"]).await;
    q.put_ids(&["plain"]).await;
    q.sleep(9);
    let page = async |after: Option<&str>, limit| {
        let query = GroupsQuery { topic: topic(TOPIC), after: after.map(str::to_owned), limit };
        let found = q.store.groups(query).await.unwrap();
        let name = |stats: ShardGroupStats| {
            assert_eq!(stats.oldest_ready, Some(Duration::from_secs(9)));
            GroupName::text(stats.group.as_ref()).to_owned()
        };
        found.into_iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2).await, ["", "a"]);
    assert_eq!(page(Some(""), 2).await, ["a", "b"]);
    assert_eq!(page(Some("b"), 9).await, ["c", "d"]);
    assert_eq!(page(Some("bb"), 1).await, ["c"]);
    assert!(page(Some("d"), 9).await.is_empty());
    assert!(page(None, 0).await.is_empty());
    let query = GroupsQuery { topic: topic("none"), after: None, limit: 9 };
    assert!(q.store.groups(query).await.unwrap().is_empty());
}

pub(crate) async fn an_undelayed_job_of_a_group_waits_for_no_clock_that_went_back(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    put(&q, &["a1", "b1"]).await;
    q.put(TestJob { due: after(3_600), ..job("c1") }).await;
    let back = ringq::domain::Time(q.now().0 - 100_000_000);
    q.clock.set(back);
    q.reopen().await;
    let mut found = q.claim_ids().await;
    found.sort();
    assert_eq!(found, ["a1", "b1"]);
    assert_eq!(
        counts(&q).await,
        [counted("a", 0, 0, 1), counted("b", 0, 0, 1), counted("c", 0, 1, 0)]
    );
}

pub(crate) async fn leases_of_groups_are_found_where_others_are(q: Fixture) {
    put(&q, &["a1", "a2"]).await;
    let leased = q.claim(2).await;
    assert_eq!(q.list_ids(State::Running).await, ["a1", "a2"]);
    q.until(leased[0].deadline);
    let overdue = q.store.overdue_leases(10).await.unwrap().leases;
    assert_eq!(overdue.len(), 2);
    for lease in &overdue {
        let (policy, dead_retention) = (RetryPolicy::default(), limit::DEAD_RETENTION);
        let cause = LeaseEndCause::Expired;
        let crash_move = CrashMove::None;
        let end = Unacked { cause, policy, entropy: 0.0, dead_retention, crash_move };
        let settle = LeaseSettlement {
            lease: ringq::store::LeaseRef { key: lease.key.clone(), token: lease.token },
            owner: lease.owner,
            action: SettleAction::Unacked(end),
            deadline: Some(lease.deadline),
        };
        q.settle(settle).await.unwrap();
    }
    assert_eq!(counts(&q).await, [counted("a", 0, 2, 0)]);
    assert_eq!(q.store.orphaned_leases(vec![]).await.unwrap().len(), 0);
}

pub(crate) async fn jobs_removed_by_hand_leave_their_lanes(q: Fixture) {
    let leased = q.run(job("c1")).await;
    put(&q, &["a1", "a2", "b1"]).await;
    if !q.remove_by_hand("c1").await {
        println!("skipped: {:?} has no such hand", q.backend);
        return;
    }
    assert!(q.remove_by_hand("a1").await && q.remove_by_hand("b1").await);
    let rest = q.claim(10).await;
    assert_eq!(ids_of(&rest), ["a2"]);
    assert_eq!(counts(&q).await, [counted("a", 0, 0, 1), counted("c", 0, 0, 1)]);
    q.until(leased.deadline);
    q.sleep(1);
    q.store.overdue_leases(10).await.unwrap();
    q.ack(&rest[0]).await;
    nothing_is_left(&q, "jobs removed by hand").await;
}
