use ringq::pb::{
    AckItem, GetServerInfoRequest, JobState, NackAction, PurgeTopicRequest, PurgeTopicResponse,
    SettleError, SettleFailure,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Code, Status};

use crate::harness::{
    Client, Redis, Server, Setup, assert_refused, http_get, job, millis, nack, within,
};

const WAITS_OR_RUNS: [JobState; 4] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Backoff];

fn purge_of(states: &[JobState]) -> PurgeTopicRequest {
    let states = states.iter().map(|&state| state.into()).collect();
    PurgeTopicRequest { name: "t".into(), states, validate_only: false, group: None }
}

async fn call(
    client: &Client,
    request: impl tonic::IntoRequest<PurgeTopicRequest>,
) -> Result<PurgeTopicResponse, Status> {
    Ok(client.topics.clone().purge_topic(request).await?.into_inner())
}

/// Purges these states of the topic `t` on all shards; returns the number of jobs.
async fn purge(client: &Client, states: &[JobState]) -> u64 {
    let answer = call(client, purge_of(states)).await.expect("a purge");
    assert_eq!(answer.unreachable_shards, Vec::<String>::new());
    answer.purged_count.try_into().unwrap()
}

async fn count(client: &Client, states: &[JobState]) -> u64 {
    let request = PurgeTopicRequest { validate_only: true, ..purge_of(states) };
    call(client, request).await.unwrap().purged_count.try_into().unwrap()
}

async fn make_dead(client: &Client, jobs: usize) {
    client.enqueue_all(vec![job("t").with_text("x"); jobs]).await;
    let mut dead = 0;
    while dead < jobs {
        let pulled = client.pull_now("t", 1_000).await;
        let items = pulled.iter().map(|delivery| nack(&delivery.receipt, NackAction::DeadLetter));
        let mut left: Vec<_> = items.collect();
        while !left.is_empty() {
            // A busy machine may make a shard late.
            let failures = client.nack_items(left.clone()).await;
            assert!(failures.iter().all(|failure| failure.error() == SettleError::Unavailable));
            let index = |failure: &SettleFailure| usize::try_from(failure.index).unwrap();
            left = failures.iter().map(|failure| left[index(failure)].clone()).collect();
        }
        dead += pulled.len();
    }
}

#[tokio::test]
async fn each_state_goes_alone_and_a_dry_run_counts_it_first() {
    let server = Server::start().await;
    let client = server.connect().await;
    make_dead(&client, 3).await;
    client.enqueue_all(vec![job("t").with_delay(millis(600_000)); 5]).await;
    client.enqueue(job("t").with_id("runs")).await;
    let _delivery = client.pull_one("t").await;
    client.enqueue_all(vec![job("t"); 7]).await;

    let numbers = [
        (JobState::Scheduled, 5),
        (JobState::Ready, 7),
        (JobState::Running, 1),
        (JobState::Dead, 3),
    ];
    let all = numbers.map(|(state, _)| state);
    assert_eq!(count(&client, &all).await, 16);
    for (state, jobs) in numbers {
        assert_eq!(count(&client, &[state]).await, jobs, "{state:?}");
        assert_eq!(purge(&client, &[state]).await, jobs, "{state:?}");
        assert_eq!(purge(&client, &[state]).await, 0, "{state:?}");
    }
    // A job with an id of its own leaves a tombstone, as after a Delete.
    assert_eq!(client.state("t", "runs").await, JobState::Cancelled);
    assert_eq!(purge(&client, &[JobState::Cancelled]).await, 1);
    let stats = client.stats("t").await;
    assert_eq!(stats.ready + stats.running + stats.scheduled + stats.backoff + stats.dead, 0);
    let info = client.admin.clone().get_server_info(GetServerInfoRequest {}).await.unwrap();
    assert!(info.into_inner().features.contains(&"topic_purge".to_owned()));
}

#[tokio::test]
async fn without_any_shard_a_purge_is_unavailable() {
    let Some(mut redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    client.enqueue(job("t")).await;
    redis.kill();
    let refused = call(&client, purge_of(&[JobState::Ready])).await.unwrap_err();
    assert_refused(&refused, Code::Unavailable, "SHARD_UNAVAILABLE", "");
}

/// Calls of each server under load.
const PURGES: usize = 3;

/// Numbers of the jobs under load.
#[derive(Default)]
struct Books {
    enqueued: AtomicU64,
    acked: watch::Sender<u64>,
    purged: AtomicU64,
    /// Acks that came after the job was purged.
    late: AtomicU64,
    stops: AtomicBool,
}

impl Books {
    fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    fn read(&self, counter: fn(&Books) -> &AtomicU64) -> u64 {
        counter(self).load(Ordering::Relaxed)
    }
}

/// Enqueues until the books stop it, at most 400 jobs per second: due at once or in a moment.
fn producer(client: Client, books: Arc<Books>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(millis(50));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !books.is_stopped() {
            ticks.tick().await;
            let delay = |n| millis(if n % 5 == 0 { 400 } else { 0 });
            let jobs = (0..20).map(|n| job("t").with_delay(delay(n)));
            let ids = client.enqueue_all(jobs.collect()).await;
            books.enqueued.fetch_add(ids.len() as u64, Ordering::Relaxed);
        }
    })
}

