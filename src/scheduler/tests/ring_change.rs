//! Changes of the ring while shards have jobs: every job is found on its shard, and none is made twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::domain::open_rings::{RingMembers, RingRecord, RingRecords};
use crate::domain::ring::ShardState;
use crate::domain::{EnqueueOutcome, OnConflict, State, When};
use crate::scheduler::{AcceptedJob, AckItem, Draft, EnqueueError, RedriveJobs, SettleError};
use crate::shards::ShardError;
use crate::store::faulty_store::{FaultyStore, InjectedFault};
use crate::store::{self, Heartbeat};

use super::test_ring::{TestRing, draft, draft_with_id, eventually, key};

const IDS: usize = 200;

fn drafts(from: usize) -> Vec<Draft> {
    (from..from + IDS).map(|n| draft_with_id("t", &format!("id{n}"))).collect()
}

fn shards(jobs: &[AcceptedJob]) -> BTreeSet<String> {
    jobs.iter().map(|job| job.shard.to_string()).collect()
}

/// Checks that every job is on the shard where it was, whatever is done about it.
async fn assert_jobs_in_place(ring: &TestRing, jobs: &[AcceptedJob]) {
    assert_jobs_in_place_in("t", ring, jobs).await;
}

async fn assert_jobs_in_place_in(topic: &str, ring: &TestRing, jobs: &[AcceptedJob]) {
    let again = jobs.iter().map(|job| draft_with_id(topic, job.id.as_str())).collect();
    for (before, after) in jobs.iter().zip(ring.enqueue_accepted(again).await) {
        let seen = (&after.shard, after.outcome);
        assert_eq!(seen, (&before.shard, EnqueueOutcome::Unchanged), "{}", after.id);
        let found =
            ring.scheduler.producer.get(key(topic, after.id.as_str()), false).await.unwrap();
        assert!(found.is_some(), "{}", after.id);
    }
}

async fn set(ring: &TestRing, shard: usize, state: ShardState) {
    let shards = ring.scheduler.shards();
    shards.set_state(&shards.all()[shard], state, None).await.unwrap();
}

#[tokio::test]
async fn a_shard_is_added_and_every_old_id_is_found() {
    let stores = TestRing::stores(4);
    let before = TestRing::joined(&stores[..3], 1).await;
    let old = before.enqueue_accepted(drafts(0)).await;
    let after = TestRing::joined(&stores, 2).await;
    assert_jobs_in_place(&after, &old).await;
    let new = after.enqueue_accepted(drafts(IDS)).await;
    assert_eq!(shards(&new).len(), 4);
    // A replica that starts later has the ring from the shards, and so has one that was there before.
    let later = TestRing::joined(&stores, 3).await;
    assert_jobs_in_place(&later, &old).await;
    assert_jobs_in_place(&later, &new).await;
    let moved = old.iter().filter(|job| {
        let key = key("t", job.id.as_str());
        after.scheduler.shards().owner(&key).unwrap().name() != &job.shard
    });
    let moved: Vec<_> = moved.collect();
    assert!((IDS / 8..IDS / 2).contains(&moved.len()), "{}", moved.len());
    for job in &moved[..moved.len() / 2] {
        let key = key("t", job.id.as_str());
        let later = Some(When::At(job.due.plus(std::time::Duration::from_secs(60))));
        let shifted =
            after.scheduler.producer.reschedule(key.clone(), later, None, None).await.unwrap();
        assert_eq!(shifted.unwrap().unwrap().state, State::Scheduled);
        assert_eq!(
            after.scheduler.producer.delete(key, None).await.unwrap(),
            Some(State::Scheduled)
        );
    }
    let replace = Draft {
        on_conflict: OnConflict::Replace,
        ..draft_with_id("t", moved.last().unwrap().id.as_str())
    };
    let replaced = after.enqueue_accepted(vec![replace]).await.remove(0);
    assert_eq!(replaced.outcome, EnqueueOutcome::Replaced);
    assert_eq!(replaced.shard, moved.last().unwrap().shard, "where it lies");
}

