//! The verbs over several shards, some of which fail.

mod crash_topic;
mod purge;
mod reads;
mod ring_change;
pub(crate) mod test_ring;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::engine::Command;
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::ring::ShardState;
use crate::domain::{EnqueueOutcome, JobId, Receipt, Spec, State};
use crate::shards::{RUN_MAX, ShardError};
use crate::store::faulty_store::InjectedFault;
use crate::store::{self, Claim, JobRequest, StreamDemand, TopicDemand};

use super::*;
use test_ring::{TestRing, draft, draft_with_id, key, test_timeouts};

/// Patience of a caller who would notice nothing of a wait that ends by it.
const PATIENT: Duration = Duration::from_secs(86_400);

fn per_shard(enqueued: &[AcceptedJob]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    enqueued.iter().for_each(|job| *counts.entry(job.shard.to_string()).or_default() += 1);
    counts
}

fn unavailable(result: &Result<AcceptedJob, EnqueueError>) -> bool {
    matches!(
        result,
        Err(EnqueueError::Store {
            error: ShardError { error: store::Error::Unavailable(_), .. },
            ..
        })
    )
}

/// Claims the jobs of a topic on the shard `n`; returns their receipts.
async fn receipts(ring: &TestRing, n: usize, topic: &str) -> Vec<Receipt> {
    lease(ring, n, topic, Duration::from_secs(30)).await
}

/// Claims the jobs of a topic on the shard `n` for the time `lease`; returns their receipts.
pub(crate) async fn lease(ring: &TestRing, n: usize, topic: &str, lease: Duration) -> Vec<Receipt> {
    let taker = StreamDemand {
        stream: 1,
        worker_id: "w".into(),
        lease,
        grace: None,
        jobs: 100,
        bytes: 1 << 20,
        oversize: true,
    };
    let topic = crate::domain::TopicName::stored(topic);
    let ask = TopicDemand { topic, ageing: None, streams: vec![taker] };
    let claim = Claim { nonce: 7, owner: 1, topics: vec![ask] };
    let claims = ring.stores[n].sqlite_store().claim(claim).await.unwrap();
    let shard = ring.stores[n].name().clone();
    let leased = claims.topics.into_iter().flat_map(|topic| topic.by_stream).flatten();
    leased
        .map(|job| Receipt {
            shard: shard.clone(),
            owner: 1,
            stream: 1,
            token: job.token,
            key: job.key,
        })
        .collect()
}

#[tokio::test]
async fn server_ids_are_grouped_and_spread_over_all_shards() {
    let ring = TestRing::new(4);
    let mut all = Vec::new();
    for size in [1_000, 999, 64, 1, 130].repeat(5) {
        let jobs = ring.enqueue_accepted(vec![draft("t"); size]).await;
        for run in jobs.chunks(RUN_MAX) {
            assert!(run.iter().all(|job| job.shard == run[0].shard), "a run stays together");
            assert!(run.iter().all(|job| job.id.shard().as_ref() == Some(&run[0].shard)));
        }
        all.extend(jobs);
    }
    let part = all.len() as f64 / 4.0;
    for (shard, count) in per_shard(&all) {
        assert!((count as f64 / part - 1.0).abs() < 0.1, "{shard}: {count} of {part}");
    }
}

#[tokio::test]
async fn chosen_ids_go_to_their_owner_on_the_ring_and_answers_come_in_order() {
    let ring = TestRing::new(4);
    let drafts: Vec<_> = (0..400).map(|n| draft_with_id("t", &format!("id{n}"))).collect();
    let jobs = ring.enqueue_accepted(drafts.clone()).await;
    for (job, draft) in jobs.iter().zip(&drafts) {
        assert_eq!(Some(&job.id), draft.id.as_ref());
        let key = key("t", job.id.as_str());
        assert_eq!(ring.scheduler.shards().owner(&key).unwrap().name(), &job.shard);
        assert!(ring.scheduler.producer.get(key, false).await.unwrap().is_some());
    }
    assert!(per_shard(&jobs).values().all(|&count| count > 60), "{:?}", per_shard(&jobs));
    let again = ring.enqueue_accepted(drafts).await;
    assert!(again.iter().all(|job| job.outcome == EnqueueOutcome::Unchanged));
}

