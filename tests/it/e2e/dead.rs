//! Servers that share a Redis and fall silent. A server counts as dead 10 s after its last heartbeat, so these tests
//! are slow: they share nothing, and run side by side.

use std::collections::HashSet;
use std::time::Duration;

use ringq::pb::{
    AckItem, Delivery, JobSpec, JobState, ListWorkersRequest, SettleError, StreamRequest,
};
use tokio::time::Instant;

use crate::harness::{
    Client, JobExt as _, Redis, Setup, Worker, eventually, job, millis, proto, receipts, take,
};

const DAY: Duration = Duration::from_secs(86_400);
const TOPIC: &str = "mail";

/// Builds the setup of a server on this Redis.
fn setup(redis: &Redis) -> Setup {
    Setup::new().config("shutdown_grace = \"100ms\"").shard(format!("s0={}", redis.url()))
}

/// Builds a job that is leased for a day, and dead after one failure.
fn fragile(n: usize) -> JobSpec {
    job(TOPIC).with_id(format!("j{n}")).with_lease(DAY).with_max_attempts(1)
}

async fn enqueue(client: &Client, jobs: usize) {
    client.enqueue_all((0..jobs).map(fragile).collect()).await;
}

/// Opens a stream whose leases come back a second after it breaks.
async fn stream(client: &Client, credit: usize) -> Worker {
    let (orphan_grace, heartbeat_interval) =
        (Some(proto(millis(1_000))), Some(proto(millis(5_000))));
    let max_in_flight = i32::try_from(credit).unwrap();
    let request = StreamRequest { max_in_flight, orphan_grace, heartbeat_interval, ..take(TOPIC) };
    client.stream(request).await
}

/// Waits for the next jobs of a stream: each delivered once before, and without a failure.
async fn back(worker: &mut Worker, jobs: usize) -> Vec<Delivery> {
    let deliveries = worker.next_many(jobs).await;
    let counts = deliveries.iter().map(|delivery| (delivery.attempt, delivery.delivery));
    assert!(counts.clone().all(|count| count == (1, 2)), "{:?}", Vec::from_iter(counts));
    deliveries
}

async fn stale(client: &Client, deliveries: &[Delivery]) {
    let item = |receipt| AckItem { receipt, ..Default::default() };
    let failures = client.ack_items(receipts(deliveries).into_iter().map(item).collect()).await;
    let errors: Vec<_> = failures.iter().map(|failure| failure.error()).collect();
    assert_eq!(errors, vec![SettleError::Stale; deliveries.len()]);
}

/// Kill -9: leases that were extended through another server since are kept, until their new deadline.
async fn killed() {
    const JOBS: usize = 60;
    let Some(redis) = Redis::start().await else { return };
    let (mut a, b) = (setup(&redis).start().await, setup(&redis).start().await);
    let (on_a, on_b) = (a.connect().await, b.connect().await);
    enqueue(&on_a, JOBS).await;
    let mut worker = stream(&on_a, JOBS).await;
    let held = worker.next_many(JOBS).await;
    let killed = Instant::now();
    a.kill().await;
    assert!(worker.any_end().await.is_err());
    // The worker continues with some: one of them has a shorter lease than before.
    let (kept, lost) = held.split_at(10);
    for delivery in &kept[1..] {
        on_b.extend(&delivery.receipt, DAY).await;
    }
    let lease = Duration::from_secs(16);
    on_b.extend(&kept[0].receipt, lease).await;

    let mut other = stream(&on_b, JOBS).await;
    let again = back(&mut other, lost.len()).await;
    let took = killed.elapsed();
    assert!(took >= millis(8_000), "a sign of life is good for 10 s: {took:?}");
    println!("{} leases of a killed server were back after {took:?}", lost.len());
    let ids = |deliveries: &[Delivery]| -> HashSet<String> {
        deliveries.iter().map(|delivery| delivery.id.clone()).collect()
    };
    assert_eq!(ids(&again), ids(lost));
    stale(&on_b, lost).await;
    on_b.ack_all(&receipts(&again)).await;
    // A server that starts now finds no lease to release either.
    let c = setup(&redis).start().await;
    let dead = on_b.until(TOPIC, &kept[0].id, JobState::Dead).await;
    assert!(killed.elapsed() >= lease, "it was kept until its deadline");
    assert_eq!((dead.failures, dead.deliveries), (1, 1));
    other.quiet(millis(2_000)).await;
    on_b.ack_all(&receipts(&kept[1..])).await;
    assert_eq!(c.connect().await.stats(TOPIC).await.succeeded_total, 59);
}