#[tokio::test]
async fn a_shard_that_drains_gets_no_new_job_and_keeps_its_own() {
    let stores = TestRing::stores(3);
    let (one, two) = (TestRing::joined(&stores, 1).await, TestRing::joined(&stores, 2).await);
    let old = one.enqueue_accepted(drafts(0)).await;
    assert_eq!(shards(&old).len(), 3);
    set(&one, 1, ShardState::Draining).await;
    let new = one.enqueue_accepted(drafts(IDS)).await;
    assert!(!shards(&new).contains("s1"), "{:?}", shards(&new));
    assert!(!shards(&one.enqueue_accepted(vec![draft("t"); 300]).await).contains("s1"));
    assert_jobs_in_place(&one, &old).await;
    assert_jobs_in_place(&one, &new).await;
    // The other replica gets the change.
    let heeds = async || {
        let state = two.scheduler.shards().all()[1].state();
        (state == ShardState::Draining).then_some(())
    };
    eventually("the other replica heeds it", heeds).await;
    let same = || (one.scheduler.shards().fingerprint(), two.scheduler.shards().fingerprint());
    eventually("one ring", async || (same().0 == same().1).then_some(())).await;
    assert!(!shards(&two.enqueue_accepted(drafts(2 * IDS)).await).contains("s1"));
    assert_jobs_in_place(&two, &old).await;
    // Without the shard in the configuration it is the same ring, so that nothing moves.
    let rest: Vec<Arc<FaultyStore>> = vec![Arc::clone(&stores[0]), Arc::clone(&stores[2])];
    let without = TestRing::joined(&rest, 3).await;
    assert_eq!(without.scheduler.shards().fingerprint(), one.scheduler.shards().fingerprint());
    assert_jobs_in_place(&without, &new).await;
}

#[tokio::test]
async fn a_shard_that_is_activated_again_takes_its_part_and_finds_what_went_elsewhere() {
    let stores = TestRing::stores(3);
    let ring = TestRing::joined(&stores, 1).await;
    set(&ring, 2, ShardState::Draining).await;
    let elsewhere = ring.enqueue_accepted(drafts(0)).await;
    set(&ring, 2, ShardState::Active).await;
    assert_jobs_in_place(&ring, &elsewhere).await;
    assert!(shards(&ring.enqueue_accepted(drafts(IDS)).await).contains("s2"));
    let later = TestRing::joined(&stores, 2).await;
    assert_jobs_in_place(&later, &elsewhere).await;
}

#[tokio::test]
async fn the_state_on_the_shard_goes_before_the_configured_one() {
    let stores = TestRing::stores(2);
    set(&TestRing::joined(&stores, 1).await, 0, ShardState::Draining).await;
    let later = TestRing::joined(&stores, 2).await;
    assert_eq!(later.scheduler.shards().all()[0].state(), ShardState::Draining);
    let configured = [ShardState::Draining, ShardState::Draining];
    let first = TestRing::with_stores(stores.clone(), &configured, 3);
    first.scheduler.shards().join(3, first.scheduler.clock()).await;
    assert_eq!(first.scheduler.shards().all()[1].state(), ShardState::Active);
}

