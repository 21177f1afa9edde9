//! Tidy: removes topics that have been empty for long, and no others.
use crate::harness::within;
use crate::store_calls::{StoreCalls as _, TestJob};
use ringq::domain::{RetentionRule, limit};
use ringq::store::{PruneTopicsResult, ShardEvent, StatsOptions};

use super::fixture::Fixture;
use super::values::{TOPIC, ack, after, dead_lettered, failed_for, job_in, new_job, one, topic};

/// Seconds for which an empty topic is kept.
const KEPT: u64 = limit::EMPTY_TOPIC_MAX.as_secs();

/// Scans all topics, `limit` at a time; returns the removed ones.
async fn tidy_by(q: &Fixture, limit: usize) -> Vec<String> {
    let (mut after, mut all) = (None, Vec::new());
    for _ in 0..1_000 {
        let PruneTopicsResult { forgotten, last_topic: next } =
            q.store.prune_topics(after, limit).await.unwrap();
        assert!(forgotten.len() <= limit, "{forgotten:?}");
        all.extend(forgotten.iter().map(ToString::to_string));
        after = next;
        if after.is_none() {
            return all;
        }
    }
    panic!("the look comes to no end");
}

async fn tidy(q: &Fixture) -> Vec<String> {
    tidy_by(q, 100).await
}

async fn names(q: &Fixture) -> Vec<String> {
    let found = q.store.topics(String::new(), None, 1_000).await.unwrap();
    found.into_iter().map(|topic| topic.name.to_string()).collect()
}

/// Runs a job to its end so that nothing remains of it.
async fn use_up(q: &Fixture, name: &str) {
    let leased = q.run(TestJob { retention: RetentionRule::Nothing, ..job_in(name, "a") }).await;
    q.ack(&leased).await;
}

pub(crate) async fn a_topic_is_forgotten_once_it_was_empty_for_long(q: Fixture) {
    use_up(&q, TOPIC).await;
    assert!(tidy(&q).await.is_empty(), "found empty");
    q.sleep(KEPT - 1);
    assert!(tidy(&q).await.is_empty());
    assert_eq!(q.stats(TOPIC).await.succeeded_total, 1);
    q.sleep(1);
    assert_eq!(tidy(&q).await, [TOPIC]);
    assert!(names(&q).await.is_empty());
    assert_eq!(q.store.stats(vec![topic(TOPIC)], StatsOptions::default()).await.unwrap(), [None]);
    assert_eq!((tidy(&q).await.len(), q.store.info().await.unwrap().jobs), (0, 0));
    // The next job creates it again.
    let created = q.now();
    use_up(&q, TOPIC).await;
    let stats = q.stats(TOPIC).await;
    assert_eq!((stats.create_time, stats.enqueued_total, stats.succeeded_total), (created, 1, 1));
    q.sleep(KEPT);
    assert!(tidy(&q).await.is_empty(), "it was not seen empty before");
    q.sleep(KEPT);
    assert_eq!(tidy(&q).await, [TOPIC]);
}

pub(crate) async fn a_topic_with_a_job_in_any_state_stays(q: Fixture) {
    let long = RetentionRule::Record(limit::RETENTION_MAX);
    let leased = q.run(TestJob { retention: long, ..job_in("succeeded", "a") }).await;
    q.ack(&leased).await;
    let leased = q.run(job_in("dead", "a")).await;
    q.end(&leased, dead_lettered()).await;
    let leased = q.run(job_in("backoff", "a")).await;
    q.end(&leased, failed_for(10 * KEPT)).await;
    q.run(job_in("running", "a")).await;
    q.put(job_in("ready", "a")).await;
    q.put(TestJob { due: after(10 * KEPT), ..job_in("scheduled", "a") }).await;
    let before = names(&q).await;
    assert_eq!(before.len(), 6);
    for _ in 0..3 {
        assert!(tidy(&q).await.is_empty());
        q.sleep(KEPT);
    }
    assert_eq!(names(&q).await, before);
}

pub(crate) async fn a_topic_that_was_used_between_two_looks_stays(q: Fixture) {
    use_up(&q, TOPIC).await;
    tidy(&q).await;
    for seconds in [KEPT - 1, 1, KEPT - 1] {
        q.sleep(seconds);
        use_up(&q, TOPIC).await;
        assert!(tidy(&q).await.is_empty(), "after {seconds} s");
    }
    let leased = q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("b") }).await;
    q.sleep(KEPT);
    assert!(tidy(&q).await.is_empty(), "a job runs");
    one(q.store.settle(vec![ack(&leased)]).await.unwrap()).unwrap();
    assert!(tidy(&q).await.is_empty(), "from now on it is empty");
    q.sleep(KEPT);
    assert_eq!(tidy(&q).await, [TOPIC]);
}

pub(crate) async fn many_topics_are_forgotten_piece_by_piece(q: Fixture) {
    const TOPICS: usize = 300;
    let job = |n: usize| job_in(&format!("t{n:03}"), "a");
    q.store.enqueue((0..TOPICS).map(job).collect()).await.unwrap();
    for n in (0..TOPICS).filter(|n| n % 3 > 0) {
        let gone = crate::store_calls::JobDeletion::from(super::key(&format!("t{n:03}"), "a"));
        q.store.delete(vec![gone.clone(), gone]).await.unwrap();
    }
    q.put(job_in("zz", "a")).await;
    assert!(tidy_by(&q, 7).await.is_empty());
    q.sleep(KEPT);
    assert_eq!(tidy_by(&q, 7).await.len(), 200);
    assert_eq!(names(&q).await.len(), 101);
    assert_eq!(q.store.info().await.unwrap().jobs, 101);
}

pub(crate) async fn what_deleted_jobs_left_behind_is_not_in_the_way_of_new_ones(q: Fixture) {
    // Deleted from the middle of a backlog, of an order by priority and of an order by due time.
    let job = |n: u64| TestJob {
        retention: RetentionRule::Nothing,
        priority: n.is_multiple_of(3).then_some(5),
        due: after(n % 2),
        ..new_job(&format!("j{n}"))
    };
    q.store.enqueue((0..90).map(job).collect()).await.unwrap();
    for n in (0..90).rev() {
        q.delete(&format!("j{n}")).await;
    }
    tidy(&q).await;
    q.sleep(KEPT);
    assert_eq!(tidy(&q).await, [TOPIC]);
    q.put_ids(&["a", "b"]).await;
    let stats = q.stats(TOPIC).await;
    assert_eq!((stats.ready, stats.enqueued_total), (2, 2));
    assert_eq!(q.claim_ids().await, ["a", "b"]);
}

pub(crate) async fn each_server_of_a_topic_receives_that_it_is_forgotten(q: Fixture) {
    use_up(&q, TOPIC).await;
    tidy(&q).await;
    q.sleep(KEPT);
    let mut events = q.store.subscribe(ringq::store::EventKind::Jobs);
    tidy(&q).await;
    let received = async {
        loop {
            if events.recv().await.unwrap() == ShardEvent::TopicForgotten(topic(TOPIC)) {
                break;
            }
        }
    };
    within("the event", received).await;
}