#[tokio::test]
async fn a_dead_shard_costs_new_jobs_nothing_and_chosen_ids_of_its_arc_alone_are_refused() {
    let ring = TestRing::new(4);
    ring.stores[1].set_fault(InjectedFault::Unreachable);
    for _ in 0..60 {
        let jobs = ring.enqueue_accepted(vec![draft("t"); 3]).await;
        assert!(jobs.iter().all(|job| job.shard.as_str() != "s1"));
    }
    ring.until_down(1, true).await;
    let enqueues = ring.stores[1].enqueues();
    let mixed: Vec<_> = (0..200).map(|n| draft_with_id("t", &format!("id{n}"))).collect();
    for (result, draft) in ring.enqueue(mixed.clone()).await.iter().zip(&mixed) {
        let id = draft.id.as_ref().unwrap();
        let owner = ring.scheduler.shards().owner(&key("t", id.as_str())).unwrap();
        assert_eq!(unavailable(result), owner.name().as_str() == "s1", "{result:?}");
    }
    assert_eq!(ring.stores[1].enqueues(), enqueues, "nothing waits for it");
    ring.stores[1].set_fault(InjectedFault::None);
    ring.until_down(1, false).await;
    ring.enqueue_accepted(mixed).await;
    let jobs = ring.enqueue_accepted(vec![draft("t"); 1_000]).await;
    assert_eq!(per_shard(&jobs).len(), 4, "it takes new jobs again");
    let topics = ring.scheduler.operator.topics("", None, 9).await.unwrap();
    assert_eq!(topics.len(), 1, "probes leave nothing behind");
}

#[tokio::test]
async fn a_shard_with_open_breaker_gets_only_probes() {
    let ring = TestRing::new(2);
    ring.stores[0].set_fault(InjectedFault::Unreachable);
    ring.enqueue(ring.owned_by(0, "t", 10)).await;
    for _ in 0..9 {
        ring.enqueue(ring.owned_by(0, "t", 1)).await;
    }
    ring.until_down(0, true).await;
    let (before, begin) = (ring.stores[0].calls(), Instant::now());
    while begin.elapsed() < 10 * test_timeouts().probe_pauses.max {
        assert!(unavailable(&ring.enqueue(ring.owned_by(0, "t", 1)).await[0]));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let probes = ring.stores[0].calls() - before;
    assert!((5..60).contains(&probes), "{probes} calls");
    assert_eq!(*ring.scheduler.shards().down_count().borrow(), 1);
    let metrics = ring.scheduler.metrics().render();
    assert!(metrics.contains("ringq_shard_breaker_open{shard=\"s0\"} 1"), "{metrics}");
    assert!(metrics.contains("ringq_shard_breaker_open{shard=\"s1\"} 0"), "{metrics}");
}

#[tokio::test]
async fn a_full_shard_is_skipped_and_still_settles() {
    let ring = TestRing::new(3);
    ring.enqueue_accepted(ring.owned_by(2, "t", 5)).await;
    ring.stores[2].set_fault(InjectedFault::RejectsEnqueues);
    for _ in 0..20 {
        let jobs = ring.enqueue_accepted(vec![draft("t"); 100]).await;
        assert!(jobs.iter().all(|job| job.shard.as_str() != "s2"));
    }
    let refused = ring.enqueue(ring.owned_by(2, "t", 6).split_off(5)).await.remove(0);
    let full = |error: &EnqueueError| {
        matches!(
            error,
            EnqueueError::Store {
                error: ShardError { error: store::Error::Full(_), .. },
                id: Some(_)
            }
        )
    };
    assert!(refused.as_ref().is_err_and(full), "{refused:?}");
    assert!(!ring.scheduler.shards().all()[2].is_down());
    let items: Vec<_> = receipts(&ring, 2, "t").await.into_iter().map(ack).collect();
    assert_eq!(ring.scheduler.settler.ack(items).await, vec![Ok(()); 5]);
}

fn ack(receipt: Receipt) -> AckItem {
    AckItem { receipt, result: None, follow_ups: Vec::new() }
}

#[tokio::test]
async fn error_has_no_id_when_all_shards_are_down() {
    let ring = TestRing::new(3);
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::Unreachable));
    for _ in 0..10 {
        let result = ring.enqueue(vec![draft("t")]).await.remove(0);
        let nameless = matches!(result, Err(EnqueueError::Store { id: None, .. }));
        assert!(unavailable(&result) && nameless, "{result:?}");
    }
    until_all_down(&ring).await;
    ring.stores[1].set_fault(InjectedFault::None);
    ring.until_down(1, false).await;
    assert_eq!(ring.enqueue_accepted(vec![draft("t")]).await[0].shard.as_str(), "s1");
}

