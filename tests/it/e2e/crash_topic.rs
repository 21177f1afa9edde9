//! Moves of jobs to their crash topics: `RetryPolicy.crash_topic`, on one shard and between shards of Redis.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::time::Duration;

use ringq::pb::{
    EnqueueRequest, Job, JobSpec, JobState, RetryPolicy, StreamRequest, Topic, UpdateTopicRequest,
};
use tonic::Code;

use crate::harness::{
    Client, Redis, Server, Setup, assert_refused, eventually, job, millis, proto, take,
};

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

#[tokio::test]
async fn jobs_move_between_shards_with_all_that_belongs_to_them() {
    let Some(shards) = three().await else { return };
    let server = ring(&shards).start().await;
    let client = server.connect().await;
    let all: BTreeSet<_> = client.enqueue_all(jobs(0..60)).await.into_iter().collect();
    let of = |id: String| {
        let client = &client;
        async move { client.get("t", &id).await.shard }
    };
    let mut before = Vec::new();
    for id in &all {
        before.push(of(id.clone()).await);
    }
    crash(&client, "t", 60).await;
    eventually("all move", async || (left(&client).await == 0).then_some(())).await;
    assert_eq!(ids(&client.list("crashed", JobState::Ready).await), all);
    let mut elsewhere = 0;
    for (id, before) in all.iter().zip(before) {
        assert_eq!(client.find("t", id).await, None, "{id}");
        let moved = client.get("crashed", id).await;
        assert_eq!((moved.failures, moved.deliveries, moved.crashes), (0, 0, 0));
        assert!(moved.last_error.ends_with("moved from topic t"), "{}", moved.last_error);
        assert_eq!(moved.spec.as_ref().unwrap().retry, Some(policy("-")));
        assert!(id.starts_with("order-") || moved.shard == before, "{id} stays on its shard");
        elsewhere += usize::from(moved.shard != before);
    }
    assert!(elsewhere > 10, "{elsewhere} of the client's ids went to other shards");
    let delivery = client.pull_one("crashed").await;
    assert!(format!("{:?}", delivery.payload).contains("poison"), "{delivery:?}");
    let stats = client.stats("t").await;
    assert_eq!((stats.dead_total, stats.dead), (0, 0));
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

#[tokio::test]
async fn a_job_stays_dead_in_its_topic_if_its_id_is_taken_in_the_crash_topic() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("crashed").with_id("a").with_text("another")).await;
    client.enqueue(job("t").with_id("a").with_text("poison").with_retry(policy("crashed"))).await;
    crash(&client, "t", 1).await;
    let dead = client.until("t", "a", JobState::Dead).await;
    let reason = "topic crashed has another job of this id, so the job stays here";
    assert!(dead.last_error.ends_with(reason), "{}", dead.last_error);
    assert_eq!(client.get("crashed", "a").await.last_error, "");
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

/// A file gives every topic the same crash topic, which would be its own too.
#[tokio::test]
async fn a_topic_has_a_crash_topic_and_a_moved_job_does_not_move_again() {
    let setup = Setup::new();
    let path = setup.dir().join("topics.toml");
    let text = "revision = 1\n[topic.'*']\nretry = { max_crashes = 1, crash_topic = 'crashed' }\n\
                [topic.crashed]\nretry = { max_crashes = 2, crash_topic = 't' }\n";
    fs::write(&path, text).unwrap();
    let server = setup.config(&format!("topics = {path:?}")).start().await;
    let client = server.connect().await;
    let own = RetryPolicy { crash_topic: "-".to_owned(), ..Default::default() };
    client.enqueue(job("t").with_id("off").with_retry(own)).await;
    crash(&client, "t", 1).await;
    let dead = client.until("t", "off", JobState::Dead).await;
    assert!(dead.last_error.ends_with("allows no more"), "{}", dead.last_error);
    client.enqueue(job("t").with_id("a")).await;
    crash(&client, "t", 1).await;
    client.until("crashed", "a", JobState::Ready).await;
    // It is written there before its lease ends here.
    eventually("it leaves", async || client.find("t", "a").await.is_none().then_some(())).await;
    for crashes in [1, 2] {
        crash(&client, "crashed", 1).await;
        let crashed = async || {
            let job = client.get("crashed", "a").await;
            (job.crashes == crashes && job.state() != JobState::Running).then_some(job)
        };
        let job = eventually("it crashes", crashed).await;
        assert_eq!(job.state() == JobState::Dead, crashes == 2, "{job:?}");
        if crashes == 1 {
            client.until("crashed", "a", JobState::Ready).await;
        }
    }
    // A job of the crash topic itself goes to the topic that the file names for it.
    client.enqueue(job("crashed").with_id("b").with_retry(policy(""))).await;
    crash(&client, "crashed", 1).await;
    client.until("t", "b", JobState::Ready).await;
}

/// The topic of a job cannot be its own crash topic, in whatever way it is named.
#[tokio::test]
async fn a_topic_is_never_its_own_crash_topic() {
    let server = Server::start().await;
    let client = server.connect().await;
    let enqueue = |crash_topic: &str| {
        let job = Some(job("t").with_retry(policy(crash_topic)));
        client.send(EnqueueRequest { job, ..Default::default() })
    };
    for crash_topic in ["t", "a b", "--", "ringq.crashed"] {
        let refused = enqueue(crash_topic).await.unwrap_err();
        let reason = (Code::InvalidArgument, "INVALID_FIELD", "job.retry.crash_topic");
        assert_refused(&refused, reason.0, reason.1, reason.2);
    }
    enqueue("-").await.unwrap();
    let update = |crash_topic: &str| {
        let retry = Some(policy(crash_topic));
        let topic = Some(Topic { name: "t".to_owned(), retry, ..Topic::default() });
        let request = UpdateTopicRequest { topic, update_mask: None, allow_missing: true };
        let mut topics = client.topics.clone();
        async move { topics.update_topic(request).await }
    };
    let refused = update("t").await.unwrap_err();
    assert_refused(&refused, Code::InvalidArgument, "INVALID_FIELD", "topic.retry.crash_topic");
    let topic = update("crashed").await.unwrap().into_inner().topic.unwrap();
    assert_eq!(topic.retry, Some(policy("crashed")));
    client.enqueue(job("t").with_id("a").with_delay(Duration::ZERO)).await;
    client.pull_now("t", 1).await;
    crash(&client, "t", 1).await;
    client.until("crashed", "a", JobState::Ready).await;
}
