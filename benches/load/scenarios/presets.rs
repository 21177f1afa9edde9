//! Measurements of `ringq bench` by its presets, beside the targets of this product. The targets are for a machine of
//! two cores on which an empty Redis script takes 0.49 us: on another one, compare with a peer of the same run (`make
//! bench-peers`).

use anyhow::Result;

use super::LoadSettings;
use crate::bench_command::BenchRunResult;
use crate::report::{FigureTarget, LoadFigure, RoundAggregate};

/// Number of jobs, as in the presets.
const UNARY_JOBS: u32 = 60_000;
const BULK_JOBS: u32 = 300_000;
const IDLE_JOBS: u32 = 1000;
const DELAYED_JOBS: u32 = 20_000;

pub(super) fn unary(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let rig = setting.rig()?;
    let cpu = rig.server.cpu()?;
    let measured = rig.bench(&words(setting, "unary", UNARY_JOBS))?;
    let cpu_us = (rig.server.cpu()? - cpu).as_secs_f64() * 1e6 / measured.jobs()?;
    let (most, cpu) = match setting.redis {
        0 => (30_000.0, FigureTarget::None),
        _ => (45_000.0, FigureTarget::AtMost(18.0)),
    };
    Ok(vec![
        rate(&measured)?.with_target(FigureTarget::AtLeast(most)),
        LoadFigure::new("server cpu", "us/job", cpu_us).with_target(cpu),
    ])
}

pub(super) fn bulk(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    Ok(vec![rate(&run(setting, "bulk", BULK_JOBS)?)?.with_target(FigureTarget::AtLeast(300_000.0))])
}

pub(super) fn consume(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    Ok(vec![
        rate(&run(setting, "consume", BULK_JOBS)?)?.with_target(FigureTarget::AtLeast(200_000.0)),
    ])
}

pub(super) fn lifecycle(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let rig = setting.rig()?;
    let cpu = rig.server.cpu()?;
    let measured = rig.bench(&words(setting, "lifecycle", BULK_JOBS))?;
    let cpu_us = (rig.server.cpu()? - cpu).as_secs_f64() * 1e6;
    let mut figures = vec![
        rate(&measured)?.with_target(FigureTarget::AtLeast(120_000.0)),
        LoadFigure::new("server cpu", "us/job", cpu_us / measured.jobs()?)
            .with_target(FigureTarget::AtMost(5.0)),
    ];
    if !rig.redis.is_empty() {
        let scripts: f64 = rig.script_us()?.into_iter().sum();
        let scripts = LoadFigure::new("redis scripts", "us/job", scripts / measured.jobs()?);
        figures.push(scripts.with_target(FigureTarget::AtMost(5.0)));
    }
    Ok(figures)
}

pub(super) fn both(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    Ok(vec![rate(&run(setting, "both", BULK_JOBS)?)?.with_target(FigureTarget::AtLeast(120_000.0))])
}

pub(super) fn idle(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let measured = run(setting, "idle", IDLE_JOBS)?;
    let ms = |part| measured.latency_ms("dispatch", part);
    let (p50, p99) = match setting.redis {
        0 => (FigureTarget::AtMost(0.8), FigureTarget::None),
        _ => (FigureTarget::AtMost(0.4), FigureTarget::AtMost(1.0)),
    };
    Ok(vec![
        LoadFigure::new("p50", "ms", ms("p50")?).with_target(p50),
        LoadFigure::new("p99", "ms", ms("p99")?).with_target(p99),
    ])
}

/// Measures delayed jobs. An early job makes `ringq bench` fail, so the least lateness is information only.
pub(super) fn delayed(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let measured = run(setting, "delayed", DELAYED_JOBS)?;
    let ms = |part| measured.latency_ms("lateness", part);
    Ok(vec![
        LoadFigure::new("late min", "ms", ms("min")?)
            .with_aggregate(RoundAggregate::Least)
            .with_target(FigureTarget::AtLeast(0.0)),
        LoadFigure::new("late p50", "ms", ms("p50")?),
        LoadFigure::new("late p99", "ms", ms("p99")?).with_target(FigureTarget::AtMost(8.0)),
        LoadFigure::new("late max", "ms", ms("max")?).with_aggregate(RoundAggregate::Most),
    ])
}

pub(super) fn burst(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let measured = run(setting, "burst", DELAYED_JOBS)?;
    let ms = |part| measured.latency_ms("lateness", part);
    Ok(vec![
        LoadFigure::new("first", "ms", ms("min")?)
            .with_aggregate(RoundAggregate::Least)
            .with_target(FigureTarget::AtLeast(0.0)),
        LoadFigure::new("half", "ms", ms("p50")?),
        LoadFigure::new("last", "ms", ms("max")?).with_target(FigureTarget::AtMost(220.0)),
    ])
}

fn run(setting: &LoadSettings, preset: &str, jobs: u32) -> Result<BenchRunResult> {
    setting.rig()?.bench(&words(setting, preset, jobs))
}

fn words(setting: &LoadSettings, preset: &str, jobs: u32) -> String {
    format!("{preset} --jobs {}", setting.jobs(jobs))
}

fn rate(measured: &BenchRunResult) -> Result<LoadFigure> {
    Ok(LoadFigure::new("rate", "jobs/s", measured.rate()?))
}
