//! Purge: a delete of the jobs that are in named states and were there when the call began.

use std::sync::Arc;

use crate::store_calls::{PurgeBatch, StoreCalls as _, TestJob};
use ringq::domain::{GroupName, JobId, OnConflict, RetentionRule, Spec, State, Time};
use ringq::store::{Deleted, LeaseRefusal, ListQuery, Purge, Store, all_or_worst_error};

use super::fixture::Fixture;
use super::list::every_state;
use super::values::{
    OWNER, RETENTION, TOPIC, ack, after, dead_lettered, failed_for, new_job, one, topic,
};

/// Replica beside that of the fixture.
const OTHER: u32 = 0x0bad_cafe;

fn batch(ids: &[&str], states: &[State], begin: Time) -> PurgeBatch {
    PurgeBatch {
        topic: topic(TOPIC),
        ids: ids.iter().map(|id| JobId::stored(id)).collect(),
        purge: Purge { states: states.to_vec(), begin, group: None },
        deadline: None,
    }
}

async fn purge_on(store: &dyn Store, batch: PurgeBatch) -> Vec<Option<Deleted>> {
    let applied = all_or_worst_error(store.apply(batch.requests()).await).unwrap();
    applied.into_iter().map(|applied| applied.into_delete_result()).collect()
}

/// Purges these jobs, as a call that begins now; returns the states in which they were.
async fn purge(q: &Fixture, ids: &[&str], states: &[State]) -> Vec<Option<State>> {
    purge_since(q, ids, states, q.now()).await
}

async fn purge_since(
    q: &Fixture,
    ids: &[&str],
    states: &[State],
    begin: Time,
) -> Vec<Option<State>> {
    let purged = purge_on(&*q.store, batch(ids, states, begin)).await;
    purged.into_iter().map(|deleted| deleted.map(|deleted| deleted.previous)).collect()
}

pub(crate) async fn each_state_is_purged_alone(q: Fixture) {
    every_state(&q).await;
    let ids = State::ALL.map(State::name);
    // CANCELLED first: the others leave such records.
    let mut order = State::ALL;
    order.sort_by_key(|state| *state != State::Cancelled);
    let mut expected = State::ALL.map(Some);
    for state in order {
        let purged = purge(&q, &ids, &[state]).await;
        let wanted = State::ALL.map(|is| (is == state).then_some(state));
        assert_eq!(purged, wanted, "{state:?}");
        let place = State::ALL.iter().position(|is| *is == state).unwrap();
        expected[place] = (!state.is_terminal()).then_some(State::Cancelled);
        for (id, expected) in ids.iter().zip(expected) {
            assert_eq!(q.state(id).await, expected, "{id} after {state:?}");
        }
    }
    assert_eq!(purge(&q, &ids, &[State::Ready, State::Dead]).await, [None; 8]);
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn what_runs_is_revoked_and_its_next_generation_goes_too(q: Fixture) {
    let keep = RetentionRule::Record(RETENTION);
    let leased = q.run(TestJob { retention: keep, ..new_job("a") }).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, ..new_job("a") }).await;
    let purged = purge_on(&*q.store, batch(&["a"], &[State::Running], q.now())).await;
    let revoked = Some((OWNER, 1, leased.token));
    assert_eq!(one(purged), Some(Deleted { previous: State::Running, revoked }));
    assert_eq!(q.state("a").await, Some(State::Cancelled));
    assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::NotFound));
    assert!(q.claim_ids().await.is_empty());
}

pub(crate) async fn what_was_enqueued_since_the_begin_stays(q: Fixture) {
    q.put_ids(&["old", "replaced"]).await;
    let begin = q.now();
    q.sleep(1);
    q.put(new_job("new")).await;
    q.put(TestJob { on_conflict: OnConflict::Replace, ..new_job("replaced") }).await;
    let ids = ["old", "replaced", "new"];
    let purged = purge_since(&q, &ids, &State::ALL, begin).await;
    assert_eq!(purged, [Some(State::Ready), None, None]);
    assert_eq!(q.claim_ids().await, ["replaced", "new"]);
}

/// A generation that was enqueued behind a running job since the begin takes its place; one of before goes with it.
pub(crate) async fn a_generation_that_was_enqueued_since_the_begin_stays(q: Fixture) {
    let policies = [OnConflict::Replace, OnConflict::Reschedule];
    let retentions = [RetentionRule::Nothing, RetentionRule::Record(RETENTION)];
    let kinds = policies.into_iter().flat_map(|policy| retentions.map(|kept| (policy, kept)));
    for (n, (on_conflict, retention)) in kinds.enumerate() {
        let id = format!("j{n}");
        let leased = q.run(TestJob { retention, ..new_job(&id) }).await;
        let next = || TestJob { on_conflict, retention, ..new_job(&id) };
        let begin = q.now();
        q.sleep(1);
        q.put(next()).await;
        let running = batch(&[&id], &[State::Running], begin);
        let revoked = Some((OWNER, 1, leased.token));
        let purged = purge_on(&*q.store, running).await;
        assert_eq!(one(purged), Some(Deleted { previous: State::Running, revoked }), "{id}");
        assert_eq!(q.settle(ack(&leased)).await, Err(LeaseRefusal::Stale), "{id}");
        assert_eq!(q.state(&id).await, Some(State::Ready), "{id}");
        let again = q.claim_one().await;
        assert_eq!((again.key.id.as_str(), again.deliveries), (&*id, 0));
        // Now it was there before the call.
        q.put(next()).await;
        q.sleep(1);
        assert_eq!(purge(&q, &[&id], &[State::Running]).await, [Some(State::Running)]);
        assert!(q.claim_ids().await.is_empty(), "{id}");
    }
}

