//! Crashes of workers are counted apart from failures: `RetryPolicy.max_crashes`.

use ringq::pb::{JobState, RetryPolicy, StreamRequest};

use crate::harness::{Setup, job, millis, proto, take};

const GRACE_MS: u64 = 300;

fn policy(max_crashes: i32) -> RetryPolicy {
    RetryPolicy { max_crashes, delays: vec![proto(millis(0))], ..Default::default() }
}

fn holding() -> StreamRequest {
    StreamRequest { orphan_grace: Some(proto(millis(GRACE_MS))), ..take("t") }
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
