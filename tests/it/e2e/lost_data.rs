//! Shards that come back without their data, and files that are moved while they are in use: operators are warned.

use std::fs;

use tonic::Code;

use super::full_log::series;
use crate::harness::{Redis, Server, Setup, eventually, http_get, job, request};

async fn losses(server: &Server) -> f64 {
    let (_, metrics) = http_get(server.http, "/metrics").await;
    series(&metrics, "ringq_shard_data_lost_total{shard=\"s0\"}")
}

/// Waits for the line about a loss, and returns how many there are.
async fn warned(servers: &[&Server], text: &str) -> usize {
    let count = || servers.iter().map(|server| server.log().matches(text).count()).sum();
    eventually(text, async || Some(count()).filter(|count| *count > 0)).await
}

const EMPTIED: &str = "the shard came back without its data";

#[tokio::test]
async fn an_emptied_redis_is_reported() {
    let Some(mut redis) = Redis::start().await else { return };
    let servers = [Setup::on(&redis.url()).start().await, Setup::on(&redis.url()).start().await];
    let servers = servers.each_ref();
    servers[0].connect().await.enqueue(job("t")).await;
    assert_eq!(
        losses(servers[0]).await + losses(servers[1]).await,
        0.0,
        "a new shard has lost nothing"
    );
    redis.command(&["FLUSHALL"]).await;
    assert_eq!(warned(&servers, EMPTIED).await, 1);
    assert_eq!(losses(servers[0]).await + losses(servers[1]).await, 1.0);
    redis.kill();
    redis.restart().await;
    eventually("it is reported again", async || {
        (warned(&servers, EMPTIED).await == 2).then_some(())
    })
    .await;
}

/// Sets heartbeats back by a minute, as a copy from then has them.
const AGED: &str = "local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local time, ring = string.match(all[i + 1], '^(%d+)( .*)$')
  redis.call('HSET', KEYS[1], all[i], string.format('%.0f', time - 60000000) .. ring)
end";

#[tokio::test]
async fn an_older_copy_is_reported() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    server.connect().await.enqueue(job("t")).await;
    redis.command(&["EVAL", AGED, "1", "ringq:{s0}:replicas"]).await;
    assert_eq!(warned(&[&server], "the shard came back with an older copy of its data").await, 1);
    assert_eq!(losses(&server).await, 1.0);
}

#[tokio::test]
async fn a_file_that_was_moved_takes_no_new_jobs_until_it_is_back() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t")).await;
    let delivery = client.pull_one("t").await;
    let (file, elsewhere) = (server.database(), server.database().with_extension("moved"));
    fs::rename(&file, &elsewhere).unwrap();
    let refused =
        eventually("new jobs are refused", async || client.send(request(job("t"))).await.err())
            .await;
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(server.log().contains("that one was moved, deleted or replaced"));
    client.ack(&delivery.receipt).await;
    fs::rename(&elsewhere, &file).unwrap();
    eventually("it takes jobs again", async || client.send(request(job("t"))).await.ok()).await;
}
