//! Shards that fail at random under producers and workers: no accepted job is lost, no credit is exceeded, and all
//! jobs finish soon after the shards recover.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use crate::domain::JobId;
use crate::scheduler::tests::test_ring::{TestRing, draft, draft_with_id, eventually};
use crate::scheduler::{AckItem, EnqueueError};
use crate::store::faulty_store::InjectedFault;
use crate::timer::Timer;

use super::harness::{TestWorker, options};
use super::*;

const MS: Duration = Duration::from_millis(1);
const CREDIT: u32 = 8;
/// Smallest number of accepted jobs for a meaningful run.
const ENOUGH: usize = 150;

/// Makes shards fail and recover until `stop`; all work at the end.
async fn nemesis(ring: Arc<TestRing>, seed: u64, stop: CancellationToken) {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    while !stop.is_cancelled() {
        let faults = [
            InjectedFault::Unreachable,
            InjectedFault::LosesReplies,
            InjectedFault::Hangs,
            InjectedFault::RejectsEnqueues,
            InjectedFault::None,
        ];
        let (store, fault) = (ring.stores.choose(&mut random), faults.choose(&mut random));
        store.unwrap().set_fault(*fault.unwrap());
        tokio::time::sleep(MS * random.random_range(5..80)).await;
    }
    ring.stores.iter().for_each(|store| store.set_fault(InjectedFault::None));
}

/// Enqueues until `stop`. Returns the accepted ids, which are also counted over all producers.
async fn produce(
    ring: Arc<TestRing>,
    who: &str,
    count: Arc<AtomicUsize>,
    stop: CancellationToken,
) -> Vec<JobId> {
    let mut accepted = Vec::new();
    for n in 0.. {
        if stop.is_cancelled() {
            break;
        }
        let job = if n % 2 == 0 { draft("t") } else { draft_with_id("t", &format!("{who}-{n}")) };
        match ring.enqueue_for(100 * MS, job).await {
            Ok(job) => {
                accepted.push(job.id);
                count.fetch_add(1, Ordering::Relaxed);
            }
            // The job may exist, and then it is processed like all others.
            Err(EnqueueError::Store { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        tokio::time::sleep(MS).await;
    }
    accepted
}

/// Processes jobs until `stop`, and retries failed settles. Returns the ids that were delivered.
async fn work(
    ring: Arc<TestRing>,
    dispatcher: Dispatcher,
    stop: CancellationToken,
) -> HashSet<JobId> {
    let settings = StreamOptions { lease: 400 * MS, max_in_flight: CREDIT, ..options(&["t"]) };
    let mut worker = TestWorker::new(dispatcher.open(settings).unwrap());
    let mut seen = HashSet::new();
    loop {
        let batch = tokio::select! {
            () = stop.cancelled() => return seen,
            batch = worker.batch() => batch,
        };
        assert!(batch.deliveries.len() <= CREDIT as usize && batch.in_flight <= CREDIT);
        seen.extend(batch.deliveries.iter().map(|delivery| delivery.job.key.id.clone()));
        let item = |delivery: &JobDelivery| AckItem {
            receipt: delivery.receipt.clone(),
            result: None,
            follow_ups: Vec::new(),
        };
        // One attempt: a job that it does not settle comes again when its lease is over.
        let items = batch.deliveries.iter().map(item).collect();
        let _ = tokio::time::timeout(300 * MS, ring.scheduler.settler.ack(items)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_however_shards_fail() {
    let seed = rand::rng().random();
    eprintln!("seed {seed}");
    let ring = Arc::new(TestRing::new(4));
    let config = Config { streams_max: 100, stream_max_age: Duration::ZERO };
    let dispatcher = Dispatcher::spawn(ring.scheduler.settler.clone(), config);
    let [chaos, producing, working] = [(); 3].map(|()| CancellationToken::new());
    let timer = Timer::spawn(&ring.scheduler.upkeep, &working);
    let nemesis = tokio::spawn(nemesis(Arc::clone(&ring), seed, chaos.clone()));
    let count = Arc::new(AtomicUsize::new(0));
    let producer = |who| produce(Arc::clone(&ring), who, Arc::clone(&count), producing.clone());
    let producers: Vec<_> = ["a", "b", "c"].map(|who| tokio::spawn(producer(who))).into();
    let workers: Vec<_> = (0..3)
        .map(|_| tokio::spawn(work(Arc::clone(&ring), dispatcher.clone(), working.clone())))
        .collect();
    tokio::time::sleep(2_500 * MS).await;
    eventually("enough is accepted", async || {
        (count.load(Ordering::Relaxed) >= ENOUGH).then_some(())
    })
    .await;
    chaos.cancel();
    nemesis.await.unwrap();
    tokio::time::sleep(300 * MS).await;
    producing.cancel();
    let mut accepted = Vec::new();
    for producer in producers {
        accepted.extend(producer.await.unwrap());
    }
    eventually("everything is done", async || {
        let stats = ring.stats("t").await;
        let open: u64 = stats.iter().map(|s| s.ready + s.running + s.scheduled + s.backoff).sum();
        (open == 0).then_some(())
    })
    .await;
    working.cancel();
    let mut seen = HashSet::new();
    for worker in workers {
        seen.extend(worker.await.unwrap());
    }
    timer.stopped().await;
    eprintln!("{} accepted", accepted.len());
    let lost: Vec<_> = accepted.iter().filter(|id| !seen.contains(id)).collect();
    assert_eq!(lost, Vec::<&JobId>::new());
    let stats = ring.stats("t").await;
    let dead: u64 = stats.iter().map(|stats| stats.dead).sum();
    let done: u64 = stats.iter().map(|stats| stats.succeeded_total).sum();
    let made: u64 = stats.iter().map(|stats| stats.enqueued_total).sum();
    assert_eq!((dead, done), (0, made));
    dispatcher.close().await;
}
