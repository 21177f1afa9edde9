//! Very many jobs are due in the same instant.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use ringq::pb::job_spec::Schedule;
use ringq::pb::{Delivery, JobSpec, StreamRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::Shape;
use crate::harness::{Client, Redis, eventually, job, receipts, take, timestamp, wall_now};
use crate::latency::Quantiles;
use crate::load::Habits;
use crate::trial::{Trial, long};

const BATCH: usize = 1_000;
const BATCHES_SHORT: usize = 20;
const BATCHES_LONG: usize = 200;
/// Lead time for enqueueing the smaller number of them.
const LEAD: Duration = Duration::from_secs(4);
/// Pause between the last enqueue and the due instant.
const QUIET: Duration = Duration::from_secs(1);
/// Credit of the worker of each replica.
const CREDIT: i32 = 2_000;
/// Limit of the messages that are acknowledged together.
const MESSAGES_MAX: usize = 100;
/// Time limit until all are done; an unoptimized binary on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// Least share of all jobs that each replica delivers, in percent.
const SHARE_PERCENT: usize = 5;
/// Limit of the 99th percentile of calls of a Redis, in microseconds.
const CALL_MICROS: f64 = 5_000.0;
/// Number of processes that an enqueue wakes one after the other, each as late as a tick of the rig may be.
const WAKES: u32 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_same_instant() {
    let name = "due_at_once";
    let Some(trial) = Trial::start(name, Shape::default(), Habits::default()).await else { return };
    let mut clients = Vec::new();
    for replica in &trial.cluster.replica {
        clients.push(Client::connect(replica.grpc).await);
    }
    let jobs = BATCH * if long() { BATCHES_LONG } else { BATCHES_SHORT };
    let (topic, due) = enqueue(&clients, jobs).await;
    let mut quiet = trial.run(QUIET / 2).await;
    for redis in &trial.cluster.redis {
        redis.command(&["CONFIG", "RESETSTAT"]).await;
    }
    let (send, mut delivered) = mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        workers.spawn(work(number, topic.clone(), client.clone(), send.clone()));
    }
    let wait = due.saturating_sub(wall_now());
    println!("{name}: {jobs} jobs are due in {wait:?}");
    quiet.end = trial.run(wait).await.end;

    let begin = (trial.shared().history.now(), Instant::now());
    let (mut seen, mut by_replica) = (HashSet::new(), vec![0; clients.len()]);
    while seen.len() < jobs {
        let next = tokio::time::timeout_at(begin.1 + PATIENCE, delivered.recv()).await;
        let Ok(Some((replica, at, ids))) = next else {
            panic!("only {} of {jobs} jobs came, by replica {by_replica:?}", seen.len());
        };
        assert!(at >= due, "{ids:?} came {:?} before they were due", due - at);
        by_replica[replica] += ids.len();
        for id in ids {
            assert!(seen.insert(id), "a job came twice");
        }
    }
    let busy = begin.0..trial.shared().history.now();
    println!("{name}: {jobs} jobs were there after {:?}, {by_replica:?}", begin.1.elapsed());
    let least = jobs * SHARE_PERCENT / 100;
    assert!(by_replica.iter().all(|part| *part >= least), "a replica starves: {by_replica:?}");
    calls_are_short(&trial).await;
    // All shards count: the other topics are those of the load.
    let [calm, storm] = [&quiet, &busy].map(|span| trial.shared().latencies.without("", span));
    let late = trial.shared().latencies.lateness(&busy);
    enqueues_are_quick(calm, storm, late);
    all_are_settled(&clients[0], &topic, jobs).await;
    workers.shutdown().await;
    trial.finish().await;
}

