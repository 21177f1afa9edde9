//! Memory and CPU of the server when it has little to do, when a worker reads slowly, when many streams hold many
//! jobs, and after many jobs. These are figures of the server, so the worker is a few lines and not `ringq bench`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ringq::client::Client;
use ringq::pb;
use tokio::runtime::Builder;
use tokio::time::sleep;
use tonic::Streaming;

use super::{LoadRig, LoadSettings};
use crate::report::{FigureTarget, LoadFigure, RoundAggregate};

const TOPIC: &str = "load";
/// Time until an idle server has settled.
const SETTLE: Duration = Duration::from_secs(3);
/// Time for which CPU use is watched.
const WATCH: Duration = Duration::from_secs(20);
/// Jobs with bodies of 1 MiB.
const LARGE_JOBS: usize = 128;
/// Number of messages that the slow worker reads, one per second.
const SLOW_MESSAGES: u32 = 15;
const SLOW_PAUSE: Duration = Duration::from_secs(1);
/// Number of memory samples during each pause.
const SAMPLES: u32 = 5;

/// Streams that one connection carries.
const STREAMS_PER_CONNECTION: usize = 100;
/// Number of jobs per run, and number of runs: the last run is compared with the first.
const ENDLESS: (u32, u32) = (1_000_000, 10);
/// Time until a Redis has dropped its records of succeeded jobs: they stay for a minute or two, so they depend on the
/// recent jobs and not on all jobs ever.
const TOMBSTONE_WAIT: Duration = Duration::from_secs(130);