#[tokio::test]
async fn an_unreachable_former_owner_blocks_only_its_own_ids() {
    let stores = TestRing::stores(3);
    let ring = TestRing::joined(&stores, 1).await;
    ring.enqueue_accepted(drafts(0)).await;
    set(&ring, 0, ShardState::Draining).await;
    stores[0].set_fault(InjectedFault::Unreachable);
    let all = ring.scheduler.shards();
    let (mut refused, mut accepted) = (0, 0);
    for (draft, result) in drafts(IDS).iter().zip(ring.enqueue(drafts(IDS)).await) {
        let key = key("t", draft.id.as_ref().unwrap().as_str());
        if all.former_owners(&key).is_empty() {
            accepted += 1;
            result.unwrap();
        } else {
            refused += 1;
            let error = result.unwrap_err();
            let unwritten = |error: &EnqueueError| {
                matches!(
                    error,
                    EnqueueError::Store {
                        error: ShardError { error: store::Error::Unavailable(_), .. },
                        id: Some(_)
                    }
                )
            };
            assert!(unwritten(&error), "{error}");
            assert!(error.to_string().contains("the shard may have the job"), "{error}");
            assert!(ring.scheduler.producer.get(key, false).await.is_err(), "it is unknown");
        }
    }
    assert!(refused > IDS / 6 && accepted > IDS / 3, "{refused} {accepted}");
    assert!(ring.enqueue_accepted(vec![draft("t")]).await[0].shard.as_str() != "s0");
}

#[tokio::test]
async fn a_former_ring_is_closed_when_no_job_is_left_that_only_it_finds() {
    let stores = TestRing::stores(3);
    let jobs = TestRing::joined(&stores[..2], 1).await.enqueue_accepted(drafts(0)).await;
    let ring = TestRing::joined(&stores, 2).await;
    let shards = ring.scheduler.shards();
    let moved = jobs.iter().map(|job| key("t", job.id.as_str()));
    let moved: Vec<_> = moved.filter(|key| !shards.former_owners(key).is_empty()).collect();
    let (last, others) = moved.split_last().unwrap();
    let delete_job = async |key: &crate::domain::JobKey| {
        // Cancelled, and then deleted.
        for _ in 0..2 {
            assert!(ring.scheduler.producer.delete(key.clone(), None).await.unwrap().is_some());
        }
    };
    for key in others {
        delete_job(key).await;
    }
    let agreed = async || shards.agreement();
    eventually("they agree", agreed).await;
    ring.scheduler.upkeep.close_rings().await.unwrap();
    assert_eq!(shards.former_owners(last).len(), 1, "one job needs it still");
    delete_job(last).await;
    stores[0].set_fault(InjectedFault::Unreachable);
    assert!(ring.scheduler.upkeep.close_rings().await.is_err(), "it is unknown");
    stores[0].set_fault(InjectedFault::None);
    ring.scheduler.upkeep.close_rings().await.unwrap();
    assert!(shards.former_owners(last).is_empty());
    assert!(ring.scheduler.producer.get(last.clone(), false).await.unwrap().is_none());
    // It stays closed, until a replica serves it again.
    let later = TestRing::joined(&stores, 3).await;
    assert!(later.scheduler.shards().former_owners(last).is_empty());
    TestRing::joined(&stores[..2], 4).await;
    let later = TestRing::joined(&stores, 5).await;
    assert_eq!(later.scheduler.shards().former_owners(last).len(), 1);
}

#[tokio::test]
async fn a_former_ring_is_not_closed_on_what_was_agreed_before_another_change() {
    let stores = TestRing::stores(3);
    let jobs = TestRing::joined(&stores[..2], 1).await.enqueue_accepted(drafts(0)).await;
    let ring = TestRing::joined(&stores, 2).await;
    let shards = ring.scheduler.shards();
    let agreed = eventually("they agree", async || shards.agreement()).await;
    set(&ring, 0, ShardState::Draining).await;
    set(&ring, 0, ShardState::Active).await;
    shards.close_former_rings(agreed).await;
    assert_jobs_in_place(&ring, &jobs).await;
    let agreed = eventually("they agree again", async || shards.agreement()).await;
    shards.close_former_rings(agreed).await;
    assert!(shards.agreement().is_none(), "no former ring is open");
}

