//! Attempts: the counters and the history after each end of a lease, and the next state of the job.

use std::time::Duration;

use crate::store_calls::{RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{
    Attempt, AttemptOutcome, JobId, RetentionRule, RetryOverrides, Spec, State, Time, limit,
};

use super::fixture::Fixture;
use super::values::{
    RETENTION, TOPIC, after, dead_lettered, failed, failed_for, job_in, new_job, plus, released,
    text, topic,
};

pub(crate) async fn every_end_counts_a_delivery_and_only_failures_count_as_such(q: Fixture) {
    let ignore = RetryOverrides { ignore_expired_leases: Some(true), ..Default::default() };
    for (id, retry, cause, failures) in [
        ("failed", RetryOverrides::default(), failed_for(900), 1),
        ("released", RetryOverrides::default(), released(), 0),
        ("expired", RetryOverrides::default(), LeaseEndCause::Expired, 1),
        ("ignored", ignore, LeaseEndCause::Expired, 0),
        ("broken", RetryOverrides::default(), LeaseEndCause::StreamBroken, 0),
        ("dead", RetryOverrides::default(), dead_lettered(), 1),
    ] {
        let spec = Spec { retry: retry.boxed(), ..Spec::default() };
        let leased = q.run(TestJob { spec, ..job_in(id, id) }).await;
        assert_eq!(q.get_in(id, id).await.unwrap().deliveries, 1, "{id} while running");
        q.end(&leased, cause).await;
        let job = q.get_in(id, id).await.unwrap();
        assert_eq!((job.deliveries, job.failures), (1, failures), "{id}");
        assert_eq!((job.lease_expire_time, job.attempts.len()), (None, 1), "{id}");
    }
}

pub(crate) async fn a_failed_job_backs_off_until_its_wait_is_over(q: Fixture) {
    let leased = q.running("a").await;
    let settled = q.end(&leased, failed()).await;
    assert_eq!(settled.state, State::Backoff);
    let job = q.job("a").await;
    assert_eq!((job.state, job.due_time), (State::Backoff, plus(q.now(), 1)));
    assert_eq!((&*job.last_error, job.finish_time), ("it failed", None));
    q.until_just_before(job.due_time);
    assert_eq!(q.state("a").await, Some(State::Backoff));
    q.until(job.due_time);
    assert_eq!(q.state("a").await, Some(State::Ready));
}

pub(crate) async fn the_first_release_keeps_the_place_and_the_next_waits(q: Fixture) {
    q.put_ids(&["a", "b"]).await;
    let due = q.now();
    for (wait, state) in [(0, State::Ready), (1, State::Scheduled), (2, State::Scheduled)] {
        let leased = q.claim_one().await;
        assert_eq!(leased.key.id.as_str(), "a");
        assert_eq!(q.end(&leased, released()).await.state, state);
        let expected = if wait == 0 { due } else { plus(q.now(), wait) };
        assert_eq!(q.job("a").await.due_time, expected);
        q.sleep(wait);
        if wait == 1 {
            assert_eq!(q.claim_one().await.key.id.as_str(), "b");
        }
    }
}

pub(crate) async fn a_dead_letter_keeps_its_payload_for_the_retention_of_the_dead(q: Fixture) {
    let leased = q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("a") }).await;
    q.sleep(1);
    assert_eq!(q.end(&leased, dead_lettered()).await.state, State::Dead);
    let finished = q.now();
    let job = q.job("a").await;
    assert_eq!((job.state, job.finish_time), (State::Dead, Some(finished)));
    assert_eq!((job.spec.payload, &*job.last_error), (Some(text("a")), "hopeless"));
    assert_eq!(job.attempts[0].outcome, AttemptOutcome::Failed);
    assert!(q.claim_ids().await.is_empty());
    q.until_just_before(finished.plus(limit::DEAD_RETENTION));
    assert_eq!(q.state("a").await, Some(State::Dead));
    q.until(finished.plus(limit::DEAD_RETENTION));
    assert_eq!(q.get("a").await, None);
}

