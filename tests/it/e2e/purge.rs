use ringq::pb::{
    AckItem, GetServerInfoRequest, JobState, NackAction, PurgeTopicRequest, PurgeTopicResponse,
    RevocationReason, SettleError, SettleFailure, StreamRequest,
};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Code, Request, Status};

use crate::harness::{
    Client, JsonClient, Redis, Server, Setup, assert_refused, eventually, http_get, job, millis,
    nack, receipts, take, within,
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
    let kept = |id: &str| job("t").with_id(id).with_retention(millis(600_000));
    make_dead(&client, 3).await;
    for id in ["done-1", "done-2"] {
        client.enqueue(kept(id)).await;
        client.ack(&client.pull_one("t").await.receipt).await;
    }
    client.enqueue(kept("cancelled").with_delay(millis(600_000))).await;
    let (topic, id) = ("t".to_owned(), "cancelled".to_owned());
    let delete = ringq::pb::DeleteRequest { topic, id, allow_missing: false };
    client.queue.clone().delete(delete).await.unwrap();
    client.enqueue(kept("late").with_ttl(millis(1))).await;
    client.until("t", "late", JobState::Expired).await;
    client.enqueue(job("t").with_id("retries")).await;
    let retries = nack(&client.pull_one("t").await.receipt, NackAction::Retry);
    let delay = Some(crate::harness::proto(millis(600_000)));
    client.nack(ringq::pb::NackItem { delay, ..retries }).await;
    client.enqueue_all(vec![job("t").with_delay(millis(600_000)); 5]).await;
    client.enqueue(job("t").with_id("runs")).await;
    let _delivery = client.pull_one("t").await;
    client.enqueue_all(vec![job("t"); 7]).await;

    let numbers = [
        (JobState::Cancelled, 1),
        (JobState::Scheduled, 5),
        (JobState::Ready, 7),
        (JobState::Running, 1),
        (JobState::Backoff, 1),
        (JobState::Succeeded, 2),
        (JobState::Dead, 3),
        (JobState::Expired, 1),
    ];
    let all = numbers.map(|(state, _)| state);
    assert_eq!(count(&client, &all).await, 21);
    for (state, jobs) in numbers {
        assert_eq!(count(&client, &[state]).await, jobs, "{state:?}");
        assert_eq!(purge(&client, &[state]).await, jobs, "{state:?}");
        assert_eq!(purge(&client, &[state]).await, 0, "{state:?}");
    }
    // A job with an id of its own leaves a tombstone, as after a Delete.
    assert_eq!(count(&client, &all).await, 2);
    assert_eq!(client.state("t", "runs").await, JobState::Cancelled);
    assert_eq!(purge(&client, &all).await, 2);
    let stats = client.stats("t").await;
    assert_eq!(stats.ready + stats.running + stats.scheduled + stats.backoff + stats.dead, 0);
    let info = client.admin.clone().get_server_info(GetServerInfoRequest {}).await.unwrap();
    assert!(info.into_inner().features.contains(&"topic_purge".to_owned()));
}

#[tokio::test]
async fn purges_are_called_as_json() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("t"); 3]).await;
    let mut json = JsonClient::connect(server.http).await;
    let method = "TopicService/PurgeTopic";
    let ask = json!({"name": "t", "states": ["JOB_STATE_READY"], "validateOnly": true});
    assert_eq!(json.ok(method, &ask).await["purgedCount"], "3");
    let ask = json!({"name": "t", "states": ["JOB_STATE_READY"]});
    assert_eq!(json.ok(method, &ask).await["purgedCount"], "3");
    assert_eq!(json.ok(method, &ask).await, json!({}));
    let refused = json.call(method, &json!({"name": "t"})).await;
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[tokio::test]
async fn a_shard_that_does_not_answer_is_named_and_the_others_are_purged() {
    let (Some(mut dies), Some(lives)) = (Redis::durable().await, Redis::start().await) else {
        return;
    };
    let ring = vec![format!("s0={}", dies.url()), format!("s1={}", lives.url())];
    let server = Setup::new().ring(ring).start().await;
    let client = server.connect().await;
    let jobs = (0..200).map(|n| job("t").with_id(format!("n{n}")));
    client.enqueue_all(jobs.collect()).await;
    dies.kill();
    let partial = eventually("the other shard is purged", async || {
        let answer = call(&client, purge_of(&[JobState::Ready])).await.ok()?;
        Some(answer).filter(|answer| answer.purged_count > 0)
    })
    .await;
    assert_eq!(partial.unreachable_shards, ["s0"]);
    let first = partial.purged_count;
    assert!(first < 200, "{partial:?}");
    let counted = PurgeTopicRequest { validate_only: true, ..purge_of(&[JobState::Ready]) };
    let counted = call(&client, counted).await.unwrap();
    assert_eq!((counted.purged_count, counted.unreachable_shards), (0, vec!["s0".to_owned()]));
    dies.restart().await;
    let rest = eventually("the shard is back", async || {
        let answer = call(&client, purge_of(&[JobState::Ready])).await.ok()?;
        Some(answer).filter(|answer| answer.unreachable_shards.is_empty())
    })
    .await;
    assert_eq!(first + rest.purged_count, 200);
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

/// A call that would run out of time returns what it has removed before its caller gives up; the same call goes on.
#[tokio::test]
async fn a_purge_that_runs_out_of_time_reports_its_part() {
    const JOBS: i64 = 6_000;
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("t"); usize::try_from(JOBS).unwrap()]).await;
    let (mut left, mut calls, mut partial) = (JOBS, 0, 0);
    let mut patience = millis(300);
    while left > 0 {
        let mut request = Request::new(purge_of(&[JobState::Ready]));
        request.set_timeout(patience);
        let answer = call(&client, request).await;
        if answer.is_err() {
            // The shard does one write after the other: with this one, the last of that call is over.
            client.enqueue(job("u")).await;
        }
        let before = std::mem::replace(&mut left, client.stats("t").await.ready);
        match answer {
            Ok(answer) => {
                assert_eq!(answer.purged_count, before - left);
                assert_eq!(answer.unreachable_shards.is_empty(), left == 0);
                partial += u32::from(left > 0);
            }
            // The machine is too busy for one chunk in that time.
            Err(status) => {
                let late = matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled);
                assert!(late, "{status:?}");
                patience *= 2;
            }
        }
        calls += 1;
    }
    println!("{JOBS} jobs in {calls} calls, {partial} of them partial");
}

