//! Enqueue of free ids: the stored record, the answer, and the time at which it becomes ready. Taken ids are in
//! `conflict`.

use std::time::Duration;

use crate::store_calls::{StoreCalls as _, TestJob, WriteResult};
use ringq::domain::{
    CrashTopic, EnqueueOutcome, GroupName, Job, Payload, RetentionRule, RetryOverrides, Spec,
    State, When,
};

use super::fixture::Fixture;
use super::values::{TOPIC, after, ids_of, job_in, key, new_job, one, plus, taker, text};

pub(crate) async fn a_new_job_is_ready_at_once(q: Fixture) {
    let put = q.put(new_job("a")).await;
    let durability = q.store.write_durability().by_default;
    let expected = WriteResult {
        outcome: Some(EnqueueOutcome::Created),
        state: State::Ready,
        due: q.now(),
        durability,
        not_written: None,
    };
    assert_eq!(put, expected);
}

pub(crate) async fn a_new_job_reads_as_it_was_written(q: Fixture) {
    let job = TestJob { priority: Some(9), expire: Some(after(60)), ..new_job("a") };
    q.put(job.clone()).await;
    let expected = Job {
        key: key(TOPIC, "a"),
        spec: job.spec,
        priority: 9,
        expire_time: Some(plus(q.now(), 60)),
        state: State::Ready,
        failures: 0,
        deliveries: 0,
        crashes: 0,
        generation: 1,
        create_time: q.now(),
        due_time: q.now(),
        lease_expire_time: None,
        worker_id: String::new(),
        finish_time: None,
        result: None,
        last_error: String::new(),
        attempts: Vec::new(),
        progress: String::new(),
        checkpoint: None,
        shard: q.store.name().clone(),
    };
    assert_eq!(q.job("a").await, expected);
}

pub(crate) async fn a_delayed_job_is_scheduled_until_its_time(q: Fixture) {
    let put = q.put(TestJob { due: after(5), ..new_job("a") }).await;
    assert_eq!((put.state, put.due), (State::Scheduled, plus(q.now(), 5)));
    q.until_just_before(put.due);
    assert_eq!(q.state("a").await, Some(State::Scheduled));
    q.until(put.due);
    assert_eq!(q.state("a").await, Some(State::Ready));
}

