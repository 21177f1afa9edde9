//! Punctuality of delayed jobs: receipt minus due time, both by the wall clock of this machine.
//! Below zero is early, which the books refuse.

use anyhow::{Result, ensure};

use super::{BODY_BYTES, Setting};
use crate::ledger::wall_us;
use crate::report::{Figure, Fold, Target, percentile};
use crate::{consumer, producer};

const JOBS: u32 = 20_000;
/// The due times of `delayed` spread over this.
const SPREAD_US: i64 = 5_000_000;
/// Ahead of the first due time: enough to enqueue them all.
const LEAD_US: i64 = 2_000_000;

pub(super) async fn delayed(setting: &Setting) -> Result<Vec<Figure>> {
    let step = SPREAD_US / i64::from(setting.jobs(JOBS));
    let mut late = lateness(setting, step).await?;
    let p99 = percentile(&mut late, 0.99);
    Ok(vec![
        Figure::new("late min", "ms", percentile(&mut late, 0.0))
            .folded(Fold::Least)
            .against(Target::AtLeast(0.0)),
        Figure::new("late p50", "ms", percentile(&mut late, 0.5)),
        Figure::new("late p99", "ms", p99).against(Target::AtMost(8.0)),
        Figure::new("late max", "ms", percentile(&mut late, 1.0)).folded(Fold::Most),
    ])
}

pub(super) async fn burst(setting: &Setting) -> Result<Vec<Figure>> {
    let mut late = lateness(setting, 0).await?;
    Ok(vec![
        Figure::new("first", "ms", percentile(&mut late, 0.0))
            .folded(Fold::Least)
            .against(Target::AtLeast(0.0)),
        Figure::new("half", "ms", percentile(&mut late, 0.5)),
        Figure::new("last", "ms", percentile(&mut late, 1.0)),
    ])
}

/// Enqueues jobs `step_us` apart with workers waiting; how late each came, in milliseconds.
async fn lateness(setting: &Setting, step_us: i64) -> Result<Vec<f64>> {
    let bench = setting.bench(setting.jobs(JOBS), BODY_BYTES).await?;
    let first_us = wall_us() + LEAD_US;
    let due_us = move |number| first_us + i64::from(number) * step_us;
    let enqueue = async {
        producer::bulk(&bench.client, &bench.ledger, due_us).await?;
        ensure!(wall_us() < first_us, "enqueuing took longer than the lead of {LEAD_US} us");
        Ok(())
    };
    let ((), late_us) = tokio::try_join!(enqueue, consumer::drain(&bench.client, &bench.ledger))?;
    bench.client.balance(&bench.ledger).await?;
    #[expect(clippy::cast_precision_loss, reason = "seconds in microseconds")]
    Ok(late_us.into_iter().map(|us| us as f64 / 1e3).collect())
}
