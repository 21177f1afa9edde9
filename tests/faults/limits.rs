//! Topics over their limit, and settings that come and go, while shards and servers die.

use std::time::Duration;

use rand::Rng as _;
use ringq::pb::{
    CreateTopicRequest, DeleteTopicRequest, GetTopicRequest, JobState, OverflowPolicy, Topic,
    UpdateTopicRequest,
};
use tokio::time::Instant;
use tonic::Code;

use crate::cluster::Shape;
use crate::harness::{Client, eventually_in, job, refusal, request};
use crate::load::Habits;
use crate::trial::{Trial, harm_time};

const TOPIC: &str = "newest";
/// Limit of waiting jobs, and number of those that wait before it is set.
const MAX: i64 = 20;
const BACKLOG: usize = 300;
/// Number of jobs, and of topics, that are written between two faults.
const SOME: usize = 20;
const SOME_TOPICS: usize = 6;
/// Longest time in which the rig waits for an answer: a server repeats calls to a shard that died for half a minute.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Time within which all shards have the same settings after the end of all faults.
const EQUAL_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_topic_over_its_limit_refuses_no_new_job() {
    let shape = Shape { shards: 2, replicas: 2, fsync: "always", ..Shape::default() };
    let Some(mut trial) = Trial::start("over_limit", shape, Habits::default()).await else {
        return;
    };
    let client = trial.cluster.replica[0].connect().await;
    client.enqueue_all(vec![job(TOPIC); BACKLOG]).await;
    set_limit(&client).await;
    let (mut random, mut written) = (trial.random(), 0);
    let end = Instant::now() + harm_time();
    while written == 0 || Instant::now() < end {
        let redis = random.random_range(0..2);
        trial.kill_redis(redis);
        if random.random_bool(0.3) {
            trial.kill_replica(1).await;
        }
        written += write_some(&client).await;
        trial.restart_redis(redis).await;
        trial.restart_replica(1).await;
        written += write_some(&client).await;
    }
    println!("over_limit: {written} jobs written while a shard died");
    let mut last = String::new();
    // One more has to leave for each, until there is no more than the limit.
    for calls in 0.. {
        let stats = client.stats(TOPIC).await;
        let waiting = stats.ready;
        if !last.is_empty() && stats.unreachable_shards.is_empty() && waiting <= MAX {
            assert!(waiting > MAX / 2, "only {waiting} jobs were left");
            break;
        }
        assert!(calls <= BACKLOG + 2, "{waiting} jobs wait after {calls} new ones");
        last = client.enqueue(job(TOPIC)).await.id;
    }
    assert_eq!(client.state(TOPIC, &last).await, JobState::Ready, "the newest job");
    delete(&client, TOPIC).await.unwrap();
    trial.finish().await;
}

/// Limits the topic, and waits until each server drops its oldest jobs.
async fn set_limit(client: &Client) {
    let on_full = OverflowPolicy::DropOldest.into();
    let topic = Topic { name: TOPIC.into(), max_jobs: MAX, on_full, ..Topic::default() };
    let update = UpdateTopicRequest { topic: Some(topic), ..Default::default() };
    client.topics.clone().update_topic(update).await.unwrap();
}

/// Enqueues some jobs, one by one; returns how many were written. None may be refused for the limit.
async fn write_some(client: &Client) -> usize {
    let mut written = 0;
    for _ in 0..SOME {
        match tokio::time::timeout(ANSWER_MAX, client.send(request(job(TOPIC)))).await {
            Ok(Ok(_)) => written += 1,
            Ok(Err(status)) => assert!(!refusal(&status).contains("TOPIC_FULL"), "{status:?}"),
            // Its outcome is unknown.
            Err(_) => {}
        }
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn settings_that_were_deleted_stay_away_and_take_no_room() {
    let shape = Shape { shards: 3, replicas: 2, fsync: "always", ..Shape::default() };
    let name = "settings_deleted";
    let Some(mut trial) = Trial::start(name, shape, Habits::default()).await else { return };
    let client = trial.cluster.replica[0].connect().await;
    let (mut random, mut created) = (trial.random(), Vec::new());
    let end = Instant::now() + harm_time();
    for round in 0.. {
        if round >= 2 && Instant::now() >= end {
            break;
        }
        let mut topics = Vec::new();
        for number in 0..SOME_TOPICS {
            topics.push(format!("run.{round}.{number}"));
            create(&client, topics.last().unwrap()).await;
        }
        // This one keeps the settings while the others lose them.
        let away = random.random_range(0..3);
        trial.kill_redis(away);
        for topic in &topics {
            let _ = tokio::time::timeout(ANSWER_MAX, delete(&client, topic)).await;
        }
        if random.random_bool(0.5) {
            trial.kill_replica(1).await;
        }
        trial.restart_redis(away).await;
        trial.restart_replica(1).await;
        created.extend(topics);
    }
    // Those whose home shard was away.
    for topic in &created {
        eventually_in(EQUAL_WITHIN, "the topic is deleted", async || {
            let deleted = delete(&client, topic).await;
            let is_gone = |status: &tonic::Status| status.code() == Code::NotFound;
            deleted.map_or_else(|status| is_gone(&status), |()| true).then_some(())
        })
        .await;
    }
    for redis in &trial.cluster.redis {
        for shard in 0..3 {
            let key = format!("ringq:{{s{shard}}}:documents.order");
            eventually_in(EQUAL_WITHIN, "no shard keeps the settings", async || {
                (redis.command(&["ZCARD", &key]).await == ":0").then_some(())
            })
            .await;
        }
    }
    for replica in &trial.cluster.replica {
        let client = replica.connect().await;
        for topic in &created {
            let request = GetTopicRequest { name: topic.clone() };
            let found = client.topics.clone().get_topic(request).await;
            assert_eq!(found.unwrap_err().code(), Code::NotFound, "{topic} came back");
        }
    }
    trial.finish().await;
}

async fn create(client: &Client, name: &str) {
    let topic = Topic { name: name.into(), priority: Some(5), ..Topic::default() };
    let request = CreateTopicRequest { topic: Some(topic) };
    let _ = tokio::time::timeout(ANSWER_MAX, client.topics.clone().create_topic(request)).await;
}

async fn delete(client: &Client, name: &str) -> Result<(), tonic::Status> {
    let request = DeleteTopicRequest { name: name.into(), force: true, ..Default::default() };
    client.topics.clone().delete_topic(request).await.map(drop)
}
