//! Settle: the end of a lease by its worker, and the answers to a repeat and to an unknown lease. Counters are in
//! `attempts`, the effect of a waiting generation in `generations`.

use std::time::Duration;

use crate::store_calls::{LeaseSettlement, StoreCalls as _, TestJob};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{
    Attempt, AttemptOutcome, JobId, OnConflict, RetentionRule, ShardName, State, Time, Token, limit,
};
use ringq::store::{LeaseRef, LeaseRefusal, LeasedJob, SettleAction, SettleCommandReply};

use super::fixture::Fixture;
use super::values::{
    OWNER, RETENTION, TOPIC, ack, after, dead_lettered, decide, failed, failed_for, job_in, key,
    lease_ref, new_job, released, text,
};

/// Builds an Ack with a result.
fn ack_with(leased: &LeasedJob, result: &str) -> LeaseSettlement {
    let end = SettleAction::Ack { result: Some(text(result)), follow_ups: Vec::new() };
    LeaseSettlement { action: end, ..ack(leased) }
}

/// Runs a job with a retention.
async fn run_kept(q: &Fixture, id: &str) -> LeasedJob {
    q.run(TestJob { retention: RetentionRule::Record(RETENTION), ..new_job(id) }).await
}

// === ack ===

pub(crate) async fn acks_of_every_kind_fit_one_call(q: Fixture) {
    for owner in [OWNER, OWNER + 1] {
        let mut leases = vec![q.running("plain").await, q.running("other").await];
        leases.push(q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("gone") }).await);
        leases.push(q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("noted") }).await);
        leases.push(run_kept(&q, "kept").await);
        let made = JobId::from_uuid(&ShardName::try_new("s0").unwrap(), u128::from(owner) << 80);
        leases.push(
            q.run(TestJob { retention: RetentionRule::Nothing, ..new_job(made.as_str()) }).await,
        );
        q.extend(&leases[3], None, Some("half of it")).await.unwrap();
        let mut settles: Vec<_> = leases.iter().map(ack).collect();
        // A repeat in the same call, and an unknown lease.
        settles.push(settles[2].clone());
        settles.push(LeaseSettlement {
            lease: LeaseRef { token: Token(1), ..lease_ref(&leases[0]) },
            ..ack(&leases[0])
        });
        settles.iter_mut().for_each(|settle| settle.owner = owner);
        let settled = q.store.settle(settles).await.unwrap();
        let succeeded = Ok(SettleCommandReply { repeated: false, state: State::Succeeded });
        assert_eq!(settled[..6], [succeeded; 6]);
        assert_eq!(settled[6..], [Err(LeaseRefusal::NotFound), Err(LeaseRefusal::Stale)]);
        assert_eq!(q.state("kept").await, Some(State::Succeeded));
        assert_eq!((q.get("gone").await, q.get("noted").await), (None, None));
        assert_eq!(q.stats(TOPIC).await.running, 0);
        for id in ["plain", "other", "kept"] {
            q.delete(id).await;
        }
    }
}

pub(crate) async fn a_tombstone_has_the_state_and_neither_payload_nor_result(q: Fixture) {
    let leased = q.running("a").await;
    q.settle(ack_with(&leased, "done")).await.unwrap();
    let finished = q.now();
    let job = q.job("a").await;
    assert_eq!((job.state, job.finish_time), (State::Succeeded, Some(finished)));
    assert_eq!((job.spec.payload, job.result), (None, None));
    q.until_just_before(finished.plus(limit::TOMBSTONE));
    assert_eq!(q.state("a").await, Some(State::Succeeded));
    q.until(finished.plus(limit::TOMBSTONE));
    assert_eq!(q.get("a").await, None);
}

pub(crate) async fn a_kept_record_has_payload_result_and_attempts(q: Fixture) {
    let leased = run_kept(&q, "a").await;
    let start_time = q.now();
    q.sleep(2);
    q.settle(ack_with(&leased, "größer")).await.unwrap();
    let job = q.job("a").await;
    assert_eq!((job.spec.payload, job.result), (Some(text("a")), Some(text("größer"))));
    assert_eq!((job.failures, job.deliveries, &*job.worker_id), (0, 1, "worker-1"));
    assert_eq!((job.finish_time, job.lease_expire_time), (Some(q.now()), None));
    let attempt = Attempt {
        number: 1,
        start_time,
        finish_time: q.now(),
        worker_id: "worker-1".into(),
        outcome: AttemptOutcome::Succeeded,
        error: String::new(),
    };
    assert_eq!(job.attempts, [attempt]);
    q.until_just_before(job.finish_time.unwrap().plus(RETENTION));
    assert!(q.job("a").await.result.is_some());
    q.clock.advance(Duration::from_micros(1));
    assert_eq!(q.get("a").await, None);
}