/// A server that starts or ends in order takes no lease from live servers or workers.
async fn started_and_ended() {
    let Some(redis) = Redis::start().await else { return };
    let (a, b) = (setup(&redis).start().await, setup(&redis).start().await);
    let (on_a, on_b) = (a.connect().await, b.connect().await);
    enqueue(&on_a, 30).await;
    let mut worker = stream(&on_a, 10).await;
    let held = worker.next_many(10).await;
    let mut c = setup(&redis).start().await;
    let on_c = c.connect().await;
    let mut drained = stream(&on_c, 10).await;
    let left = drained.next_many(10).await;
    let mut broken = stream(&on_c, 10).await;
    let gone = broken.next_many(10).await;
    let mut other = stream(&on_b, 30).await;
    drop(broken);
    eventually("the server has seen that the stream broke", async || {
        let list = on_c.admin.clone().list_workers(ListWorkersRequest::default()).await.unwrap();
        (list.into_inner().workers.len() == 1).then_some(())
    })
    .await;
    c.terminate();
    drained.end().await;
    c.exit().await;
    // Only leases of the stream that broke just before are released: the server had no time to do it itself.
    let again = back(&mut other, 10).await;
    let id = |delivery: &Delivery| delivery.id.clone();
    assert!(again.iter().map(id).all(|id| gone.iter().any(|gone| gone.id == id)));
    other.quiet(millis(3_000)).await;
    on_b.ack_all(&receipts(&held)).await;
    on_b.ack_all(&receipts(&left)).await;
    on_b.ack_all(&receipts(&again)).await;
    assert_eq!(on_b.stats(TOPIC).await.succeeded_total, 30);
}

/// Stands still until the others have released its jobs, and continues.
async fn paused() {
    let Some(redis) = Redis::start().await else { return };
    let (a, b) = (setup(&redis).start().await, setup(&redis).start().await);
    let (on_a, on_b) = (a.connect().await, b.connect().await);
    enqueue(&on_a, 10).await;
    let mut worker = stream(&on_a, 20).await;
    let held = worker.next_many(10).await;
    let stopped = Instant::now();
    a.pause();
    let mut other = stream(&on_b, 20).await;
    let again = back(&mut other, 10).await;
    // At least so long that its own timers have expired.
    tokio::time::sleep_until(stopped + Duration::from_secs(14)).await;
    a.resume();
    stale(&on_a, &held[..5]).await;
    stale(&on_b, &held[5..]).await;
    on_a.ack_all(&receipts(&again)).await;
    assert_eq!(on_a.stats(TOPIC).await.succeeded_total, 10);
    // It is alive again: its streams get jobs, and keep them.
    drop(other);
    on_a.enqueue(fragile(10)).await;
    let delivery = worker.next().await;
    assert_eq!((delivery.id.as_str(), delivery.delivery), ("j10", 1));
    let mut other = stream(&on_b, 20).await;
    other.quiet(millis(4_000)).await;
    on_b.ack(&delivery.receipt).await;
}

/// The only server: after its restart it releases its former leases.
async fn restarted() {
    let Some(redis) = Redis::start().await else { return };
    let mut server = setup(&redis).restartable().start().await;
    let client = server.connect().await;
    enqueue(&client, 10).await;
    let mut worker = stream(&client, 10).await;
    let held = worker.next_many(10).await;
    server.kill().await;
    server.restart().await;
    let client = server.connect().await;
    client.ack(&held[0].receipt).await;
    let mut worker = stream(&client, 10).await;
    let again = back(&mut worker, 9).await;
    stale(&client, &held[1..]).await;
    client.ack_all(&receipts(&again)).await;
}

#[tokio::test]
async fn leases_of_silent_servers_come_back_and_those_of_others_do_not() {
    tokio::join!(killed(), started_and_ended(), paused(), restarted());
}
