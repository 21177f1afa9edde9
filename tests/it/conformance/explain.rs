//! Explain: a job with its lease, its end, and the number of ready jobs before it.

use std::time::Duration;

use crate::store_calls::{JobDeletion, JobReschedule, StoreCalls as _, TestJob};
use ringq::domain::explain::ReadyBefore;
use ringq::domain::{GroupName, RetentionRule, Spec, State, StreamId, When, limit};
use ringq::store::{ExplainedJob, GroupSetting, StreamDemand};

use super::fixture::Fixture;
use super::values::{
    LEASE, OWNER, TOPIC, ack, after, dead_lettered, failed_for, job_in, key, new_job, taker, topic,
};

/// More than any case has.
const LIMIT: u64 = 10_000;

async fn explain(q: &Fixture, id: &str) -> Option<ExplainedJob> {
    q.store.explain(key(TOPIC, id), None, LIMIT).await.unwrap()
}

/// Returns the number of jobs before a ready one.
async fn before(q: &Fixture, id: &str) -> u64 {
    let found = explain(q, id).await.unwrap().ready_before.expect("a ready job");
    assert!(!found.has_more);
    found.jobs
}

/// Takes all ready jobs; returns their ids in the order of the topic.
async fn order(q: &Fixture) -> Vec<String> {
    let claimed = q.claim_for(TOPIC, vec![taker()]).await;
    let jobs = claimed.by_stream.into_iter().flatten();
    jobs.map(|leased| leased.key.id.to_string()).collect()
}

/// Checks that the number before each ready job is its place in the order of claims.
async fn check_places(q: &Fixture, ids: &[&str]) {
    let mut places = Vec::new();
    for id in ids {
        places.push((before(q, id).await, (*id).to_owned()));
    }
    places.sort();
    let numbers: Vec<_> = places.iter().map(|(place, _)| *place).collect();
    assert_eq!(numbers, (0..ids.len() as u64).collect::<Vec<_>>(), "{places:?}");
    let expected: Vec<_> = places.into_iter().map(|(_, id)| id).collect();
    assert_eq!(order(q).await, expected);
}

pub(crate) async fn a_missing_job_is_not_explained(q: Fixture) {
    assert_eq!(explain(&q, "a").await, None, "no topic");
    q.put_ids(&["a"]).await;
    assert_eq!(explain(&q, "b").await, None);
}

pub(crate) async fn the_job_reads_as_a_brief_get(q: Fixture) {
    q.running("c").await;
    q.put_ids(&["a"]).await;
    q.put(TestJob { due: after(60), priority: Some(3), ..new_job("b") }).await;
    for id in ["a", "b", "c"] {
        let found = explain(&q, id).await.unwrap();
        let brief = q.store.get(vec![key(TOPIC, id)], false).await.unwrap().remove(0).unwrap();
        assert_eq!((found.job, found.now, found.bytes), (brief, q.now(), 1));
    }
}

pub(crate) async fn only_a_ready_job_has_jobs_before_it(q: Fixture) {
    q.put_ids(&["a"]).await;
    q.put(TestJob { due: after(60), ..new_job("later") }).await;
    let later = explain(&q, "later").await.unwrap();
    assert_eq!((later.job.state, later.ready_before), (State::Scheduled, None));
    assert_eq!(before(&q, "a").await, 0);
    q.sleep(60);
    assert_eq!(before(&q, "later").await, 1, "it is due now, after the other");
    q.claim_one().await;
    assert_eq!(explain(&q, "a").await.unwrap().ready_before, None);
    assert_eq!(before(&q, "later").await, 0);
}

