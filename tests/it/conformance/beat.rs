//! Beat and set_state: the state that all replicas of a shard share. In a store without replicas only the caller
//! exists.

use ringq::domain::limit;
use ringq::domain::open_rings::{RingMembers, RingRecord, RingRecords};
use ringq::domain::ring::ShardState;
use ringq::store::{EventKind, Heartbeat, ReplicaHeartbeat, ShardEvent, SharedState};

use super::fixture::Fixture;
use super::values::OWNER;
use crate::harness::within;

const RING: u64 = 0xfedc_ba98_7654_3210;

/// Builds a heartbeat of `owner` without other content.
pub(super) fn beat(owner: u32) -> Heartbeat {
    Heartbeat {
        owner,
        ring: RING,
        state: ShardState::Active,
        rings: RingRecords::new(),
        seen_owners: Vec::new(),
        removed_owners: Vec::new(),
    }
}

fn records(rings: &[(&str, u64, bool)]) -> RingRecords {
    let record = |&(members, version, open): &(&str, u64, bool)| {
        (RingMembers::stored(members).unwrap(), RingRecord { version, open })
    };
    rings.iter().map(record).collect()
}

/// Returns the replicas of a census by their nonces.
fn signs(census: &SharedState) -> Vec<ReplicaHeartbeat> {
    let mut signs = census.replicas.clone();
    signs.sort_by_key(|sign| sign.owner);
    signs
}

fn owners(census: &SharedState) -> Vec<u32> {
    signs(census).iter().map(|sign| sign.owner).collect()
}

async fn show(q: &Fixture, beat: Heartbeat) -> SharedState {
    q.store.heartbeat(beat).await.unwrap()
}

/// A server notices by these that the shard has lost its data.
pub(crate) async fn a_shard_is_new_once_and_has_the_last_heartbeat(q: Fixture) {
    let mut last = None;
    for is_new in [true, false, false] {
        let other = show(&q, beat(2)).await;
        assert_eq!(other.is_new, is_new);
        q.sleep(3);
        let census = show(&q, beat(1)).await;
        assert!(!census.is_new);
        // Where the data cannot go back, it is not known.
        assert!([None, last].contains(&census.last_heartbeat), "{:?}", census.last_heartbeat);
        last = Some(census.now);
    }
}

pub(crate) async fn the_caller_finds_itself_and_the_time(q: Fixture) {
    for _ in 0..2 {
        q.sleep(3);
        let census = show(&q, beat(u32::MAX)).await;
        assert_eq!(census.now, q.now());
        assert_eq!(
            signs(&census),
            [ReplicaHeartbeat { owner: u32::MAX, ring: RING, time: q.now() }]
        );
        assert!(census.rings.is_empty());
    }
}

pub(crate) async fn replicas_of_a_shared_shard_find_each_other(q: Fixture) {
    show(&q, beat(1)).await;
    let first = q.now();
    q.sleep(4);
    let census = show(&q, Heartbeat { ring: u64::MAX, ..beat(0) }).await;
    let me = ReplicaHeartbeat { owner: 0, ring: u64::MAX, time: q.now() };
    if !q.store.is_shared() {
        return assert_eq!(signs(&census), [me]);
    }
    let other = ReplicaHeartbeat { owner: 1, ring: RING, time: first };
    assert_eq!(signs(&census), [me, other]);
    q.until_just_before(first.plus(limit::REPLICA_SILENCE_MAX));
    assert!(other.is_alive(show(&q, beat(0)).await.now));
    q.until(first.plus(limit::REPLICA_SILENCE_MAX));
    let census = show(&q, beat(0)).await;
    assert!(!other.is_alive(census.now));
    assert_eq!(signs(&census)[1], other, "it is listed until it is removed");
}

pub(crate) async fn replicas_are_met_once_and_gone_when_that_is_reported(q: Fixture) {
    show(&q, beat(1)).await;
    let first = q.now();
    q.sleep(4);
    let census = show(&q, Heartbeat { seen_owners: vec![1, 2, 3], ..beat(7) }).await;
    if !q.store.is_shared() {
        assert_eq!(owners(&census), [7]);
        let census = show(&q, Heartbeat { removed_owners: vec![2, 7], ..beat(7) }).await;
        return assert_eq!(owners(&census), [7]);
    }
    let known = signs(&census);
    assert_eq!(
        known[0],
        ReplicaHeartbeat { owner: 1, ring: RING, time: first },
        "a listed replica is not reported as new"
    );
    assert_eq!(known[1], ReplicaHeartbeat { owner: 2, ring: 0, time: q.now() });
    assert_eq!(owners(&census), [1, 2, 3, 7]);
    q.sleep(4);
    let census =
        show(&q, Heartbeat { seen_owners: vec![2], removed_owners: vec![1, 99], ..beat(7) }).await;
    assert_eq!(owners(&census), [2, 3, 7]);
    assert_eq!(signs(&census)[0], known[1], "no replica is reported as new twice");
    // A replica that leaves removes itself, and is back with its next heartbeat.
    let census = show(&q, Heartbeat { removed_owners: vec![7], ..beat(7) }).await;
    assert_eq!(owners(&census), [2, 3]);
    assert_eq!(owners(&show(&q, beat(7)).await), [2, 3, 7]);
}