#[tokio::test]
async fn a_ring_whose_shard_is_gone_is_not_searched_and_ends_when_an_empty_one_has_its_name() {
    let stores = TestRing::stores(3);
    TestRing::joined(&stores, 1).await.enqueue_accepted(drafts(0)).await;
    let (rest, gone) = (&stores[..2], stores[2].name());
    let ring = TestRing::joined(rest, 2).await;
    let shards = ring.scheduler.shards();
    eventually("they agree", async || shards.agreement()).await;
    let calls = || rest.iter().map(|store| store.calls()).sum::<usize>();
    let before = calls();
    ring.scheduler.upkeep.close_rings().await.unwrap();
    assert_eq!(calls(), before);
    assert!(shards.is_on_ring(gone), "it may come back, with jobs");
    // It does not: its jobs are lost.
    let empty = TestRing::stores(3).remove(2);
    let ring = TestRing::joined(&[rest, &[empty]].concat(), 3).await;
    set(&ring, 2, ShardState::Draining).await;
    let shards = ring.scheduler.shards();
    eventually("they agree", async || shards.agreement()).await;
    ring.scheduler.upkeep.release_drained().await;
    assert!(!shards.is_on_ring(gone));
    let later = TestRing::joined(rest, 4).await;
    assert!(!later.scheduler.shards().is_on_ring(gone));
}

#[tokio::test]
async fn a_shard_that_drains_leaves_the_ring_once_it_reports_that_it_is_empty() {
    let stores = TestRing::stores(3);
    // Most of the jobs are found under the former ring alone, so that it stays open.
    let jobs = TestRing::joined(&stores[..1], 1).await.enqueue_accepted(drafts(0)).await;
    let ring = TestRing::joined(&stores, 2).await;
    let last = ring.enqueue_accepted(ring.owned_by(2, "u", 1)).await.remove(0);
    let last = key("u", last.id.as_str());
    set(&ring, 2, ShardState::Draining).await;
    let shards = ring.scheduler.shards();
    let name = stores[2].name();
    let close = async || {
        eventually("they agree", async || shards.agreement()).await;
        ring.scheduler.upkeep.release_drained().await;
        ring.scheduler.upkeep.close_rings().await
    };
    close().await.unwrap();
    assert!(shards.is_on_ring(name), "a job lies on it");
    for _ in 0..2 {
        assert!(ring.scheduler.producer.delete(last.clone(), None).await.unwrap().is_some());
    }
    stores[2].set_fault(InjectedFault::Unreachable);
    let _ = close().await;
    assert!(shards.is_on_ring(name), "it is unknown");
    stores[2].set_fault(InjectedFault::None);
    ring.until_down(2, false).await;
    close().await.unwrap();
    assert!(!shards.is_on_ring(name));
    assert_jobs_in_place(&ring, &jobs).await;
    // The shard can be removed, and a replica without it finds all jobs.
    let without = TestRing::joined(&stores[..2], 3).await;
    assert!(!without.scheduler.shards().is_on_ring(name));
    assert_jobs_in_place(&without, &jobs).await;
    // A replica that has the shard, and does not reach it, does not bring it back: only the shard's own answer does.
    stores[2].set_fault(InjectedFault::Unreachable);
    let late = TestRing::joined(&stores, 4).await;
    assert!(!late.scheduler.shards().is_on_ring(name));
    // Nor does a replica that reaches none of them for a while, with another shard that is on no ring.
    stores.iter().for_each(|store| store.set_fault(InjectedFault::Unreachable));
    let another = TestRing::stores(4).remove(3);
    another.set_fault(InjectedFault::Unreachable);
    let more: Vec<_> = stores.iter().cloned().chain([another]).collect();
    let blind = TestRing::joined(&more, 5).await;
    stores[..2].iter().for_each(|store| store.set_fault(InjectedFault::None));
    tokio::task::yield_now().await;
    for state in [ShardState::Draining, ShardState::Active] {
        stores[0].sqlite_store().set_state(state, None).await.unwrap();
    }
    eventually("it receives the rings", async || {
        blind.scheduler.shards().all()[0].watch_shared_state().borrow().is_some().then_some(())
    })
    .await;
    assert!(!blind.scheduler.shards().is_on_ring(name));
    assert!(!shards.is_on_ring(name));
    stores[2].set_fault(InjectedFault::None);
    // Gives its tasks a turn to receive events.
    tokio::task::yield_now().await;
    set(&ring, 2, ShardState::Active).await;
    assert!(shards.is_on_ring(name));
    eventually("on a ring", async || late.scheduler.shards().is_on_ring(name).then_some(())).await;
}

