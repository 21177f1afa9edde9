//! Calls at the same time: each is atomic, and a job has one live lease at most.

use std::collections::BTreeSet;

use crate::store_calls::{StoreCalls as _, TestJob};
use futures::future::join_all;
use ringq::domain::{EnqueueOutcome, OnConflict, State};

use super::fixture::Fixture;
use super::values::{TOPIC, ack, key, new_job};

const CALLERS: usize = 50;

pub(crate) async fn of_many_enqueues_of_one_id_one_creates_it(q: Fixture) {
    let puts = join_all((0..CALLERS).map(|_| q.put(new_job("a")))).await;
    let created = puts.iter().filter(|put| put.outcome == Some(EnqueueOutcome::Created)).count();
    let unchanged =
        puts.iter().filter(|put| put.outcome == Some(EnqueueOutcome::Unchanged)).count();
    assert_eq!((created, unchanged), (1, CALLERS - 1));
}

pub(crate) async fn no_job_is_claimed_twice(q: Fixture) {
    let ids: Vec<String> = (0..200).map(|n| format!("j{n}")).collect();
    q.put_ids(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let claims = join_all((0..CALLERS).map(|_| q.claim(5))).await;
    let claimed: Vec<_> = claims.iter().flatten().map(|leased| leased.key.clone()).collect();
    assert_eq!(claimed.len(), 200);
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>().len(), 200);
}

pub(crate) async fn of_many_acks_of_one_lease_one_counts(q: Fixture) {
    let leased = q.running("a").await;
    let acks = join_all((0..CALLERS).map(|_| q.settle(ack(&leased)))).await;
    let counted = acks.iter().filter(|ack| !ack.unwrap().repeated).count();
    assert_eq!((counted, q.stats(TOPIC).await.succeeded_total), (1, 1));
}

pub(crate) async fn an_ack_and_a_delete_leave_one_end(q: Fixture) {
    for n in 0..CALLERS {
        let id = format!("j{n}");
        let leased = q.running(&id).await;
        let (acked, deleted) = tokio::join!(q.settle(ack(&leased)), q.delete(&id));
        let states = (acked.is_ok(), deleted, q.state(&id).await);
        let ack_first = (true, Some(State::Succeeded), None);
        let delete_first = (false, Some(State::Running), Some(State::Cancelled));
        assert!(states == ack_first || states == delete_first, "{states:?}");
    }
}

pub(crate) async fn a_reader_sees_all_of_a_call_or_nothing(q: Fixture) {
    let batch = |on_conflict| {
        let job = move |n: u32| TestJob { on_conflict, ..new_job(&format!("j{n}")) };
        (0..100).map(job).collect::<Vec<_>>()
    };
    let keys: Vec<_> = (0..100).map(|n| key(TOPIC, &format!("j{n}"))).collect();
    let write = async {
        for _ in 0..10 {
            q.store.enqueue(batch(OnConflict::Replace)).await.unwrap();
        }
    };
    let read = async {
        for _ in 0..50 {
            let jobs = q.store.get(keys.clone(), false).await.unwrap();
            let generation = |job: Option<ringq::domain::Job>| job.map(|job| job.generation);
            let generations: BTreeSet<_> = jobs.into_iter().map(generation).collect();
            assert_eq!(generations.len(), 1, "{generations:?}");
        }
    };
    tokio::join!(write, read);
}