pub(crate) async fn attempts_are_the_last_ten_newest_first(q: Fixture) {
    q.put(new_job("a")).await;
    let mut starts: Vec<Time> = Vec::new();
    for n in 0..12 {
        let leased = q.claim_one().await;
        starts.push(q.now());
        q.sleep(1);
        let error = format!("error {n}");
        q.end(&leased, LeaseEndCause::Failed { delay: Some(Duration::from_secs(1)), error }).await;
        q.sleep(1);
    }
    let expected: Vec<_> = (2..12)
        .rev()
        .map(|n: u32| Attempt {
            number: n + 1,
            start_time: starts[n as usize],
            finish_time: plus(starts[n as usize], 1),
            worker_id: "worker-1".into(),
            outcome: AttemptOutcome::Failed,
            error: format!("error {n}"),
        })
        .collect();
    let job = q.job("a").await;
    assert_eq!(job.attempts, expected);
    assert_eq!(expected.len(), limit::ATTEMPTS_KEPT);
    assert_eq!((job.failures, job.deliveries, &*job.last_error), (12, 12, "error 11"));
}

pub(crate) async fn each_way_of_ending_is_remembered_as_what_it_was(q: Fixture) {
    use AttemptOutcome::{Failed, LeaseExpired, Released};
    q.put(TestJob { retention: RetentionRule::Record(RETENTION), ..new_job("a") }).await;
    let causes =
        [(failed_for(0), Failed), (LeaseEndCause::Expired, LeaseExpired), (released(), Released)];
    let mut expected = Vec::new();
    for (cause, outcome) in causes.into_iter().chain([(LeaseEndCause::StreamBroken, Released)]) {
        q.sleep(100);
        let leased = q.claim_one().await;
        q.end(&leased, cause).await;
        expected.insert(0, outcome);
    }
    q.sleep(100);
    let leased = q.claim_one().await;
    q.ack(&leased).await;
    expected.insert(0, AttemptOutcome::Succeeded);
    let outcomes: Vec<_> = q.job("a").await.attempts.iter().map(|a| a.outcome).collect();
    assert_eq!(outcomes, expected);
}

pub(crate) async fn only_a_failure_with_an_error_changes_one_that_a_worker_gave(q: Fixture) {
    let handed_back = |error: &str| LeaseEndCause::Released {
        delay: Some(Duration::ZERO),
        error: error.to_owned(),
    };
    let leased = q.running("a").await;
    q.end(&leased, handed_back("going home")).await;
    let leased = q.claim_one().await;
    assert_eq!((&*leased.last_error, &*q.job("a").await.last_error), ("", ""));
    q.end(&leased, LeaseEndCause::StreamBroken).await;
    q.sleep(2);
    // No worker reported that end: the server's own text stays until one reports something.
    let broke = "the stream that held the job broke";
    let leased = q.claim_one().await;
    assert_eq!((&*leased.last_error, &*q.job("a").await.last_error), (broke, broke));
    q.end(&leased, failed_for(0)).await;
    for cause in [handed_back("home again"), released(), LeaseEndCause::StreamBroken] {
        let leased = q.claim_one().await;
        assert_eq!(leased.last_error, "it failed", "{cause:?}");
        q.end(&leased, cause).await;
        q.sleep(60);
    }
    let job = q.job("a").await;
    assert_eq!(job.last_error, "it failed");
    let errors: Vec<_> = job.attempts.iter().map(|attempt| attempt.error.as_str()).collect();
    assert_eq!(errors, [broke, "", "home again", "it failed", broke, "going home"]);
}