async fn until_all_down(ring: &TestRing) {
    for n in 0..ring.stores.len() {
        ring.until_down(n, true).await;
    }
}

#[tokio::test]
async fn unknown_outcome_is_retried_with_the_same_id_and_reported() {
    let ring = TestRing::with_states(&[ShardState::Active, ShardState::Draining]);
    ring.stores[0].set_fault(InjectedFault::LosesReplies);
    let result = ring.enqueue_for(Duration::from_millis(300), draft("t")).await;
    let Err(EnqueueError::Store {
        error: ShardError { error: store::Error::OutcomeUnknown(_), .. },
        id: Some(id),
    }) = result
    else {
        panic!("{result:?}");
    };
    assert_eq!(id.shard().unwrap().as_str(), "s0");
    assert_eq!(ring.stats("t").await[0].enqueued_total, 1, "every repeat found the first one");
    let again = ring.enqueue_for(Duration::from_millis(1), named_by_server(&id)).await;
    assert!(again.is_err());

    ring.stores[0].set_fault(InjectedFault::None);
    ring.until_down(0, false).await;
    ring.stores[0].set_fault(InjectedFault::LosesReplies);
    let (answer, ()) = tokio::join!(ring.enqueue_for(Duration::from_secs(9), draft("u")), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ring.stores[0].set_fault(InjectedFault::None);
    });
    assert_eq!(
        answer.unwrap().outcome,
        EnqueueOutcome::Created,
        "the caller does not see that a retry found it"
    );
    assert_eq!(ring.stats("u").await[0].enqueued_total, 1);
    let again = ring.enqueue(vec![named_by_server(&id)]).await.remove(0).unwrap();
    assert_eq!(again.outcome, EnqueueOutcome::Unchanged);
}

#[tokio::test]
async fn repeats_end_while_the_ring_that_named_their_shard_is_open() {
    let ring = TestRing::new(1);
    ring.stores[0].set_fault(InjectedFault::LosesReplies);
    let begin = Instant::now();
    let result = ring.enqueue_for(PATIENT, draft_with_id("t", "a")).await;
    let took = begin.elapsed();
    assert!(result.is_err() && took >= test_timeouts().retry_max, "{took:?} {result:?}");
    let patience = crate::shards::ShardTimeouts::default();
    assert!(patience.call + patience.retry_max < patience.ring_agreement);
}

#[tokio::test]
async fn unknown_outcome_is_reported_after_an_earlier_refusal() {
    for (refuses, loses) in [(0, 1), (1, 0)] {
        let ring = TestRing::new(2);
        ring.stores[refuses].set_fault(InjectedFault::Unreachable);
        ring.stores[loses].set_fault(InjectedFault::LosesReplies);
        let result = ring.enqueue_for(Duration::from_millis(200), draft("t")).await;
        let Err(EnqueueError::Store {
            error: ShardError { error: store::Error::OutcomeUnknown(_), .. },
            id: Some(id),
        }) = result
        else {
            panic!("{result:?}");
        };
        assert_eq!(id.shard().as_ref(), Some(ring.stores[loses].name()));
    }
}

fn named_by_server(id: &crate::domain::JobId) -> Draft {
    Draft { id: Some(id.clone()), ..draft("t") }
}