#[tokio::test]
async fn a_ring_that_was_closed_under_a_replica_that_serves_it_is_open_again() {
    let stores = TestRing::stores(3);
    let ring = TestRing::joined(&stores, 1).await;
    let job = ring.enqueue_accepted(ring.owned_by(2, "u", 1)).await.remove(0);
    // The other replicas have taken this one for dead, and its last calls have only now reached their shard.
    let names = stores.iter().map(|store| (store.name().clone(), 1));
    let served = RingMembers::new(&names.collect::<Vec<_>>());
    let closed = RingRecords::from([(served, RingRecord { version: 9, open: false })]);
    for store in &stores {
        let beat = Heartbeat {
            owner: 2,
            ring: 0,
            state: ShardState::Active,
            rings: closed.clone(),
            seen_owners: Vec::new(),
            removed_owners: Vec::new(),
        };
        store.sqlite_store().heartbeat(beat).await.unwrap();
    }
    set(&ring, 2, ShardState::Draining).await;
    let shards = ring.scheduler.shards();
    assert!(shards.is_on_ring(stores[2].name()));
    let former = shards.former_owners(&key("u", job.id.as_str()));
    assert_eq!(former.iter().map(|shard| shard.name()).collect::<Vec<_>>(), [stores[2].name()]);
    assert_jobs_in_place_in("u", &ring, &[job]).await;
}

#[tokio::test]
async fn jobs_are_put_back_where_they_lie() {
    let stores = TestRing::stores(3);
    let ring = TestRing::joined(&stores, 1).await;
    let jobs = ring.enqueue_accepted(drafts(0)).await;
    set(&ring, 1, ShardState::Draining).await;
    let ids: Vec<_> = jobs.iter().map(|job| job.id.clone()).collect();
    let topic = crate::domain::TopicName::stored("t");
    let (states, ttl) = (vec![State::Dead], None);
    let redrive = RedriveJobs { topic, ids, states, target: None, rate: None, ttl, dry_run: true };
    let done = ring.scheduler.operator.redrive(redrive, None).await.unwrap();
    assert_eq!((done.redriven, done.skipped), (0, IDS as u64), "each is found once");
}

/// A repeated ack must not write again what the attempt before has written under an unknown id.
#[tokio::test]
async fn follow_ups_without_id_are_not_written_before_the_ack() {
    let ring = TestRing::joined(&TestRing::stores(3), 1).await;
    ring.enqueue_accepted(ring.owned_by(0, "t", 1)).await;
    let receipt = super::receipts(&ring, 0, "t").await.remove(0);
    set(&ring, 0, ShardState::Draining).await;
    // The shard of one of them is unreachable.
    let follow_ups = [vec![draft("next")], ring.owned_by(1, "next", 1)].concat();
    ring.stores[1].set_fault(InjectedFault::Unreachable);
    let ack = || AckItem { receipt: receipt.clone(), result: None, follow_ups: follow_ups.clone() };
    let written = async || ring.stats("next").await.iter().map(|stats| stats.ready).sum::<u64>();
    for _ in 0..3 {
        let refused = ring.scheduler.settler.ack(vec![ack()]).await.remove(0);
        assert!(matches!(refused, Err(SettleError::FollowUp(_))), "{refused:?}");
        assert_eq!(written().await, 0);
    }
    ring.stores[1].set_fault(InjectedFault::None);
    ring.until_down(1, false).await;
    assert_eq!(ring.scheduler.settler.ack(vec![ack()]).await, [Ok(())]);
    assert_eq!(written().await, 2);
}
