//! Checkpoints: stored by a worker with an Extend, and returned with later deliveries.

use std::time::Duration;

use crate::store_calls::{JobReschedule, LeaseExtension, RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{JobId, OnConflict, Payload, RetentionRule, State, When, limit};
use ringq::store::{CarriedHistory, LeaseRefusal, LeasedJob, StreamDemand};

use super::fixture::Fixture;
use super::values::{
    RETENTION, TOPIC, ack, after, dead_lettered, failed_for, key, lease_ref, new_job, one,
    released, taker, text, tied, topic,
};

/// Runs a job and saves the checkpoint `half`.
async fn saved(q: &Fixture, job: TestJob) -> LeasedJob {
    let leased = q.run(job).await;
    q.save(&leased, "half").await.unwrap();
    leased
}

/// Claims the only ready job and returns its checkpoint.
async fn brought(q: &Fixture) -> Option<Payload> {
    q.claim_one().await.checkpoint
}

fn half() -> Option<Payload> {
    Some(text("half"))
}

fn redrive(id: &str, states: Vec<State>) -> RedriveBatch {
    RedriveBatch {
        topic: topic(TOPIC),
        ids: vec![JobId::stored(id)],
        spacing: Duration::ZERO,
        delay: Duration::ZERO,
        states,
        target: None,
        ttl: None,
        dry_run: false,
        deadline: None,
    }
}

pub(crate) async fn the_next_delivery_brings_it_along_however_the_lease_ended(q: Fixture) {
    let keeps = [
        RetentionRule::Nothing,
        RetentionRule::Tombstone(limit::TOMBSTONE),
        RetentionRule::Record(RETENTION),
    ];
    let causes = [
        failed_for(0),
        released(),
        LeaseEndCause::Expired,
        LeaseEndCause::StreamBroken,
        LeaseEndCause::Unserved,
    ];
    for (n, keep) in keeps.into_iter().enumerate() {
        let id = format!("job-{n}");
        let mut leased = saved(&q, TestJob { retention: keep, ..new_job(&id) }).await;
        assert_eq!(leased.checkpoint, None, "the first delivery");
        for cause in causes.clone() {
            q.end(&leased, cause.clone()).await;
            q.sleep(60);
            leased = q.claim_one().await;
            assert_eq!(leased.checkpoint, half(), "{cause:?}");
            assert_eq!(leased.spec.payload, Some(text(&id)), "{cause:?}");
        }
        // An undone claim does not remove it, and neither does a lease that changes streams.
        assert!(q.unclaim(&leased).await);
        leased = q.claim_one().await;
        assert_eq!(leased.checkpoint, half());
        assert_eq!(q.store.detach(vec![tied(&leased, super::OWNER)]).await.unwrap(), 1);
        q.extend(&leased, None, None).await.unwrap();
        q.end(&leased, released()).await;
        q.sleep(60);
        leased = q.claim_one().await;
        assert_eq!(leased.checkpoint, half());
        q.ack(&leased).await;
    }
}

pub(crate) async fn a_waiting_job_that_moves_or_expires_keeps_it(q: Fixture) {
    let expire = Some(after(600));
    let keep = RetentionRule::Record(RETENTION * 10);
    let leased = saved(&q, TestJob { expire, retention: keep, ..new_job("a") }).await;
    q.end(&leased, failed_for(300)).await;
    let moved = JobReschedule {
        key: key(TOPIC, "a"),
        due: Some(When::Now),
        priority: Some(4),
        deadline: None,
    };
    q.store.reschedule(vec![moved]).await.unwrap();
    let leased = q.claim_one().await;
    assert_eq!((leased.checkpoint.clone(), leased.priority), (half(), 4));
    q.end(&leased, failed_for(300)).await;
    q.put(TestJob { on_conflict: OnConflict::Reschedule, ..new_job("a") }).await;
    let leased = q.claim_one().await;
    assert_eq!(leased.checkpoint, half());
    q.end(&leased, failed_for(300)).await;
    q.sleep(700);
    assert_eq!(q.state("a").await, Some(State::Expired));
    q.store.prune(10).await.unwrap();
    assert_eq!(q.store.redrive(redrive("a", vec![State::Expired])).await.unwrap().redriven, 0);
    let again = RedriveBatch { ttl: Some(RETENTION), ..redrive("a", vec![State::Expired]) };
    assert_eq!(q.store.redrive(again).await.unwrap().redriven, 1);
    assert_eq!(brought(&q).await, half());
}

pub(crate) async fn a_dead_job_that_is_put_back_has_it_still(q: Fixture) {
    let mut leased = saved(&q, new_job("a")).await;
    for way in 0..3 {
        q.end(&leased, dead_lettered()).await;
        assert_eq!(q.job("a").await.checkpoint, half());
        match way {
            0 => {
                let redriven = q.store.redrive(redrive("a", vec![State::Dead])).await.unwrap();
                assert_eq!(redriven.redriven, 1);
            }
            1 => {
                let key = key(TOPIC, "a");
                let revive = JobReschedule { key, due: None, priority: None, deadline: None };
                q.store.reschedule(vec![revive]).await.unwrap();
            }
            _ => {
                q.put(TestJob { on_conflict: OnConflict::Reschedule, ..new_job("a") }).await;
            }
        }
        leased = q.claim_one().await;
        assert_eq!(leased.checkpoint, half(), "way {way}");
    }
}

pub(crate) async fn it_goes_along_to_another_topic(q: Fixture) {
    for (id, body) in [("small", 10), ("large", 9_000)] {
        let mut job = new_job(id);
        job.spec.payload = Some(text(&"p".repeat(body)));
        let leased = saved(&q, job).await;
        q.end(&leased, dead_lettered()).await;
        let target = Some(topic("other"));
        let moved = RedriveBatch { target, ..redrive(id, vec![State::Dead]) };
        assert_eq!(q.store.redrive(moved).await.unwrap().redriven, 1);
        assert_eq!(q.get(id).await, None);
        assert_eq!(q.get_in("other", id).await.unwrap().checkpoint, half());
        let leased = one(one(q.claim_for("other", vec![taker()]).await.by_stream));
        assert_eq!(leased.checkpoint, half(), "{id}");
        assert_eq!(leased.spec.payload, Some(text(&"p".repeat(body))));
        // The id is free in its old topic, without a checkpoint.
        q.put(new_job(id)).await;
        let fresh = q.claim_one().await;
        assert_eq!(fresh.checkpoint, None);
        q.ack(&fresh).await;
        q.ack(&leased).await;
    }
}

pub(crate) async fn an_ack_clears_it(q: Fixture) {
    let keeps = [
        RetentionRule::Nothing,
        RetentionRule::Tombstone(limit::TOMBSTONE),
        RetentionRule::Record(RETENTION),
    ];
    for (n, keep) in keeps.into_iter().enumerate() {
        let id = format!("job-{n}");
        let mut leased = saved(&q, TestJob { retention: keep, ..new_job(&id) }).await;
        if n == 1 {
            q.end(&leased, released()).await;
            leased = q.claim_one().await;
        }
        assert_eq!(q.ack(&leased).await.state, State::Succeeded);
        assert!(q.settle(ack(&leased)).await.is_ok() || keep == RetentionRule::Nothing, "a repeat");
        if let RetentionRule::Record(_) = keep {
            assert_eq!(q.job(&id).await.checkpoint, None);
            let again = q.store.redrive(redrive(&id, vec![State::Succeeded])).await.unwrap();
            assert_eq!(again.redriven, 1);
            let leased = q.claim_one().await;
            assert_eq!(leased.checkpoint, None);
            q.ack(&leased).await;
        }
        q.sleep(3_600);
        q.put(new_job(&id)).await;
        let fresh = q.claim_one().await;
        assert_eq!(fresh.checkpoint, None, "{keep:?}");
        q.ack(&fresh).await;
        q.sleep(3_600);
    }
}

pub(crate) async fn a_replaced_job_and_the_next_generation_have_none(q: Fixture) {
    let replace = || TestJob { on_conflict: OnConflict::Replace, ..new_job("a") };
    // Replaces a waiting job, a dead one, and a cancelled one.
    for way in 0..3 {
        let leased = saved(&q, new_job("a")).await;
        match way {
            0 => drop(q.end(&leased, failed_for(300)).await),
            1 => drop(q.end(&leased, dead_lettered()).await),
            _ => drop(q.delete("a").await),
        }
        q.put(replace()).await;
        let leased = q.claim_one().await;
        assert_eq!(leased.checkpoint, None, "way {way}");
        q.ack(&leased).await;
        q.sleep(61);
    }
    // Behind a running job: it stays until that one ends.
    for on_conflict in [OnConflict::Replace, OnConflict::Reschedule] {
        for cause in [Some(released()), Some(failed_for(9)), Some(dead_lettered()), None] {
            let leased = q.run(TestJob { on_conflict, ..new_job("b") }).await;
            q.put(TestJob { on_conflict, ..new_job("b") }).await;
            q.save(&leased, "half").await.unwrap();
            assert_eq!(q.job("b").await.checkpoint, half());
            match cause {
                Some(cause) => drop(q.end(&leased, cause).await),
                None => drop(q.ack(&leased).await),
            }
            let next = q.claim_one().await;
            assert_eq!((next.checkpoint.as_ref(), next.deliveries), (None, 0));
            assert_eq!(q.lease(&next).await.unwrap().bytes, 1, "of the payload alone");
            q.ack(&next).await;
            q.sleep(61);
        }
    }
}

pub(crate) async fn an_empty_one_clears_it_and_none_leaves_it(q: Fixture) {
    let leased = saved(&q, new_job("a")).await;
    q.extend(&leased, None, None).await.unwrap();
    q.extend(&leased, None, Some("a note")).await.unwrap();
    q.end(&leased, released()).await;
    let leased = q.claim_one().await;
    assert_eq!(leased.checkpoint, half());
    q.save(&leased, "").await.unwrap();
    assert_eq!(q.job("a").await.checkpoint, None);
    q.save(&leased, "").await.unwrap();
    q.end(&leased, failed_for(1)).await;
    q.sleep(1);
    let leased = q.claim_one().await;
    assert_eq!(leased.checkpoint, None);
    assert_eq!(q.lease(&leased).await.unwrap().bytes, 1);
    assert_eq!(q.ack(&leased).await.state, State::Succeeded);
}

pub(crate) async fn the_last_one_counts(q: Fixture) {
    let leased = saved(&q, new_job("a")).await;
    q.sleep(2);
    let deadline = q.save(&leased, "three quarters").await.unwrap();
    assert_eq!(deadline, q.now().plus(super::values::LEASE), "an extend, too");
    // Several checkpoints of one call, in its order.
    let item = |body: &str| LeaseExtension {
        lease: lease_ref(&leased),
        duration: None,
        progress: Some(body.to_owned()),
        checkpoint: Some(text(body)),
        outage_expiry: None,
        write_deadline: None,
    };
    let content_type = "application/json".to_owned();
    let last = Payload { content_type, ..text("all but one") };
    let items =
        vec![item("x"), item(""), LeaseExtension { checkpoint: Some(last.clone()), ..item("y") }];
    assert!(q.store.extend(items).await.unwrap().iter().all(Result::is_ok));
    let job = q.job("a").await;
    assert_eq!((job.progress.as_str(), job.checkpoint), ("y", Some(last.clone())));
    q.end(&leased, released()).await;
    assert_eq!(brought(&q).await, Some(last));
}

pub(crate) async fn only_a_live_receipt_saves_one(q: Fixture) {
    let old = saved(&q, new_job("a")).await;
    q.end(&old, released()).await;
    assert_eq!(q.save(&old, "late").await, Err(LeaseRefusal::Stale), "it waits");
    let leased = q.claim_one().await;
    assert_eq!(q.save(&old, "late").await, Err(LeaseRefusal::Stale), "another has it");
    assert_eq!(leased.checkpoint, half());
    q.end(&leased, dead_lettered()).await;
    assert_eq!(q.save(&leased, "late").await, Err(LeaseRefusal::Stale), "it is dead");
    assert_eq!(q.job("a").await.checkpoint, half());
    q.delete("a").await;
    assert_eq!(q.save(&leased, "late").await, Err(LeaseRefusal::NotFound));
    // A lease that has expired and was not ended yet is still a lease.
    let leased = q.running("b").await;
    q.sleep(40);
    q.save(&leased, "in time").await.unwrap();
    q.end(&leased, released()).await;
    assert_eq!(brought(&q).await, Some(text("in time")));
}

pub(crate) async fn it_has_any_size_that_is_allowed(q: Fixture) {
    let mut leased = q.running("a").await;
    for size in [1, 511, 512, 513, 2_048, 2_049, limit::CHECKPOINT_BYTES_MAX, 3] {
        let body: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        let checkpoint = Payload { text: false, body: body.into(), ..Payload::default() };
        let extend = LeaseExtension {
            lease: lease_ref(&leased),
            duration: None,
            progress: None,
            checkpoint: Some(checkpoint.clone()),
            outage_expiry: None,
            write_deadline: None,
        };
        one(q.store.extend(vec![extend]).await.unwrap()).unwrap();
        q.end(&leased, released()).await;
        q.sleep(60);
        leased = q.claim_one().await;
        assert!(leased.checkpoint == Some(checkpoint), "{size} bytes");
        assert_eq!(leased.bytes(), 1 + size as u64);
    }
}

pub(crate) async fn its_bytes_count_in_a_claim(q: Fixture) {
    let leased = saved(&q, new_job("a")).await;
    assert_eq!(q.lease(&leased).await.unwrap().bytes, 5);
    q.save(&leased, "0123456789").await.unwrap();
    assert_eq!(q.lease(&leased).await.unwrap().bytes, 11, "not both of them");
    q.end(&leased, released()).await;
    let tight = |bytes| vec![StreamDemand { bytes, oversize: false, ..taker() }];
    assert!(one(q.claim_for(TOPIC, tight(10)).await.by_stream).is_empty());
    let leased = one(one(q.claim_for(TOPIC, tight(11)).await.by_stream));
    assert_eq!(leased.bytes(), 11);
    q.ack(&leased).await;
    // A call returns up to a mebibyte, of whatever kind.
    let ids: Vec<String> = (0..40).map(|n| format!("job-{n}")).collect();
    q.put_ids(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let large = "c".repeat(limit::CHECKPOINT_BYTES_MAX);
    for leased in q.claim(40).await {
        q.save(&leased, &large).await.unwrap();
        q.end(&leased, released()).await;
    }
    let first = q.claim(40).await;
    assert!((10..=17).contains(&first.len()), "{} of them", first.len());
    assert!(first.iter().all(|leased| leased.checkpoint == Some(text(&large))));
}

pub(crate) async fn it_lies_beside_a_large_payload(q: Fixture) {
    let mut job = new_job("a");
    job.spec.payload = Some(text(&"p".repeat(5_000)));
    let leased = saved(&q, TestJob { priority: Some(5), ..job.clone() }).await;
    // A generation with a large payload waits: the parts of both must not be confused.
    job.spec.payload = Some(text(&"q".repeat(6_000)));
    q.put(TestJob { on_conflict: OnConflict::Replace, ..job }).await;
    let read = q.job("a").await;
    assert_eq!((read.spec.payload, read.checkpoint), (Some(text(&"p".repeat(5_000))), half()));
    q.end(&leased, released()).await;
    let leased = q.claim_one().await;
    assert_eq!(leased.spec.payload, Some(text(&"q".repeat(6_000))));
    assert_eq!(leased.checkpoint, None);
    q.save(&leased, "again").await.unwrap();
    q.end(&leased, failed_for(0)).await;
    let leased = q.claim_one().await;
    assert_eq!(leased.spec.payload, Some(text(&"q".repeat(6_000))));
    assert_eq!(leased.checkpoint, Some(text("again")));
    assert_eq!(q.delete("a").await, Some(State::Running));
    q.sleep(61);
    q.store.prune(10).await.unwrap();
    q.put(new_job("a")).await;
    assert_eq!(brought(&q).await, None);
}

/// Written with the job, like by a redrive to another shard.
pub(crate) async fn a_job_is_written_with_one(q: Fixture) {
    let history = || CarriedHistory { checkpoint: half(), ..CarriedHistory::default() };
    let with = |id: &str| TestJob { history: history().boxed(), ..new_job(id) };
    let jobs = vec![new_job("a"), with("b"), new_job("c"), with("d")];
    for written in q.store.enqueue(jobs).await.unwrap() {
        assert_eq!(written.outcome, Some(ringq::domain::EnqueueOutcome::Created));
    }
    let leased = q.claim(10).await;
    let found: Vec<_> =
        leased.iter().map(|leased| (leased.key.id.as_str(), leased.checkpoint.clone())).collect();
    let mut expected = [("a", None), ("b", half()), ("c", None), ("d", half())];
    let mut sorted = found.clone();
    sorted.sort_by_key(|(id, _)| *id);
    expected.sort_by_key(|(id, _)| *id);
    assert_eq!(sorted, expected);
    // Where the id is taken, nothing changes.
    let taken = q.put(TestJob { on_conflict: OnConflict::Reject, ..with("a") }).await;
    assert_eq!(taken.outcome, None);
    assert_eq!(q.job("a").await.checkpoint, None);
}

pub(crate) async fn it_is_read_in_full_only(q: Fixture) {
    saved(&q, new_job("a")).await;
    let [brief] = <[_; 1]>::try_from(q.store.get(vec![key(TOPIC, "a")], false).await.unwrap())
        .unwrap_or_else(|jobs| panic!("{jobs:?}"));
    assert_eq!(brief.unwrap().checkpoint, None);
    assert_eq!(q.job("a").await.checkpoint, half());
}

pub(crate) async fn it_survives_reopening(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let leased = saved(&q, new_job("a")).await;
    q.reopen().await;
    assert_eq!(q.job("a").await.checkpoint, half());
    q.end(&leased, LeaseEndCause::StreamBroken).await;
    q.reopen().await;
    let leased = q.claim_one().await;
    assert_eq!(leased.checkpoint, half());
    q.ack(&leased).await;
    q.reopen().await;
    assert_eq!(q.job("a").await.checkpoint, None);
}

/// Removed with its job, whatever the end. The large payload is a part that is removed in the same way.
pub(crate) async fn nothing_is_left_of_it(q: Fixture) {
    let job = |id: &str| {
        let mut job = TestJob { retention: RetentionRule::Nothing, ..new_job(id) };
        job.spec.payload = Some(text(&"p".repeat(3_000)));
        job
    };
    for way in 0..8 {
        let id = format!("job-{way}");
        let leased = saved(&q, job(&id)).await;
        assert!(q.parts().await.is_none_or(|parts| parts == 2), "both lie apart");
        match way {
            0 => drop(q.ack(&leased).await),
            1 => {
                q.end(&leased, released()).await;
                let leased = q.claim_one().await;
                q.ack(&leased).await;
            }
            2 => drop(q.delete(&id).await),
            3 => {
                q.end(&leased, failed_for(60)).await;
                q.delete(&id).await;
            }
            4 => {
                q.end(&leased, dead_lettered()).await;
                q.sleep(limit::DEAD_RETENTION.as_secs());
                q.store.prune(10).await.unwrap();
            }
            5 => {
                q.end(&leased, dead_lettered()).await;
                let target = Some(topic("other"));
                q.store
                    .redrive(RedriveBatch { target, ..redrive(&id, vec![State::Dead]) })
                    .await
                    .unwrap();
                let leased = one(one(q.claim_for("other", vec![taker()]).await.by_stream));
                q.ack(&leased).await;
            }
            6 => {
                let small = TestJob { retention: RetentionRule::Nothing, ..new_job(&id) };
                q.put(TestJob { on_conflict: OnConflict::Replace, ..small }).await;
                q.end(&leased, released()).await;
                // The payload of a generation that waited may be stored as a part whatever its size.
                assert!(q.parts().await.is_none_or(|parts| parts <= 1), "the checkpoint is gone");
                let leased = q.claim_one().await;
                q.ack(&leased).await;
            }
            _ => {
                q.save(&leased, "").await.unwrap();
                assert!(q.parts().await.is_none_or(|parts| parts == 1), "cleared");
                q.ack(&leased).await;
            }
        }
        assert_eq!(q.get(&id).await, None, "way {way}");
        assert!(q.parts().await.is_none_or(|parts| parts == 0), "way {way}");
    }
}