pub(crate) async fn the_first_state_stays_until_another_is_set(q: Fixture) {
    let (active, draining) = (ShardState::Active, ShardState::Draining);
    assert_eq!(show(&q, Heartbeat { state: draining, ..beat(1) }).await.state, draining);
    assert_eq!(show(&q, beat(2)).await.state, draining);
    q.store.set_state(active, None).await.unwrap();
    assert_eq!(show(&q, Heartbeat { state: draining, ..beat(1) }).await.state, active);
    q.store.set_state(draining, None).await.unwrap();
    assert_eq!(show(&q, beat(1)).await.state, draining);
}

pub(crate) async fn a_state_that_is_set_first_is_the_first(q: Fixture) {
    q.store.set_state(ShardState::Draining, None).await.unwrap();
    assert_eq!(show(&q, beat(1)).await.state, ShardState::Draining);
}

pub(crate) async fn a_set_state_is_announced(q: Fixture) {
    let mut events = q.store.subscribe(EventKind::Shard);
    q.store.set_state(ShardState::Active, None).await.unwrap();
    let received = async { while events.recv().await.unwrap() != ShardEvent::StateSet {} };
    within("an event", received).await;
}

pub(crate) async fn of_two_records_of_a_ring_the_newer_one_stays(q: Fixture) {
    let rings = records(&[("", 1, true), ("a:1", 2, true), ("a:1,b:100", 10, false)]);
    assert_eq!(show(&q, Heartbeat { rings: rings.clone(), ..beat(1) }).await.rings, rings);
    assert_eq!(show(&q, beat(2)).await.rings, rings);
    // Old records, identical ones, and a less certain record of the same version.
    let news = records(&[("a:1", 1, false), ("a:1,b:100", 10, true), ("", 1, false)]);
    let after = records(&[("", 1, true), ("a:1", 2, true), ("a:1,b:100", 10, true)]);
    assert_eq!(show(&q, Heartbeat { rings: news, ..beat(1) }).await.rings, after);
    let news = records(&[("a:1", 3, false), ("c:1", 1, true), ("a:1,b:100", 9, false)]);
    let mut after = after;
    after.extend(records(&[("a:1", 3, false), ("c:1", 1, true)]));
    assert_eq!(show(&q, Heartbeat { rings: news, ..beat(2) }).await.rings, after);
}

pub(crate) async fn state_and_rings_survive_reopening(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let rings = records(&[("a:1", 2, false), ("b:3", 1, true)]);
    let first = Heartbeat { state: ShardState::Draining, rings: rings.clone(), ..beat(1) };
    show(&q, first).await;
    q.reopen().await;
    let census = show(&q, beat(1)).await;
    assert_eq!((census.state, census.rings), (ShardState::Draining, rings));
}

/// Each server accepts receipts of the others: also of two that are the first at once, and after the shard was emptied.
pub(crate) async fn all_servers_have_one_key_of_receipts(q: Fixture) {
    let key = q.store.receipt_key();
    assert!(key.is_some());
    let Some(second) = q.elsewhere(OWNER + 1).await else { return };
    assert_eq!(second.receipt_key(), key);
    if !q.wipe().await {
        return;
    }
    show(&q, beat(OWNER)).await;
    let third = q.elsewhere(OWNER + 2).await.unwrap();
    assert_eq!(third.receipt_key(), key, "jobs that were delivered meanwhile can be settled");
    q.wipe().await;
    let (fourth, fifth) = tokio::join!(q.elsewhere(OWNER + 3), q.elsewhere(OWNER + 4));
    let new = fourth.unwrap().receipt_key();
    assert_eq!(fifth.unwrap().receipt_key(), new);
    show(&q, beat(OWNER)).await;
    assert_eq!(q.store.receipt_key(), new);
}
