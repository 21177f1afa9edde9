//! Does an enqueue cost more when a million jobs wait for their time? Two servers, a shallow and a
//! deep one, are measured in turns. `ringq bench` compares what is left with the server's numbers.

use anyhow::Result;

use super::{Rig, Setting};
use crate::percentile::percentile;
use crate::report::{Figure, Target};

const SHALLOW_JOBS: u32 = 10_000;
const DEEP_JOBS: u32 = 1_000_000;
/// Unary enqueues per turn; they stay in the queue.
const TURN_JOBS: u32 = 10_000;
const TURNS: u32 = 5;

pub(super) fn depth(setting: &Setting) -> Result<Vec<Figure>> {
    let shallow = stored(setting, SHALLOW_JOBS)?;
    let deep = stored(setting, setting.jobs(DEEP_JOBS))?;
    let (mut shallow_rates, mut deep_rates) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        shallow_rates.push(turn(setting, &shallow)?);
        deep_rates.push(turn(setting, &deep)?);
    }
    let shallow = percentile(&mut shallow_rates, 0.5);
    let deep = percentile(&mut deep_rates, 0.5);
    Ok(vec![
        Figure::new("unary at 10k", "jobs/s", shallow),
        Figure::new("unary at 1M", "jobs/s", deep),
        Figure::new("ratio", "x", shallow / deep).against(Target::AtMost(1.5)),
    ])
}

/// A server with this many delayed jobs, due in an hour and later, a millisecond apart.
fn stored(setting: &Setting, jobs: u32) -> Result<Rig> {
    let rig = setting.rig()?;
    rig.bench(&format!(
        "bulk --phases fill --topic load --jobs {jobs} --lead 1h --spread {jobs}ms"
    ))?;
    Ok(rig)
}

/// Jobs per second of one turn.
fn turn(setting: &Setting, rig: &Rig) -> Result<f64> {
    let jobs = setting.jobs(TURN_JOBS);
    rig.bench(&format!("unary --phases fill --topic load --jobs {jobs}"))?.rate()
}