pub(crate) async fn a_result_may_be_empty_bytes_or_a_megabyte(q: Fixture) {
    let large = text(&"漢".repeat((1 << 20) / 3));
    for (id, result) in [("empty", text("")), ("large", large)] {
        let leased = run_kept(&q, id).await;
        let end = SettleAction::Ack { result: Some(result.clone()), follow_ups: Vec::new() };
        q.settle(LeaseSettlement { action: end, ..ack(&leased) }).await.unwrap();
        assert!(q.job(id).await.result == Some(result), "{id}");
    }
}

pub(crate) async fn a_job_that_is_not_kept_is_forgotten_with_its_ack(q: Fixture) {
    let leased = q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("a") }).await;
    assert_eq!(q.ack(&leased).await.state, State::Succeeded);
    assert_eq!(q.get("a").await, None);
    assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::NotFound));
}

pub(crate) async fn a_late_ack_that_comes_before_the_reaper_counts(q: Fixture) {
    let leased = q.running("a").await;
    q.until(leased.deadline);
    q.sleep(3600);
    assert_eq!(q.ack(&leased).await.state, State::Succeeded);
}

// === follow-ups ===

fn follow_up(n: u128) -> TestJob {
    let shard = ringq::domain::ShardName::try_new("s0").unwrap();
    let mut job = TestJob { retention: RetentionRule::Nothing, ..job_in("after", "x") };
    job.key.id = JobId::from_uuid(&shard, n);
    job
}

fn ack_and(leased: &LeasedJob, follow_ups: Vec<TestJob>) -> LeaseSettlement {
    let follow_ups = follow_ups.into_iter().map(TestJob::new_job).collect();
    LeaseSettlement { action: SettleAction::Ack { result: None, follow_ups }, ..ack(leased) }
}

pub(crate) async fn follow_ups_are_written_with_the_ack_and_only_once(q: Fixture) {
    let leased = q.running("a").await;
    let later = TestJob { due: after(9), ..follow_up(2) };
    let settle = ack_and(&leased, vec![follow_up(1), later]);
    assert!(!q.settle(settle.clone()).await.unwrap().repeated);
    assert!(q.settle(settle).await.unwrap().repeated);
    let stats = q.stats("after").await;
    assert_eq!((stats.ready, stats.scheduled, stats.enqueued_total), (1, 1, 2));
    let found = q.store.get(vec![follow_up(1).key, follow_up(2).key], true).await.unwrap();
    let states: Vec<_> = found.into_iter().map(|job| job.unwrap().state).collect();
    assert_eq!(states, [State::Ready, State::Scheduled]);
}

pub(crate) async fn a_refused_ack_writes_no_follow_up(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, released()).await;
    let settle = ack_and(&leased, vec![follow_up(1)]);
    assert_eq!(q.settle(settle).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.store.get(vec![follow_up(1).key], true).await.unwrap(), [None]);
}

// === repeats and refusals ===

pub(crate) async fn a_repeated_ack_is_success_while_the_record_lives(q: Fixture) {
    let leased = q.running("a").await;
    q.ack(&leased).await;
    let finished = q.now();
    let before = q.job("a").await;
    q.until_just_before(finished.plus(limit::TOMBSTONE));
    let repeated = SettleCommandReply { repeated: true, state: State::Succeeded };
    assert_eq!(q.settle(ack(&leased)).await, Ok(repeated));
    assert_eq!(q.job("a").await, before);
    q.until(finished.plus(limit::TOMBSTONE));
    assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::NotFound));
}

pub(crate) async fn a_repeated_nack_is_success_and_counts_once(q: Fixture) {
    for (id, cause, state) in [
        ("retry", failed_for(900), State::Backoff),
        (
            "release",
            LeaseEndCause::Released { delay: Some(RETENTION), error: "".into() },
            State::Scheduled,
        ),
        ("die", dead_lettered(), State::Dead),
    ] {
        let leased = q.running(id).await;
        let settle = q.decide(&leased, cause).await;
        assert_eq!(q.settle(settle.clone()).await.unwrap().state, state, "{id}");
        let (before, stats) = (q.job(id).await, q.stats(TOPIC).await);
        let repeated = SettleCommandReply { repeated: true, state };
        assert_eq!(q.settle(settle).await, Ok(repeated), "{id}");
        assert_eq!((q.job(id).await, q.stats(TOPIC).await), (before, stats), "{id}");
    }
}

