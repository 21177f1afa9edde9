//! Policies of topics: stored by version, with their effect on claims.

use std::time::Duration;

use crate::harness::within;
use crate::store_calls::TestJob;
use bytes::Bytes;
use ringq::domain::{PolicyEffect, RetentionRule, Time, TopicPattern, limit};
use ringq::store::{
    EventKind, PolicyHorizon, PolicyRemoval, PolicyWrite, PolicyWriteResult, ShardEvent,
    StoredPolicy, TopicRemainder,
};

use super::fixture::Fixture;
use super::values::{TOPIC, after, job_in, taker};

fn write(name: &str, expected: u64, version: u64, effect: PolicyEffect) -> PolicyWrite {
    let name = TopicPattern::parse(name).unwrap();
    // Any bytes, also such as separate fields.
    let body = Bytes::from(format!("{name} {version}\0\u{ff}\n"));
    PolicyWrite { name, expected, version, effect, groups: Vec::new(), body }
}

async fn store(q: &Fixture, policy: PolicyWrite) -> PolicyWriteResult {
    let results = q.store.write_policies(vec![policy], None).await.unwrap();
    let [result] = results[..] else { panic!("{results:?}") };
    result
}

async fn stored(q: &Fixture, after: u64) -> Vec<StoredPolicy> {
    q.store.policies(after, 1_000).await.unwrap().policies
}

/// Stores the next version of the policy of [`TOPIC`].
async fn set(q: &Fixture, version: u64, effect: PolicyEffect) {
    let result = store(q, write(TOPIC, version - 1, version, effect)).await;
    assert!(result.is_written, "{result:?}");
}

const PAUSE: PolicyEffect = PolicyEffect::Pause { until: None };

fn until(q: &Fixture, seconds: u64) -> (Time, PolicyEffect) {
    let until = q.now().plus(Duration::from_secs(seconds));
    (until, PolicyEffect::Pause { until: Some(until) })
}

pub(crate) async fn a_policy_replaces_the_version_that_its_caller_knows(q: Fixture) {
    let deliver = PolicyEffect::Deliver;
    let written = |version| PolicyWriteResult { is_written: true, version };
    let refused = |version| PolicyWriteResult { is_written: false, version };
    assert_eq!(store(&q, write("a", 1, 2, deliver)).await, refused(0));
    assert_eq!(store(&q, write("a", 0, 1, deliver)).await, written(1));
    assert_eq!(store(&q, write("a", 0, 1, deliver)).await, refused(1));
    assert_eq!(store(&q, write("a", 1, 9, PAUSE)).await, written(9));
    assert_eq!(store(&q, write("a", 9, 9, deliver)).await, written(9), "of two equal versions one");
    // Each of a call by itself.
    let call = vec![write("a", 1, 2, deliver), write("b.*", 0, 4, deliver)];
    assert_eq!(q.store.write_policies(call, None).await.unwrap(), [refused(9), written(4)]);
    let read = stored(&q, 0).await;
    let names: Vec<_> = read.iter().map(|p| (p.name.to_string(), p.version)).collect();
    assert_eq!(names, [("a".to_owned(), 9), ("b.*".to_owned(), 4)]);
    assert_eq!(read[0].body, write("a", 9, 9, deliver).body);
    assert!(q.store.write_policies(Vec::new(), None).await.unwrap().is_empty());
}

