//! Jobs that may have been written before: a call whose answer was lost is repeated with the ids that a
//! server made, which leave no tombstone.

use std::time::Duration;

use ringq::domain::ring::ShardState;
use ringq::domain::rings::Records;
use ringq::domain::{EnqueueOutcome, JobId, Keep, State, limit};
use ringq::store::{Beat, NewJob, Prior, Taker};

use super::fixture::Fixture;
use super::values::{ack, failed_for, key, new_job, taker};

/// A job as a server names it, of which nothing stays.
fn made(q: &Fixture, n: u128) -> NewJob {
    let id = JobId::server_made(q.store.name(), (1 << 120) + n);
    NewJob { keep: Keep::Nothing, ..new_job(id.as_str()) }
}

fn again(job: &NewJob) -> NewJob {
    NewJob { prior: Prior::Itself, ..job.clone() }
}

/// What a repeat finds.
async fn repeat(q: &Fixture, job: &NewJob) -> (Option<EnqueueOutcome>, State) {
    let found = q.put(again(job)).await;
    (found.outcome, found.state)
}

const DONE: (Option<EnqueueOutcome>, State) = (Some(EnqueueOutcome::Unchanged), State::Succeeded);

pub(crate) async fn a_job_that_was_never_written_is_created(q: Fixture) {
    let job = made(&q, 1);
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Created), State::Ready));
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Unchanged), State::Ready));
    assert_eq!(q.claim_ids().await, [job.key.id.as_str()]);
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Unchanged), State::Running));
}

pub(crate) async fn a_job_that_is_done_is_not_written_again(q: Fixture) {
    let jobs: Vec<_> = (1..=5).map(|n| made(&q, n)).collect();
    q.put(jobs[0].clone()).await;
    let alone = q.claim_one().await;
    q.ack(&alone).await;
    assert_eq!(repeat(&q, &jobs[0]).await, DONE, "acknowledged alone");
    q.store.enqueue(jobs[1..].to_vec()).await.unwrap();
    let leased = q.claim(10).await;
    assert_eq!(leased.len(), 4);
    q.end(&leased[0], failed_for(0)).await;
    q.store.settle(leased[1..].iter().map(ack).collect()).await.unwrap();
    for job in &jobs[2..] {
        assert_eq!(repeat(&q, job).await, DONE, "acknowledged together");
    }
    assert_eq!(repeat(&q, &jobs[1]).await.1, State::Ready, "it failed, and waits");
    let retried = q.claim_one().await;
    q.ack(&retried).await;
    assert_eq!(repeat(&q, &jobs[1]).await, DONE, "acknowledged with a past");
    assert!(q.claim_ids().await.is_empty());
    let fresh = [made(&q, 9), made(&q, 10)];
    let mixed = vec![again(&jobs[0]), fresh[0].clone(), again(&fresh[1]), again(&jobs[4])];
    let found = q.store.enqueue(mixed).await.unwrap();
    let outcomes: Vec<_> = found.iter().map(|found| found.outcome.unwrap()).collect();
    use EnqueueOutcome::{Created, Unchanged};
    assert_eq!(outcomes, [Unchanged, Created, Created, Unchanged]);
}

/// Nobody looks for what nothing can lie under; what may be there is found all the same, beside it and alone.
pub(crate) async fn new_ids_are_written_beside_ones_that_are_taken(q: Fixture) {
    let fresh = |topic: &str, n| {
        let job = NewJob { prior: Prior::Nothing, ..made(&q, n) };
        NewJob { key: key(topic, job.key.id.as_str()), ..job }
    };
    let taken = |topic: &str| NewJob { key: key(topic, "taken"), ..new_job("taken") };
    for topic in ["mixed", "chosen"] {
        q.put(taken(topic)).await;
    }
    let jobs = vec![
        fresh("fresh", 1),
        fresh("mixed", 2),
        taken("chosen"),
        fresh("fresh", 3),
        taken("mixed"),
        fresh("mixed", 4),
        fresh("fresh", 5),
    ];
    let found = q.store.enqueue(jobs.clone()).await.unwrap();
    let outcomes: Vec<_> = found.iter().map(|found| found.outcome.unwrap()).collect();
    use EnqueueOutcome::{Created, Unchanged};
    assert_eq!(outcomes, [Created, Created, Unchanged, Created, Unchanged, Created, Created]);
    assert_eq!(q.put(fresh("fresh", 6)).await.outcome, Some(Created), "alone");
    for (topic, count) in [("fresh", 4), ("mixed", 3), ("chosen", 1)] {
        let claimed = q.claim_for(topic, vec![Taker { jobs: 10, ..taker() }]).await;
        assert_eq!(claimed.leased[0].len(), count, "{topic}");
    }
    let repeats = q.store.enqueue(jobs.iter().map(again).collect()).await.unwrap();
    assert!(repeats.iter().all(|found| found.outcome == Some(Unchanged)), "{repeats:?}");
}

