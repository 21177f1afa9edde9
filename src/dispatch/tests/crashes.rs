//! Crashes: leases of streams that their workers broke, and ends that are none.

use tokio::sync::oneshot;

use super::harness::{TestServer, TestWorker, options, run_pending_tasks};
use super::*;

/// Longer than the grace of the streams.
const BEYOND_GRACE: Duration = Duration::from_secs(6);

/// Waits until the job of the topic is back, and returns its crashes.
async fn crashes(server: &TestServer) -> u32 {
    server.clock.advance(BEYOND_GRACE);
    server.eventually("t", |stats| stats.running == 0).await;
    let mut next = server.open(options(&["t"]));
    let back = next.jobs(1).await;
    server.ack(&back).await;
    assert_eq!((back[0].job.failures, back[0].job.deliveries), (0, 1));
    back[0].job.crashes
}

/// Opens a stream that has one job and that the server ends when the sender is used.
async fn holding(server: &TestServer) -> (TestWorker, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel::<()>();
    // A sender that is dropped ends nothing.
    let ends = async {
        if ended.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let outbox = server.dispatcher.open_until(options(&["t"]), ends).unwrap();
    let mut worker = TestWorker::new(outbox);
    server.enqueue("t", 1).await;
    worker.jobs(1).await;
    (worker, end)
}

#[tokio::test]
async fn a_stream_that_its_worker_broke_is_a_crash_of_its_jobs() {
    let server = TestServer::start();
    let (worker, _end) = holding(&server).await;
    drop(worker);
    run_pending_tasks().await;
    assert_eq!(crashes(&server).await, 1);
}

#[tokio::test]
async fn a_stream_that_drained_is_no_crash_even_if_its_worker_breaks_it() {
    let server = TestServer::start();
    let (worker, end) = holding(&server).await;
    end.send(()).unwrap();
    run_pending_tasks().await;
    // Without reading that the stream drains.
    drop(worker);
    run_pending_tasks().await;
    assert_eq!(crashes(&server).await, 0);
}

#[tokio::test]
async fn a_stream_that_ended_without_a_job_and_was_not_read_is_no_crash() {
    let server = TestServer::start();
    let idle = Some(Duration::from_secs(70));
    let mut worker = server.open(StreamOptions { idle_timeout: idle, ..options(&["t"]) });
    server.enqueue("t", 1).await;
    worker.jobs(1).await;
    for seconds in [71, 11] {
        tokio::time::pause();
        tokio::time::advance(seconds * SECOND).await;
        tokio::time::resume();
        run_pending_tasks().await;
    }
    assert!(worker.cut().is_cancelled(), "its transport is dropped");
    drop(worker);
    assert_eq!(crashes(&server).await, 0);
}

#[tokio::test]
async fn the_end_of_a_server_is_no_crash() {
    let server = TestServer::start();
    let (worker, _end) = holding(&server).await;
    server.dispatcher.kill();
    drop(worker);
    let next = server.restart();
    run_pending_tasks().await;
    assert_eq!(crashes(&next).await, 0);
}

#[tokio::test]
async fn a_worker_that_cancels_after_an_extend_has_not_crashed() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let mut worker = server.open(options(&["t"]));
    let held = worker.jobs(1).await;
    server.extend(&held).await;
    drop(worker);
    run_pending_tasks().await;
    server.clock.advance(BEYOND_GRACE);
    run_pending_tasks().await;
    assert_eq!(server.stats("t").await.running, 1, "it goes on with the job");
    server.ack(&held).await;
}
