//! Does an enqueue cost more when a million jobs wait for their time? Two servers, a shallow and a
//! deep one, are measured in turns.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{BODY_BYTES, Bench, Setting};
use crate::ledger::{Ledger, wall_us};
use crate::producer;
use crate::report::{Figure, Target, percentile};

const SHALLOW_JOBS: u32 = 10_000;
const DEEP_JOBS: u32 = 1_000_000;
/// Unary enqueues per turn.
const TURN_JOBS: u32 = 10_000;
const TURNS: u32 = 5;
/// Stored jobs are due in an hour and later, a millisecond apart.
const AHEAD_US: i64 = 3_600_000_000;

pub(super) async fn depth(setting: &Setting) -> Result<Vec<Figure>> {
    let shallow = stored(setting, SHALLOW_JOBS).await?;
    let deep = stored(setting, setting.jobs(DEEP_JOBS)).await?;
    let (mut shallow_rates, mut deep_rates) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        shallow_rates.push(turn(setting, &shallow).await?);
        deep_rates.push(turn(setting, &deep).await?);
    }
    shallow.check(setting).await?;
    deep.check(setting).await?;
    let shallow = percentile(&mut shallow_rates, 0.5);
    let deep = percentile(&mut deep_rates, 0.5);
    Ok(vec![
        Figure::new("unary at 10k", "jobs/s", shallow),
        Figure::new("unary at 1M", "jobs/s", deep),
        Figure::new("ratio", "x", shallow / deep).against(Target::AtMost(1.5)),
    ])
}

/// A server with this many delayed jobs.
async fn stored(setting: &Setting, jobs: u32) -> Result<Bench> {
    let bench = setting.bench(jobs, BODY_BYTES).await?;
    let first_us = wall_us() + AHEAD_US;
    producer::bulk(&bench.client, &bench.ledger, move |n| first_us + i64::from(n) * 1000).await?;
    Ok(bench)
}

/// Jobs per second of one turn of unary enqueues; they stay in the queue.
async fn turn(setting: &Setting, bench: &Bench) -> Result<f64> {
    let jobs = setting.jobs(TURN_JOBS);
    let ledger = Arc::new(Ledger::new(jobs, BODY_BYTES));
    let start = Instant::now();
    producer::unary(&bench.client, &ledger).await?;
    Ok(f64::from(jobs) / start.elapsed().as_secs_f64())
}

impl Bench {
    /// The server must still hold all of them.
    async fn check(&self, setting: &Setting) -> Result<()> {
        let stats = self.client.stats().await?;
        let ready = i64::from(setting.jobs(TURN_JOBS) * TURNS);
        ensure!(
            stats.scheduled == i64::from(self.ledger.jobs()) && stats.ready == ready,
            "the server's numbers do not fit: {stats:?}"
        );
        Ok(())
    }
}
