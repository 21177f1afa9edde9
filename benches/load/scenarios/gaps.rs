//! Does a read of a deep shard hold up deliveries? Two servers, an empty and a deep one, are measured in turns: a job
//! goes from its enqueue to a worker every few milliseconds while one kind of read is repeated beside it. What counts
//! is the longest gap.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ringq::client::Client;
use ringq::pb;
use tokio::runtime::Builder;
use tokio::time::sleep;

use super::{Rig, Setting};
use crate::percentile::percentile;
use crate::report::{Figure, Target};
use crate::server::Server;

/// The topic whose deliveries are timed, and the deep one.
const TOPIC: &str = "load";
const DEEP: &str = "deep";
/// Jobs that wait in one topic.
const DEEP_JOBS: u32 = 1_000_000;
/// Topics with a job each.
const TOPICS: u32 = 200_000;
/// Jobs that are leased.
const LEASES: u32 = 10_000;
/// Jobs that are deleted from the middle of a topic that has twice as many.
const HOLES: u32 = 50_000;
/// Jobs of one call when a server is filled.
const CALL: u32 = 1_000;
/// Jobs that are timed in one turn, and the pause between two.
const JOBS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);
const TURNS: u32 = 5;

/// What is repeated beside the deliveries.
#[derive(Clone, Copy, Debug)]
enum Read {
    ListJobs(pb::JobState, &'static str),
    ListTopics,
    TopicStats,
    ListShards,
    GlobStream,
}

/// Each with the names of its figures: on the empty server, on the deep one, and how many times as long.
const READS: [([&str; 3], Read); 7] = [
    (
        ["list ready, empty", "list ready, deep", "list ready, ratio"],
        Read::ListJobs(pb::JobState::Ready, DEEP),
    ),
    (
        ["list holes, empty", "list holes, deep", "list holes, ratio"],
        Read::ListJobs(pb::JobState::Ready, "holes"),
    ),
    (
        ["list running, empty", "list running, deep", "list running, ratio"],
        Read::ListJobs(pb::JobState::Running, "running"),
    ),
    (["list topics, empty", "list topics, deep", "list topics, ratio"], Read::ListTopics),
    (["topic stats, empty", "topic stats, deep", "topic stats, ratio"], Read::TopicStats),
    (["list shards, empty", "list shards, deep", "list shards, ratio"], Read::ListShards),
    (["glob stream, empty", "glob stream, deep", "glob stream, ratio"], Read::GlobStream),
];

pub(super) fn gaps(setting: &Setting) -> Result<Vec<Figure>> {
    let (empty, deep) = (setting.rig()?, setting.rig()?);
    let jobs = setting.jobs(DEEP_JOBS);
    deep.bench(&format!("bulk --phases fill --topic {DEEP} --jobs {jobs}"))?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // As long as it is there its jobs are leased.
    let _holder = runtime.block_on(fill(setting, &deep.server))?;
    let mut figures = Vec::new();
    for (names, read) in READS {
        let (mut shallow, mut far) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            shallow.push(runtime.block_on(turn(&empty, read))?);
            far.push(runtime.block_on(turn(&deep, read))?);
        }
        let (shallow, far) = (percentile(&mut shallow, 0.5), percentile(&mut far, 0.5));
        let [at_empty, at_deep, ratio] = names;
        figures.push(Figure::new(at_empty, "ms", shallow));
        figures.push(Figure::new(at_deep, "ms", far));
        figures.push(Figure::new(ratio, "x", far / shallow).against(Target::AtMost(2.0)));
    }
    Ok(figures)
}

/// Makes a server deep, and answers the stream that holds leases there.
async fn fill(setting: &Setting, server: &Server) -> Result<tonic::Streaming<pb::StreamResponse>> {
    let client = client(server)?;
    let topics = (0..setting.jobs(TOPICS)).map(|n| job(&format!("topic.{n}"), None));
    enqueue(&client, topics).await?;
    let holes = setting.jobs(HOLES);
    let id = |n: u32| format!("h{n}");
    enqueue(&client, (0..2 * holes).map(|n| job("holes", Some(id(n))))).await?;
    for n in holes / 2..holes / 2 + holes {
        let (topic, id) = ("holes".to_owned(), id(n));
        let request = pb::DeleteRequest { topic, id, allow_missing: true };
        client.queue().delete(request).await?;
    }
    let leases = setting.jobs(LEASES);
    enqueue(&client, (0..leases).map(|_| job("running", None))).await?;
    let mut holder = open(&client, "running", leases).await?;
    let mut held = 0;
    while held < leases as usize {
        held += holder.message().await?.context("the stream has ended")?.deliveries.len();
    }
    Ok(holder)
}