#[tokio::test]
async fn a_write_that_could_duplicate_a_job_is_not_retried() {
    let replace = crate::domain::OnConflict::Replace;
    let job = Draft { on_conflict: replace, ..draft_with_id("t", "a") };
    // A record that is kept for less than `retry_max` may be gone: the job may have run.
    let kept = |retention| {
        let spec = Spec { retention: Some(retention), ..Spec::default() };
        let (id, request_id) = (Some(JobId::from_request_id("r", None)), Some("r".to_owned()));
        let of_request = Draft { id, request_id, spec: spec.clone(), ..draft("t") };
        [Draft { spec, ..draft_with_id("t", "a") }, of_request]
    };
    let short = [Duration::ZERO, test_timeouts().retry_max / 2].map(kept).into_iter().flatten();
    // A record has only its last request: another one may have replaced it by now.
    let request_id = || Some("r".to_owned());
    let replaces = Draft { request_id: request_id(), ..job.clone() };
    for job in short.chain([job.clone(), replaces]) {
        let ring = TestRing::new(1);
        ring.stores[0].set_fault(InjectedFault::LosesReplies);
        let result = ring.enqueue_for(PATIENT, job).await;
        assert!(result.is_err(), "{result:?}");
        assert_eq!(ring.stores[0].enqueues(), 1);
    }
    // Another ring: the circuit breaker of this one may be open by now, and what it refuses was surely not written.
    let ring = TestRing::new(1);
    ring.stores[0].set_fault(InjectedFault::LosesReplies);
    let reject = crate::domain::OnConflict::Reject;
    let job = Draft { request_id: request_id(), on_conflict: reject, ..job };
    let repeated = async {
        while ring.stores[0].enqueues() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        result = ring.enqueue_for(Duration::from_secs(9), job) => {
            panic!("the request id makes a repeat safe: {result:?}");
        }
        () = repeated => {}
    }
}

#[tokio::test]
async fn a_repeat_does_not_bring_back_what_was_deleted_meanwhile() {
    for request_id in [None, Some("r".to_owned())] {
        let ring = TestRing::new(1);
        ring.stores[0].set_fault(InjectedFault::LosesReplies);
        let deleted = async {
            while ring.stores[0].enqueues() == 0 {
                tokio::task::yield_now().await;
            }
            // The store does one call after the other.
            let delete = JobRequest::new(key("t", "a"), Command::Delete { finished: None });
            let deleted = ring.stores[0].sqlite_store().apply(vec![delete]).await.remove(0);
            assert!(deleted.unwrap().into_delete_result().is_some());
            ring.stores[0].set_fault(InjectedFault::None);
        };
        let job = Draft { request_id, ..draft_with_id("t", "a") };
        let (answer, ()) = tokio::join!(ring.enqueue_for(Duration::from_secs(9), job), deleted);
        assert_eq!(answer.unwrap().outcome, EnqueueOutcome::Unchanged);
        let jobs = ring.stores[0].sqlite_store().get(vec![key("t", "a")], false).await.unwrap();
        assert_eq!(jobs[0].as_ref().unwrap().state, State::Cancelled);
    }
}

/// Jobs of a topic on all shards.
async fn ready_and_dead(ring: &TestRing, topic: &str) -> (u64, u64) {
    let stats = ring.stats(topic).await;
    (stats.iter().map(|stats| stats.ready).sum(), stats.iter().map(|stats| stats.dead).sum())
}

/// The copy is written on the other shard, and the job cannot be deleted on its own.
#[tokio::test]
async fn a_redrive_to_another_shard_that_was_cut_short_is_ended_by_the_next_one() {
    let ring = TestRing::new(2);
    let owner = |topic: &str, id: &str| ring.scheduler.shards().owner(&key(topic, id)).unwrap();
    let crosses = |id: &String| owner("t", id).name() != owner("u", id).name();
    let ids: Vec<_> = (0..).map(|n| format!("n{n}")).filter(crosses).take(7).collect();
    ring.enqueue_accepted(ids.iter().map(|id| draft_with_id("t", id)).collect()).await;
    for n in 0..2 {
        let dead = |receipt| {
            let cause = LeaseEndCause::DeadLettered { error: String::new() };
            NackItem { receipt, cause }
        };
        let died = receipts(&ring, n, "t").await.into_iter().map(dead).collect();
        assert!(ring.scheduler.settler.nack(died).await.iter().all(Result::is_ok));
    }
    let redrive = || RedriveJobs {
        topic: crate::domain::TopicName::stored("t"),
        ids: Vec::new(),
        states: vec![State::Dead],
        target: Some(crate::domain::TopicName::stored("u")),
        rate: None,
        ttl: None,
        dry_run: false,
    };
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::RejectsDeletes));
    drop(ring.scheduler.operator.redrive(redrive(), None).await);
    assert_eq!(ready_and_dead(&ring, "u").await, (7, 0), "the copies are there");
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::None));
    for n in 0..2 {
        ring.until_down(n, false).await;
    }
    let done = ring.scheduler.operator.redrive(redrive(), None).await.unwrap();
    assert_eq!((done.redriven, done.skipped), (7, 0), "{done:?}");
    assert_eq!(ready_and_dead(&ring, "u").await, (7, 0), "each once");
    assert_eq!(ready_and_dead(&ring, "t").await, (0, 0), "none is left behind");
}