pub(crate) async fn what_the_purge_itself_has_cancelled_stays(q: Fixture) {
    q.put_ids(&["a"]).await;
    let begin = q.now();
    q.sleep(1);
    let states = [State::Ready, State::Cancelled];
    assert_eq!(purge_since(&q, &["a"], &states, begin).await, [Some(State::Ready)]);
    assert_eq!(purge_since(&q, &["a"], &states, begin).await, [None]);
    assert_eq!(q.state("a").await, Some(State::Cancelled));
    assert_eq!(purge(&q, &["a"], &states).await, [Some(State::Cancelled)], "by another call");
    assert_eq!(q.get("a").await, None);
}

pub(crate) async fn a_job_that_left_the_state_meanwhile_stays(q: Fixture) {
    // Claimed, acknowledged, failed, dead, due: each after it was listed.
    q.put_ids(&["claimed", "acked", "failed", "dead"]).await;
    q.put(TestJob { due: after(5), ..new_job("due") }).await;
    let begin = q.now();
    let leased = q.claim(4).await;
    let all = ["claimed", "acked", "failed", "dead"];
    assert_eq!(purge_since(&q, &all, &[State::Ready], begin).await, [None; 4]);
    q.ack(&leased[1]).await;
    q.end(&leased[2], failed_for(9)).await;
    q.end(&leased[3], dead_lettered()).await;
    assert_eq!(
        purge_since(&q, &all, &[State::Running], begin).await,
        [Some(State::Running), None, None, None]
    );
    q.sleep(5);
    assert_eq!(purge_since(&q, &["due"], &[State::Scheduled], begin).await, [None]);
    let states = [State::Cancelled, State::Succeeded, State::Backoff, State::Dead].map(Some);
    for (id, state) in all.iter().zip(states) {
        assert_eq!(q.state(id).await, state, "{id}");
    }
    assert_eq!(q.claim_ids().await, ["due"]);
}

pub(crate) async fn a_job_that_moved_on_to_another_named_state_goes(q: Fixture) {
    q.put_ids(&["a", "b"]).await;
    let begin = q.now();
    let leased = q.claim(2).await;
    q.end(&leased[1], failed_for(9)).await;
    let states = [State::Ready, State::Running, State::Backoff];
    let purged = purge_since(&q, &["a", "b"], &states, begin).await;
    assert_eq!(purged, [Some(State::Running), Some(State::Backoff)]);
}

pub(crate) async fn a_job_past_its_expire_time_is_an_expired_one(q: Fixture) {
    for id in ["a", "b"] {
        q.put(TestJob { expire: Some(after(1)), ..new_job(id) }).await;
    }
    let nothing = RetentionRule::Nothing;
    q.put(TestJob { expire: Some(after(1)), retention: nothing, ..new_job("unkept") }).await;
    q.sleep(1);
    let ids = ["a", "b", "unkept"];
    assert_eq!(purge(&q, &ids, &[State::Ready, State::Scheduled]).await, [None; 3]);
    let expired = Some(State::Expired);
    assert_eq!(purge(&q, &ids, &[State::Expired]).await, [expired, expired, None]);
    assert_eq!(q.get("a").await, None);
}

pub(crate) async fn what_is_not_there_is_not_purged(q: Fixture) {
    q.put_ids(&["a"]).await;
    let purged = purge(&q, &["b", "a", "a"], &[State::Ready]).await;
    assert_eq!(purged, [None, Some(State::Ready), None], "one named twice is counted once");
    let nowhere = PurgeBatch { topic: topic("nowhere"), ..batch(&["a"], &State::ALL, q.now()) };
    assert_eq!(purge_on(&*q.store, nowhere).await, [None]);
    assert_eq!(q.store.topics(String::new(), None, 9).await.unwrap().len(), 1);
}

/// Returns the store, and that of another replica where there can be one.
async fn two_stores(q: &Fixture) -> [Arc<dyn Store>; 2] {
    let other = q.elsewhere(OTHER).await.unwrap_or_else(|| Arc::clone(&q.store));
    [Arc::clone(&q.store), other]
}

