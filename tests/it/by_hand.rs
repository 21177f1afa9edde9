//! Inspection of a shard without a server.

use std::time::Duration;

use crate::store_calls::TestJob;
use deadpool_redis::redis;
use ringq::domain::When;
use ringq::store::codec::{decode_history, decode_spec};

use crate::conformance::values::{TOPIC, decide, failed, new_job};
use crate::conformance::{Backend, Fixture};
use crate::harness::Redis;

const SCRIPT: &str = include_str!("../../src/store/redis/by_hand.lua");

/// Returns the script's answer about the only job.
async fn read<T: redis::FromRedisValue>(redis: &Redis, what: &str) -> T {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let jobs = format!("ringq:{{s0}}:jobs:{TOPIC}");
    let mut eval = redis::cmd("EVAL");
    eval.arg(SCRIPT).arg(1).arg(jobs).arg("a").arg(what);
    eval.query_async(&mut connection).await.unwrap()
}

#[tokio::test]
async fn each_message_of_a_record_is_cut_out_in_every_phase() {
    let Some(redis) = Redis::start().await else { return };
    let q = Fixture::at(Backend::Redis, &redis.url()).await;
    let mut job = TestJob { request_code: Some(1 << 24 | 1), priority: Some(3), ..new_job("a") };
    job.spec.headers = vec![("name".into(), "value".into())];
    job.due = When::After(Duration::from_secs(60));
    q.put(job.clone()).await;
    let bytes = i64::try_from(job.spec.bytes()).unwrap();
    for attempt in 0..3 {
        let head: Vec<i64> = read(&redis, "head").await;
        assert_eq!((head[5], head[7]), (bytes, 3), "bytes and priority: {head:?}");
        assert_eq!(decode_spec(Some(&spec(&redis).await)).headers, job.spec.headers);
        q.sleep(7_200);
        let leased = q.claim(1).await.remove(0);
        assert_eq!(decode_spec(Some(&spec(&redis).await)).headers, job.spec.headers, "it runs");
        let payload: Vec<u8> = read(&redis, "payload").await;
        assert_eq!(payload.last(), Some(&b'a'), "its text");
        let life: Vec<u8> = read(&redis, "life").await;
        let (life, _) = decode_history(Some(&life[..]).filter(|life| !life.is_empty()));
        assert_eq!(life.failures, attempt);
        let lease = q.lease(&leased).await.unwrap();
        q.settle(decide(&lease, failed())).await.unwrap();
    }
}

async fn spec(redis: &Redis) -> Vec<u8> {
    read(redis, "spec").await
}