#[tokio::test]
async fn nothing_may_be_written_after_the_call_of_a_shard_was_given_up() {
    for patient in [Duration::from_millis(50), Duration::from_secs(60)] {
        let ring = TestRing::new(1);
        let begin = Instant::now();
        ring.enqueue_for(patient, draft_with_id("t", "a")).await.unwrap();
        let until = ring.stores[0].enqueue_deadline().expect("a bound");
        let took = begin.elapsed();
        assert!(until <= begin + took + test_timeouts().call.min(patient), "{patient:?}");
    }
}

#[tokio::test]
async fn a_hanging_shard_is_detected_and_then_adds_no_delay() {
    let ring = TestRing::new(4);
    ring.stores[3].set_fault(InjectedFault::Hangs);
    for round in 0.. {
        if ring.scheduler.shards().all()[3].is_down() {
            break;
        }
        assert!(round < 4, "it is noticed soon");
        let enqueues = (0..4).map(|_| ring.enqueue_for(test_timeouts().call, draft("t")));
        let results = futures::future::join_all(enqueues).await;
        let lost = results.iter().filter(|result| result.is_err()).count();
        assert!(lost <= 1, "only what lies on it waits: {results:?}");
    }
    let enqueues = ring.stores[3].enqueues();
    for _ in 0..50 {
        ring.enqueue_accepted(vec![draft("t")]).await;
    }
    assert_eq!(ring.stores[3].enqueues(), enqueues, "no new job waits for it");
    ring.stores[3].set_fault(InjectedFault::None);
    ring.until_down(3, false).await;
}

#[tokio::test]
async fn settles_of_a_dead_shard_fail_alone() {
    let ring = TestRing::new(3);
    let mut items = Vec::new();
    for n in 0..3 {
        ring.enqueue_accepted(ring.owned_by(n, "t", 4)).await;
        items.extend(receipts(&ring, n, "t").await.into_iter().map(ack));
    }
    ring.stores[1].set_fault(InjectedFault::Hangs);
    let results = ring.scheduler.settler.ack(items.clone()).await;
    for (result, item) in results.iter().zip(&items) {
        let dead = item.receipt.shard.as_str() == "s1";
        assert_eq!(matches!(result, Err(SettleError::Unavailable(_))), dead, "{result:?}");
    }
    ring.stores[1].set_fault(InjectedFault::None);
    assert_eq!(
        ring.scheduler.settler.ack(items.split_off(4)).await,
        vec![Ok(()); 8],
        "as often as needed"
    );
}

#[tokio::test]
async fn a_draining_shard_gets_no_new_jobs_and_no_follow_ups_without_an_id() {
    let ring = TestRing::new(2);
    ring.enqueue_accepted(ring.owned_by(1, "u", 1)).await;
    let shards = ring.scheduler.shards();
    shards.set_state(&shards.all()[1], ShardState::Draining, None).await.unwrap();
    let jobs = ring.enqueue_accepted(vec![draft("t"); 300]).await;
    assert_eq!(per_shard(&jobs), BTreeMap::from([("s0".to_owned(), 300)]));
    let receipt = receipts(&ring, 1, "u").await.remove(0);
    let item = AckItem { follow_ups: vec![draft("next"); 3], ..ack(receipt) };
    assert_eq!(ring.scheduler.settler.ack(vec![item]).await, [Ok(())]);
    let stats = ring.stats("next").await;
    assert_eq!((stats[0].ready, stats[1].ready), (3, 0));
    ring.enqueue_accepted(ring.owned_by(0, "v", 1)).await;
    let receipt = receipts(&ring, 0, "v").await.remove(0);
    let item = AckItem { follow_ups: vec![draft("next")], ..ack(receipt) };
    assert_eq!(ring.scheduler.settler.ack(vec![item]).await, [Ok(())]);
    assert_eq!(ring.stats("next").await[0].ready, 4);
}