/// Takes jobs and acks most of them; every tenth fails and waits for a retry.
fn worker(client: Client, books: Arc<Books>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while !books.is_stopped() {
            let pulled = client.pull_now("t", 40).await;
            if pulled.len() < 10 {
                // All are purged at the moment, or wait.
                tokio::time::sleep(millis(20)).await;
            }
            let (failed, done): (Vec<_>, Vec<_>) =
                pulled.iter().enumerate().partition(|(n, _)| n % 10 == 9);
            let item = |(_, delivery): &(usize, &ringq::pb::Delivery)| AckItem {
                receipt: delivery.receipt.clone(),
                ..Default::default()
            };
            let items: Vec<_> = done.iter().map(item).collect();
            if !items.is_empty() {
                let acked = items.len() as u64;
                let failures = client.ack_items(items).await;
                // An Ack that was refused for any other reason would count as neither.
                assert!(failures.iter().all(|failure| failure.error() == SettleError::NotFound));
                books.acked.send_modify(|all| *all += acked - failures.len() as u64);
                books.late.fetch_add(failures.len() as u64, Ordering::Relaxed);
            }
            let failed = failed.iter().map(|(_, one)| nack(&one.receipt, NackAction::Retry));
            let failed: Vec<_> = failed.collect();
            if !failed.is_empty() {
                client.nack_items(failed).await;
            }
        }
    })
}

/// Purges a few times, each time once some more jobs were done.
fn purger(client: Client, books: Arc<Books>) -> JoinHandle<()> {
    tokio::spawn(async move {
        for _ in 0..PURGES {
            let mut acked = books.acked.subscribe();
            let done = *acked.borrow();
            within("the acks", acked.wait_for(|acked| *acked >= done + 100)).await.unwrap();
            let purged = purge(&client, &WAITS_OR_RUNS).await;
            books.purged.fetch_add(purged, Ordering::Relaxed);
        }
    })
}

/// Every job is purged, done or left, and counted as one of these once, by whichever server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_purge_under_load_and_each_job_is_counted_once() {
    let mut shards = Vec::new();
    for _ in 0..4 {
        let Some(redis) = Redis::start().await else { return };
        shards.push(redis);
    }
    let ring: Vec<String> =
        shards.iter().enumerate().map(|(n, redis)| format!("s{n}={}", redis.url())).collect();
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Setup::new().ring(ring.clone()).start().await);
    }
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(server.connect().await);
    }
    let books = Arc::new(Books::default());
    let backlog = clients[0].enqueue_all(vec![job("t"); 3_000]).await.len() as u64;
    books.enqueued.fetch_add(backlog, Ordering::Relaxed);
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for client in &clients {
        tasks.push(producer(client.clone(), Arc::clone(&books)));
        tasks.push(worker(client.clone(), Arc::clone(&books)));
    }
    let purgers = clients[..2].iter().map(|client| purger(client.clone(), Arc::clone(&books)));
    let purgers: Vec<_> = purgers.collect();
    for purger in purgers {
        purger.await.unwrap();
    }
    books.stops.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let took = begin.elapsed();
    let stats = clients[2].stats("t").await;
    assert_eq!(stats.unreachable_shards, Vec::<String>::new());
    let left = stats.scheduled + stats.ready + stats.running + stats.backoff + stats.dead;
    let (enqueued, acked) = (books.read(|b| &b.enqueued), *books.acked.borrow());
    let (purged, late) = (books.read(|b| &b.purged), books.read(|b| &b.late));
    println!(
        "{enqueued} enqueued, {acked} acked, {purged} purged, {left} left, \
         {late} acks after a purge, in {took:?}"
    );
    let left = u64::try_from(left).unwrap();
    assert_eq!(enqueued, acked + purged + left);
    assert_eq!(u64::try_from(stats.enqueued_total).unwrap(), enqueued);
    assert_eq!(u64::try_from(stats.succeeded_total).unwrap(), acked);
    assert!(purged > 1_000 && acked >= 100, "there was no load");
    // And what is left goes too, counted by two calls at once.
    let rest = tokio::join!(purge(&clients[0], &WAITS_OR_RUNS), purge(&clients[1], &WAITS_OR_RUNS));
    assert_eq!(rest.0 + rest.1, left - u64::try_from(stats.dead).unwrap());
    let metrics = http_get(servers[0].http, "/metrics").await.1;
    assert!(metrics.contains("op=\"purge\""), "its calls are measured");
}