pub(crate) async fn a_repeated_nack_is_success_though_the_job_runs_again(q: Fixture) {
    for (id, cause) in [("retry", failed_for(0)), ("release", released())] {
        let first = q.running(id).await;
        let nack = q.decide(&first, cause).await;
        q.settle(nack.clone()).await.unwrap();
        let second = q.claim_one().await;
        let before = q.job(id).await;
        let repeated = SettleCommandReply { repeated: true, state: State::Running };
        assert_eq!(q.settle(nack.clone()).await, Ok(repeated), "{id}");
        assert_eq!(q.settle(ack(&first)).await, Err(LeaseRefusal::Stale), "{id}: it was not acked");
        assert_eq!(q.extend(&first, None, None).await, Err(LeaseRefusal::Stale), "{id}");
        assert_eq!(q.lease(&first).await, Err(LeaseRefusal::Stale), "{id}");
        assert_eq!(q.job(id).await, before, "{id}: the second lease goes on");
        assert!(!q.ack(&second).await.repeated, "{id}");
        let repeated = SettleCommandReply { state: State::Succeeded, ..repeated };
        assert_eq!(q.settle(nack).await, Ok(repeated), "{id}");
        assert!(q.settle(ack(&second)).await.unwrap().repeated, "{id}");
    }
}

pub(crate) async fn a_settle_is_remembered_for_ten_more_leases(q: Fixture) {
    q.put(new_job("a")).await;
    let mut nacks = Vec::new();
    for n in 0..=limit::ATTEMPTS_KEPT {
        let leased = q.claim_one().await;
        // Half of the ends are of one kind, so that each token must be distinguished from the others.
        let cause = if n % 2 == 0 { failed_for(0) } else { dead_lettered() };
        let nack = q.decide(&leased, cause).await;
        q.settle(nack.clone()).await.unwrap();
        nacks.push(nack);
        let again = TestJob { on_conflict: OnConflict::Reschedule, ..new_job("a") };
        q.put(again).await;
    }
    for (n, nack) in nacks.iter().enumerate() {
        assert!(q.settle(nack.clone()).await.unwrap().repeated, "{n} before the next lease");
    }
    q.claim_one().await;
    let repeats = q.store.settle(nacks).await.unwrap();
    assert_eq!(repeats[0], Err(LeaseRefusal::Stale), "one too many has followed");
    assert!(repeats[1..].iter().all(|repeat| repeat.unwrap().repeated), "{repeats:?}");
}

pub(crate) async fn an_undone_claim_forgets_no_settle(q: Fixture) {
    let leased = q.running("a").await;
    let nack = q.decide(&leased, failed_for(0)).await;
    q.settle(nack.clone()).await.unwrap();
    for _ in 0..=limit::ATTEMPTS_KEPT {
        let undone = q.claim_one().await;
        assert!(q.unclaim(&undone).await);
        assert_eq!(q.settle(ack(&undone)).await, Err(LeaseRefusal::Stale));
        assert_eq!(q.settle(nack.clone()).await.unwrap().state, State::Ready);
    }
    q.claim_one().await;
    assert!(q.settle(nack).await.unwrap().repeated);
}

pub(crate) async fn a_lease_that_ended_by_itself_was_not_settled(q: Fixture) {
    for (id, cause) in
        [("expired", LeaseEndCause::Expired), ("broken", LeaseEndCause::StreamBroken)]
    {
        let leased = q.running(id).await;
        let late = [ack(&leased), q.decide(&leased, dead_lettered()).await];
        q.end(&leased, cause).await;
        q.sleep(1);
        for claims in 0..3 {
            for settle in &late {
                assert_eq!(
                    q.settle(settle.clone()).await,
                    Err(LeaseRefusal::Stale),
                    "{id} {claims}"
                );
            }
            let again = q.claim_one().await;
            q.end(&again, failed_for(0)).await;
        }
        q.delete(id).await;
    }
}

pub(crate) async fn a_deleted_job_is_gone_for_every_lease_that_it_had(q: Fixture) {
    let first = q.running("a").await;
    let nack = q.decide(&first, failed_for(0)).await;
    q.settle(nack.clone()).await.unwrap();
    let second = q.claim_one().await;
    q.delete("a").await;
    for settle in [nack, ack(&first), ack(&second)] {
        assert_eq!(q.settle(settle).await, Err(LeaseRefusal::NotFound));
    }
}

pub(crate) async fn another_action_with_a_used_token_is_stale(q: Fixture) {
    let acked = q.running("acked").await;
    let retry = q.decide(&acked, failed()).await;
    q.ack(&acked).await;
    assert_eq!(q.settle(retry).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.state("acked").await, Some(State::Succeeded));
    let retried = q.running("retried").await;
    let die = q.decide(&retried, dead_lettered()).await;
    let release = q.decide(&retried, released()).await;
    q.end(&retried, failed()).await;
    for settle in [ack(&retried), die, release] {
        assert_eq!(q.settle(settle).await, Err(LeaseRefusal::Stale));
    }
    assert_eq!(q.state("retried").await, Some(State::Backoff));
}