pub(crate) async fn of_purges_and_acks_at_once_one_gets_each_job(q: Fixture) {
    const JOBS: usize = 60;
    let ids: Vec<String> = (0..JOBS).map(|n| format!("n{n:02}")).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    q.put_ids(&names).await;
    let leased = q.claim(u32::try_from(JOBS).unwrap()).await;
    let [here, there] = two_stores(&q).await;
    let states = [State::Running, State::Ready];
    let purge = async |store: Arc<dyn Store>, backwards: bool| {
        let mut gone = 0;
        let mut names = names.clone();
        if backwards {
            names.reverse();
        }
        for part in names.chunks(7) {
            let purged = purge_on(&*store, batch(part, &states, q.now())).await;
            gone += purged.into_iter().flatten().count();
        }
        gone
    };
    let acks = async {
        let mut acked = 0;
        for part in leased.chunks(5) {
            let settles = part.iter().map(ack).collect();
            acked += here.settle(settles).await.unwrap().iter().filter(|ack| ack.is_ok()).count();
        }
        acked
    };
    let (first, second, acked) =
        tokio::join!(purge(Arc::clone(&here), true), purge(there, false), acks);
    assert_eq!(first + second + acked, JOBS, "{first} and {second} purged, {acked} acked");
    let mut states = Vec::new();
    for id in &names {
        states.push(q.state(id).await.unwrap());
    }
    let count = |state| states.iter().filter(|is| **is == state).count();
    assert_eq!((count(State::Succeeded), count(State::Cancelled)), (acked, first + second));
}

pub(crate) async fn jobs_are_claimed_or_purged_never_both(q: Fixture) {
    const JOBS: usize = 60;
    let ids: Vec<String> = (0..JOBS).map(|n| format!("n{n:02}")).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    q.put_ids(&names).await;
    let [_, there] = two_stores(&q).await;
    let purge = async {
        let mut gone = Vec::new();
        for part in names.chunks(6).rev() {
            let purged = purge_on(&*there, batch(part, &[State::Ready], q.now())).await;
            let pairs = part.iter().zip(purged).filter(|(_, purged)| purged.is_some());
            gone.extend(pairs.map(|(id, _)| (*id).to_owned()));
        }
        gone
    };
    let claims = async {
        let mut leased = Vec::new();
        for _ in 0..JOBS / 4 {
            leased.extend(q.claim(4).await);
        }
        leased
    };
    let (gone, leased) = tokio::join!(purge, claims);
    let claimed: Vec<String> = leased.iter().map(|job| job.key.id.to_string()).collect();
    assert_eq!(gone.len() + claimed.len(), JOBS);
    assert!(gone.iter().all(|id| !claimed.contains(id)));
    for leased in &leased {
        q.ack(leased).await;
    }
}

pub(crate) async fn jobs_of_one_group_are_purged_alone(q: Fixture) {
    let named = |id: &str, group: &str| {
        let plain = new_job(id);
        let group = GroupName::try_new(group).ok();
        let retention = RetentionRule::Record(RETENTION);
        TestJob { spec: Spec { group, ..plain.spec }, retention, ..plain }
    };
    for group in ["a", "b", ""] {
        let id = |kind: &str| format!("{kind}{group}");
        let dead = q.run(named(&id("dead"), group)).await;
        q.end(&dead, dead_lettered()).await;
        let retried = q.run(named(&id("retried"), group)).await;
        q.end(&retried, failed_for(60)).await;
        q.put(TestJob { due: after(60), priority: Some(3), ..named(&id("later"), group) }).await;
        q.run(named(&id("running"), group)).await;
    }
    for group in ["a", "b", ""] {
        q.put(TestJob { priority: Some(7), ..named(&format!("ready{group}"), group) }).await;
    }
    for (group, name) in [("a", GroupName::try_new("a").ok()), ("", None)] {
        let ids = |state| {
            let list = ListQuery {
                topic: topic(TOPIC),
                state,
                group: Some(name.clone()),
                full: false,
                limit: 100,
                after: None,
            };
            let store = Arc::clone(&q.store);
            async move {
                let page = store.list(list).await.unwrap();
                page.jobs.iter().map(|listed| listed.job.key.id.to_string()).collect::<Vec<_>>()
            }
        };
        assert_eq!(ids(State::Scheduled).await, [format!("later{group}")]);
        assert_eq!(ids(State::Backoff).await, [format!("retried{group}")]);
        assert_eq!(ids(State::Ready).await, [format!("ready{group}")]);
    }
    let every: Vec<String> = ["dead", "retried", "later", "running", "ready"]
        .iter()
        .flat_map(|kind| ["a", "b", ""].map(|group| format!("{kind}{group}")))
        .collect();
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    let purge_group = async |group: &str| {
        let mut all = batch(&every, &State::ALL, q.now());
        all.purge.group = Some(GroupName::try_new(group).ok());
        let purged = purge_on(&*q.store, all).await;
        let gone = every.iter().zip(purged).filter(|(_, deleted)| deleted.is_some());
        gone.map(|(id, _)| (*id).to_owned()).collect::<Vec<_>>()
    };
    let of = |group: &str| {
        ["dead", "retried", "later", "running", "ready"].map(|kind| format!("{kind}{group}"))
    };
    assert_eq!(purge_group("a").await, of("a"));
    assert_eq!(purge_group("none").await, [""; 0]);
    assert_eq!(purge_group("").await, of(""));
    assert_eq!(q.state("readyb").await, Some(State::Ready));
    assert_eq!(q.claim_ids().await, ["readyb"]);
}
