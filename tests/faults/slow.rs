//! Workers that read slowly or not at all, with a large credit: the data that waits for them is bounded, their jobs
//! go to others, and all other streams continue.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use ringq::pb::{AckItem, RetryPolicy, StreamRequest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::checker::history::Event;
use crate::cluster::Shape;
use crate::harness::raw::queue_on;
use crate::harness::{Client, JobExt as _, job, millis, proto, receipts, take};
use crate::load::Habits;
use crate::trial::{Trial, harm_time};

const TOPIC: &str = "slow";
const JOBS: usize = 300;
const BODY_BYTES: usize = 100_000;
/// Credit as large as the number of jobs.
const CREDIT: i32 = 1_000;
const FAST_CREDIT: i32 = 40;
/// Bytes that a stream may hold unsettled, of the 30 MB in the topic.
const UNSETTLED_BYTES: usize = 8 << 20;
/// Allowed growth of a replica: a part of the data.
const MEMORY_BYTES: u64 = 24 << 20;
/// HTTP/2 would let all of them pass: the socket is the limit.
const WINDOW_BYTES: u32 = 1 << 30;
const LEASE: Duration = Duration::from_secs(2);
/// Time limit for a fast worker to get all jobs, after those of the slow one have expired.
const PATIENCE: Duration = Duration::from_secs(60);

/// A socket that can stop reading: then its window fills and stays full.
struct Socket {
    inner: TcpStream,
    reads: Arc<AtomicBool>,
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.reads.load(Relaxed) {
            // Stops for good: no task has to be woken.
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Builds the stream request of all workers here.
fn wants_all() -> StreamRequest {
    StreamRequest {
        max_in_flight: CREDIT,
        max_batch: 1,
        max_in_flight_bytes: i64::try_from(UNSETTLED_BYTES).unwrap(),
        lease_duration: Some(proto(LEASE)),
        ..take(TOPIC)
    }
}

/// Enqueues jobs for the topic, through another replica than the one that is watched.
async fn fill(trial: &Trial) -> Client {
    let client = Client::connect(trial.cluster.replica[1].grpc).await;
    // Never given up, however often a lease expires.
    let retry =
        RetryPolicy { max_attempts: -1, delays: vec![proto(millis(50))], ..RetryPolicy::default() };
    let large = job(TOPIC).with_bytes(BODY_BYTES).with_retry(retry);
    for _ in 0..JOBS / 30 {
        client.enqueue_all(vec![large.clone(); 30]).await;
    }
    client
}

/// Runs the trial for a while; returns the growth of the replica and the most bytes of the topic that were leased to
/// a worker or on the way to one.
async fn watch(trial: &Trial, client: &Client, time: Duration) -> (u64, usize) {
    let (replica, limit) = (&trial.cluster.replica[0], Instant::now() + time);
    let (before, mut grown, mut running) = (replica.rss_bytes(), 0, 0);
    while Instant::now() < limit {
        grown = grown.max(replica.rss_bytes().saturating_sub(before));
        running = running.max(client.stats(TOPIC).await.running);
        tokio::time::sleep(millis(50)).await;
    }
    (grown, usize::try_from(running).unwrap() * BODY_BYTES)
}

/// Checks that another worker, on the same replica, gets all jobs.
async fn another_takes_all(trial: &Trial, client: &Client) {
    let begin = Instant::now();
    let fast = Client::connect(trial.cluster.replica[0].grpc).await;
    let request = StreamRequest { max_in_flight: FAST_CREDIT, max_batch: 20, ..wants_all() };
    let mut worker = fast.stream(request).await;
    loop {
        if let Ok(job) = tokio::time::timeout(millis(300), worker.next()).await {
            let more = worker.unread();
            let jobs = [vec![job], worker.next_many(more).await].concat();
            let ack = |receipt| AckItem { receipt, ..AckItem::default() };
            // Jobs that came too late on a busy machine come again.
            fast.ack_items(receipts(&jobs).into_iter().map(ack).collect()).await;
        } else {
            let stats = client.stats(TOPIC).await;
            if stats.succeeded_total == stats.enqueued_total {
                println!("another worker had all after {:?}", begin.elapsed());
                return;
            }
        }
        if begin.elapsed() >= PATIENCE {
            panic!("not all jobs come to others: {:?}", client.stats(TOPIC).await);
        }
    }
}

impl Trial {
    /// Returns how many jobs of the load the replica has delivered.
    fn delivered_by(&self, number: u32) -> usize {
        let events = self.shared().history.events();
        let of_it = |event: &&Event| matches!(event, Event::Delivered(d) if d.server == number);
        events.iter().filter(of_it).count()
    }

    /// Checks that the replica stays bounded and the load continues while it serves a worker that does not read.
    async fn bears_with_it(&self, client: &Client, name: &str) {
        let flowed = self.delivered_by(0);
        let (grown, running) = watch(self, client, harm_time()).await;
        let flowed = self.delivered_by(0) - flowed;
        println!("{name}: grown by {grown} bytes, {running} unsettled, {flowed} jobs of others");
        assert!(grown < MEMORY_BYTES, "the replica has grown by {grown} bytes");
        assert!(running <= UNSETTLED_BYTES, "{running} bytes are unsettled");
        assert!(running > BODY_BYTES, "the worker gets nothing");
        assert!(flowed > 0, "nothing flows to others");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn reads_a_message_a_second() {
    let name = "reads_slowly";
    let Some(trial) = Trial::start(name, Shape::default(), Habits::default()).await else { return };
    let client = fill(&trial).await;
    let slow = Client::connect(trial.cluster.replica[0].grpc).await;
    let mut worker = slow.stream(wants_all()).await;
    let reading = tokio::spawn(async move {
        loop {
            worker.next().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    trial.note("a worker reads a message a second");
    trial.bears_with_it(&client, name).await;
    another_takes_all(&trial, &client).await;
    reading.abort();
    trial.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn reads_nothing_any_more() {
    let name = "reads_nothing";
    let Some(trial) = Trial::start(name, Shape::default(), Habits::default()).await else { return };
    let client = fill(&trial).await;
    let grpc = trial.cluster.replica[0].grpc;
    let reads = Arc::new(AtomicBool::new(true));
    let inner = TcpStream::connect(grpc).await.unwrap();
    let mut queue =
        queue_on(Socket { inner, reads: Arc::clone(&reads) }, grpc, Some(WINDOW_BYTES)).await;
    let mut stream = queue.stream(wants_all()).await.unwrap().into_inner();
    stream.message().await.unwrap().expect("the settings");
    reads.store(false, Relaxed);
    trial.note("a worker reads nothing any more");
    trial.bears_with_it(&client, name).await;
    another_takes_all(&trial, &client).await;
    trial.finish().await;
    drop(stream);
}
