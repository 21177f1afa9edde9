//! Measures whether an enqueue costs more when a million jobs wait for their time. Two servers, a shallow and a deep
//! one, are measured in turn. `ringq bench` compares the remaining jobs with the server's numbers.

use anyhow::Result;

use super::{LoadRig, LoadSettings};
use crate::percentile::percentile;
use crate::report::{FigureTarget, LoadFigure};

const SHALLOW_JOBS: u32 = 10_000;
const DEEP_JOBS: u32 = 1_000_000;
/// Unary enqueues per turn; they stay in the queue.
const TURN_JOBS: u32 = 10_000;
const TURNS: u32 = 5;

pub(super) fn depth(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let shallow = fill(setting, SHALLOW_JOBS)?;
    let deep = fill(setting, setting.jobs(DEEP_JOBS))?;
    let (mut shallow_rates, mut deep_rates) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        shallow_rates.push(measure_turn(setting, &shallow)?);
        deep_rates.push(measure_turn(setting, &deep)?);
    }
    let shallow = percentile(&mut shallow_rates, 0.5);
    let deep = percentile(&mut deep_rates, 0.5);
    Ok(vec![
        LoadFigure::new("unary at 10k", "jobs/s", shallow),
        LoadFigure::new("unary at 1M", "jobs/s", deep),
        LoadFigure::new("ratio", "x", shallow / deep).with_target(FigureTarget::AtMost(1.5)),
    ])
}

/// Starts a server with this number of delayed jobs, due in an hour and later, a millisecond apart.
fn fill(setting: &LoadSettings, jobs: u32) -> Result<LoadRig> {
    let rig = setting.rig()?;
    rig.bench(&format!(
        "bulk --phases fill --topic load --jobs {jobs} --lead 1h --spread {jobs}ms"
    ))?;
    Ok(rig)
}

/// Returns the jobs per second of one turn.
fn measure_turn(setting: &LoadSettings, rig: &LoadRig) -> Result<f64> {
    let jobs = setting.jobs(TURN_JOBS);
    rig.bench(&format!("unary --phases fill --topic load --jobs {jobs}"))?.rate()
}
