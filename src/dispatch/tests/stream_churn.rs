//! Streams that open and close at random.

use rand::{Rng as _, SeedableRng as _};

use super::harness::{TestServer, options, pull_options};
use super::*;

/// Runs a worker that opens streams and pulls, settles part of its jobs, and leaves.
async fn unsteady(server: Arc<TestServer>, seed: u64, topics: [&'static str; 3]) {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let moment = |n: u64| Duration::from_millis(n);
    for _ in 0..25 {
        let topics = if random.random() { vec!["mail.*", "c"] } else { topics.to_vec() };
        let wait = moment(random.random_range(0..15));
        if random.random_ratio(1, 3) {
            let pull = server.dispatcher.pull(pull_options(&topics, 3, moment(10)));
            if let Ok(got) = tokio::time::timeout(wait, pull).await {
                let (got, handover) = got.unwrap();
                if random.random() {
                    handover.confirm();
                    server.ack(&got).await;
                }
            }
            continue;
        }
        let grace = moment(20);
        let credit = random.random_range(1..5);
        let settings = options(&topics);
        let mut stream =
            server.open(StreamOptions { orphan_grace: grace, max_in_flight: credit, ..settings });
        let mut held = 0;
        while let Ok(batch) = tokio::time::timeout(wait, stream.batch()).await {
            held += batch.deliveries.len();
            assert!(held <= credit as usize, "{held} of {credit}");
            let n = random.random_range(0..=batch.deliveries.len());
            server.ack(&batch.deliveries[..n]).await;
            held -= n;
        }
    }
}

/// Workers that open streams, take jobs, settle some and break, and callers that cancel: no job is lost, none is held
/// for ever, and no stream has more jobs than its credit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_among_streams_that_come_and_go() {
    const JOBS: u64 = 600;
    let server = Arc::new(TestServer::start_in_real_time());
    let topics = ["mail.a", "mail.b", "c"];
    let tasks: Vec<_> =
        (0..6_u64).map(|seed| tokio::spawn(unsteady(Arc::clone(&server), seed, topics))).collect();
    for _ in 0..20 {
        for topic in topics {
            server.enqueue(topic, 10).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut stream = server.open(StreamOptions { max_in_flight: 5, ..options(&["*"]) });
    while server.succeeded(topics).await < JOBS {
        let jobs = stream.some_jobs().await;
        server.ack(&jobs).await;
    }
}