async fn enqueue(client: &Client, jobs: impl Iterator<Item = pb::JobSpec>) -> Result<()> {
    let jobs: Vec<_> = jobs.collect();
    for part in jobs.chunks(CALL as usize) {
        let request = pb::BatchEnqueueRequest { jobs: part.to_vec(), ..Default::default() };
        let answer = client.queue().batch_enqueue(request).await?.into_inner();
        ensure!(answer.results.len() == part.len(), "some jobs have no result");
    }
    Ok(())
}

fn job(topic: &str, id: Option<String>) -> pb::JobSpec {
    pb::JobSpec { topic: topic.to_owned(), id: id.unwrap_or_default(), ..Default::default() }
}

async fn open(
    client: &Client,
    topic: &str,
    max_in_flight: u32,
) -> Result<tonic::Streaming<pb::StreamResponse>> {
    let request = pb::StreamRequest {
        topics: vec![topic.to_owned()],
        max_in_flight: i32::try_from(max_in_flight)?,
        lease_duration: Some(prost_types::Duration { seconds: 24 * 3_600, nanos: 0 }),
        ..Default::default()
    };
    Ok(client.queue().stream(request).await?.into_inner())
}

/// The longest time in milliseconds from an enqueue to its delivery, while the read is repeated.
async fn turn(rig: &Rig, read: Read) -> Result<f64> {
    let reader = client(&rig.server)?;
    let reads = tokio::spawn(async move {
        loop {
            let _ = repeat(&reader, read).await;
        }
    });
    let longest = longest(&rig.server).await;
    reads.abort();
    longest
}

/// One read; what it answers is of no interest, and it may find nothing.
async fn repeat(client: &Client, read: Read) -> Result<()> {
    match read {
        Read::ListJobs(state, topic) => {
            let (topic, state) = (topic.to_owned(), state.into());
            let request = pb::ListJobsRequest { topic, state, ..Default::default() };
            client.admin().list_jobs(request).await?;
        }
        Read::ListTopics => {
            let request = pb::ListTopicsRequest { page_size: 1_000, ..Default::default() };
            client.topics().list_topics(request).await?;
        }
        Read::TopicStats => {
            let request = pb::GetTopicStatsRequest { name: DEEP.to_owned() };
            client.topics().get_topic_stats(request).await?;
        }
        Read::ListShards => {
            client.admin().list_shards(pb::ListShardsRequest {}).await?;
        }
        Read::GlobStream => {
            let mut stream = open(client, "nothing.*", 1).await?;
            sleep(Duration::from_secs(1)).await;
            drop(stream.message().await?);
        }
    }
    Ok(())
}

async fn longest(server: &Server) -> Result<f64> {
    let client = client(server)?;
    let mut stream = open(&client, TOPIC, 16).await?;
    let mut longest = Duration::ZERO;
    for _ in 0..JOBS {
        let begin = Instant::now();
        let request = pb::EnqueueRequest { job: Some(job(TOPIC, None)), ..Default::default() };
        client.queue().enqueue(request).await?;
        let delivery = loop {
            let message = stream.message().await?.context("the stream has ended")?;
            if let Some(delivery) = message.deliveries.into_iter().next() {
                break delivery;
            }
        };
        longest = longest.max(begin.elapsed());
        let items = vec![pb::AckItem { receipt: delivery.receipt, ..Default::default() }];
        client.queue().ack(pb::AckRequest { items }).await?;
        sleep(PAUSE).await;
    }
    Ok(longest.as_secs_f64() * 1e3)
}

fn client(server: &Server) -> Result<Client> {
    Ok(Client::new(format!("http://{}", server.address))?)
}
