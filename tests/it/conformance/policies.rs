//! Policies of topics: the effect of these documents on claims.

use std::time::Duration;

use crate::harness::within;
use crate::store_calls::TestJob;
use ringq::domain::{PolicyEffect, RetentionRule, Time, limit};
use ringq::store::{
    DocumentWrite, DocumentWriteResult, EventKind, ShardEvent, StoredDocument, TopicRemainder,
};

use super::fixture::Fixture;
use super::values::{TOPIC, after, job_in, policy_write, taker};

async fn store(q: &Fixture, policy: DocumentWrite) -> DocumentWriteResult {
    let results = q.store.write_documents(vec![policy], None).await.unwrap();
    let [result] = results[..] else { panic!("{results:?}") };
    result
}

async fn stored(q: &Fixture) -> Vec<StoredDocument> {
    q.store.documents(0, 1_000).await.unwrap().documents
}

/// Stores the next version of the policy of [`TOPIC`].
async fn set(q: &Fixture, version: u64, effect: PolicyEffect) {
    let result = store(q, policy_write(TOPIC, version - 1, version, effect)).await;
    assert!(result.is_written, "{result:?}");
}

const PAUSE: PolicyEffect = PolicyEffect::Pause { until: None };

fn until(q: &Fixture, seconds: u64) -> (Time, PolicyEffect) {
    let until = q.now().plus(Duration::from_secs(seconds));
    (until, PolicyEffect::Pause { until: Some(until) })
}

pub(crate) async fn a_paused_topic_delivers_nothing_and_takes_jobs(q: Fixture) {
    q.put(job_in(TOPIC, "a")).await;
    let running = q.claim_one().await;
    q.put(TestJob { priority: Some(9), ..job_in(TOPIC, "b") }).await;
    set(&q, 1, PAUSE).await;
    q.put(job_in(TOPIC, "c")).await;
    q.put(TestJob { due: after(5), ..job_in(TOPIC, "d") }).await;
    q.put(job_in("other", "a")).await;
    q.sleep(10);
    for takers in [vec![taker()], vec![taker(), taker()], vec![]] {
        let found = q.claim_for(TOPIC, takers).await;
        assert!(found.by_stream.iter().all(Vec::is_empty));
        assert_eq!(found.remainder, TopicRemainder::Empty);
    }
    assert_eq!(q.claim_for("other", vec![taker()]).await.by_stream[0].len(), 1);
    assert_eq!((q.stats(TOPIC).await.ready, q.stats(TOPIC).await.running), (3, 1));
    q.extend(&running, None, None).await.unwrap();
    q.ack(&running).await;
    set(&q, 2, PolicyEffect::Deliver).await;
    assert_eq!(q.claim_ids().await, ["b", "c", "d"], "by priority and due time");
}

pub(crate) async fn a_pause_ends_by_itself_at_its_time(q: Fixture) {
    q.put(job_in(TOPIC, "a")).await;
    let (end, pause) = until(&q, 60);
    set(&q, 1, pause).await;
    assert_eq!(
        q.claim_for(TOPIC, vec![taker()]).await.remainder,
        TopicRemainder::ReadyAt(end),
        "the caller sleeps until then"
    );
    q.until_just_before(end);
    assert!(q.claim_ids().await.is_empty());
    q.until(end);
    assert_eq!(q.claim_ids().await, ["a"]);
    q.put(job_in(TOPIC, "b")).await;
    assert_eq!(q.claim_ids().await, ["b"]);
}

