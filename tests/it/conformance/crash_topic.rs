//! Moves to a crash topic, as far as the shard of the lease has a part in them: the topic has the job already.

use crate::store_calls::{LeaseSettlement, StoreCalls as _, TestJob};
use ringq::domain::engine::{CrashMove, Unacked};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{EnqueueOutcome, JobId, OnConflict, RetentionRule, RetryPolicy, Spec, State};
use ringq::store::{CarriedHistory, LeaseRefusal, LeasedJob, SettleAction, WritePrecondition};

use super::fixture::Fixture;
use super::values::{RETENTION, dead_lettered, decide, failed_for, job_in, new_job, text};

/// Builds the settle that ends a lease at its last crash.
async fn last_crash(q: &Fixture, leased: &LeasedJob, crash_move: CrashMove) -> LeaseSettlement {
    let lease = q.lease(leased).await.unwrap();
    let settle = decide(&lease, LeaseEndCause::WorkerCrashed);
    let SettleAction::Unacked(unacked) = settle.action else { panic!("no ack") };
    let policy = RetryPolicy { max_crashes: Some(1), ..RetryPolicy::default() };
    let action = SettleAction::Unacked(Unacked { policy, crash_move, ..unacked });
    LeaseSettlement { action, deadline: Some(lease.deadline), ..settle }
}

pub(crate) async fn a_job_that_its_crash_topic_has_leaves_nothing_here(q: Fixture) {
    let keep = RetentionRule::Record(RETENTION);
    let spec = Spec { payload: Some(text(&"x".repeat(9_000))), ..Spec::default() };
    let leased = q.run(TestJob { spec, retention: keep, ..new_job("a") }).await;
    q.save(&leased, "half").await.unwrap();
    q.end(&leased, failed_for(0)).await;
    let leased = q.claim_one().await;
    let settle = last_crash(&q, &leased, CrashMove::Copied).await;
    let settled = q.settle(settle.clone()).await.unwrap();
    assert_eq!((settled.state, settled.repeated), (State::Dead, false));
    assert_eq!(q.get("a").await, None);
    assert!(q.parts().await.is_none_or(|parts| parts == 0), "{:?}", q.parts().await);
    let stats = q.stats("t").await;
    assert_eq!((stats.dead_total, stats.dead, stats.running), (0, 0, 0));
    // The reply may have been lost: a repeat finds that the job is gone.
    assert_eq!(q.settle(settle).await, Err(LeaseRefusal::NotFound));
    assert_eq!(q.put(new_job("a")).await.outcome, Some(EnqueueOutcome::Created), "a free id");
}

/// A producer that repeats its call does not make the job a second time.
pub(crate) async fn the_id_of_a_moved_job_is_remembered_if_a_server_made_it(q: Fixture) {
    let millis = u128::try_from(q.now().0).unwrap() / 1_000 + 1;
    let id = JobId::from_uuid(q.store.name(), millis << 80 | 7);
    let job = TestJob { retention: RetentionRule::Nothing, ..new_job(id.as_str()) };
    let leased = q.run(job.clone()).await;
    q.settle(last_crash(&q, &leased, CrashMove::Copied).await).await.unwrap();
    let again = q.put(TestJob { precondition: WritePrecondition::SameJob, ..job }).await;
    assert_eq!((again.outcome, again.state), (Some(EnqueueOutcome::Unchanged), State::Dead));
}

pub(crate) async fn a_job_that_its_crash_topic_rejects_is_dead_with_the_reason(q: Fixture) {
    let leased = q.running("a").await;
    let rejected = CrashMove::Rejected("its id is taken".to_owned());
    let settled = q.settle(last_crash(&q, &leased, rejected).await).await.unwrap();
    assert_eq!(settled.state, State::Dead);
    let job = q.job("a").await;
    assert!(job.last_error.ends_with("allows no more; its id is taken"), "{}", job.last_error);
    assert_eq!(job.attempts[0].error, job.last_error);
    assert_eq!(job.spec.payload, Some(text("a")));
}

/// A worker that extends in time keeps its job, also when it was copied already.
pub(crate) async fn an_extended_lease_does_not_end_by_a_move(q: Fixture) {
    let leased = q.running("a").await;
    let settle = last_crash(&q, &leased, CrashMove::Copied).await;
    q.sleep(1);
    q.extend(&leased, None, None).await.unwrap();
    assert_eq!(q.settle(settle).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.state("a").await, Some(State::Running));
    q.ack(&leased).await;
}

pub(crate) async fn a_waiting_generation_begins_instead_of_a_move(q: Fixture) {
    let leased = q.running("a").await;
    let over = TestJob { on_conflict: OnConflict::Replace, ..new_job("a") };
    assert_eq!(q.put(over).await.outcome, Some(EnqueueOutcome::Deferred));
    assert!(q.lease(&leased).await.unwrap().attempt.is_replaced);
    q.settle(last_crash(&q, &leased, CrashMove::Copied).await).await.unwrap();
    assert_eq!(q.state("a").await, Some(State::Ready));
    assert!(!q.lease(&q.claim_one().await).await.unwrap().attempt.is_replaced);
}

/// Jobs that come from another topic bring their last error, alone and beside others of one call.
pub(crate) async fn a_job_brings_its_last_error_from_another_topic(q: Fixture) {
    let history = |error: &str, checkpoint| {
        CarriedHistory { checkpoint, last_error: error.to_owned() }.boxed()
    };
    let from = |id: &str, checkpoint| TestJob {
        history: history(&format!("{id} crashed"), checkpoint),
        on_conflict: OnConflict::Reject,
        ..new_job(id)
    };
    let jobs = vec![from("a", None), new_job("b"), from("c", Some(text("half")))];
    for written in q.store.enqueue(jobs).await.unwrap() {
        assert_eq!(written.outcome, Some(EnqueueOutcome::Created));
    }
    for (id, error) in [("a", "a crashed"), ("b", ""), ("c", "c crashed")] {
        let job = q.job(id).await;
        assert_eq!((&*job.last_error, job.state), (error, State::Ready));
        let counters = (job.failures, job.deliveries, job.crashes, job.attempts.len());
        assert_eq!(counters, (0, 0, 0, 0), "{id}");
    }
    assert_eq!(q.put(from("a", None)).await.outcome, None, "taken");
    let leased = q.claim(3).await;
    assert_eq!(leased.iter().map(|job| job.key.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(q.unclaim(&leased[2]).await);
    assert_eq!(q.job("c").await.last_error, "c crashed");
    q.ack(&leased[0]).await;
    q.end(&leased[1], dead_lettered()).await;
    let over = TestJob { history: history("crashed", None), ..job_in("t", "b") };
    let over = q.put(TestJob { on_conflict: OnConflict::Replace, ..over }).await;
    assert_eq!(over.outcome, Some(EnqueueOutcome::Replaced));
    assert_eq!(q.job("b").await.last_error, "crashed");
}
