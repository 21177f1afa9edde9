use std::time::Duration;

use futures::future::join_all;
use ringq::pb::GetRequest;
use tokio::time::Instant;
use tonic::{Code, Request};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, Redis, Setup, assert_refused, eventually, http_get, job, millis, request, within,
};

/// Number of calls that a shard has in flight.
const IN_FLIGHT: usize = 2;
/// Number of calls that wait behind them.
const WAITING: usize = 50;

/// A Redis that stands still keeps two calls, and the others wait. Those that enqueue are refused after two seconds, before
/// the shard is found down after three, with the delay of a retry in both forms; an Ack waits as long as it can.
#[tokio::test]
async fn calls_that_wait_too_long_are_refused_and_settles_are_not() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let held = client.pull_one("mail").await;
    redis.pause();
    let paused = Instant::now();
    let mut in_flight = Vec::new();
    for _ in 0..IN_FLIGHT {
        in_flight.push(tokio::spawn(enqueue(client.clone())));
        tokio::time::sleep(millis(50)).await;
    }
    let (acking, receipt) = (client.clone(), held.receipt.clone());
    let ack = tokio::spawn(async move { acking.ack(&receipt).await });
    let waiting = join_all((0..WAITING).map(|_| enqueue(client.clone())));
    let refused = within("refusals", waiting).await;
    let took = paused.elapsed();
    assert!(took >= Duration::from_secs(2), "a short pause refuses none: {took:?}");
    for answer in refused {
        let status = answer.unwrap_err();
        assert_refused(&status, Code::ResourceExhausted, "RATE_LIMITED", "");
        let delay = status.get_details_retry_info().unwrap().retry_delay;
        assert_eq!(delay, Some(Duration::from_secs(1)));
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
        assert!(status.message().contains("nothing was written"), "{status:?}");
    }
    let get = GetRequest { topic: "mail".into(), id: "x".into(), ..Default::default() };
    let read = within("a refusal", client.queue.clone().get(Request::new(get))).await;
    assert_refused(&read.unwrap_err(), Code::ResourceExhausted, "RATE_LIMITED", "");
    assert!(!ack.is_finished(), "a settle is not refused");
    redis.resume();
    within("the ack", ack).await.unwrap();
    for call in in_flight {
        within("a call in flight", call).await.unwrap().unwrap();
    }
    eventually("new jobs are taken", async || enqueue(client.clone()).await.ok()).await;
    let metrics = http_get(server.http, "/metrics").await.1;
    let line = r#"ringq_store_errors_total{op="enqueue",reason="RATE_LIMITED",shard="s0"} 50"#;
    assert!(metrics.contains(line), "{metrics}");
}

async fn enqueue(client: Client) -> Result<(), tonic::Status> {
    client.send(request(job("mail"))).await.map(|_| ())
}
