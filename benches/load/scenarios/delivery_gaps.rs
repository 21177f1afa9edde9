//! Measures whether work on a deep shard delays deliveries. Two servers, an empty and a deep one, are measured in
//! turn: jobs are enqueued every few milliseconds for a worker while one kind of work is repeated beside it. The
//! figure is the longest time between two messages of the worker's stream.
//!
//! `--scale 10` is the promised depth: 10 million jobs, and 1 million each of topics, leases and holes.

use std::io::{Write as _, stderr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use ringq::client::Client;
use ringq::pb;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};

use super::{LoadRig, LoadSettings};
use crate::percentile::percentile;
use crate::redis::RedisProcess;
use crate::report::{FigureTarget, LoadFigure};
use crate::server::LoadServer;

/// The deep topic, the one with holes, and the one whose jobs are leased.
const DEEP: &str = "deep";
const HOLED: &str = "holes";
const LEASED: &str = "leased";
/// Number of shards: one can be drained then.
const SHARDS: usize = 2;
/// Number of jobs that wait in one topic.
const DEEP_JOBS: u32 = 1_000_000;
/// Number of topics with a job each.
const TOPICS: u32 = 100_000;
/// Number of leased jobs.
const LEASES: u32 = 100_000;
/// Number of jobs that are deleted from the middle of a topic that has twice as many.
const HOLES: u32 = 100_000;
/// Jobs per call when a server is filled, calls in flight then, and credit of one stream.
const CALL: usize = 1_000;
const CALLS: usize = 64;
const CREDIT: u32 = 10_000;
/// Duration of a turn, and pause between two enqueues.
const TURN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);
const TURNS: u32 = 5;
/// Number of jobs that wait while a shard is drained: enough for a turn of one after the other.
const BACKLOG: usize = 20_000;
/// Attempts to drain a shard or to activate it again.
const SET_STATE_TRIES: u32 = 4;
/// Interval at which the answers of claims are lost.
const DROP_INTERVAL: Duration = Duration::from_millis(400);