pub(super) fn quiet(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let rig = setting.rig()?;
    block_on(async {
        let _stream = open(&client(&rig)?, 16).await?;
        sleep(SETTLE).await;
        let (cpu, start) = (rig.server.cpu()?, Instant::now());
        sleep(WATCH).await;
        let used = (rig.server.cpu()? - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
        Ok(vec![
            LoadFigure::new("cpu", "% core", used * 100.0).with_target(FigureTarget::AtMost(0.5)),
            LoadFigure::new("rss", "MB", rig.server.rss_mb()?)
                .with_target(FigureTarget::AtMost(60.0)),
        ])
    })
}

/// Measures memory above that of the idle server, at its peak while the worker reads slowly. Then the worker reads
/// the rest at full speed.
pub(super) fn slowreader(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let rig = setting.rig()?;
    std::thread::sleep(SETTLE);
    let idle = rig.server.rss_mb()?;
    // One job per call and one call at a time: memory that enqueues leave behind is not measured.
    rig.bench(&format!(
        "unary --producers 1 --phases fill --topic {TOPIC} --body 1048576 --jobs {LARGE_JOBS}"
    ))?;
    let peak = block_on(read_all(&rig))?;
    Ok(vec![
        LoadFigure::new("rss idle", "MB", idle),
        LoadFigure::new("rss above idle", "MB", peak - idle)
            .with_aggregate(RoundAggregate::Most)
            .with_target(FigureTarget::AtMost(96.0)),
    ])
}

/// Measures many streams that hold a few jobs each.
pub(super) fn streams(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    held_memory(setting, 1_000, 10, 150.0)
}

/// Measures one stream that holds many jobs.
pub(super) fn hoard(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    held_memory(setting, 1, 10_000, 50.0)
}

/// Measures memory above that of the idle server while each of these streams holds as many jobs as it may.
fn held_memory(
    setting: &LoadSettings,
    streams: usize,
    credit: usize,
    most: f64,
) -> Result<Vec<LoadFigure>> {
    let rig = setting.rig()?;
    std::thread::sleep(SETTLE);
    let idle = rig.server.rss_mb()?;
    let jobs = streams * credit;
    rig.bench(&format!("unary --producers 1 --phases fill --topic {TOPIC} --jobs {jobs}"))?;
    let full = block_on(async {
        let connections = streams.div_ceil(STREAMS_PER_CONNECTION);
        let clients = (0..connections).map(|_| client(&rig)).collect::<Result<Vec<_>>>()?;
        let mut opened = Vec::new();
        for number in 0..streams {
            let client = &clients[number / STREAMS_PER_CONNECTION];
            opened.push(open(client, i32::try_from(credit)?).await?);
        }
        for stream in &mut opened {
            let mut got = 0;
            while got < credit {
                let message = stream.message().await?.context("the server ended the stream")?;
                got += message.deliveries.len();
            }
        }
        sleep(SETTLE).await;
        rig.server.rss_mb()
    })?;
    Ok(vec![
        LoadFigure::new("rss idle", "MB", idle),
        LoadFigure::new("rss above idle", "MB", full - idle)
            .with_aggregate(RoundAggregate::Most)
            .with_target(FigureTarget::AtMost(most)),
    ])
}

/// Measures how much more memory is in use after ten times as many jobs have passed.
pub(super) fn endless(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let rig = setting.rig()?;
    let (jobs, runs) = ENDLESS;
    let mut samples: Vec<[f64; 2]> = Vec::new();
    for run in 1..=runs {
        rig.bench(&format!("both --jobs {} --topic {TOPIC}", setting.jobs(jobs)))?;
        if run != 1 && run != runs {
            continue;
        }
        std::thread::sleep(if rig.redis.is_empty() { SETTLE } else { TOMBSTONE_WAIT });
        let redis: Vec<_> = rig.redis.iter().map(|redis| redis.used_mb()).collect::<Result<_>>()?;
        samples.push([rig.server.rss_mb()?, redis.iter().sum()]);
    }
    let ([rss_first, redis_first], [rss, redis]) = (samples[0], samples[samples.len() - 1]);
    let rss_more = 100.0 * (rss / rss_first - 1.0);
    let mut figures = vec![
        LoadFigure::new("rss", "MB", rss),
        LoadFigure::new("rss more", "%", rss_more)
            .with_aggregate(RoundAggregate::Most)
            .with_target(FigureTarget::AtMost(5.0)),
    ];
    if !rig.redis.is_empty() {
        figures.push(LoadFigure::new("redis", "MB", redis));
        // Without jobs it has two megabytes, nearly all of them its own: a ratio of those means nothing.
        let figure = LoadFigure::new("redis more", "MB", redis - redis_first)
            .with_aggregate(RoundAggregate::Most);
        figures.push(figure.with_target(FigureTarget::AtMost(0.5)));
    }
    Ok(figures)
}

/// Reads and acknowledges everything, slowly at first; returns the peak of the server's memory meanwhile.
async fn read_all(rig: &LoadRig) -> Result<f64> {
    // Two connections: unread messages fill the window of the first, and an answer to an ack would not get through.
    let (reader, acks) = (client(rig)?, client(rig)?);
    let mut stream = open(&reader, 1000).await?;
    let mut peak = rig.server.rss_mb()?;
    let (mut seen, mut messages) = (HashSet::new(), 0);
    while seen.len() < LARGE_JOBS {
        let message = stream.message().await?.context("the server ended the stream")?;
        settle(&acks, message.deliveries, &mut seen).await?;
        messages += 1;
        for _ in 0..if messages <= SLOW_MESSAGES { SAMPLES } else { 0 } {
            sleep(SLOW_PAUSE / SAMPLES).await;
            peak = peak.max(rig.server.rss_mb()?);
        }
    }
    Ok(peak)
}

async fn settle(
    client: &Client,
    deliveries: Vec<pb::Delivery>,
    seen: &mut HashSet<String>,
) -> Result<()> {
    let mut items = Vec::new();
    for delivery in deliveries {
        ensure!(seen.insert(delivery.id.clone()), "{} was delivered twice", delivery.id);
        items.push(pb::AckItem { receipt: delivery.receipt, ..Default::default() });
    }
    if items.is_empty() {
        return Ok(());
    }
    let failures = client.queue().ack(pb::AckRequest { items }).await?.into_inner().failures;
    ensure!(failures.is_empty(), "{} receipts refused: {:?}", failures.len(), failures[0]);
    Ok(())
}

async fn open(client: &Client, max_in_flight: i32) -> Result<Streaming<pb::StreamResponse>> {
    let request = pb::StreamRequest {
        topics: vec![TOPIC.to_owned()],
        max_in_flight,
        lease_duration: Some(prost_types::Duration { seconds: 120, nanos: 0 }),
        ..Default::default()
    };
    Ok(client.queue().stream(request).await?.into_inner())
}

fn client(rig: &LoadRig) -> Result<Client> {
    Ok(Client::new(format!("http://{}", rig.server.address))?)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    Builder::new_current_thread().enable_all().build()?.block_on(work)
}
