//! Purges of a ring of shards.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{State, TopicName};
use crate::scheduler::{PurgeTopic, PurgedJobs};
use crate::store;
use crate::store::faulty_store::InjectedFault;

use super::receipts;
use super::test_ring::{TestRing, draft, draft_with_id, eventually, key};

fn purge(states: &[State]) -> PurgeTopic {
    PurgeTopic {
        topic: TopicName::stored("t"),
        states: states.to_vec(),
        group: None,
        dry_run: false,
    }
}

fn counting(states: &[State]) -> PurgeTopic {
    PurgeTopic { dry_run: true, ..purge(states) }
}

async fn purged(ring: &TestRing, purge: PurgeTopic) -> PurgedJobs {
    ring.scheduler.operator.purge(purge, None).await.unwrap()
}

fn all_of(purged: u64) -> PurgedJobs {
    PurgedJobs { purged, unreachable: Vec::new() }
}

#[tokio::test]
async fn all_shards_are_purged_page_by_page() {
    let ring = TestRing::new(3);
    ring.enqueue_accepted(vec![draft("t"); 4_000]).await;
    ring.enqueue_accepted(vec![draft("u"); 9]).await;
    assert_eq!(purged(&ring, counting(&[State::Ready])).await, all_of(4_000));
    assert_eq!(purged(&ring, purge(&[State::Ready, State::Dead])).await, all_of(4_000));
    assert_eq!(purged(&ring, purge(&[State::Ready])).await, all_of(0));
    let left: u64 = ring.stats("u").await.iter().map(|stats| stats.ready).sum();
    assert_eq!(left, 9, "other topics stay");
}

/// Jobs with ids of their own leave tombstones, which are CANCELLED by then.
#[tokio::test]
async fn a_purge_of_all_states_counts_each_job_once() {
    let ring = TestRing::new(2);
    let ids: Vec<String> = (0..700).map(|n| format!("n{n}")).collect();
    ring.enqueue_accepted(ids.iter().map(|id| draft_with_id("t", id)).collect()).await;
    for id in &ids[..50] {
        ring.scheduler.producer.delete(key("t", id), None).await.unwrap();
    }
    let running = receipts(&ring, 0, "t").await.len();
    assert!(running > 0);
    assert_eq!(purged(&ring, counting(&State::ALL)).await, all_of(700));
    assert_eq!(purged(&ring, purge(&State::ALL)).await, all_of(700));
    assert_eq!(purged(&ring, counting(&State::ALL)).await, all_of(650));
    assert_eq!(purged(&ring, purge(&[State::Cancelled])).await, all_of(650));
    assert_eq!(purged(&ring, counting(&State::ALL)).await, all_of(0));
}

/// The producer is faster than the purge for as long as that runs.
#[tokio::test]
async fn a_purge_ends_while_jobs_arrive() {
    let ring = TestRing::new(2);
    ring.enqueue_accepted(vec![draft("t"); 1_500]).await;
    let arriving = async {
        loop {
            ring.enqueue_accepted(vec![draft("t"); 64]).await;
        }
    };
    let states = [State::Ready, State::Scheduled, State::Running, State::Backoff];
    let done = tokio::select! {
        () = arriving => unreachable!("it has no end"),
        done = purged(&ring, purge(&states)) => done,
    };
    assert!(done.purged >= 1_500 && done.unreachable.is_empty(), "{done:?}");
}

#[tokio::test]
async fn a_partial_purge_names_the_shards_that_were_left() {
    let ring = TestRing::new(3);
    for n in 0..3 {
        ring.enqueue_accepted(ring.owned_by(n, "t", 5)).await;
    }
    ring.stores[0].set_fault(InjectedFault::Unreachable);
    let partial = PurgedJobs { purged: 10, unreachable: vec!["s0".to_owned()] };
    assert_eq!(purged(&ring, counting(&[State::Ready])).await, partial);
    assert_eq!(purged(&ring, purge(&[State::Ready])).await, partial);
    let none = PurgedJobs { purged: 0, ..partial };
    assert_eq!(purged(&ring, purge(&[State::Ready])).await, none, "there may be more");
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::Unreachable));
    let refused = ring.scheduler.operator.purge(purge(&[State::Ready]), None).await.unwrap_err();
    assert!(matches!(refused.error, store::Error::Unavailable(_)), "{refused:?}");
    assert!(ring.scheduler.operator.purge(counting(&[State::Ready]), None).await.is_err());
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::None));
    let rest = eventually("the shard takes reads and writes again", async || {
        let done = ring.scheduler.operator.purge(purge(&[State::Ready]), None).await.ok();
        done.filter(|done| done.unreachable.is_empty())
    });
    assert_eq!(rest.await, all_of(5));
}

#[tokio::test]
async fn nothing_is_purged_after_the_deadline() {
    let ring = TestRing::new(2);
    ring.enqueue_accepted(vec![draft("t"); 20]).await;
    let late = ring.scheduler.operator.purge(purge(&[State::Ready]), Some(Instant::now())).await;
    let late = late.unwrap_err();
    assert!(matches!(late.error, store::Error::DeadlineExceeded(_)), "{late:?}");
    let in_time = Some(Instant::now() + Duration::from_secs(60));
    let done = ring.scheduler.operator.purge(purge(&[State::Ready]), in_time).await.unwrap();
    assert_eq!(done, all_of(20));
}
