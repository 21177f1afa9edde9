//! Moves to crash topics over several shards, some of which fail.

use std::time::Duration;

use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::ring::ShardState;
use crate::domain::{CrashTopic, Job, JobId, Payload, RetryOverrides, Spec, State, When};
use crate::scheduler::{Draft, EndLeasesResult};
use crate::shards;
use crate::store::faulty_store::InjectedFault;
use crate::store::{LeaseRef, RunningLease};

use super::test_ring::{TestRing, draft_with_id, key};
use super::{lease, receipts};

const CAUSE: LeaseEndCause = LeaseEndCause::WorkerCrashed;

/// Returns a draft of a job that moves to the topic `c` at its first crash.
fn poison(draft: Draft) -> Draft {
    let retry = RetryOverrides {
        max_crashes: Some(1),
        crash_topic: Some(CrashTopic::stored("c")),
        ..RetryOverrides::default()
    }
    .boxed();
    let payload = Payload { text: true, body: "poison".into(), content_type: String::new() };
    let headers = vec![("h".to_owned(), "1".to_owned())];
    Draft { spec: Spec { retry, headers, payload: Some(payload), ..draft.spec }, ..draft }
}

/// Returns an id that the shard `origin` owns in the topic `t`, and the shard `target` in the topic `c`.
fn id_between(ring: &TestRing, origin: usize, target: usize) -> String {
    let owner = |topic: &str, id: &str| {
        let owner = ring.scheduler.shards().owner(&key(topic, id)).unwrap().name().clone();
        ring.stores.iter().position(|store| *store.name() == owner).unwrap()
    };
    let mut ids = (0..).map(|n| format!("m{n}"));
    ids.find(|id| owner("t", id) == origin && owner("c", id) == target).unwrap()
}

/// Leases the jobs of a topic on the shard `n`.
async fn leases(ring: &TestRing, n: usize, topic: &str) -> Vec<RunningLease> {
    let refs = receipts(ring, n, topic).await.into_iter();
    let refs = refs.map(|receipt| LeaseRef { key: receipt.key, token: receipt.token }).collect();
    let running = ring.scheduler.shards().all()[n].running_leases(refs).await.unwrap();
    running.into_iter().map(Result::unwrap).collect()
}

async fn crash(
    ring: &TestRing,
    n: usize,
    leases: &[RunningLease],
) -> shards::Result<EndLeasesResult> {
    ring.scheduler.settler.end_leases(&ring.scheduler.shards().all()[n], leases, &CAUSE).await
}

async fn find(ring: &TestRing, topic: &str, id: &str) -> Option<Job> {
    ring.scheduler.producer.get(key(topic, id), true).await.unwrap()
}