pub(crate) async fn only_that_job_is_recalled(q: Fixture) {
    let job = made(&q, 1);
    let leased = q.run(job.clone()).await;
    q.ack(&leased).await;
    let elsewhere = NewJob { key: key("other", job.key.id.as_str()), ..job.clone() };
    assert_eq!(
        repeat(&q, &elsewhere).await.0,
        Some(EnqueueOutcome::Created),
        "the next step of a pipeline"
    );
    assert_eq!(
        q.put(job.clone()).await.outcome,
        Some(EnqueueOutcome::Created),
        "it was not said to be again"
    );
    assert_eq!(
        repeat(&q, &job).await,
        (Some(EnqueueOutcome::Unchanged), State::Ready),
        "there is one now"
    );
    q.delete(job.key.id.as_str()).await;
    let deleted = made(&q, 2);
    q.put(deleted.clone()).await;
    q.delete(deleted.key.id.as_str()).await;
    assert_eq!(
        repeat(&q, &deleted).await.0,
        Some(EnqueueOutcome::Created),
        "a deleted one may come anew"
    );
}

pub(crate) async fn a_job_is_recalled_also_after_a_short_retention(q: Fixture) {
    let job = NewJob { keep: Keep::Record(Duration::from_secs(5)), ..made(&q, 1) };
    let leased = q.run(job.clone()).await;
    q.ack(&leased).await;
    assert_eq!(repeat(&q, &job).await, DONE, "its record is there");
    q.sleep(6);
    q.store.prune(10).await.unwrap();
    assert_eq!(repeat(&q, &job).await, DONE);
}

pub(crate) async fn it_is_recalled_for_as_long_as_a_tombstone_and_then_forgotten(q: Fixture) {
    let (job, other) = (made(&q, 1), made(&q, 2));
    let turn = async || {
        let (state, rings) = (ShardState::Active, Records::new());
        let beat = Beat { owner: 7, ring: 0, state, rings, met: Vec::new(), gone: Vec::new() };
        q.store.beat(beat).await.unwrap();
    };
    let finish = async |job: &NewJob| {
        q.put(job.clone()).await;
        let leased = q.claim_one().await;
        q.ack(&leased).await;
    };
    turn().await;
    finish(&job).await;
    q.sleep(limit::TOMBSTONE.as_secs());
    turn().await;
    assert_eq!(repeat(&q, &job).await, DONE);
    finish(&other).await;
    q.sleep((limit::TOMBSTONE + Duration::from_secs(1)).as_secs());
    turn().await;
    finish(&made(&q, 3)).await;
    assert_eq!(repeat(&q, &job).await.0, Some(EnqueueOutcome::Created));
    assert_eq!(repeat(&q, &other).await, DONE);
}

/// A store that cannot recall over a restart what has left nothing says so, as long as such calls are repeated.
pub(crate) async fn a_job_that_ran_before_a_restart_is_not_written_again(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let uuid = (u128::try_from(q.now().0).unwrap() / 1_000) << 80;
    let made = |n| {
        let id = JobId::server_made(q.store.name(), uuid + n);
        NewJob { keep: Keep::Nothing, ..new_job(id.as_str()) }
    };
    let (ran, waits) = (made(1), made(2));
    q.put(ran.clone()).await;
    q.ack(&q.claim_one().await).await;
    q.put(waits.clone()).await;
    q.sleep(1);
    q.reopen().await;
    let found = q.put(again(&ran)).await;
    assert!(found.unsure || (found.outcome, found.state) == DONE, "{found:?}");
    assert_eq!(repeat(&q, &waits).await, (Some(EnqueueOutcome::Unchanged), State::Ready));
    assert_eq!(q.claim_ids().await, [waits.key.id.as_str()], "the other one does not run again");
    // What is made from now on is known.
    let id =
        JobId::server_made(q.store.name(), (u128::try_from(q.now().0).unwrap() / 1_000 + 1) << 80);
    let later = NewJob { keep: Keep::Nothing, ..new_job(id.as_str()) };
    assert!(!q.put(again(&later)).await.unsure);
}
