//! Several replicas on one Redis: what one does reaches the streams of another, and they are silent when there
//! is nothing to do.

use std::time::Duration;

use ringq::pb::{DeleteRequest, RevocationReason, StreamRequest};
use tokio::time::Instant;

use crate::harness::{Client, JobExt as _, Redis, Server, Setup, job, millis, nack_retry, take};

/// Two replicas on one Redis, and a client of each.
struct Two {
    redis: Redis,
    /// Where streams are opened.
    here: Client,
    /// Where everything else is done.
    there: Client,
    _servers: [Server; 2],
}

async fn two() -> Option<Two> {
    let redis = Redis::start().await?;
    let serve = || Setup::new().shard(format!("s0={}", redis.url())).start();
    let servers = [serve().await, serve().await];
    let (here, there) = (servers[0].connect().await, servers[1].connect().await);
    Some(Two { redis, here, there, _servers: servers })
}

fn one_at_a_time() -> StreamRequest {
    StreamRequest { max_in_flight: 1, ..take("t") }
}

#[tokio::test]
async fn what_is_settled_elsewhere_makes_room_at_once() {
    let Some(two) = two().await else { return };
    two.there.enqueue_all(vec![job("t").with_max_attempts(1); 20]).await;
    let mut worker = two.here.stream(one_at_a_time()).await;
    let begin = Instant::now();
    for n in 0..20 {
        let delivery = worker.next().await;
        assert_eq!(worker.messages.last().unwrap().in_flight, 1);
        match n % 2 {
            0 => two.there.ack(&delivery.receipt).await,
            _ => two.there.nack(nack_retry(&delivery.receipt, "no")).await,
        }
    }
    // Without a hint each would take a second and more.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert!(worker.messages.iter().all(|message| message.revocations == 0));
}

#[tokio::test]
async fn a_job_that_is_deleted_elsewhere_is_revoked() {
    let Some(two) = two().await else { return };
    two.there.enqueue(job("t").with_id("a")).await;
    two.there.enqueue(job("t").with_id("b")).await;
    let mut worker = two.here.stream(one_at_a_time()).await;
    let delivery = worker.next().await;
    let request = DeleteRequest { topic: "t".into(), id: "a".into(), ..Default::default() };
    two.there.queue.clone().delete(request).await.unwrap();
    let revocation = worker.revocation().await;
    assert_eq!(revocation.receipt, delivery.receipt);
    assert_eq!(revocation.reason(), RevocationReason::Deleted);
    assert_eq!(worker.next().await.id, "b");
}

#[tokio::test]
async fn a_lease_that_is_extended_elsewhere_lasts() {
    let Some(two) = two().await else { return };
    two.there.enqueue(job("t").with_id("a").with_lease(Duration::from_secs(1))).await;
    let mut worker = two.here.stream(take("t")).await;
    let delivery = worker.next().await;
    two.there.extend(&delivery.receipt, Duration::from_secs(60)).await;
    worker.quiet(millis(3_000)).await;
    assert!(worker.messages.iter().all(|message| message.revocations == 0));
    two.there.ack(&delivery.receipt).await;
}

#[tokio::test]
async fn a_lease_that_runs_out_is_revoked_whichever_replica_notices() {
    let Some(two) = two().await else { return };
    let lease = Duration::from_secs(1);
    let jobs = (0..8).map(|n| job("t").with_id(format!("j{n}")).with_lease(lease));
    two.there.enqueue_all(jobs.collect()).await;
    let mut worker = two.here.stream(StreamRequest { max_in_flight: 8, ..take("t") }).await;
    worker.next_many(8).await;
    for _ in 0..8 {
        assert_eq!(worker.revocation().await.reason(), RevocationReason::LeaseExpired);
    }
}

/// Calls of a command so far, by Redis's own count: those that came over a socket, not those of scripts.
async fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]).await;
    let name = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&name)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn replicas_with_nothing_to_do_are_nearly_silent() {
    const TOPICS: usize = 100;
    const TIME: Duration = Duration::from_secs(10);
    const REPLICAS: f64 = 2.0;
    let Some(two) = two().await else { return };
    let topics: Vec<String> = (0..TOPICS).map(|n| format!("topic{n}")).collect();
    two.there.enqueue_all(topics.iter().map(|topic| job(topic)).collect()).await;
    let mut workers = Vec::new();
    for client in [&two.here, &two.there] {
        for topics in topics.chunks(TOPICS / 2) {
            let request = StreamRequest { topics: topics.to_vec(), ..Default::default() };
            workers.push(client.stream(request).await);
        }
        workers.push(client.stream(take("topic*")).await);
    }
    let mut done = 0;
    while done < TOPICS {
        for worker in &mut workers {
            while let Ok(delivery) = tokio::time::timeout(millis(50), worker.next()).await {
                two.there.ack(&delivery.receipt).await;
                done += 1;
            }
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    two.redis.command(&["CONFIG", "RESETSTAT"]).await;
    let begin = Instant::now();
    tokio::time::sleep(TIME).await;
    let mut sum = 0.0;
    for command in ["evalsha", "ping", "info"] {
        let rate =
            calls(&two.redis, command).await as f64 / begin.elapsed().as_secs_f64() / REPLICAS;
        println!("{command}: {rate:.2} per second and replica");
        sum += rate;
    }
    assert!(sum < 3.0, "{sum:.2} calls per second and replica of a server that has nothing to do");
    two.there.enqueue(job("topic99").with_id("after")).await;
    let begin = Instant::now();
    let next = workers.iter_mut().map(|worker| Box::pin(worker.next()));
    let (delivery, ..) = futures::future::select_all(next).await;
    assert_eq!(delivery.id, "after");
    assert!(begin.elapsed() < Duration::from_secs(5));
}