pub(crate) async fn changes_are_read_in_their_order_part_by_part(q: Fixture) {
    let empty = q.store.policies(0, 10).await.unwrap();
    assert_eq!((empty.policies.len(), empty.last_sequence), (0, 0));
    for n in 0..23 {
        store(&q, write(&format!("t{n:02}"), 0, 1, PolicyEffect::Deliver)).await;
    }
    store(&q, write("t00", 1, 2, PolicyEffect::Deliver)).await;
    let (mut after, mut names) = (0, Vec::new());
    loop {
        let page = q.store.policies(after, 5).await.unwrap();
        let Some(last) = page.policies.last() else { break };
        assert!(page.policies.len() <= 5 && last.sequence <= page.last_sequence);
        after = last.sequence;
        names.extend(page.policies.iter().map(|policy| policy.name.to_string()));
    }
    let mut want: Vec<_> = (1..23).map(|n| format!("t{n:02}")).collect();
    want.push("t00".into());
    assert_eq!(names, want);
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
    let mut changes = q.store.subscribe(EventKind::Policies);
    set(&q, 1, PAUSE).await;
    let next = within("a change", changes.recv()).await;
    assert_eq!(next, Ok(ShardEvent::PoliciesChanged));
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
    store(&q, write("pattern.*", 0, 1, PolicyEffect::Deliver)).await;
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
    assert_eq!(stored(&q, 0).await.len(), 2, "the deletion is remembered");
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
        let version = stored(&q, 0).await.first().map_or(0, |policy| policy.version);
        let left = match has_job {
            true => Some(q.run(TestJob { retention: none, ..job_in(TOPIC, "left") }).await),
            false => None,
        };
        let next = if is_stored { version + 1 } else { 0 };
        assert!(store(&q, write(TOPIC, version, next, PolicyEffect::Forget)).await.is_written);
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
    let before = q.store.policies(0, 10).await.unwrap();
    let only = |expected, effect| write(TOPIC, expected, 0, effect);
    assert!(!store(&q, only(2, PolicyEffect::Forget)).await.is_written, "it has another version");
    let done = store(&q, only(1, PolicyEffect::Forget)).await;
    assert_eq!(done, PolicyWriteResult { is_written: true, version: 1 });
    assert_eq!(q.store.policies(0, 10).await.unwrap(), before);
    assert!(q.store.topics(String::new(), None, 10).await.unwrap().is_empty());
    q.put(job_in(TOPIC, "a")).await;
    assert_eq!(q.claim_ids().await, ["a"], "the pause went, too");
}

/// Removed policies are removed for good, and a server that has not read them can see that.
pub(crate) async fn policies_of_which_nothing_is_left_are_removed(q: Fixture) {
    let mut last = 0;
    let mut horizon = 0;
    for count in [0, 1, 2, 13, 511] {
        for n in 0..count {
            let effect = if n % 2 == 0 { PolicyEffect::Forget } else { PolicyEffect::Release };
            store(&q, write(&format!("t{n:03}"), 0, horizon + 10 + n, effect)).await;
        }
        let live = store(&q, write("live.*", 0, 9, PolicyEffect::Deliver)).await;
        assert!(live.is_written || live.version == 9);
        let page = q.store.policies(0, 1_000).await.unwrap();
        assert_eq!((page.policies.len() as u64, page.horizon.version), (count + 1, horizon));
        assert!(page.last_sequence >= last + count);
        last = page.last_sequence;
        let names = page.policies.iter().map(|policy| (policy.name.clone(), policy.version));
        let removal = PolicyRemoval {
            last_sequence: last,
            expected: horizon,
            horizon: horizon + 1_000,
            policies: names.collect(),
        };
        for refused in [
            PolicyRemoval { last_sequence: last + 1, ..removal.clone() },
            PolicyRemoval { expected: horizon + 1, ..removal.clone() },
        ] {
            assert!(!q.store.forget_policies(refused, None).await.unwrap());
        }
        let mut other = removal.clone();
        other.policies.iter_mut().for_each(|(_, version)| *version += 1);
        assert!(q.store.forget_policies(PolicyRemoval { horizon, ..other }, None).await.unwrap());
        assert_eq!(stored(&q, 0).await.len() as u64, count + 1, "they have other versions");
        assert!(q.store.forget_policies(removal, None).await.unwrap());
        horizon += 1_000;
        let page = q.store.policies(0, 1_000).await.unwrap();
        let left: Vec<_> = page.policies.iter().map(|policy| policy.name.to_string()).collect();
        assert_eq!(left, ["live.*"], "one of which something is left is not removed");
        let late = store(&q, write("t000", 0, horizon, PolicyEffect::Deliver)).await;
        assert_eq!((late.is_written, late.version), (false, 0), "a server that has not read it");
        let want = PolicyHorizon { version: horizon, sequence: last };
        assert_eq!((page.last_sequence, page.horizon), (last, want), "changes are counted on");
    }
    let Some(mut q) = q.lasting() else { return };
    q.reopen().await;
    let want = PolicyHorizon { version: horizon, sequence: last };
    assert_eq!(q.store.policies(0, 10).await.unwrap().horizon, want);
}

pub(crate) async fn policies_survive_a_restart(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    q.put(job_in(TOPIC, "a")).await;
    set(&q, 1, PAUSE).await;
    q.reopen().await;
    assert!(q.claim_ids().await.is_empty());
    assert_eq!(stored(&q, 0).await[0].version, 1);
    set(&q, 2, PolicyEffect::Deliver).await;
    assert_eq!(q.claim_ids().await, ["a"]);
}
