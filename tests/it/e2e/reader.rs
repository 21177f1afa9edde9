use std::time::Duration;

use ringq::pb::StreamRequest;
use tokio::time::Instant;

use crate::harness::{JobExt as _, Server, job, millis, take, thorough};

/// A worker takes one message per second although it asked for everything: unread jobs must stay in the store, not in
/// the server's memory.
///
/// RINGQ_TEST_THOROUGH=1 reads for a minute, from a thousand jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_costs_the_server_little_memory() {
    const BYTES: usize = 1 << 20;
    const ABOVE_IDLE: u64 = 96 << 20;
    let (jobs, reading) =
        if thorough() { (1_000, Duration::from_secs(60)) } else { (150, millis(9_000)) };
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("small")).await;
    let idle = server.rss_bytes();
    let mut peak = 0;
    for _ in 0..jobs {
        client.enqueue(job("files").with_bytes(BYTES)).await;
        peak = peak.max(server.rss_bytes());
    }
    let request =
        StreamRequest { max_in_flight: 1_000, max_in_flight_bytes: 4 << 30, ..take("files") };
    let reader = server.connect().await;
    let mut worker = reader.stream(request).await;
    let begin = Instant::now();
    let (mut received, mut next) = (0, begin);
    while begin.elapsed() < reading {
        tokio::time::sleep_until(next).await;
        next += millis(1_000);
        let delivery = worker.next().await;
        received += 1 + worker.unread();
        assert_eq!(worker.unread(), 0, "one job of 1 MiB travels alone");
        drop(delivery);
        while Instant::now() < next {
            peak = peak.max(server.rss_bytes());
            tokio::time::sleep(millis(50)).await;
        }
    }
    let above = peak.saturating_sub(idle);
    eprintln!("a slow reader: {} MiB above idle at most", above >> 20);
    assert!(above <= ABOVE_IDLE, "{} MiB above idle", above >> 20);
    let running = client.stats("files").await.running;
    assert!(running < jobs / 2, "{running} of {jobs} jobs leased, {received} received");
    // Other streams are served meanwhile.
    let mut other = client.stream(take("small")).await;
    other.next().await;
}