pub(crate) async fn a_delay_is_rounded_up_to_the_microsecond_never_cut(q: Fixture) {
    let due = When::After(Duration::from_nanos(1));
    let put = q.put(TestJob { due, ..new_job("a") }).await;
    assert_eq!(put.due.0, q.now().0 + 1);
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn a_due_time_that_has_passed_is_now_and_overtakes_no_job(q: Fixture) {
    q.put(new_job("waits")).await;
    q.sleep(5);
    let past = q.now().minus(Duration::from_secs(9));
    let put = q.put(TestJob { due: When::At(past), ..new_job("late") }).await;
    assert_eq!((put.state, put.due), (State::Ready, q.now()));
    assert_eq!(q.job("late").await.due_time, q.now());
    assert_eq!(q.claim_ids().await, ["waits", "late"]);
}

pub(crate) async fn an_absent_priority_is_zero(q: Fixture) {
    q.put(new_job("a")).await;
    assert_eq!(q.job("a").await.priority, 0);
}

/// Returns every shape of body: absent, empty, text, bytes that are no text, large.
fn bodies() -> Vec<Option<Payload>> {
    let data = |body: Vec<u8>| Payload { text: false, body: body.into(), content_type: "".into() };
    vec![
        None,
        Some(text("")),
        Some(data(Vec::new())),
        Some(text("größer als 漢字 🦀 \u{0} \"'")),
        Some(data(vec![0, 255, 254, 128, 0])),
        Some(data((0..1 << 20).map(|n: u32| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect())),
        Some(text(&"ä".repeat(1 << 19))),
        Some(Payload { content_type: "image/png; a=\"ü\"".into(), ..data(vec![137, 80]) }),
    ]
}

pub(crate) async fn every_shape_of_payload_comes_back_as_it_was_sent(q: Fixture) {
    for (index, payload) in bodies().into_iter().enumerate() {
        let id = format!("body-{index}");
        let spec = Spec { payload, ..Spec::default() };
        let leased = q.run(TestJob { spec: spec.clone(), ..new_job(&id) }).await;
        assert!(leased.spec == spec, "claimed: {id}");
        assert!(q.job(&id).await.spec == spec, "read: {id}");
    }
}

pub(crate) async fn every_field_of_a_spec_comes_back_as_it_was_sent(q: Fixture) {
    let seconds = |n| Some(Duration::from_secs(n));
    let retry = RetryOverrides {
        max_attempts: Some(-1),
        delays: vec![Duration::from_secs(1), Duration::from_micros(1_500_001)],
        initial_delay: seconds(2),
        multiplier: Some(1.5),
        max_delay: seconds(3600),
        jitter: Some(0.25),
        max_retry_duration: seconds(86_400),
        ignore_expired_leases: Some(false),
        max_deliveries: Some(3),
        max_crashes: Some(-1),
        crash_topic: Some(CrashTopic::stored("t.crashed")),
    }
    .boxed();
    let headers = [("", ""), ("traceparent", "00-ab-cd-01"), ("ü", "漢字"), ("z", " \n")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let (lease, retention) = (seconds(17), Some(Duration::ZERO));
    let group = GroupName::stored("tenant-7@example.com");
    let spec = Spec { payload: Some(text("{}")), headers, retry, lease, group, retention };
    let leased = q.run(TestJob { spec: spec.clone(), ..new_job("a") }).await;
    assert_eq!(leased.spec, spec);
    assert_eq!(q.job("a").await.spec, spec);
    assert_eq!(q.lease(&leased).await.unwrap().attempt.retry, spec.retry);
}

pub(crate) async fn one_id_in_two_topics_is_two_jobs(q: Fixture) {
    let jobs = vec![job_in("t", "a"), job_in("u", "a")];
    let created = q.store.enqueue(jobs).await.unwrap();
    assert!(created.iter().all(|put| put.outcome == Some(EnqueueOutcome::Created)));
    let leased = q.claim_one().await;
    q.ack(&leased).await;
    assert_eq!(q.get_in("u", "a").await.unwrap().state, State::Ready);
}

pub(crate) async fn a_batch_is_answered_in_its_order(q: Fixture) {
    let jobs = (0..1_000).map(|n| TestJob { due: after(n), ..new_job(&format!("j{}", n % 997)) });
    let answers = q.store.enqueue(jobs.collect()).await.unwrap();
    for (n, put) in (0..).zip(&answers) {
        let repeat = n >= 997;
        let outcome = if repeat { EnqueueOutcome::Unchanged } else { EnqueueOutcome::Created };
        assert_eq!(put.outcome, Some(outcome), "job {n}");
        assert_eq!(put.due, plus(q.now(), n % 997), "job {n}");
    }
    assert_eq!(answers.len(), 1_000);
}

/// Also with ids whose record was removed or has expired, among the new ones.
pub(crate) async fn a_batch_arrives_in_its_order(q: Fixture) {
    for (name, expire) in [("forgotten", None), ("expired", Some(after(1)))] {
        let keep = RetentionRule::Tombstone(Duration::from_secs(2));
        for id in ["b", "d"] {
            q.put(TestJob { retention: keep, expire, ..job_in(name, id) }).await;
        }
        if expire.is_none() {
            for leased in one(q.claim_for(name, vec![taker()]).await.by_stream) {
                q.ack(&leased).await;
            }
        }
        q.sleep(3);
        let batch = ["a", "b", "c", "d", "e"].map(|id| job_in(name, id));
        q.store.enqueue(batch.into()).await.unwrap();
        let leased = one(q.claim_for(name, vec![taker()]).await.by_stream);
        assert_eq!(ids_of(&leased), ["a", "b", "c", "d", "e"], "{name}");
    }
}

pub(crate) async fn an_empty_batch_is_answered_with_nothing(q: Fixture) {
    assert_eq!(q.store.enqueue(Vec::new()).await.unwrap(), []);
    assert_eq!(q.store.info().await.unwrap().jobs, 0);
}

pub(crate) async fn an_id_twice_in_one_call_meets_itself(q: Fixture) {
    use ringq::domain::OnConflict::{Keep, Reject, Replace, Reschedule};
    let policies = [
        (Keep, Some(EnqueueOutcome::Unchanged), 1, "first"),
        (Replace, Some(EnqueueOutcome::Replaced), 2, "second"),
        (Reschedule, Some(EnqueueOutcome::Rescheduled), 1, "first"),
        (Reject, None, 1, "first"),
    ];
    for (on_conflict, outcome, generation, body) in policies {
        let id = format!("{on_conflict:?}");
        let job = |body| {
            let spec = Spec { payload: Some(text(body)), ..Spec::default() };
            TestJob { spec, on_conflict, ..new_job(&id) }
        };
        let answers = q.store.enqueue(vec![job("first"), job("second")]).await.unwrap();
        assert_eq!(answers[0].outcome, Some(EnqueueOutcome::Created), "{id}");
        assert_eq!(answers[1].outcome, outcome, "{id}");
        let found = q.job(&id).await;
        assert_eq!((found.generation, found.spec.payload), (generation, Some(text(body))), "{id}");
    }
}

pub(crate) async fn a_job_is_expired_from_its_expire_time_on(q: Fixture) {
    let expire = plus(q.now(), 10);
    q.put(TestJob { expire: Some(When::At(expire)), ..new_job("a") }).await;
    q.put(TestJob { due: after(60), expire: Some(after(10)), ..new_job("b") }).await;
    q.until_just_before(expire);
    assert_eq!(q.state("a").await, Some(State::Ready));
    assert_eq!(q.state("b").await, Some(State::Scheduled));
    q.until(expire);
    for id in ["a", "b"] {
        let job = q.job(id).await;
        assert_eq!((job.state, job.finish_time), (State::Expired, Some(expire)), "{id}");
    }
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn a_job_that_is_past_its_expire_time_when_it_comes_is_expired(q: Fixture) {
    let ago = |seconds| When::At(q.now().minus(Duration::from_secs(seconds)));
    let put = q.put(TestJob { due: ago(2), expire: Some(ago(1)), ..new_job("a") }).await;
    assert_eq!((put.outcome, put.state), (Some(EnqueueOutcome::Created), State::Expired));
    assert_eq!(q.state("a").await, Some(State::Expired));
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn a_job_that_expires_unkept_is_gone_at_once(q: Fixture) {
    q.put(TestJob { expire: Some(after(10)), retention: RetentionRule::Nothing, ..new_job("a") })
        .await;
    q.sleep(10);
    assert_eq!(q.get("a").await, None);
    let again = one(q.store.enqueue(vec![new_job("a")]).await.unwrap());
    assert_eq!(again.outcome, Some(EnqueueOutcome::Created));
    assert_eq!(q.job("a").await.generation, 1);
}