pub(crate) async fn the_same_lease_twice_in_one_call_is_settled_once(q: Fixture) {
    let leased = q.running("a").await;
    let settled = q.store.settle(vec![ack(&leased), ack(&leased)]).await.unwrap();
    let repeated: Vec<_> = settled.iter().map(|settled| settled.unwrap().repeated).collect();
    assert_eq!(repeated, [false, true]);
    assert_eq!(q.job("a").await.deliveries, 1);
    assert_eq!(q.stats(TOPIC).await.succeeded_total, 1);
}

pub(crate) async fn a_batch_of_settles_is_answered_in_its_order(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    let leased = q.claim(3).await;
    let mut unknown = ack(&leased[0]);
    unknown.lease.key = key(TOPIC, "unknown");
    let mut stale = ack(&leased[1]);
    stale.lease.token.0 ^= 1 << 63;
    let items = vec![unknown, ack(&leased[2]), stale, ack(&leased[0])];
    let settled = q.store.settle(items).await.unwrap();
    let states: Vec<_> = settled.into_iter().map(|settled| settled.map(|s| s.state)).collect();
    let done = Ok(State::Succeeded);
    assert_eq!(states, [Err(LeaseRefusal::NotFound), done, Err(LeaseRefusal::Stale), done]);
    assert_eq!(q.state("b").await, Some(State::Running));
}

pub(crate) async fn a_job_or_topic_that_is_not_there_is_not_found(q: Fixture) {
    let leased = q.running("a").await;
    for key in [key("nowhere", "a"), key(TOPIC, "b")] {
        let mut settle = ack(&leased);
        settle.lease.key = key;
        assert_eq!(q.settle(settle).await, Err(LeaseRefusal::NotFound));
    }
    assert_eq!(q.store.topics(String::new(), None, 10).await.unwrap().len(), 1);
}

pub(crate) async fn a_lease_of_a_former_life_of_the_id_is_stale(q: Fixture) {
    let old = q.run(TestJob { retention: RetentionRule::Nothing, ..new_job("a") }).await;
    q.ack(&old).await;
    q.running("a").await;
    assert_eq!(q.settle(ack(&old)).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.state("a").await, Some(State::Running));
}

// === guarded by the deadline ===

pub(crate) async fn a_guarded_settle_is_refused_once_the_lease_was_extended(q: Fixture) {
    let leased = q.running("a").await;
    q.until(leased.deadline);
    let lease = q.lease(&leased).await.unwrap();
    let reap = LeaseSettlement {
        deadline: Some(lease.deadline),
        ..decide(&lease, LeaseEndCause::Expired)
    };
    q.sleep(1);
    let moved = q.extend(&leased, None, None).await.unwrap();
    assert_eq!(q.settle(reap.clone()).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.job("a").await.lease_expire_time, Some(moved));
    let settled = q.settle(LeaseSettlement { deadline: Some(moved), ..reap }).await.unwrap();
    assert_eq!(settled.state, State::Backoff);
}

pub(crate) async fn an_ack_with_another_deadline_is_only_known_as_a_repeat(q: Fixture) {
    let never = |leased: &LeasedJob| LeaseSettlement { deadline: Some(Time(0)), ..ack(leased) };
    for (id, keep) in [("a", RetentionRule::Nothing), ("b", RetentionRule::Tombstone(RETENTION))] {
        let leased = q.run(TestJob { retention: keep, ..new_job(id) }).await;
        assert_eq!(q.settle(never(&leased)).await, Err(LeaseRefusal::Stale), "{id}");
        assert_eq!(q.state(id).await, Some(State::Running), "{id}");
        q.ack(&leased).await;
        let known = match keep {
            RetentionRule::Nothing => Err(LeaseRefusal::NotFound),
            _ => Ok((true, State::Succeeded)),
        };
        let repeated = q.settle(never(&leased)).await.map(|done| (done.repeated, done.state));
        assert_eq!(repeated, known, "{id}");
    }
}

pub(crate) async fn a_settled_lease_is_no_lease(q: Fixture) {
    let leased = q.running("a").await;
    q.ack(&leased).await;
    let refs = vec![lease_ref(&leased)];
    assert_eq!(q.store.running_leases(refs).await.unwrap(), [Err(LeaseRefusal::Stale)]);
    assert_eq!(q.store.overdue_leases(10).await.unwrap().next_deadline, None);
}