pub(crate) async fn a_topic_may_be_paused_before_its_first_job(q: Fixture) {
    set(&q, 1, PAUSE).await;
    assert_eq!(q.stats(TOPIC).await.enqueued_total, 0, "it exists");
    q.put(job_in(TOPIC, "a")).await;
    assert!(q.claim_ids().await.is_empty());
    let again = until(&q, 5).1;
    set(&q, 2, again).await;
    set(&q, 3, PAUSE).await;
    q.sleep(10);
    assert!(q.claim_ids().await.is_empty(), "the last pause counts");
    set(&q, 4, PolicyEffect::Deliver).await;
    set(&q, 5, PolicyEffect::Deliver).await;
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn changes_and_resumes_are_announced(q: Fixture) {
    q.put(job_in(TOPIC, "a")).await;
    let mut changes = q.store.subscribe(EventKind::Documents);
    set(&q, 1, PAUSE).await;
    let next = within("a change", changes.recv()).await;
    assert_eq!(next, Ok(ShardEvent::DocumentsChanged));
    let mut jobs = q.store.subscribe(EventKind::Jobs);
    set(&q, 2, PolicyEffect::Deliver).await;
    let mut next = async || within("an event", jobs.recv()).await.unwrap();
    // Wake-ups of the enqueue may still arrive.
    while !matches!(next().await, ShardEvent::Claimable { topic, at } if topic.as_str() == TOPIC && at == q.now())
    {
    }
}

pub(crate) async fn a_topic_with_a_policy_stays_until_it_is_deleted(q: Fixture) {
    let kept = limit::EMPTY_TOPIC_MAX.as_secs();
    let tidy = async || {
        for _ in 0..3 {
            q.store.prune_topics(None, 100).await.unwrap();
            q.sleep(kept);
        }
        q.store.topics(String::new(), None, 10).await.unwrap().len()
    };
    set(&q, 1, PolicyEffect::Deliver).await;
    store(&q, policy_write("pattern.*", 0, 1, PolicyEffect::Deliver)).await;
    assert_eq!(tidy().await, 1, "a pattern is no topic");
    let none = RetentionRule::Nothing;
    let leased = q.run(TestJob { retention: none, ..job_in(TOPIC, "a") }).await;
    set(&q, 2, PolicyEffect::Forget).await;
    assert_eq!(q.stats(TOPIC).await.running, 1, "a job is left");
    q.ack(&leased).await;
    q.store.prune_topics(None, 100).await.unwrap();
    let left = q.store.topics(String::new(), None, 10).await.unwrap();
    assert!(left.is_empty(), "as soon as it is empty");
    set(&q, 3, PAUSE).await;
    set(&q, 4, PolicyEffect::Forget).await;
    assert!(q.store.topics(String::new(), None, 10).await.unwrap().is_empty(), "at once");
    set(&q, 5, PolicyEffect::Forget).await;
    assert_eq!(stored(&q).await.len(), 2, "the deletion is remembered");
    q.put(job_in(TOPIC, "b")).await;
    assert_eq!(q.claim_ids().await, ["b"], "the pause went with the topic");
}

pub(crate) async fn a_topic_that_lives_again_is_kept_as_any_other(q: Fixture) {
    let kept = limit::EMPTY_TOPIC_MAX.as_secs();
    let tidy = async || {
        q.store.prune_topics(None, 100).await.unwrap();
        q.store.topics(String::new(), None, 10).await.unwrap().len()
    };
    let none = RetentionRule::Nothing;
    let use_up = async |id: &str| {
        let leased = q.run(TestJob { retention: none, ..job_in(TOPIC, id) }).await;
        q.ack(&leased).await;
    };
    // With a deletion that is remembered, one that has been removed, and one that never was: each way, with a job left and
    // without one.
    for (round, is_stored, has_job) in
        [(0, true, false), (1, true, true), (2, false, false), (3, false, true)]
    {
        use_up(&format!("{round}")).await;
        let version = stored(&q).await.first().map_or(0, |policy| policy.version);
        let left = match has_job {
            true => Some(q.run(TestJob { retention: none, ..job_in(TOPIC, "left") }).await),
            false => None,
        };
        let next = if is_stored { version + 1 } else { 0 };
        assert!(
            store(&q, policy_write(TOPIC, version, next, PolicyEffect::Forget)).await.is_written
        );
        if let Some(left) = left {
            assert_eq!(tidy().await, 1, "a job is left");
            q.ack(&left).await;
        }
        assert_eq!(tidy().await, 0, "round {round}");
        use_up("again").await;
        let total = q.stats(TOPIC).await.succeeded_total;
        for _ in 0..2 {
            assert_eq!(tidy().await, 1, "round {round}");
        }
        assert_eq!(q.stats(TOPIC).await.succeeded_total, total);
        q.sleep(kept);
        assert_eq!(tidy().await, 0, "after a day");
    }
}

pub(crate) async fn a_released_topic_is_neither_created_nor_kept(q: Fixture) {
    let kept = limit::EMPTY_TOPIC_MAX.as_secs();
    set(&q, 1, PolicyEffect::Release).await;
    assert!(q.store.topics(String::new(), None, 10).await.unwrap().is_empty());
    q.put(TestJob { retention: RetentionRule::Nothing, ..job_in(TOPIC, "a") }).await;
    set(&q, 2, PAUSE).await;
    assert!(q.claim_ids().await.is_empty());
    set(&q, 3, PolicyEffect::Release).await;
    let leased = q.claim_one().await;
    q.ack(&leased).await;
    set(&q, 4, PAUSE).await;
    for want in [1, 1] {
        q.store.prune_topics(None, 100).await.unwrap();
        assert_eq!(q.store.topics(String::new(), None, 10).await.unwrap().len(), want);
        q.sleep(kept);
    }
    set(&q, 5, PolicyEffect::Release).await;
    q.store.prune_topics(None, 100).await.unwrap();
    q.sleep(kept);
    q.store.prune_topics(None, 100).await.unwrap();
    assert!(q.store.topics(String::new(), None, 10).await.unwrap().is_empty());
}

pub(crate) async fn a_write_without_a_version_has_its_effect_only(q: Fixture) {
    set(&q, 1, PAUSE).await;
    let before = q.store.documents(0, 10).await.unwrap();
    let only = |expected, effect| policy_write(TOPIC, expected, 0, effect);
    assert!(!store(&q, only(2, PolicyEffect::Forget)).await.is_written, "it has another version");
    let done = store(&q, only(1, PolicyEffect::Forget)).await;
    assert_eq!(done, DocumentWriteResult { is_written: true, version: 1 });
    assert_eq!(q.store.documents(0, 10).await.unwrap(), before);
    assert!(q.store.topics(String::new(), None, 10).await.unwrap().is_empty());
    q.put(job_in(TOPIC, "a")).await;
    assert_eq!(q.claim_ids().await, ["a"], "the pause went, too");
}

pub(crate) async fn policies_survive_a_restart(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    q.put(job_in(TOPIC, "a")).await;
    set(&q, 1, PAUSE).await;
    q.reopen().await;
    assert!(q.claim_ids().await.is_empty());
    assert_eq!(stored(&q).await[0].version, 1);
    set(&q, 2, PolicyEffect::Deliver).await;
    assert_eq!(q.claim_ids().await, ["a"]);
}
