//! How many jobs per second. After the timed part, what is left is drained and the books are
//! compared, so that no figure counts a job that was not really there.

use std::time::Instant;

use anyhow::Result;

use super::{BODY_BYTES, Bench, Setting};
use crate::report::{Figure, Target};
use crate::{consumer, producer};

const UNARY_JOBS: u32 = 60_000;
const BULK_JOBS: u32 = 300_000;

/// A job that is due now.
const NOW: fn(u32) -> i64 = |_| 0;

pub(super) async fn unary(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(setting.jobs(UNARY_JOBS), BODY_BYTES).await?;
    let start = Instant::now();
    producer::unary(&bench.client, &bench.ledger).await?;
    let rate = bench.rate(start).against(Target::AtLeast(20_000.0));
    bench.drain_untimed().await?;
    Ok(vec![rate])
}

pub(super) async fn bulk(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(setting.jobs(BULK_JOBS), BODY_BYTES).await?;
    let start = Instant::now();
    producer::bulk(&bench.client, &bench.ledger, NOW).await?;
    let rate = bench.rate(start);
    bench.drain_untimed().await?;
    Ok(vec![rate])
}

pub(super) async fn consume(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(setting.jobs(BULK_JOBS), BODY_BYTES).await?;
    producer::bulk(&bench.client, &bench.ledger, NOW).await?;
    let start = Instant::now();
    consumer::drain(&bench.client, &bench.ledger).await?;
    let rate = bench.rate(start);
    bench.client.balance(&bench.ledger).await?;
    Ok(vec![rate])
}

pub(super) async fn lifecycle(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(setting.jobs(BULK_JOBS), BODY_BYTES).await?;
    let cpu = bench.server.cpu()?;
    let start = Instant::now();
    producer::bulk(&bench.client, &bench.ledger, NOW).await?;
    consumer::drain(&bench.client, &bench.ledger).await?;
    let rate = bench.rate(start).against(Target::AtLeast(60_000.0));
    let cpu_us = (bench.server.cpu()? - cpu).as_secs_f64() * 1e6;
    let cpu_us = Figure::new("server cpu", "us/job", cpu_us / f64::from(bench.ledger.jobs()));
    bench.client.balance(&bench.ledger).await?;
    Ok(vec![rate, cpu_us])
}

pub(super) async fn both(setting: &Setting) -> Result<Vec<Figure>> {
    let bench = setting.bench(setting.jobs(BULK_JOBS), BODY_BYTES).await?;
    let start = Instant::now();
    tokio::try_join!(
        producer::bulk(&bench.client, &bench.ledger, NOW),
        consumer::drain(&bench.client, &bench.ledger),
    )?;
    let rate = bench.rate(start);
    bench.client.balance(&bench.ledger).await?;
    Ok(vec![rate])
}

impl Bench {
    fn rate(&self, start: Instant) -> Figure {
        let rate = f64::from(self.ledger.jobs()) / start.elapsed().as_secs_f64();
        Figure::new("rate", "jobs/s", rate)
    }

    async fn drain_untimed(&self) -> Result<()> {
        consumer::drain(&self.client, &self.ledger).await?;
        self.client.balance(&self.ledger).await
    }
}
