//! What the server takes when it has little to do, and when a worker reads slowly.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ringq::pb;
use tokio::time::sleep;

use super::{BODY_BYTES, Bench, Setting};
use crate::client::body;
use crate::ledger::wall_us;
use crate::report::{Figure, Fold, Target};
use crate::{consumer, producer};

/// Until an idle server has settled.
const SETTLE: Duration = Duration::from_secs(3);
/// How long CPU time is watched.
const WATCH: Duration = Duration::from_secs(20);
/// Large bodies.
const MEBIBYTE: usize = 1 << 20;
const LARGE_JOBS: u32 = 128;
/// The slow worker reads this many messages, one per second.
const SLOW_MESSAGES: u32 = 15;
const SLOW_PAUSE: Duration = Duration::from_secs(1);
/// How often memory is sampled while it pauses.
const SAMPLES: u32 = 5;

pub(super) async fn quiet(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(1, BODY_BYTES).await?;
    let _stream = bench.client.queue(0).stream(consumer::request(16)).await?.into_inner();
    sleep(SETTLE).await;
    let (cpu, start) = (bench.server.cpu()?, Instant::now());
    sleep(WATCH).await;
    let used = (bench.server.cpu()? - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    Ok(vec![
        Figure::new("cpu", "% core", used * 100.0).against(Target::AtMost(0.5)),
        Figure::new("rss", "MB", bench.server.rss_mb()?).against(Target::AtMost(60.0)),
    ])
}

/// Memory above that of the idle server, at its peak while the worker reads slowly. Then the worker
/// speeds up, and the books are compared.
pub(super) async fn slowreader(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(LARGE_JOBS, MEBIBYTE).await?;
    sleep(SETTLE).await;
    let idle = bench.server.rss_mb()?;
    fill(&bench).await?;
    let peak = read_all(&bench).await?;
    bench.client.balance(&bench.ledger).await?;
    Ok(vec![
        Figure::new("rss idle", "MB", idle),
        Figure::new("rss above idle", "MB", peak - idle)
            .folded(Fold::Most)
            .against(Target::AtMost(96.0)),
    ])
}

/// One job per call: a bulk call of them would be too large.
async fn fill(bench: &Bench) -> Result<()> {
    let mut queue = bench.client.queue(1);
    for number in 0..bench.ledger.jobs() {
        producer::one(&mut queue, &bench.ledger, number).await?;
    }
    Ok(())
}

/// Reads and acknowledges everything, slowly at first; the peak of the server's memory meanwhile.
async fn read_all(bench: &Bench) -> Result<f64> {
    let mut stream = bench.client.queue(0).stream(consumer::request(1000)).await?.into_inner();
    let mut peak = bench.server.rss_mb()?;
    let mut messages = 0;
    while !bench.ledger.complete() {
        let message = stream.message().await?.context("the server ended the stream")?;
        settle(bench, &message).await?;
        messages += 1;
        for _ in 0..if messages <= SLOW_MESSAGES { SAMPLES } else { 0 } {
            sleep(SLOW_PAUSE / SAMPLES).await;
            peak = peak.max(bench.server.rss_mb()?);
        }
    }
    Ok(peak)
}

async fn settle(bench: &Bench, message: &pb::StreamResponse) -> Result<()> {
    let enter = |delivery: &pb::Delivery| {
        let entry = bench.ledger.delivered(body(delivery), wall_us())?;
        Some((entry.number, delivery.receipt.clone()))
    };
    let held: Vec<_> = message.deliveries.iter().filter_map(enter).collect();
    if held.is_empty() {
        return Ok(());
    }
    for number in consumer::ack(bench.client.queue(1), held).await? {
        bench.ledger.acked(number);
    }
    Ok(())
}
