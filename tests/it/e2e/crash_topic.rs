//! Moves of jobs to their crash topics: `RetryPolicy.crash_topic`, on one shard and between shards of Redis.

use std::collections::BTreeSet;
use std::ops::Range;

use ringq::pb::{Job, JobSpec, JobState, RetryPolicy, StreamRequest};

use crate::harness::{Client, Redis, Setup, eventually, job, millis, proto, take};

const GRACE_MS: u64 = 200;
/// Jobs that come before each kill; some of them move while the server is killed.
const JOBS: usize = 400;

fn policy(crash_topic: &str) -> RetryPolicy {
    RetryPolicy { max_crashes: 1, crash_topic: crash_topic.to_owned(), ..Default::default() }
}

/// Builds jobs of these numbers, half of them with client-chosen ids.
fn jobs(numbers: Range<usize>) -> Vec<JobSpec> {
    let spec = |n: usize| {
        let spec = job("t").with_text(format!("poison {n}")).with_retry(policy("crashed"));
        if n.is_multiple_of(2) { spec.with_id(format!("order-{n}")) } else { spec }
    };
    numbers.map(spec).collect()
}

/// Takes this number of jobs of a topic, and cuts the stream.
async fn crash(client: &Client, topic: &str, count: usize) {
    let request = StreamRequest { topics: vec![topic.to_owned()], ..holding(count) };
    client.stream(request).await.next_many(count).await;
}

/// Builds a stream that takes this number of jobs of the topic `t`.
fn holding(count: usize) -> StreamRequest {
    StreamRequest {
        max_in_flight: i32::try_from(count).unwrap(),
        orphan_grace: Some(proto(millis(GRACE_MS))),
        ..take("t")
    }
}

/// Takes all jobs of the topic `t`, once they are back from former streams, and cuts the stream; returns their number.
async fn crash_all(client: &Client) -> usize {
    let held = left(client).await;
    let ready = async || (usize::try_from(client.stats("t").await.ready) == Ok(held)).then_some(());
    eventually("all are back", ready).await;
    crash(client, "t", held).await;
    held
}

/// Starts three shards of Redis; `None` without the program.
async fn three() -> Option<Vec<Redis>> {
    let mut shards = Vec::new();
    for _ in 0..3 {
        shards.push(Redis::start().await?);
    }
    Some(shards)
}

fn ring(shards: &[Redis]) -> Setup {
    let urls = shards.iter().enumerate().map(|(n, redis)| format!("s{n}={}", redis.url()));
    Setup::new().ring(urls.collect())
}

fn ids(jobs: &[Job]) -> BTreeSet<String> {
    let ids: BTreeSet<String> =
        jobs.iter().map(|job| job.spec.as_ref().unwrap().id.clone()).collect();
    assert_eq!(ids.len(), jobs.len(), "each once");
    ids
}

/// Returns the number of jobs of the topic `t` that a worker may still get.
async fn left(client: &Client) -> usize {
    let stats = client.stats("t").await;
    usize::try_from(stats.ready + stats.running + stats.scheduled + stats.backoff).unwrap()
}

/// The server dies again and again while jobs move. Each is in one topic at the end, and in none twice.
#[tokio::test]
async fn no_job_is_lost_when_the_server_is_killed_while_jobs_move() {
    let Some(shards) = three().await else { return };
    let mut server = ring(&shards).restartable().start().await;
    let mut client = server.connect().await;
    let (mut all, mut kills, mut kills_amid) = (BTreeSet::new(), 0, 0);
    while kills_amid < 3 {
        assert!(kills < 9, "no kill came while jobs moved");
        all.extend(client.enqueue_all(jobs(kills * JOBS..(kills + 1) * JOBS)).await);
        let held = crash_all(&client).await;
        let some = async || (left(&client).await < held - JOBS / 10).then_some(());
        eventually("some move", some).await;
        server.kill().await;
        server.restart().await;
        client = server.connect().await;
        kills += 1;
        kills_amid += usize::from(left(&client).await > 0);
    }
    while left(&client).await > 0 {
        crash_all(&client).await;
        eventually("all move", async || (left(&client).await == 0).then_some(())).await;
    }
    let mut found = BTreeSet::new();
    for state in [JobState::Ready, JobState::Dead, JobState::Running] {
        assert_eq!(client.list("t", state).await, []);
        for id in ids(&client.list("crashed", state).await) {
            assert!(found.insert(id), "in two states");
        }
    }
    assert!(found == all, "{} of {} jobs", found.len(), all.len());
}

/// A damaged payload, which cannot be written anywhere, leaves a dead letter, and holds up neither others nor the shard.
#[tokio::test]
async fn a_job_that_cannot_be_read_does_not_hold_up_others() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    let ids = ["before", "broken", "behind"];
    for id in ids {
        // Large enough to be stored apart from the record.
        let spec = job("t").with_id(id).with_text("x".repeat(9_000));
        client.enqueue(spec.with_retry(policy("crashed"))).await;
    }
    let mut worker = client.stream(holding(3)).await;
    worker.next_many(3).await;
    let damage: [&[u8]; 4] = [b"HSET", b"ringq:{s0}:more:t", b"pbroken", b"\xff"];
    assert_eq!(redis.command(&damage).await, ":0", "the payload is there");
    drop(worker);
    for id in ["before", "behind"] {
        client.until("crashed", id, JobState::Ready).await;
    }
    let dead = async || client.list("t", JobState::Dead).await.pop();
    let dead = eventually("its lease ends", dead).await;
    let reason = "it cannot be read to move to topic crashed";
    assert!(dead.last_error.ends_with(reason), "{}", dead.last_error);
    assert_eq!(dead.spec.unwrap().id, "broken");
}
