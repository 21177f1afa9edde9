//! A Redis is full: it takes no new jobs, but its jobs are settled, until there is room again.

use std::time::Duration;

use crate::cluster::Shape;
use crate::harness::{
    Client, JobExt as _, Redis, job, millis, nack_retry, proto, receipts, request, take, within,
};
use crate::load::Habits;
use crate::trial::{Trial, harm_time};
use ringq::pb::StreamRequest;
use tonic_types::StatusExt as _;

/// Room above the memory in use when the limit is set.
const ROOM_BYTES: u64 = 1_000_000;
const LARGE: usize = 50_000;
/// Lease length, in addition to the time of harm.
const HELD: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn every_redis_is_full() {
    // Jobs that an ack enqueues are new jobs, too.
    let habits = Habits { chained: 0.0, ..Habits::default() };
    let Some(trial) = Trial::start("redis_full", Shape::default(), habits).await else { return };
    let client = Client::connect(trial.cluster.replica[0].grpc).await;
    client.enqueue_all(vec![job("held"); 30]).await;
    let lease_duration = proto(harm_time() + HELD).into();
    let take = StreamRequest { max_in_flight: 30, lease_duration, ..take("held") };
    let mut worker = client.stream(take).await;
    let held = receipts(&worker.next_many(30).await);

    trial.run(harm_time() / 2).await;
    trial.note("limit memory");
    for redis in &trial.cluster.redis {
        let limit = redis.info("memory", "used_memory").await + ROOM_BYTES;
        limit_memory(redis, limit).await;
    }
    let filled = fill(&client).await;
    println!("redis_full: {filled} jobs until all are full");
    trial.run(harm_time() / 2).await;

    // Existing jobs are settled all the same.
    let (acked, rest) = held.split_at(10);
    let (nacked, extended) = rest.split_at(10);
    client.ack_all(acked).await;
    for receipt in nacked {
        client.nack(nack_retry(receipt, "not now")).await;
    }
    for receipt in extended {
        client.extend(receipt, millis(60_000)).await;
    }
    // Settled jobs of the load left room for some.
    let filled = fill(&client).await;
    println!("redis_full: {filled} jobs until all are full again");

    trial.note("no limit");
    for redis in &trial.cluster.redis {
        limit_memory(redis, 0).await;
    }
    client.enqueue(job("filler")).await;
    let again = worker.next_many(nacked.len()).await;
    client.ack_all(&receipts(&again)).await;
    client.ack_all(extended).await;
    let outcome = trial.finish().await;
    println!("redis_full: drained in {:?}", outcome.drained);
    assert!(outcome.troubles("enqueue: STORE_FULL") > 0, "no producer was refused");
    assert_eq!(outcome.troubles("ack") + outcome.troubles("nack") + outcome.troubles("extend"), 0);
}

async fn limit_memory(redis: &Redis, bytes: u64) {
    let answer = redis.command(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]).await;
    assert_eq!(answer, "+OK");
}

/// Enqueues large jobs until one finds no room.
async fn fill(client: &Client) -> usize {
    within("a topic without room", fill_all(client)).await
}

async fn fill_all(client: &Client) -> usize {
    let mut count = 0;
    loop {
        let large = job("filler").with_bytes(LARGE);
        match client.send(request(large)).await {
            Ok(_) => count += 1,
            Err(status) => match status.get_details_error_info().map(|info| info.reason).as_deref()
            {
                Some("STORE_FULL") => return count,
                // The load waits too long for a shard.
                Some("RATE_LIMITED") => tokio::time::sleep(millis(10)).await,
                _ => panic!("{status:?}"),
            },
        }
    }
}