/// Work that is repeated beside the deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackgroundLoad {
    ListJobs(pb::JobState, &'static str),
    ListTopics,
    TopicStats,
    ListShards,
    /// A stream for these topics is opened again and again.
    GlobStream(&'static str),
    /// A shard drains, and a client waits for its end.
    Drain,
    /// The connections of the server to its Redis are closed, and claims are undone whose answers were lost.
    Unclaim,
}

/// Each with the names of its figures: on the empty server, on the deep one, and their ratio.
const BACKGROUND_LOADS: [([&str; 3], BackgroundLoad); 10] = [
    (
        ["list ready, empty", "list ready, deep", "list ready, ratio"],
        BackgroundLoad::ListJobs(pb::JobState::Ready, DEEP),
    ),
    (
        ["list holes, empty", "list holes, deep", "list holes, ratio"],
        BackgroundLoad::ListJobs(pb::JobState::Ready, HOLED),
    ),
    (
        ["list running, empty", "list running, deep", "list running, ratio"],
        BackgroundLoad::ListJobs(pb::JobState::Running, LEASED),
    ),
    (["list topics, empty", "list topics, deep", "list topics, ratio"], BackgroundLoad::ListTopics),
    (["topic stats, empty", "topic stats, deep", "topic stats, ratio"], BackgroundLoad::TopicStats),
    (["list shards, empty", "list shards, deep", "list shards, ratio"], BackgroundLoad::ListShards),
    (
        ["glob of none, empty", "glob of none, deep", "glob of none, ratio"],
        BackgroundLoad::GlobStream("nothing.*"),
    ),
    (
        ["glob of all, empty", "glob of all, deep", "glob of all, ratio"],
        BackgroundLoad::GlobStream("topic.*"),
    ),
    (["drain, empty", "drain, deep", "drain, ratio"], BackgroundLoad::Drain),
    (["unclaim, empty", "unclaim, deep", "unclaim, ratio"], BackgroundLoad::Unclaim),
];

pub(super) fn gaps(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let (empty, deep) = (setting.rig_of_shards(SHARDS)?, setting.rig_of_shards(SHARDS)?);
    let jobs = setting.jobs(DEEP_JOBS);
    deep.bench(&format!("bulk --phases fill --topic {DEEP} --jobs {jobs}"))?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Their jobs are leased as long as they exist.
    let _holders = runtime.block_on(fill(setting, &deep.server))?;
    let mut figures = Vec::new();
    // No answer of a claim is lost with a file.
    let can = |work| work != BackgroundLoad::Unclaim || setting.redis > 0;
    let works = BACKGROUND_LOADS
        .into_iter()
        .filter(|(names, work)| can(*work) && names[0].starts_with(&setting.only));
    for (names, work) in works {
        let (mut shallow, mut far) = (Vec::new(), Vec::new());
        for n in 0..TURNS {
            // A fresh topic, without jobs of other turns.
            let topic = format!("{}, {n}", names[2]).replace([' ', ','], "-");
            shallow.push(runtime.block_on(measure_turn(&empty, work, &topic))?);
            far.push(runtime.block_on(measure_turn(&deep, work, &topic))?);
        }
        let (shallow, far) = (percentile(&mut shallow, 0.5), percentile(&mut far, 0.5));
        writeln!(stderr(), "{}: {far:.1} ms, empty {shallow:.1} ms", names[1])?;
        let [at_empty, at_deep, ratio] = names;
        figures.push(LoadFigure::new(at_empty, "ms", shallow));
        figures.push(LoadFigure::new(at_deep, "ms", far));
        figures.push(
            LoadFigure::new(ratio, "x", far / shallow).with_target(FigureTarget::AtMost(2.0)),
        );
    }
    Ok(figures)
}

// === A deep server ===

/// Makes a server deep; returns the streams that hold leases there.
async fn fill(
    setting: &LoadSettings,
    server: &LoadServer,
) -> Result<Vec<tonic::Streaming<pb::StreamResponse>>> {
    let client = client(server)?;
    enqueue(&client, (0..setting.jobs(TOPICS)).map(|n| job(&format!("topic.{n}"), None))).await?;
    let holes = setting.jobs(HOLES);
    enqueue(&client, (0..2 * holes).map(|n| job(HOLED, Some(hole(n))))).await?;
    delete(&client, (holes / 2..holes / 2 + holes).map(hole)).await?;
    let leases = setting.jobs(LEASES);
    enqueue(&client, (0..leases).map(|_| job(LEASED, None))).await?;
    let mut holders = Vec::new();
    let mut left = leases;
    while left > 0 {
        let credit = left.min(CREDIT);
        holders.push(lease_jobs(&client, credit).await?);
        left -= credit;
    }
    Ok(holders)
}

fn hole(n: u32) -> String {
    format!("h{n}")
}

async fn enqueue(client: &Client, jobs: impl Iterator<Item = pb::JobSpec>) -> Result<()> {
    let jobs: Vec<_> = jobs.collect();
    for part in jobs.chunks(CALL) {
        let request = pb::BatchEnqueueRequest { jobs: part.to_vec(), ..Default::default() };
        let answer = client.queue().batch_enqueue(request).await?.into_inner();
        ensure!(answer.results.len() == part.len(), "some jobs have no result");
    }
    Ok(())
}

async fn delete(client: &Client, ids: impl Iterator<Item = String>) -> Result<()> {
    let calls = ids.map(|id| async move {
        let request = pb::DeleteRequest { topic: HOLED.to_owned(), id, allow_missing: true };
        client.queue().delete(request).await.map(drop)
    });
    Ok(stream::iter(calls).buffer_unordered(CALLS).try_collect().await?)
}

/// Opens a stream that leases this number of jobs.
async fn lease_jobs(client: &Client, jobs: u32) -> Result<tonic::Streaming<pb::StreamResponse>> {
    let mut holder = open(client, &[LEASED], jobs).await?;
    let mut held = 0;
    while held < jobs as usize {
        held += holder.message().await?.context("the stream has ended")?.deliveries.len();
    }
    Ok(holder)
}

// === A turn ===

/// Returns the longest time in milliseconds between two messages of a stream of this topic, while the work is
/// repeated.
async fn measure_turn(rig: &LoadRig, work: BackgroundLoad, topic: &str) -> Result<f64> {
    let client = client(&rig.server)?;
    let mut beside = JoinSet::new();
    if work == BackgroundLoad::Drain {
        enqueue(&client, (0..BACKLOG).map(|_| job(topic, None))).await?;
        set_state(&client, pb::ShardState::Draining).await?;
    } else {
        beside.spawn(produce(client.clone(), topic.to_owned()));
    }
    if work == BackgroundLoad::Unclaim {
        beside.spawn(drop_connections(rig.redis.iter().map(RedisProcess::port).collect()));
    } else {
        beside.spawn(read(client.clone(), work));
    }
    let longest = longest_gap_ms(&client, work, topic).await;
    beside.shutdown().await;
    if work == BackgroundLoad::Drain {
        set_state(&client, pb::ShardState::Active).await?;
    }
    longest
}

/// Measures the longest gap of [`measure_turn`].
async fn longest_gap_ms(client: &Client, work: BackgroundLoad, topic: &str) -> Result<f64> {
    // Jobs that a claim with a lost answer has leased are searched among these, too.
    let topics: &[&str] = if work == BackgroundLoad::Unclaim { &[topic, LEASED] } else { &[topic] };
    // With a backlog the next job comes when this one is settled.
    let credit = if work == BackgroundLoad::Drain { 1 } else { CREDIT };
    let mut stream = open(client, topics, credit).await?;
    stream.message().await?.context("the stream has ended")?;
    let (begin, mut longest, mut acks) = (Instant::now(), Duration::ZERO, JoinSet::new());
    let mut last = begin;
    while let Ok(message) = timeout_at((begin + TURN).into(), stream.message()).await {
        let deliveries = message?.context("the stream has ended")?.deliveries;
        if deliveries.is_empty() {
            continue;
        }
        longest = longest.max(last.elapsed());
        last = Instant::now();
        let ack = |delivery: pb::Delivery| pb::AckItem {
            receipt: delivery.receipt,
            ..Default::default()
        };
        let items = deliveries.into_iter().map(ack).collect();
        let client = client.clone();
        acks.spawn(async move { client.queue().ack(pb::AckRequest { items }).await });
    }
    acks.join_all().await;
    Ok(longest.max(last.elapsed()).as_secs_f64() * 1e3)
}

/// Enqueues until it is aborted. A call whose connection was lost takes longer, and delays no other one.
async fn produce(client: Client, topic: String) {
    let mut calls = JoinSet::new();
    loop {
        let request = pb::EnqueueRequest { job: Some(job(&topic, None)), ..Default::default() };
        let client = client.clone();
        calls.spawn(async move { client.queue().enqueue(request).await.map(drop) });
        while calls.try_join_next().is_some() {}
        sleep(PAUSE).await;
    }
}

/// Reads until it is aborted; answers are ignored, and may be errors.
async fn read(client: Client, work: BackgroundLoad) {
    loop {
        drop(read_once(&client, work).await);
    }
}

async fn read_once(client: &Client, work: BackgroundLoad) -> Result<()> {
    match work {
        BackgroundLoad::ListJobs(state, topic) => {
            let (topic, state) = (topic.to_owned(), state.into());
            let request = pb::ListJobsRequest { topic, state, ..Default::default() };
            client.admin().list_jobs(request).await?;
        }
        BackgroundLoad::ListTopics => {
            let request = pb::ListTopicsRequest { page_size: 1_000, ..Default::default() };
            client.topics().list_topics(request).await?;
        }
        BackgroundLoad::TopicStats => {
            let request = pb::GetTopicStatsRequest { name: DEEP.to_owned() };
            client.topics().get_topic_stats(request).await?;
        }
        BackgroundLoad::ListShards | BackgroundLoad::Drain => {
            client.admin().list_shards(pb::ListShardsRequest {}).await?;
        }
        BackgroundLoad::GlobStream(glob) => {
            let mut stream = open(client, &[glob], 1).await?;
            sleep(Duration::from_secs(1)).await;
            drop(stream.message().await?);
        }
        BackgroundLoad::Unclaim => {}
    }
    Ok(())
}

/// Closes connections to the Redis at these ports now and then, whatever is in flight on them.
async fn drop_connections(ports: Vec<u16>) {
    loop {
        sleep(DROP_INTERVAL).await;
        for port in &ports {
            drop(RedisProcess::send_command_to(*port, "CLIENT KILL TYPE normal"));
        }
    }
}

/// Sets the state of the first shard. The answer contains the number of its jobs: on a deep shard with other readers
/// that may take longer than a call.
async fn set_state(client: &Client, state: pb::ShardState) -> Result<()> {
    for _ in 0..SET_STATE_TRIES {
        let request = pb::SetShardStateRequest { name: "s0".to_owned(), state: state.into() };
        match client.admin().set_shard_state(request).await {
            Err(status) if status.code() == tonic::Code::DeadlineExceeded => {}
            answer => return Ok(answer.map(drop)?),
        }
    }
    bail!("the state of a shard cannot be set")
}

async fn open(
    client: &Client,
    topics: &[&str],
    credit: u32,
) -> Result<tonic::Streaming<pb::StreamResponse>> {
    let request = pb::StreamRequest {
        topics: topics.iter().copied().map(str::to_owned).collect(),
        max_in_flight: i32::try_from(credit)?,
        lease_duration: Some(prost_types::Duration { seconds: 24 * 3_600, nanos: 0 }),
        ..Default::default()
    };
    Ok(client.queue().stream(request).await?.into_inner())
}

fn job(topic: &str, id: Option<String>) -> pb::JobSpec {
    pb::JobSpec { topic: topic.to_owned(), id: id.unwrap_or_default(), ..Default::default() }
}

fn client(server: &LoadServer) -> Result<Client> {
    Ok(Client::new(format!("http://{}", server.address))?)
}
