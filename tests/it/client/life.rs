//! Ends of workers: stop, max_jobs, idle_exit, a refused stream.

use std::sync::Arc;
use std::time::Instant;

use ringq::client::Worker;
use ringq::pb::JobState;
use tokio::sync::Semaphore;
use tonic::Code;

use super::{Count, Running, connect, enqueue, jobs};
use crate::harness::{Redis, Server, Setup, eventually, millis, within};

/// Builds a handler that waits for a permit, counted when it begins.
fn gated() -> (Count, Arc<Semaphore>, impl Fn(ringq::client::Delivery) -> Gated + Clone) {
    let (begun, gate) = (Count::default(), Arc::new(Semaphore::new(0)));
    let handler = {
        let (begun, gate) = (begun.clone(), Arc::clone(&gate));
        move |_| {
            begun.add();
            let gate = Arc::clone(&gate);
            Box::pin(async move { gate.acquire().await.unwrap().forget() }) as Gated
        }
    };
    (begun, gate, handler)
}

type Gated = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

#[tokio::test]
async fn a_stop_finishes_what_runs_and_gives_back_what_waits() {
    let server = Server::start().await;
    let (client, look) = (connect(&server), server.connect().await);
    enqueue(&client, jobs("t", 8)).await;
    let (begun, gate, handler) = gated();
    let worker = Worker::new(client.clone(), ["t"]).concurrency(3).prefetch(5);
    let worker = Running::start(worker, handler);
    begun.reaches(3).await;
    eventually("8 are here", async || (look.stats("t").await.running == 8).then_some(())).await;
    worker.request_stop();
    // Another worker gets the waiting jobs, which were released: three run on.
    let other = Worker::new(client, ["t"]).concurrency(5).max_jobs(5);
    let other = within("the others", other.run(|_| async {}, std::future::pending())).await;
    assert_eq!(other.unwrap().acked, 5);
    assert_eq!(look.stats("t").await.running, 3);
    // Running jobs outlive the grace of the cancelled stream, 5 s.
    tokio::time::sleep(millis(5_600)).await;
    gate.add_permits(3);
    let summary = worker.ended().await;
    assert_eq!((summary.acked, summary.released, summary.unsettled), (3, 5, 0), "{summary:?}");
    let all = look.list("t", JobState::Succeeded).await;
    assert_eq!((all.len(), all.iter().map(|job| job.failures).sum::<i32>()), (8, 0));
    assert_eq!(begun.get(), 3);
}

#[tokio::test]
async fn a_worker_ends_after_its_jobs_and_leaves_the_others() {
    let server = Server::start().await;
    let (client, look) = (connect(&server), server.connect().await);
    enqueue(&client, jobs("t", 30)).await;
    for (max, left) in [(0, 30), (1, 29), (19, 10)] {
        let worker = Worker::new(client.clone(), ["t"]).concurrency(4).max_jobs(max);
        let done = within("the jobs", worker.run(|_| async {}, std::future::pending())).await;
        assert_eq!(done.unwrap().acked, max);
        let stats = look.stats("t").await;
        assert_eq!((stats.ready, stats.running), (left, 0));
    }
}

#[tokio::test]
async fn an_idle_worker_ends_after_its_last_job() {
    let server = Server::start().await;
    let client = connect(&server);
    let start = Instant::now();
    let idle = || Worker::new(client.clone(), ["t"]).idle_exit(millis(300));
    let none = within("the end", idle().run(|_| async {}, std::future::pending())).await.unwrap();
    assert_eq!(none.acked, 0);
    assert!(start.elapsed() >= millis(300));
    // A running job is no idle time, however long it takes.
    enqueue(&client, jobs("t", 1)).await;
    let slow = |_| tokio::time::sleep(millis(700));
    let one = within("the end", idle().run(slow, std::future::pending())).await.unwrap();
    assert_eq!(one.acked, 1);
}

#[tokio::test]
async fn a_worker_whose_ack_has_no_answer_is_not_idle() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::new().ring(vec![format!("a={}", redis.url())]).start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 2)).await;
    let (begun, gate, handler) = gated();
    let worker = Worker::new(client, ["t"]).prefetch(0).idle_exit(millis(200));
    let worker = Running::start(worker, handler);
    begun.reaches(1).await;
    redis.pause();
    gate.add_permits(2);
    tokio::time::sleep(millis(1_000)).await;
    redis.resume();
    assert_eq!(worker.ended().await.acked, 2, "the other one waited for the shard");
}

#[tokio::test]
async fn without_a_connection_no_worker_is_idle() {
    let mut server = Setup::new().restartable().start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 1)).await;
    server.kill().await;
    let worker = Worker::new(client, ["t"]).idle_exit(millis(50));
    let worker = Running::start(worker, |_| async {});
    tokio::time::sleep(millis(300)).await;
    server.restart().await;
    assert_eq!(worker.ended().await.acked, 1);
}

#[tokio::test]
async fn a_stream_that_is_refused_for_good_is_an_error() {
    let server = Server::start().await;
    let client = connect(&server);
    let bad = [
        (Worker::new(client.clone(), ["no topic"]), "topics[0]"),
        (Worker::new(client.clone(), ["t"]).lease(millis(1)), "lease_duration"),
        (Worker::new(client.clone(), Vec::<String>::new()), "topics"),
    ];
    for (worker, field) in bad {
        let run = worker.run(|_| async {}, std::future::pending());
        let error = within("the refusal", run).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some(field)));
    }
}

#[tokio::test]
async fn a_stop_before_there_is_a_connection_is_one() {
    let mut server = Server::start().await;
    let client = connect(&server);
    server.kill().await;
    let worker = Running::start(Worker::new(client, ["t"]), |_| async {});
    assert_eq!(worker.stop().await, ringq::client::Summary::default());
}
