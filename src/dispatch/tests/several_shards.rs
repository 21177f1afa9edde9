//! Streams over several shards: one credit, and an independent feed of each shard.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Payload, Spec, When};
use crate::scheduler::tests::test_ring::{TestRing, draft, draft_with_id, eventually};
use crate::scheduler::{AckItem, Draft, ExtendItem, SettleResult};
use crate::store::faulty_store::InjectedFault;

use super::harness::{TestWorker, options, pull_options};
use super::*;

/// A ring, and streams over it.
struct ShardedServer {
    ring: TestRing,
    dispatcher: Dispatcher,
}

impl ShardedServer {
    fn start(shards: usize) -> ShardedServer {
        let ring = TestRing::new(shards);
        let config = Config { streams_max: 100, stream_max_age: Duration::ZERO };
        let dispatcher = Dispatcher::spawn(ring.scheduler.settler.clone(), config);
        ShardedServer { ring, dispatcher }
    }

    fn open(&self, credit: u32) -> TestWorker {
        let options = StreamOptions { max_in_flight: credit, ..options(&["t"]) };
        TestWorker::new(self.dispatcher.open(options).unwrap())
    }

    /// Enqueues this many jobs on each of these shards.
    async fn enqueue(&self, shards: &[usize], jobs: usize) {
        for &shard in shards {
            self.ring.enqueue_accepted(self.ring.owned_by(shard, "t", jobs)).await;
        }
    }