pub(crate) async fn a_running_job_outlives_its_expire_time_but_its_retry_does_not(q: Fixture) {
    let expire = plus(q.now(), 10);
    let run = async |id: &str| q.run(TestJob { expire: Some(after(10)), ..new_job(id) }).await;
    let (acked, retried) = (run("acked").await, run("retried").await);
    q.until(expire);
    q.sleep(1);
    assert_eq!(q.ack(&acked).await.state, State::Succeeded);
    assert_eq!(q.end(&retried, failed()).await.state, State::Expired);
    assert_eq!(q.state("retried").await, Some(State::Expired));
    q.sleep(10);
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn a_retry_that_waits_beyond_the_expire_time_expires_then(q: Fixture) {
    let leased = q.run(TestJob { expire: Some(after(10)), ..new_job("a") }).await;
    let expire = plus(q.now(), 10);
    assert_eq!(q.end(&leased, failed_for(60)).await.state, State::Backoff);
    q.until_just_before(expire);
    assert_eq!(q.state("a").await, Some(State::Backoff));
    q.until(expire);
    assert_eq!(q.state("a").await, Some(State::Expired));
}

pub(crate) async fn a_job_that_expires_with_its_lease_is_kept_from_then_on(q: Fixture) {
    let leased = q.run(TestJob { expire: Some(after(10)), ..new_job("a") }).await;
    q.sleep(1_000);
    q.end(&leased, released()).await;
    let finished = q.now();
    let job = q.job("a").await;
    assert_eq!((job.state, job.finish_time), (State::Expired, Some(finished)));
    q.until_just_before(finished.plus(limit::TOMBSTONE));
    assert_eq!(q.state("a").await, Some(State::Expired));
    q.until(finished.plus(limit::TOMBSTONE));
    assert_eq!(q.get("a").await, None);
}

pub(crate) async fn crashes_are_counted_apart_and_redriven_away(q: Fixture) {
    let retry = RetryOverrides { ignore_expired_leases: Some(true), ..Default::default() };
    let spec = Spec { retry: retry.boxed(), ..Spec::default() };
    q.put(TestJob { spec, ..new_job("a") }).await;
    for (cause, crashes, failures) in [
        (LeaseEndCause::Expired, 1, 0),
        (LeaseEndCause::WorkerCrashed, 2, 0),
        (LeaseEndCause::StreamBroken, 2, 0),
        (LeaseEndCause::Unserved, 2, 0),
        (released(), 2, 0),
        (failed_for(0), 2, 1),
        (LeaseEndCause::WorkerCrashed, 3, 1),
        (dead_lettered(), 3, 2),
    ] {
        q.sleep(100);
        let before = q.job("a").await.crashes;
        let leased = q.claim_one().await;
        assert_eq!(leased.crashes, before, "{cause:?}");
        assert_eq!(q.lease(&leased).await.unwrap().attempt.crashes, before, "{cause:?}");
        q.end(&leased, cause.clone()).await;
        let job = q.job("a").await;
        assert_eq!((job.crashes, job.failures), (crashes, failures), "{cause:?}");
    }
    let redrive = RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![JobId::stored("a")],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        states: vec![State::Dead],
        target: None,
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    assert_eq!(q.store.redrive(redrive).await.unwrap().redriven, 1);
    assert_eq!(q.job("a").await.crashes, 0);
}

pub(crate) async fn a_job_is_dead_at_its_limit_of_crashes(q: Fixture) {
    let retry = RetryOverrides { max_crashes: Some(3), ..Default::default() };
    let spec = Spec { retry: retry.boxed(), payload: Some(text("a")), ..Spec::default() };
    q.put(TestJob { spec, ..new_job("a") }).await;
    // A Nack and the end of a server count nothing, however many there are.
    for cause in [failed_for(0), failed_for(0), released(), LeaseEndCause::StreamBroken] {
        q.sleep(100);
        let leased = q.claim_one().await;
        assert_ne!(q.end(&leased, cause).await.state, State::Dead);
    }
    for (cause, state) in [
        (LeaseEndCause::WorkerCrashed, false),
        (LeaseEndCause::Expired, false),
        (LeaseEndCause::WorkerCrashed, true),
    ] {
        q.sleep(100);
        let leased = q.claim_one().await;
        assert_eq!(q.end(&leased, cause).await.state == State::Dead, state);
    }
    let job = q.job("a").await;
    assert_eq!((job.state, job.crashes, job.failures), (State::Dead, 3, 3));
    assert!(job.last_error.contains("crash 3"), "{}", job.last_error);
    assert_eq!(job.attempts[0].error, job.last_error);
    assert_eq!(job.spec.payload, Some(text("a")), "kept for people to look at");
}