#[tokio::test]
async fn a_running_job_is_revoked_at_its_worker_on_another_server() {
    let Some(redis) = Redis::start().await else { return };
    let serve = || Setup::on(&redis.url()).start();
    let (here, there) = (serve().await, serve().await);
    let (client, other) = (here.connect().await, there.connect().await);
    client.enqueue_all(vec![job("t"); 20]).await;
    let mut workers = Vec::new();
    let mut held = Vec::new();
    for client in [&client, &other] {
        let mut worker = client.stream(StreamRequest { max_in_flight: 10, ..take("t") }).await;
        held.extend(receipts(&worker.next_many(10).await));
        workers.push(worker);
    }
    assert_eq!(purge(&client, &[JobState::Running]).await, 20);
    let mut revoked = Vec::new();
    for worker in &mut workers {
        for _ in 0..10 {
            let revocation = worker.revocation().await;
            assert_eq!(revocation.reason(), RevocationReason::Deleted);
            revoked.push(revocation.receipt);
        }
    }
    held.sort_unstable();
    revoked.sort_unstable();
    assert_eq!(held, revoked);
    let item = |receipt: &String| AckItem { receipt: receipt.clone(), ..Default::default() };
    let failures = client.ack_items(held.iter().map(item).collect()).await;
    assert_eq!(failures.len(), 20, "none counts as done");
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

/// Number of dead letters, unless `RINGQ_TEST_DEAD_JOBS` has another one: to make them takes far longer than to purge
/// them.
const DEAD_JOBS: usize = 20_000;

#[tokio::test]
async fn many_dead_letters_go_within_seconds() {
    let jobs =
        std::env::var("RINGQ_TEST_DEAD_JOBS").map_or(DEAD_JOBS, |jobs| jobs.parse().unwrap());
    let mut shards = Vec::new();
    for _ in 0..4 {
        let Some(redis) = Redis::start().await else { return };
        shards.push(redis);
    }
    let ring = shards.iter().enumerate().map(|(n, redis)| format!("s{n}={}", redis.url()));
    let server = Setup::new().ring(ring.collect()).start().await;
    let client = server.connect().await;
    let begin = Instant::now();
    make_dead(&client, jobs).await;
    let made = begin.elapsed();
    let begin = Instant::now();
    assert_eq!(count(&client, &[JobState::Dead]).await, jobs as u64);
    let counted = begin.elapsed();
    let begin = Instant::now();
    let mut purged = 0;
    while purged < jobs as u64 {
        let answer = call(&client, purge_of(&[JobState::Dead])).await.unwrap();
        purged += u64::try_from(answer.purged_count).unwrap();
    }
    let took = begin.elapsed();
    println!("{jobs} dead letters: made in {made:?}, counted in {counted:?}, purged in {took:?}");
    assert_eq!((purged, client.stats("t").await.dead), (jobs as u64, 0));
}

#[tokio::test]
async fn one_group_is_purged_on_all_shards_and_counted_first() {
    let mut ring = Vec::new();
    for _ in 0..4 {
        let Some(redis) = Redis::start().await else { return };
        ring.push(redis);
    }
    let urls = ring.iter().enumerate().map(|(n, redis)| format!("s{n}={}", redis.url()));
    let server = Setup::new().ring(urls.collect()).start().await;
    let client = server.connect().await;
    // Longer than a page, in several states.
    let of = |group: &str| ringq::pb::JobSpec { group: group.into(), ..job("t") };
    client
        .enqueue_all([vec![of("noisy"); 3_000], vec![of("quiet"); 40], vec![job("t"); 7]].concat())
        .await;
    client.enqueue_all(vec![of("noisy").with_delay(millis(600_000)); 5]).await;
    let states: Vec<i32> = WAITS_OR_RUNS.iter().map(|&state| state.into()).collect();
    let request = |group: &str, validate_only| PurgeTopicRequest {
        name: "t".into(),
        states: states.clone(),
        validate_only,
        group: Some(group.into()),
    };
    for (group, count) in [("noisy", 3_005), ("", 7), ("none", 0)] {
        for validate_only in [true, false] {
            let answer = call(&client, request(group, validate_only)).await.unwrap();
            assert_eq!(
                (answer.purged_count, answer.unreachable_shards.len()),
                (count, 0),
                "{group}"
            );
        }
    }
    let stats = client.stats("t").await;
    assert_eq!((stats.ready, stats.scheduled), (40, 0));
    let wrong = call(&client, request("a b", true)).await.unwrap_err();
    assert_refused(&wrong, Code::InvalidArgument, "INVALID_FIELD", "group");
}