#[tokio::test]
async fn a_job_moves_to_the_shard_that_owns_its_id_in_the_crash_topic() {
    let ring = TestRing::new(2);
    for target in [0, 1] {
        let id = id_between(&ring, 0, target);
        let expire = Some(When::After(Duration::from_secs(60)));
        let new = Draft { expire, priority: Some(7), ..poison(draft_with_id("t", &id)) };
        ring.enqueue_accepted(vec![new]).await;
        let ended = crash(&ring, 0, &leases(&ring, 0, "t").await).await.unwrap();
        assert_eq!((ended.ended, ended.ended_here, ended.not_ended.len()), (1, 1, 0));
        assert_eq!(find(&ring, "t", &id).await, None);
        let moved = find(&ring, "c", &id).await.unwrap();
        assert_eq!(&moved.shard, ring.stores[target].name());
        let counters = (moved.failures, moved.deliveries, moved.crashes, moved.generation);
        assert_eq!((moved.state, counters), (State::Ready, (0, 0, 0, 1)));
        assert_eq!((moved.priority, moved.expire_time), (7, None));
        assert_eq!(moved.spec.headers, [("h".to_owned(), "1".to_owned())]);
        assert_eq!(moved.spec.payload.unwrap().body, "poison");
        let error = "the worker broke the stream that held the job: crash 1, and max_crashes \
                     allows no more; moved from topic t";
        assert_eq!(moved.last_error, error);
    }
    let (from, to) = (ring.stats("t").await[0], ring.stats("c").await);
    assert_eq!((from.dead_total, from.dead, from.running), (0, 0, 0));
    assert_eq!(to.iter().map(|stats| stats.enqueued_total).sum::<u64>(), 2);
    let metrics = ring.scheduler.metrics().render();
    for (outcome, count) in [("moved", 2), ("dead", 0)] {
        let series =
            format!("ringq_jobs_settled_total{{outcome=\"{outcome}\",topic=\"t\"}} {count}");
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
}

#[tokio::test]
async fn an_id_that_a_server_made_stays_on_its_shard() {
    let ring = TestRing::new(2);
    let made = vec![poison(super::test_ring::draft("t")); 40];
    let jobs = ring.enqueue_accepted(made).await;
    for n in [0, 1] {
        let held = leases(&ring, n, "t").await;
        let ended = crash(&ring, n, &held).await.unwrap();
        assert_eq!(ended.ended_here, held.len());
    }
    for job in jobs {
        assert_eq!(find(&ring, "t", job.id.as_str()).await, None);
        assert_eq!(find(&ring, "c", job.id.as_str()).await.unwrap().shard, job.shard);
    }
}

/// The copy would move to its own topic, and one that is redriven to its first topic back and forth.
#[tokio::test]
async fn a_moved_job_moves_no_further() {
    let ring = TestRing::new(1);
    ring.enqueue_accepted(vec![poison(draft_with_id("t", "a"))]).await;
    crash(&ring, 0, &leases(&ring, 0, "t").await).await.unwrap();
    let moved = find(&ring, "c", "a").await.unwrap();
    assert_eq!(moved.spec.retry.unwrap().crash_topic, Some(CrashTopic::Off));
    crash(&ring, 0, &leases(&ring, 0, "c").await).await.unwrap();
    let dead = find(&ring, "c", "a").await.unwrap();
    assert_eq!((dead.state, dead.crashes), (State::Dead, 1));
}

/// The copy lies where it was written before the ring changed.
#[tokio::test]
async fn a_move_that_stopped_before_the_ring_changed_goes_on_with_its_own_copy() {
    let ring = TestRing::joined(&TestRing::stores(3), 1).await;
    let id = id_between(&ring, 0, 1);
    ring.enqueue_accepted(vec![poison(draft_with_id("t", &id))]).await;
    let held = leases(&ring, 0, "t").await;
    let to_copy = vec![(held[0].clone(), crate::domain::TopicName::stored("c"))];
    let origin = &ring.scheduler.shards().all()[0];
    ring.scheduler.settler.copy_crashed(origin, to_copy, &CAUSE).await.unwrap();
    let drained = ring.stores[1].name().clone();
    let operator = &ring.scheduler.operator;
    operator.set_shard_state(drained.clone(), ShardState::Draining, None).await.unwrap();
    crash(&ring, 0, &held).await.unwrap();
    assert_eq!(find(&ring, "t", &id).await, None, "it has moved, and is no dead letter");
    assert_eq!(find(&ring, "c", &id).await.unwrap().shard, drained);
    let copies = ring.stats("c").await.iter().map(|stats| stats.enqueued_total).sum::<u64>();
    assert_eq!(copies, 1);
}

/// A server that stops between the two writes leaves the job in both topics.
#[tokio::test]
async fn a_move_that_stopped_between_its_writes_goes_on_with_its_own_copy() {
    for target in [0, 1] {
        let ring = TestRing::new(2);
        let id = id_between(&ring, 0, target);
        ring.enqueue_accepted(vec![poison(draft_with_id("t", &id))]).await;
        let held = leases(&ring, 0, "t").await;
        let end = ring.scheduler.settler.copy_crashed(
            &ring.scheduler.shards().all()[0],
            vec![(held[0].clone(), crate::domain::TopicName::stored("c"))],
            &CAUSE,
        );
        end.await.unwrap();
        assert_eq!(find(&ring, "t", &id).await.unwrap().state, State::Running);
        let copied = find(&ring, "c", &id).await.unwrap();
        // Whether or not a worker has taken the copy meanwhile.
        let taken = leases(&ring, target, "c").await;
        crash(&ring, 0, &held).await.unwrap();
        assert_eq!(find(&ring, "t", &id).await, None);
        let found = find(&ring, "c", &id).await.unwrap();
        assert_eq!((found.state, found.generation), (State::Running, 1));
        assert_eq!((found.create_time, taken.len()), (copied.create_time, 1));
    }
}

/// Neither an Ack nor an Extend between the read and the end of the lease is lost.
#[tokio::test]
async fn a_lease_that_its_worker_settled_or_extended_moves_nothing() {
    let ring = TestRing::new(1);
    let ids = ["acked", "extended"];
    ring.enqueue_accepted(ids.map(|id| poison(draft_with_id("t", id))).to_vec()).await;
    let held = leases(&ring, 0, "t").await;
    let item = |lease: &RunningLease| crate::domain::Receipt {
        shard: ring.stores[0].name().clone(),
        owner: 1,
        stream: 1,
        token: lease.token,
        key: lease.key.clone(),
    };
    let by_id = |id: &str| item(held.iter().find(|lease| lease.key.id.as_str() == id).unwrap());
    let ack =
        crate::scheduler::AckItem { receipt: by_id("acked"), result: None, follow_ups: Vec::new() };
    assert_eq!(ring.scheduler.settler.ack(vec![ack]).await, [Ok(())]);
    let extend = crate::scheduler::ExtendItem {
        receipt: by_id("extended"),
        duration: Some(Duration::from_secs(90)),
        progress: None,
        checkpoint: None,
    };
    assert_eq!(ring.scheduler.settler.extend(vec![extend], None).await, [Ok(())]);
    let ended = crash(&ring, 0, &held).await.unwrap();
    assert_eq!(ended.ended_here, 0);
    assert_eq!(find(&ring, "t", "extended").await.unwrap().state, State::Running);
    for id in ids {
        assert_eq!(find(&ring, "c", id).await, None, "{id}");
    }
}

#[tokio::test]
async fn a_job_whose_crash_topic_does_not_take_it_is_dead_and_has_the_reason() {
    let ring = TestRing::new(2);
    let id = id_between(&ring, 0, 1);
    let reasons = [
        (InjectedFault::None, "topic c has another job of this id, so the job stays here"),
        (InjectedFault::RejectsEnqueues, "shard s1 did not take it to topic c"),
        (InjectedFault::Unreachable, "shard s1 did not take it to topic c"),
    ];
    for (fault, reason) in reasons {
        let revived = Draft {
            on_conflict: crate::domain::OnConflict::Replace,
            ..poison(draft_with_id("t", &id))
        };
        ring.enqueue_accepted(vec![revived]).await;
        if fault == InjectedFault::None {
            ring.enqueue_accepted(vec![draft_with_id("c", &id)]).await;
        }
        let held = leases(&ring, 0, "t").await;
        ring.stores[1].set_fault(fault);
        let ended = crash(&ring, 0, &held).await.unwrap();
        ring.stores[1].set_fault(InjectedFault::None);
        ring.until_down(1, false).await;
        assert_eq!((ended.ended_here, ended.not_ended.len()), (1, 0), "{fault:?}");
        let dead = find(&ring, "t", &id).await.unwrap();
        assert_eq!((dead.state, dead.crashes), (State::Dead, 1), "{fault:?}");
        assert!(dead.last_error.contains(reason), "{}", dead.last_error);
        assert_eq!(dead.attempts[0].error, dead.last_error);
        if fault == InjectedFault::None {
            let other = find(&ring, "c", &id).await.unwrap();
            assert_eq!(other.spec.payload, None, "the other job stays as it was");
            ring.scheduler.producer.delete(key("c", &id), None).await.unwrap();
        }
    }
}

/// The end of the lease waits for the shard, as that of any lease does.
#[tokio::test]
async fn a_shard_that_fails_itself_keeps_the_lease() {
    let ring = TestRing::new(1);
    ring.enqueue_accepted(vec![poison(draft_with_id("t", "a"))]).await;
    let held = leases(&ring, 0, "t").await;
    ring.stores[0].set_fault(InjectedFault::Unreachable);
    assert!(crash(&ring, 0, &held).await.is_err());
    ring.stores[0].set_fault(InjectedFault::None);
    ring.until_down(0, false).await;
    assert_eq!(find(&ring, "t", "a").await.unwrap().state, State::Running);
    crash(&ring, 0, &held).await.unwrap();
    assert_eq!(find(&ring, "c", "a").await.unwrap().state, State::Ready);
}

/// A full shard ends leases all the same.
#[tokio::test]
async fn a_job_that_finds_no_room_in_its_crash_topic_is_dead() {
    let ring = TestRing::new(1);
    ring.enqueue_accepted(vec![poison(draft_with_id("t", "a"))]).await;
    let held = leases(&ring, 0, "t").await;
    ring.stores[0].set_fault(InjectedFault::RejectsEnqueues);
    assert_eq!(crash(&ring, 0, &held).await.unwrap().ended_here, 1);
    let dead = find(&ring, "t", "a").await.unwrap();
    assert_eq!(dead.state, State::Dead);
    assert!(dead.last_error.contains("did not take it to topic c"), "{}", dead.last_error);
}

#[tokio::test]
async fn many_jobs_move_in_pieces_and_others_of_the_call_end_as_always() {
    let ring = TestRing::new(3);
    let mut drafts: Vec<_> = ring.owned_by(0, "t", 60);
    for draft in drafts.iter_mut().step_by(2) {
        *draft = poison(draft.clone());
    }
    let ids: Vec<JobId> = drafts.iter().map(|draft| draft.id.clone().unwrap()).collect();
    ring.enqueue_accepted(drafts).await;
    let held = leases(&ring, 0, "t").await;
    assert_eq!(crash(&ring, 0, &held).await.unwrap().ended_here, 60);
    for (n, id) in ids.iter().enumerate() {
        let topic = if n % 2 == 0 { "c" } else { "t" };
        let (here, there) = (if n % 2 == 0 { "t" } else { "c" }, topic);
        assert_eq!(find(&ring, there, id.as_str()).await.unwrap().state, State::Ready, "{id}");
        assert_eq!(find(&ring, here, id.as_str()).await, None, "{id}");
    }
}

/// Reaping ends an expired lease by the same way.
#[tokio::test]
async fn an_expired_lease_moves_its_job_too() {
    let ring = TestRing::new(1);
    let shard = &ring.scheduler.shards().all()[0];
    // From here on the shard is served.
    ring.scheduler.upkeep.reap(shard).await.unwrap();
    ring.enqueue_accepted(vec![poison(draft_with_id("t", "a"))]).await;
    assert_eq!(lease(&ring, 0, "t", Duration::from_millis(1)).await.len(), 1);
    let moved = async || {
        ring.scheduler.upkeep.reap(shard).await.unwrap();
        find(&ring, "c", "a").await
    };
    let moved = super::test_ring::eventually("it moves", moved).await;
    assert!(moved.last_error.starts_with("the lease expired"), "{}", moved.last_error);
    assert_eq!(find(&ring, "t", "a").await, None);
}