/// Enqueues all of them, through all replicas at once, for one instant that is still ahead when this returns; returns
/// the topic and the instant. A slow machine tries again, with more time.
async fn enqueue(clients: &[Client], jobs: usize) -> (String, Duration) {
    let part = jobs.div_ceil(clients.len());
    let counts = (0..clients.len()).map(|n| part.min(jobs - part * n));
    let mut lead = LEAD * u32::try_from(jobs / BATCH / BATCHES_SHORT).unwrap();
    for number in 0.. {
        let (topic, due) = (format!("due.{number}"), wall_now() + lead);
        let spec = due_at(&topic, due);
        join_all(clients.iter().zip(counts.clone()).map(async |(client, count)| {
            for batch in vec![spec.clone(); count].chunks(BATCH) {
                client.enqueue_all(batch.to_vec()).await;
            }
        }))
        .await;
        if wall_now() + QUIET < due {
            return (topic, due);
        }
        assert!(lead < PATIENCE, "the machine is too slow for so many jobs");
        lead *= 2;
    }
    unreachable!("it ends with success or with patience")
}

fn due_at(topic: &str, due: Duration) -> JobSpec {
    JobSpec { schedule: Some(Schedule::DueTime(timestamp(due))), ..job(topic) }
}

/// A message: its replica, its time, and its jobs.
type Came = (usize, Duration, Vec<String>);

/// Receives and acknowledges, all messages that are there at once, until it is stopped.
async fn work(replica: usize, topic: String, client: Client, came: mpsc::UnboundedSender<Came>) {
    let request = StreamRequest { max_in_flight: CREDIT, max_batch: 500, ..take(&topic) };
    let stream = client.queue.clone().stream(request).await.unwrap().into_inner();
    let mut stream = stream.ready_chunks(MESSAGES_MAX);
    while let Some(messages) = stream.next().await {
        let at = wall_now();
        let jobs: Vec<Delivery> =
            messages.into_iter().flat_map(|message| message.unwrap().deliveries).collect();
        if jobs.is_empty() {
            continue;
        }
        client.ack_all(&receipts(&jobs)).await;
        let ids = jobs.into_iter().map(|job| job.id).collect();
        if came.send((replica, at, ids)).is_err() {
            return;
        }
    }
}

/// Checks the times of the scripts of each Redis since the jobs were enqueued.
async fn calls_are_short(trial: &Trial) {
    for (number, redis) in trial.cluster.redis.iter().enumerate() {
        let p99 = redis.slow_calls().await;
        println!("s{number}: one of a hundred calls of a script takes longer than {p99} us");
        assert!(!long() || p99 < CALL_MICROS, "s{number}: {p99} us");
    }
}

impl Redis {
    /// Returns the 99th percentile of script calls, in microseconds.
    async fn slow_calls(&self) -> f64 {
        let info = self.command(&["INFO", "latencystats"]).await;
        let line =
            info.lines().find_map(|line| line.strip_prefix("latency_percentiles_usec_evalsha:"));
        let p99 = line.unwrap_or_else(|| panic!("no scripts in {info}"));
        let p99 = p99.split(',').find_map(|part| part.strip_prefix("p99="));
        p99.expect("a p99").parse().unwrap()
    }
}

/// Checks that enqueues on other topics take less than twice as long as before, less the scheduler delay of this
/// machine.
fn enqueues_are_quick(calm: Quantiles, storm: Quantiles, late: Quantiles) {
    println!("enqueues on other topics: before {calm:?}, meanwhile {storm:?}, of ticks {late:?}");
    assert!(storm.p99 > Duration::ZERO, "no enqueue on another topic was answered meanwhile");
    if long() {
        assert!(storm.p99 < 2 * calm.p99.max(WAKES * late.p99), "{storm:?} after {calm:?}");
    }
}

async fn all_are_settled(client: &Client, topic: &str, jobs: usize) {
    let jobs = i64::try_from(jobs).unwrap();
    // A busy shard may not answer in time.
    let stats = eventually("each shard reports its jobs", async || {
        let stats = client.stats(topic).await;
        stats.unreachable_shards.is_empty().then_some(stats)
    })
    .await;
    let left = (stats.scheduled, stats.ready, stats.running, stats.backoff, stats.dead);
    assert_eq!((stats.succeeded_total, left), (jobs, (0, 0, 0, 0, 0)), "{stats:?}");
}
