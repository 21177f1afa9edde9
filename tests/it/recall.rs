//! Bounds of the ended jobs that a Redis recalls: a dropped one is not taken for new.

use crate::store_calls::TestJob;
use ringq::domain::open_rings::RingRecords;
use ringq::domain::ring::ShardState;
use ringq::domain::{EnqueueOutcome, JobId, RetentionRule, limit};
use ringq::store::{Heartbeat, NotWrittenReason, WritePrecondition};

use crate::conformance::values::new_job;
use crate::conformance::{Backend, Fixture, OWNER};
use crate::harness::Redis;

/// More bytes of lines than fit.
const TOO_MANY: &str = "134217728";

fn made(q: &Fixture) -> TestJob {
    let millis = u128::try_from(q.now().0).unwrap() / 1_000;
    let id = JobId::from_uuid(q.store.name(), millis << 80 | 7);
    TestJob {
        retention: RetentionRule::Nothing,
        precondition: WritePrecondition::SameJob,
        ..new_job(id.as_str())
    }
}

/// Creates a job and acks it; returns the name of its second.
async fn done(q: &Fixture) -> (TestJob, String) {
    let job = made(q);
    q.ack(&q.run(job.clone()).await).await;
    let second = job.key.id.created_second().unwrap().to_owned();
    (job, second)
}

async fn beat(q: &Fixture) {
    let (state, rings) = (ShardState::Active, RingRecords::new());
    let beat = Heartbeat {
        owner: OWNER,
        ring: 0,
        state,
        rings,
        seen_owners: Vec::new(),
        removed_owners: Vec::new(),
    };
    q.store.heartbeat(beat).await.unwrap();
}

async fn seconds(redis: &Redis) -> String {
    redis.command(&["ZCARD", "ringq:{s0}:recent"]).await
}

#[tokio::test]
async fn what_is_too_much_is_dropped_from_the_oldest_on_and_not_taken_for_new() {
    let Some(redis) = Redis::start().await else { return };
    let q = Fixture::at(Backend::Redis, &redis.url()).await;
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(done(&q).await);
        q.sleep(20);
    }
    let key = format!("ringq:{{s0}}:recent:{}", jobs[2].1);
    redis.command(&["SETRANGE", &key, TOO_MANY, "\n"]).await;
    beat(&q).await;
    assert_eq!(seconds(&redis).await, ":2");
    for (n, (job, _)) in jobs.iter().enumerate() {
        let found = q.put(job.clone()).await;
        if n < 3 {
            assert_eq!(found.not_written, Some(NotWrittenReason::HistoryLost), "{n}");
        } else {
            assert_eq!(found.outcome, Some(EnqueueOutcome::Unchanged), "{n}");
        }
    }
    // Later jobs are recalled.
    let new = q.put(made(&q)).await;
    assert_eq!((new.not_written, new.outcome), (None, Some(EnqueueOutcome::Created)));
}

#[tokio::test]
async fn what_no_repeat_can_ask_for_takes_no_room() {
    let Some(redis) = Redis::start().await else { return };
    let q = Fixture::at(Backend::Redis, &redis.url()).await;
    let (old, _) = done(&q).await;
    q.sleep(1);
    let late = made(&q);
    q.put(TestJob { due: crate::conformance::values::after(3_600), ..late.clone() }).await;
    q.sleep(limit::REPEAT_MAX.as_secs() + 2);
    done(&q).await;
    beat(&q).await;
    assert_eq!(seconds(&redis).await, ":1", "of the younger job");
    assert_eq!(q.put(old).await.not_written, Some(NotWrittenReason::TooOld));
    // A job that was made long ago is not recorded when it ends, in whatever way.
    q.sleep(7_200);
    assert_eq!(q.claim_ids().await, [late.key.id.as_str()]);
    q.delete(late.key.id.as_str()).await;
    beat(&q).await;
    assert_eq!(seconds(&redis).await, ":0");
    assert_eq!(redis.command(&["EXISTS", "ringq:{s0}:recent.from"]).await, ":0");
}