    async fn ack(&self, deliveries: Vec<JobDelivery>) {
        let results = self.try_ack(deliveries).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    async fn try_ack(&self, deliveries: Vec<JobDelivery>) -> Vec<SettleResult> {
        let item = |delivery: JobDelivery| AckItem {
            receipt: delivery.receipt,
            result: None,
            follow_ups: Vec::new(),
        };
        self.ring.scheduler.settler.ack(deliveries.into_iter().map(item).collect()).await
    }

    /// Makes shard 0 unreachable. It rejects these acks also once that is noticed.
    async fn refuse_acks(&self, held: &[JobDelivery]) {
        self.ring.stores[0].set_fault(InjectedFault::Unreachable);
        loop {
            let is_down = self.ring.scheduler.shards().all()[0].is_down();
            assert!(self.try_ack(held.to_vec()).await.iter().all(Result::is_err));
            if is_down {
                return;
            }
        }
    }

    async fn pull(&self, max_jobs: u32, wait: Duration) -> Vec<JobDelivery> {
        let pulled = self.dispatcher.pull(pull_options(&["t"], max_jobs, wait)).await;
        let (deliveries, handover) = pulled.unwrap();
        handover.confirm();
        deliveries
    }

    async fn running(&self) -> u64 {
        self.ring.stats("t").await.iter().map(|stats| stats.running).sum()
    }

    /// Processes this many jobs one by one. Returns the number of jobs from each shard.
    async fn work(
        &self,
        worker: &mut TestWorker,
        credit: usize,
        jobs: usize,
    ) -> BTreeMap<String, usize> {
        let (mut held, mut counts) = (Vec::new(), BTreeMap::new());
        for _ in 0..jobs {
            while held.is_empty() {
                held.extend(worker.some_jobs().await);
            }
            assert!(held.len() <= credit);
            let delivery: JobDelivery = held.remove(0);
            *counts.entry(delivery.receipt.shard.to_string()).or_default() += 1;
            self.ack(vec![delivery]).await;
        }
        counts
    }
}

#[tokio::test]
async fn the_credit_is_one_over_all_shards() {
    let server = ShardedServer::start(4);
    server.enqueue(&[0, 1, 2, 3], 60).await;
    let (credit, mut held, mut seen) = (7, Vec::new(), HashSet::new());
    let mut worker = server.open(credit);
    while seen.len() < 240 {
        while held.is_empty() {
            held.extend(worker.some_jobs().await);
            assert!(held.len() <= credit as usize);
        }
        assert!(server.running().await <= u64::from(credit), "the store agrees");
        for delivery in &held {
            assert!(seen.insert(delivery.receipt.key.clone()), "each once");
        }
        server.ack(std::mem::take(&mut held)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shard_has_its_turn_however_small_the_credit() {
    every_shard_has_its_turn().await;
}

#[tokio::test]
async fn every_shard_has_its_turn_on_a_single_thread() {
    every_shard_has_its_turn().await;
}

/// Checks that the order is fair at least once in three attempts: on a busy machine a thread may stall for as long as
/// a hundred jobs take, and then the shards whose turn it holds have none.
async fn every_shard_has_its_turn() {
    for credit in [1, 2, 5] {
        let mut unfair = Vec::new();
        while unfair.len() < 3 {
            let server = ShardedServer::start(4);
            server.enqueue(&[0, 1, 2, 3], 100).await;
            let mut worker = server.open(credit);
            let counts = server.work(&mut worker, credit as usize, 100).await;
            if counts.len() == 4 && counts.values().all(|&n| n >= 8) {
                break;
            }
            unfair.push(counts);
        }
        assert!(unfair.len() < 3, "{credit}: {unfair:?}");
    }
}

#[tokio::test]
async fn a_shard_without_jobs_does_not_cut_the_batches_of_the_others() {
    let server = ShardedServer::start(4);
    let mut worker = server.open(64);
    worker.nothing().await;
    server.enqueue(&[2], 64).await;
    let calls = server.ring.stores[2].calls();
    worker.jobs(64).await;
    let calls = server.ring.stores[2].calls() - calls;
    assert!(calls <= 4, "{calls} calls for what one or two can carry");
}

#[tokio::test]
async fn each_shard_wakes_its_own_feed_now_and_on_time() {
    let server = ShardedServer::start(4);
    let mut worker = server.open(16);
    for shard in [3, 0, 2, 1] {
        worker.nothing().await;
        let begin = Instant::now();
        server.enqueue(&[shard], 1).await;
        let delivery = worker.jobs(1).await.remove(0);
        assert_eq!(delivery.receipt.shard.as_str(), format!("s{shard}"));
        server.ack(vec![delivery]).await;
        let due = When::After(Duration::from_millis(100));
        let later = server.ring.owned_by(shard, "t", 2).into_iter().skip(1);
        server.ring.enqueue_accepted(later.map(|draft| Draft { due, ..draft }).collect()).await;
        let deliveries = worker.jobs(1).await;
        assert!(begin.elapsed() >= Duration::from_millis(100));
        server.ack(deliveries).await;
    }
}

#[tokio::test]
async fn on_each_shard_priorities_and_due_times_decide() {
    let server = ShardedServer::start(3);
    let mut worker = server.open(100);
    for shard in 0..3 {
        let drafts = server.ring.owned_by(shard, "t", 9).into_iter().enumerate();
        let ranked = drafts.map(|(n, draft)| Draft { priority: Some((n * 4 % 9) as u8), ..draft });
        server.ring.enqueue_accepted(ranked.collect()).await;
    }
    let deliveries = worker.jobs(27).await;
    for shard in 0..3 {
        let name = server.ring.stores[shard].name();
        let here = deliveries.iter().filter(|d| d.receipt.shard == *name);
        let order: Vec<_> = here.map(|delivery| delivery.job.priority).collect();
        assert_eq!(order, (0..9).rev().collect::<Vec<u8>>());
    }
}

#[tokio::test]
async fn a_shard_that_hangs_or_dies_does_not_stop_the_others_and_comes_back() {
    for fault in [InjectedFault::Hangs, InjectedFault::Unreachable, InjectedFault::LosesReplies] {
        let server = ShardedServer::start(4);
        server.enqueue(&[0, 1, 2, 3], 40).await;
        server.ring.stores[1].set_fault(fault);
        let mut worker = server.open(1);
        let counts = server.work(&mut worker, 1, 120).await;
        assert_eq!(counts.get("s1"), None, "{fault:?}");
        server.ring.until_down(1, true).await;
        server.ring.stores[1].set_fault(InjectedFault::None);
        let counts = server.work(&mut worker, 1, 40).await;
        assert_eq!(counts, BTreeMap::from([("s1".to_owned(), 40)]), "{fault:?}");
        eventually("nothing is left", async || (server.running().await == 0).then_some(())).await;
    }
}

#[tokio::test]
async fn a_settle_that_its_shard_did_not_take_frees_no_credit() {
    let server = ShardedServer::start(2);
    server.enqueue(&[0, 1], 5).await;
    let mut worker = server.open(4);
    let held = worker.jobs(4).await;
    let store = &server.ring.stores;
    store.iter().for_each(|store| store.set_fault(InjectedFault::Unreachable));
    assert!(server.try_ack(held.clone()).await.iter().all(Result::is_err));
    assert_eq!(server.dispatcher.workers()[0].in_flight, 4, "unknown outcome counts as running");
    store.iter().for_each(|store| store.set_fault(InjectedFault::None));
    worker.nothing().await;
    server.ack(held).await;
    worker.jobs(4).await;
}

#[tokio::test]
async fn a_shard_that_dies_under_load_costs_only_its_own_jobs_time() {
    let server = ShardedServer::start(3);
    let mut worker = server.open(30);
    server.enqueue(&[0], 200).await;
    let mut held = worker.jobs(30).await;
    server.enqueue(&[1, 2], 200).await;
    server.ring.stores[0].set_fault(InjectedFault::Unreachable);
    // Its jobs cannot be settled now, but their worker is done with them: once the shard is known to be unreachable,
    // the others continue.
    while !server.ring.scheduler.shards().all()[0].is_down() {
        assert!(server.try_ack(held.clone()).await.iter().all(Result::is_err));
    }
    assert!(server.try_ack(held.clone()).await.iter().all(Result::is_err));
    let mut done = 0;
    while done < 400 {
        held.extend(worker.some_jobs().await);
        let alive = held.split_off(30);
        done += alive.len();
        assert!(alive.len() <= 30);
        server.ack(alive).await;
    }
    server.ring.stores[0].set_fault(InjectedFault::None);
    server.ring.until_down(0, false).await;
    server.ack(held).await;
    worker.jobs(30).await;
}

/// A settle that an unreachable shard rejects frees the credit of its lease, but the lease still belongs to the
/// stream.
#[tokio::test]
async fn a_lease_whose_settle_a_dead_shard_refused_comes_back_when_its_stream_breaks() {
    for (lease, jobs) in [(30, 1), (30, 2), (86_400, 3), (86_400, 7)] {
        let server = ShardedServer::start(2);
        server.enqueue(&[0], jobs).await;
        let (lease, orphan_grace) = (Duration::from_secs(lease), Duration::from_millis(50));
        let credit = u32::try_from(jobs).unwrap();
        let settings = StreamOptions { lease, orphan_grace, ..options(&["t"]) };
        let settings = StreamOptions { max_in_flight: credit, ..settings };
        let mut worker = TestWorker::new(server.dispatcher.open(settings).unwrap());
        let held = worker.jobs(jobs).await;
        server.refuse_acks(&held).await;
        assert_eq!(server.dispatcher.workers()[0].in_flight, 0, "its credit is free");
        drop(worker);
        server.ring.stores[0].set_fault(InjectedFault::None);
        eventually("all are back", async || (server.running().await == 0).then_some(())).await;
        assert!(server.try_ack(held).await.iter().all(Result::is_err), "they are over");
    }
}

#[tokio::test]
async fn a_lease_whose_settle_a_dead_shard_refused_is_still_revoked_and_settled() {
    let server = ShardedServer::start(2);
    server.enqueue(&[0], 2).await;
    let mut worker = server.open(2);
    let held = worker.jobs(2).await;
    server.refuse_acks(&held).await;
    server.ring.stores[0].set_fault(InjectedFault::None);
    server.ring.until_down(0, false).await;
    let key = held[0].receipt.key.clone();
    server.ring.scheduler.producer.delete(key, None).await.unwrap();
    let revoked = worker.batch().await.revocations;
    assert_eq!(revoked, [(held[0].receipt.clone(), RevokeReason::Deleted)]);
    server.ack(held[1..].to_vec()).await;
    assert_eq!(server.running().await, 0);
}

/// While the shard is unreachable, in each way that a network can fail, no worker can extend its leases.
#[tokio::test]
async fn leases_of_a_broken_stream_wait_for_the_grace_after_their_shard_is_back() {
    for (fault, breaks_first) in [InjectedFault::Unreachable, InjectedFault::Hangs]
        .into_iter()
        .flat_map(|fault| [(fault, false), (fault, true)])
    {
        let server = ShardedServer::start(1);
        server.enqueue(&[0], 2).await;
        let orphan_grace = Duration::from_secs(2);
        let lease = Duration::from_secs(86_400);
        let options = StreamOptions { orphan_grace, lease, ..options(&["t"]) };
        let mut worker = TestWorker::new(server.dispatcher.open(options).unwrap());
        let held = worker.jobs(2).await;
        if breaks_first {
            drop(worker);
            tokio::time::sleep(orphan_grace / 4).await;
            server.ring.stores[0].set_fault(fault);
        } else {
            server.ring.stores[0].set_fault(fault);
            drop(worker);
        }
        tokio::time::sleep(2 * orphan_grace).await;
        server.ring.stores[0].set_fault(InjectedFault::None);
        let back = Instant::now();
        let item = || ExtendItem {
            receipt: held[0].receipt.clone(),
            duration: None,
            progress: None,
            checkpoint: None,
        };
        let extended =
            async || server.ring.scheduler.settler.extend(vec![item()], None).await.remove(0).ok();
        eventually("one is extended", extended).await;
        eventually("one is back", async || (server.running().await == 1).then_some(())).await;
        let after = back.elapsed();
        assert!(after >= orphan_grace, "{fault:?} {breaks_first}: {after:?}");
        tokio::time::sleep(orphan_grace).await;
        assert_eq!(server.running().await, 1, "{fault:?} {breaks_first}: it was extended");
    }
}

/// The leases were neither settled nor extended: they do not outlive their stream.
#[tokio::test]
async fn leases_of_a_broken_stream_that_found_no_room_to_end_end_once_there_is_room() {
    let server = ShardedServer::start(1);
    server.enqueue(&[0], 3).await;
    let (orphan_grace, lease) = (Duration::from_secs(1), Duration::from_secs(86_400));
    let options = StreamOptions { orphan_grace, lease, ..options(&["t"]) };
    let mut worker = TestWorker::new(server.dispatcher.open(options).unwrap());
    worker.jobs(3).await;
    server.ring.stores[0].set_fault(InjectedFault::RejectsWrites);
    drop(worker);
    let refused = async || (server.ring.stores[0].refusals() > 0).then_some(());
    eventually("a refusal", refused).await;
    assert_eq!(server.running().await, 3);
    server.ring.stores[0].set_fault(InjectedFault::None);
    eventually("all are back", async || (server.running().await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_pull_gathers_from_all_shards_and_waits_for_none_that_is_dead() {
    let server = ShardedServer::start(4);
    server.enqueue(&[0, 1, 2, 3], 10).await;
    let jobs = server.pull(25, Duration::ZERO).await;
    assert_eq!(jobs.len(), 25, "as many as there is room for");
    server.ack(jobs).await;
    assert_eq!(server.pull(256, Duration::ZERO).await.len(), 15, "and all that there are");
    assert!(server.pull(256, Duration::ZERO).await.is_empty());

    for fault in [InjectedFault::Unreachable, InjectedFault::Hangs] {
        server.ring.stores[2].set_fault(fault);
        let shard = &server.ring.scheduler.shards().all()[2];
        eventually("it is noticed", async || {
            server.pull(1, Duration::ZERO).await;
            shard.is_down().then_some(())
        })
        .await;
        server.ring.stores[2].take_feed_calls();
        assert!(server.pull(1, Duration::ZERO).await.is_empty());
        server.ring.enqueue_accepted(vec![draft("t")]).await;
        assert_eq!(server.pull(5, Duration::from_secs(9)).await.len(), 1);
        assert_eq!(server.ring.stores[2].take_feed_calls(), [], "{fault:?}: it is not asked");
        server.ring.stores[2].set_fault(InjectedFault::None);
        server.ring.until_down(2, false).await;
    }
}

#[tokio::test]
async fn jobs_larger_than_the_byte_credit_come_one_by_one_from_every_shard() {
    let server = ShardedServer::start(4);
    let payload = Payload { body: vec![0; 2_000].into(), ..Payload::default() };
    let spec = Spec { payload: Some(payload), ..Spec::default() };
    for shard in 0..4 {
        let drafts = server.ring.owned_by(shard, "t", 3).into_iter();
        server
            .ring
            .enqueue_accepted(drafts.map(|d| Draft { spec: spec.clone(), ..d }).collect())
            .await;
    }
    let settings = StreamOptions { max_in_flight_bytes: 1_000, ..options(&["t"]) };
    let mut worker = TestWorker::new(server.dispatcher.open(settings).unwrap());
    for _ in 0..12 {
        let deliveries = worker.some_jobs().await;
        assert_eq!((deliveries.len(), server.running().await), (1, 1));
        server.ack(deliveries).await;
    }
    worker.nothing().await;
}

#[tokio::test]
async fn leases_of_all_shards_come_back_when_their_stream_breaks() {
    let server = ShardedServer::start(3);
    server.enqueue(&[0, 1, 2], 10).await;
    let settings = StreamOptions { orphan_grace: Duration::from_millis(50), ..options(&["t"]) };
    let settings = StreamOptions { max_in_flight: 100, ..settings };
    let mut worker = TestWorker::new(server.dispatcher.open(settings).unwrap());
    worker.jobs(30).await;
    assert_eq!(server.running().await, 30);
    server.ring.stores[0].set_fault(InjectedFault::Unreachable);
    drop(worker);
    eventually("two thirds are back", async || (server.running().await == 10).then_some(())).await;
    server.ring.stores[0].set_fault(InjectedFault::None);
    eventually("all are back", async || (server.running().await == 0).then_some(())).await;
}

#[tokio::test]
async fn the_end_waits_for_no_shard_that_hangs() {
    let server = ShardedServer::start(3);
    server.enqueue(&[0, 1, 2], 10).await;
    let mut worker = server.open(30);
    worker.jobs(30).await;
    server.ring.enqueue_accepted(vec![draft_with_id("t", "more")]).await;
    server.ring.stores[1].set_fault(InjectedFault::Hangs);
    server.dispatcher.close().await;
}
