//! Equal work over more and more Redis: the work of each falls with their number.

use anyhow::Result;

use super::LoadSettings;
use crate::report::{FigureTarget, LoadFigure};

/// Number of jobs, by bulk enqueue and batched acks.
const JOBS: u32 = 100_000;
/// Numbers of shards that are compared with one, and the names of their figures.
const COUNTS: [(usize, &str); 3] = [(2, "2 shards"), (4, "4 shards"), (8, "8 shards")];
/// Allowed deviation of a shard from its part.
const TOLERANCE: f64 = 0.15;

pub(super) fn shards(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let (alone, _) = busiest(setting, 1)?;
    let mut figures = vec![LoadFigure::new("1 shard", "us/job", alone)];
    for (count, name) in COUNTS {
        let (busiest, sum) = busiest(setting, count)?;
        // The whole costs a little more, because batches are smaller; the parts should be equal.
        let part = sum / count as f64;
        figures.push(LoadFigure::new(name, "us/job", busiest));
        let share = LoadFigure::new("busiest", "of its part", busiest / part);
        figures.push(share.with_target(FigureTarget::AtMost(1.0 + TOLERANCE)));
        let scaled = LoadFigure::new("of 1/N", "of alone", busiest * count as f64 / alone);
        figures.push(scaled.with_target(FigureTarget::AtMost(1.0 + TOLERANCE)));
    }
    Ok(figures)
}

/// Returns the microseconds per job in the scripts of the busiest shard, and of all together.
fn busiest(setting: &LoadSettings, count: usize) -> Result<(f64, f64)> {
    let rig = setting.rig_on(count)?;
    let measured = rig.bench(&format!("lifecycle --jobs {}", setting.jobs(JOBS)))?;
    let jobs = measured.jobs()?;
    let each = rig.script_us()?.into_iter().map(|us| us / jobs);
    Ok(each.fold((0.0, 0.0), |(most, sum), us| (us.max(most), sum + us)))
}