pub(crate) async fn the_number_before_a_job_is_its_place_in_the_order_of_claims(q: Fixture) {
    q.put_ids(&["line-1", "line-2"]).await;
    q.put(TestJob { priority: Some(9), ..new_job("first") }).await;
    q.put(TestJob { priority: Some(5), due: after(2), ..new_job("middle-later") }).await;
    q.put(TestJob { priority: Some(5), ..new_job("middle") }).await;
    q.put(TestJob { due: after(1), ..new_job("delayed") }).await;
    q.put(TestJob { due: after(1), ..new_job("delayed-with-it") }).await;
    q.put(TestJob { due: after(900), priority: Some(9), ..new_job("not-due") }).await;
    q.store.enqueue(vec![job_in("other", "x"), job_in("other", "y")]).await.unwrap();
    let leased = q.claim_one().await;
    assert_eq!(leased.key.id.as_str(), "first");
    q.end(&leased, failed_for(1)).await;
    q.sleep(2);
    q.put_ids(&["line-3"]).await;
    check_places(
        &q,
        &[
            "first",
            "middle-later",
            "middle",
            "line-1",
            "line-2",
            "line-3",
            "delayed",
            "delayed-with-it",
        ],
    )
    .await;
}

pub(crate) async fn jobs_that_left_are_not_before_others(q: Fixture) {
    let ids: Vec<String> = (0..20).map(|n| format!("j{n:02}")).collect();
    q.put_ids(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(before(&q, "j19").await, 19);
    let gone = ["j01", "j07", "j08"].map(|id| JobDeletion::from(key(TOPIC, id)));
    q.store.delete(gone.to_vec()).await.unwrap();
    let moved = JobReschedule {
        key: key(TOPIC, "j03"),
        due: Some(When::Now),
        priority: Some(4),
        deadline: None,
    };
    q.store.reschedule(vec![moved]).await.unwrap().remove(0).unwrap();
    assert_eq!((before(&q, "j19").await, before(&q, "j00").await), (16, 1));
    let left: Vec<_> =
        ids.iter().map(String::as_str).filter(|id| !["j01", "j07", "j08"].contains(id)).collect();
    check_places(&q, &left).await;
}

pub(crate) async fn an_expired_job_is_not_before_others(q: Fixture) {
    q.put(TestJob { expire: Some(after(5)), ..new_job("short") }).await;
    q.put_ids(&["a"]).await;
    assert_eq!(before(&q, "a").await, 1);
    q.sleep(5);
    assert_eq!(before(&q, "a").await, 0);
    let short = explain(&q, "short").await.unwrap();
    assert_eq!((short.job.state, short.ready_before), (State::Expired, None));
}

pub(crate) async fn the_count_stops_at_the_limit(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    q.put(TestJob { priority: Some(1), ..new_job("d") }).await;
    let limited = async |limit| {
        q.store.explain(key(TOPIC, "c"), None, limit).await.unwrap().unwrap().ready_before.unwrap()
    };
    for limit in [0, 1, 2] {
        assert_eq!(limited(limit).await, ReadyBefore { jobs: limit, has_more: true });
    }
    assert_eq!(limited(3).await, ReadyBefore { jobs: 3, has_more: false });
    assert_eq!(limited(4).await, ReadyBefore { jobs: 3, has_more: false });
}

pub(crate) async fn a_running_job_has_its_lease(q: Fixture) {
    let grace = Some(Duration::from_secs(5));
    let start = q.now();
    q.put_ids(&["a", "b"]).await;
    q.claim_for(TOPIC, vec![StreamDemand { jobs: 1, stream: 3, grace, ..taker() }]).await;
    let lease = explain(&q, "a").await.unwrap().lease.unwrap();
    assert_eq!(lease.stream, StreamId { owner: OWNER, stream: 3 });
    assert_eq!((lease.start, lease.deadline), (start, start.plus(LEASE)));
    assert!(!lease.outlives_stream && !lease.next_waits);
    q.claim_for(TOPIC, vec![StreamDemand { jobs: 1, grace: None, ..taker() }]).await;
    assert!(explain(&q, "b").await.unwrap().lease.unwrap().outlives_stream);
    let next = TestJob { on_conflict: ringq::domain::OnConflict::Replace, ..new_job("b") };
    q.put(next).await;
    assert!(explain(&q, "b").await.unwrap().lease.unwrap().next_waits);
}

/// Returns the running jobs of the group of a ready job, and the number of groups before it.
async fn turn(q: &Fixture, id: &str) -> Option<(u64, u64)> {
    let found = explain(q, id).await.unwrap().turn?;
    assert!(!found.has_more);
    Some((found.running, found.groups_before))
}

pub(crate) async fn a_ready_job_has_the_groups_before_it(q: Fixture) {
    let of = |group: &str, id: &str| {
        let plain = new_job(id);
        TestJob { spec: Spec { group: GroupName::stored(group), ..plain.spec.clone() }, ..plain }
    };
    q.put(of("", "plain0")).await;
    assert_eq!(turn(&q, "plain0").await, None, "the topic has no groups");
    for id in ["a", "b", "c"]
        .iter()
        .flat_map(|group| (0..3).map(move |n| of(group, &format!("{group}{n}"))))
    {
        q.put(id).await;
    }
    q.put(TestJob { due: after(60), ..of("d", "d0") }).await;
    q.put(of("", "plain1")).await;
    // The order of claims is that of the numbers; a running job and a job that is not due have none.
    let mut order = Vec::new();
    for _ in 0..11 {
        let mut next = Vec::new();
        for id in ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2", "plain0", "plain1"] {
            let found = explain(&q, id).await.unwrap();
            assert_eq!(found.turn.is_some(), found.job.state == State::Ready, "{id}");
            if found.turn.is_some_and(|turn| turn.groups_before == 0)
                && found.ready_before.is_some_and(|before| before.jobs == 0)
            {
                next.push(id.to_owned());
            }
        }
        let leased = q.claim_one().await;
        assert_eq!(next, [leased.key.id.to_string()], "after {order:?}");
        order.push(next.remove(0));
    }
    assert_eq!(turn(&q, "d0").await, None);
    q.sleep(60);
    q.put(of("a", "a3")).await;
    q.put(of("", "plain2")).await;
    // A claim puts the lanes whose first job is due by now among the ready ones.
    assert!(q.claim_for(TOPIC, Vec::new()).await.by_stream.is_empty());
    assert_eq!(turn(&q, "d0").await, Some((0, 0)));
    assert_eq!(turn(&q, "plain2").await, Some((2, 1)));
    assert_eq!(turn(&q, "a3").await, Some((3, 2)));
    // A paused group has no turn, and is before no other one.
    let paused = GroupSetting { group: GroupName::stored("d"), weight: 1, paused: true };
    q.configure_groups(topic(TOPIC), vec![paused]).await.unwrap();
    assert_eq!((turn(&q, "d0").await, turn(&q, "a3").await), (None, Some((3, 1))));
    let limited = q.store.explain(key(TOPIC, "a3"), None, 0).await.unwrap().unwrap().turn.unwrap();
    assert_eq!((limited.groups_before, limited.has_more), (0, true));
}

pub(crate) async fn an_ended_job_has_the_time_until_which_it_is_kept(q: Fixture) {
    let dead = q.running("dead").await;
    q.end(&dead, dead_lettered()).await;
    let kept = explain(&q, "dead").await.unwrap().kept.unwrap();
    assert_eq!((kept.until, kept.is_tombstone), (q.now().plus(limit::DEAD_RETENTION), false));
    let done = q.running("done").await;
    q.settle(ack(&done)).await.unwrap();
    let kept = explain(&q, "done").await.unwrap().kept.unwrap();
    assert_eq!((kept.until, kept.is_tombstone), (q.now().plus(limit::TOMBSTONE), true));
    let retention = Duration::from_secs(600);
    let record = TestJob { retention: RetentionRule::Record(retention), ..new_job("record") };
    let leased = q.run(record).await;
    q.settle(ack(&leased)).await.unwrap();
    let kept = explain(&q, "record").await.unwrap().kept.unwrap();
    assert_eq!((kept.until, kept.is_tombstone), (q.now().plus(retention), false));
    q.sleep(600);
    assert_eq!(explain(&q, "record").await, None);
}
