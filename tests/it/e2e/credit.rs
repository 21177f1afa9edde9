//! Credit when every Ack goes to another replica than the stream's, and hints of it get lost: never more jobs than
//! requested, and never stuck.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng as _;
use ringq::pb::{Delivery, StreamRequest};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::harness::{
    Client, LossyProxy, PATIENCE, Redis, Setup, eventually, for_a_while, job, millis, receipts,
    take,
};

/// Share of all hints that is lost.
const LOST: f64 = 0.05;
/// Time is counted in ticks, so that a machine that stands still does not count.
const TICK: Duration = millis(20);
/// Streams per replica.
const STREAMS: usize = 2;

/// State that all workers share.
struct Books {
    jobs: usize,
    delivered: AtomicUsize,
    ids: Mutex<HashSet<String>>,
    /// Longest time in ticks for which a stream got nothing although jobs were ready.
    gap: AtomicUsize,
}

/// A stream, its credit, and the replica for its Acks.
struct Worker {
    stream: tonic::Streaming<ringq::pb::StreamResponse>,
    credit: i64,
    acks: Client,
    books: Arc<Books>,
    /// Number of jobs delivered and not settled yet, by the worker's own count.
    held: Arc<AtomicI64>,
    acking: JoinSet<()>,
}

/// Returns the number of jobs: `RINGQ_CREDIT_JOBS`, or a default that suits every test run.
fn jobs_asked_for() -> usize {
    std::env::var("RINGQ_CREDIT_JOBS").map_or(20_000, |jobs| jobs.parse().unwrap())
}

async fn enqueue(client: &Client, jobs: usize) {
    for done in (0..jobs).step_by(10_000) {
        client.enqueue_all(vec![job("t"); (jobs - done).min(10_000)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credit_holds_and_comes_back_when_every_ack_goes_elsewhere_and_hints_are_lost() {
    let Some(redis) = Redis::start().await else { return };
    let proxy = LossyProxy::start(&redis, LOST).await;
    let serve = || Setup::on(&proxy.url()).start();
    let servers = [serve().await, serve().await];
    let clients = [servers[0].connect().await, servers[1].connect().await];
    let jobs = jobs_asked_for();
    // Large enough that one lost hint does not use up all credit, small enough that many lost hints do.
    let credit = if jobs > 100_000 { 1_000 } else { 100 };
    enqueue(&clients[0], jobs).await;
    let books = Arc::new(Books {
        jobs,
        delivered: AtomicUsize::new(0),
        ids: Mutex::default(),
        gap: AtomicUsize::new(0),
    });
    let begin = Instant::now();
    let mut workers = JoinSet::new();
    for n in 0..2 * STREAMS {
        let (own, other) = (&clients[n % 2], &clients[(n + 1) % 2]);
        let worker = Worker::open(own, other, credit, Arc::clone(&books)).await;
        let watch = other.clone();
        workers.spawn(worker.run(watch));
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
    let (lost, passed) = proxy.messages();
    println!(
        "{jobs} jobs in {:.1} s, {lost} of {} hints lost, longest without a job {:.1} s",
        begin.elapsed().as_secs_f64(),
        lost + passed,
        (TICK * u32::try_from(books.gap.load(Ordering::Relaxed)).unwrap()).as_secs_f64(),
    );
    assert!(lost > 0, "the proxy has lost nothing, so this proves nothing");
    assert_eq!(books.ids.lock().unwrap().len(), jobs, "each job once");
    let stats = clients[0].stats("t").await;
    assert_eq!((stats.succeeded_total, stats.running), (jobs as i64, 0));
}

// === impl Worker ===

impl Worker {
    async fn open(own: &Client, other: &Client, credit: i64, books: Arc<Books>) -> Worker {
        let request = StreamRequest { max_in_flight: credit as i32, ..take("t") };
        let stream = own.queue.clone().stream(request).await.unwrap().into_inner();
        let (held, acking) = (Arc::default(), JoinSet::new());
        Worker { stream, credit, acks: other.clone(), books, held, acking }
    }

    /// Works until all jobs are done; `watch` is asked whether any are left.
    async fn run(mut self, watch: Client) {
        let mut ticks = 0;
        while self.books.delivered.load(Ordering::Relaxed) < self.books.jobs {
            match for_a_while(TICK, self.stream.message()).await {
                Some(message) => {
                    let message = message.unwrap().expect("the stream goes on");
                    assert!(i64::from(message.in_flight) <= self.credit, "{}", message.in_flight);
                    assert_eq!(message.revocations, [], "nothing runs out here");
                    if !message.deliveries.is_empty() {
                        self.books.gap.fetch_max(ticks, Ordering::Relaxed);
                        ticks = 0;
                        self.take(message.deliveries);
                    }
                }
                None => {
                    ticks += 1;
                    let stuck = TICK * u32::try_from(ticks).unwrap() > PATIENCE;
                    assert!(!stuck || watch.stats("t").await.ready == 0, "stuck for {PATIENCE:?}");
                }
            }
        }
        while let Some(acked) = self.acking.join_next().await {
            acked.unwrap();
        }
    }

    /// Finishes jobs after a moment, at the other replica.
    fn take(&mut self, deliveries: Vec<Delivery>) {
        let (count, books) = (deliveries.len(), &self.books);
        let held = self.held.fetch_add(count as i64, Ordering::SeqCst) + count as i64;
        assert!(held <= self.credit, "{held} at once with a credit of {}", self.credit);
        let mut ids = books.ids.lock().unwrap();
        assert!(deliveries.iter().all(|delivery| ids.insert(delivery.id.clone())), "each once");
        drop(ids);
        books.delivered.fetch_add(count, Ordering::Relaxed);
        let (client, held) = (self.acks.clone(), Arc::clone(&self.held));
        let pause = millis(rand::rng().random_range(0..8));
        self.acking.spawn(async move {
            tokio::time::sleep(pause).await;
            // Not held any more from the moment at which the server may have settled it.
            held.fetch_sub(count as i64, Ordering::SeqCst);
            client.ack_all(&receipts(&deliveries)).await;
        });
        while self.acking.try_join_next().is_some_and(|acked| {
            acked.unwrap();
            true
        }) {}
    }
}

#[tokio::test]
async fn with_no_hint_at_all_jobs_and_credit_come_a_little_later() {
    let Some(redis) = Redis::start().await else { return };
    let proxy = LossyProxy::start(&redis, 1.0).await;
    let serve = || Setup::on(&proxy.url()).start();
    let (one, other) = (serve().await, serve().await);
    let (here, there) = (one.connect().await, other.connect().await);
    let mut worker = here.stream(StreamRequest { max_in_flight: 1, ..take("t") }).await;
    worker.quiet(millis(200)).await;
    for _ in 0..2 {
        there.enqueue_all(vec![job("t"); 2]).await;
        for _ in 0..2 {
            let begin = Instant::now();
            let delivery = worker.next().await;
            println!("a job after {:?}", begin.elapsed());
            there.ack(&delivery.receipt).await;
        }
        eventually("both are done", async || (there.stats("t").await.running == 0).then_some(()))
            .await;
    }
    assert!(worker.messages.iter().all(|message| message.revocations == 0));
    assert_eq!(proxy.messages().1, 0);
}
