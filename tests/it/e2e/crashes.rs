//! Crashes of workers are counted apart from failures: `RetryPolicy.max_crashes`.

use ringq::pb::{JobState, NackAction, RetryPolicy, StreamRequest};

use crate::harness::{Client, Server, Setup, job, millis, nack, nack_retry, proto, take};

const GRACE_MS: u64 = 300;

fn policy(max_crashes: i32) -> RetryPolicy {
    RetryPolicy { max_crashes, delays: vec![proto(millis(0))], ..Default::default() }
}

fn holding() -> StreamRequest {
    StreamRequest { orphan_grace: Some(proto(millis(GRACE_MS))), ..take("t") }
}

/// Takes a job and cuts the stream.
async fn crash(client: &Client) -> i32 {
    let mut worker = client.stream(holding()).await;
    worker.next().await.crashes
}

#[tokio::test]
async fn a_job_whose_streams_break_is_dead_at_its_limit_of_crashes() {
    let server = Server::start().await;
    let client = server.connect().await;
    let spec = job("t").with_id("a").with_text("poison");
    client.enqueue(spec.with_retry(RetryPolicy { max_attempts: 1, ..policy(3) })).await;
    for crashes in 0..3 {
        assert_eq!(crash(&client).await, crashes);
    }
    let dead = client.until("t", "a", JobState::Dead).await;
    assert_eq!((dead.crashes, dead.failures, dead.deliveries), (3, 0, 3));
    assert!(dead.last_error.contains("crash 3, and max_crashes allows no more"), "{dead:?}");
    assert_eq!(dead.attempts[0].error, dead.last_error);
}

#[tokio::test]
async fn a_nack_is_no_crash_and_an_expired_lease_is_one() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a").with_retry(policy(1))).await;
    for _ in 0..3 {
        let delivery = client.pull_one("t").await;
        client.nack(nack_retry(&delivery.receipt, "no")).await;
    }
    let delivery = client.pull_one("t").await;
    client.nack(nack(&delivery.receipt, NackAction::Release)).await;
    let delivery = client.pull_one("t").await;
    assert_eq!((delivery.crashes, delivery.attempt), (0, 4));
    client.extend(&delivery.receipt, millis(1_000)).await;
    let dead = client.until("t", "a", JobState::Dead).await;
    assert_eq!((dead.crashes, dead.failures), (1, 4));
    assert!(dead.last_error.contains("the lease expired"), "{}", dead.last_error);
    assert!(dead.last_error.contains("max_crashes"), "{}", dead.last_error);
}

#[tokio::test]
async fn neither_the_kill_nor_the_drain_of_a_server_is_a_crash() {
    let mut server = Setup::new().config("shutdown_grace = \"100ms\"").restartable().start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("killed").with_retry(policy(1))).await;
    let mut worker = client.stream(holding()).await;
    assert_eq!(worker.next().await.id, "killed");
    server.kill().await;
    server.restart().await;
    let client = server.connect().await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 2, ..holding() }).await;
    let back = worker.next().await;
    assert_eq!((&*back.id, back.crashes, back.delivery), ("killed", 0, 2));
    client.ack(&back.receipt).await;
    client.enqueue(job("t").with_id("drained").with_retry(policy(1))).await;
    assert_eq!(worker.next().await.id, "drained");
    server.terminate();
    worker.end().await;
    drop(worker);
    server.exit().await;
    server.restart().await;
    let client = server.connect().await;
    // The server has ended the stream: the lease lasts, and is released by its worker.
    let drained = client.get("t", "drained").await;
    assert_eq!((drained.state(), drained.crashes), (JobState::Running, 0));
}
