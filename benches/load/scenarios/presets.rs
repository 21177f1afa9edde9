//! What `ringq bench` measures by its presets, beside the targets of this product. They are for a machine of two
//! cores on which an empty Redis script takes 0.49 us: on another one, compare with a peer of the same run
//! (`make bench-peers`).

use anyhow::Result;

use super::Setting;
use crate::bench::Measured;
use crate::report::{Figure, Fold, Target};

/// Jobs, as the presets have them.
const UNARY_JOBS: u32 = 60_000;
const BULK_JOBS: u32 = 300_000;
const IDLE_JOBS: u32 = 1000;
const DELAYED_JOBS: u32 = 20_000;

pub(super) fn unary(setting: &Setting) -> Result<Vec<Figure>> {
    let rig = setting.rig()?;
    let cpu = rig.server.cpu()?;
    let measured = rig.bench(&words(setting, "unary", UNARY_JOBS))?;
    let cpu_us = (rig.server.cpu()? - cpu).as_secs_f64() * 1e6 / measured.jobs()?;
    let (most, cpu) = match setting.redis {
        0 => (30_000.0, Target::None),
        _ => (45_000.0, Target::AtMost(18.0)),
    };
    Ok(vec![
        rate(&measured)?.against(Target::AtLeast(most)),
        Figure::new("server cpu", "us/job", cpu_us).against(cpu),
    ])
}

pub(super) fn bulk(setting: &Setting) -> Result<Vec<Figure>> {
    Ok(vec![rate(&run(setting, "bulk", BULK_JOBS)?)?.against(Target::AtLeast(300_000.0))])
}

pub(super) fn consume(setting: &Setting) -> Result<Vec<Figure>> {
    Ok(vec![rate(&run(setting, "consume", BULK_JOBS)?)?.against(Target::AtLeast(200_000.0))])
}

pub(super) fn lifecycle(setting: &Setting) -> Result<Vec<Figure>> {
    let rig = setting.rig()?;
    let cpu = rig.server.cpu()?;
    let measured = rig.bench(&words(setting, "lifecycle", BULK_JOBS))?;
    let cpu_us = (rig.server.cpu()? - cpu).as_secs_f64() * 1e6;
    let mut figures = vec![
        rate(&measured)?.against(Target::AtLeast(120_000.0)),
        Figure::new("server cpu", "us/job", cpu_us / measured.jobs()?).against(Target::AtMost(5.0)),
    ];
    if !rig.redis.is_empty() {
        let scripts: f64 = rig.script_us()?.into_iter().sum();
        let scripts = Figure::new("redis scripts", "us/job", scripts / measured.jobs()?);
        figures.push(scripts.against(Target::AtMost(5.0)));
    }
    Ok(figures)
}

pub(super) fn both(setting: &Setting) -> Result<Vec<Figure>> {
    Ok(vec![rate(&run(setting, "both", BULK_JOBS)?)?.against(Target::AtLeast(120_000.0))])
}

pub(super) fn idle(setting: &Setting) -> Result<Vec<Figure>> {
    let measured = run(setting, "idle", IDLE_JOBS)?;
    let ms = |part| measured.latency_ms("dispatch", part);
    let (p50, p99) = match setting.redis {
        0 => (Target::AtMost(0.8), Target::None),
        _ => (Target::AtMost(0.4), Target::AtMost(1.0)),
    };
    Ok(vec![
        Figure::new("p50", "ms", ms("p50")?).against(p50),
        Figure::new("p99", "ms", ms("p99")?).against(p99),
    ])
}

/// A job that came early makes `ringq bench` fail, so the least lateness is information.
pub(super) fn delayed(setting: &Setting) -> Result<Vec<Figure>> {
    let measured = run(setting, "delayed", DELAYED_JOBS)?;
    let ms = |part| measured.latency_ms("lateness", part);
    Ok(vec![
        Figure::new("late min", "ms", ms("min")?).folded(Fold::Least).against(Target::AtLeast(0.0)),
        Figure::new("late p50", "ms", ms("p50")?),
        Figure::new("late p99", "ms", ms("p99")?).against(Target::AtMost(8.0)),
        Figure::new("late max", "ms", ms("max")?).folded(Fold::Most),
    ])
}

pub(super) fn burst(setting: &Setting) -> Result<Vec<Figure>> {
    let measured = run(setting, "burst", DELAYED_JOBS)?;
    let ms = |part| measured.latency_ms("lateness", part);
    Ok(vec![
        Figure::new("first", "ms", ms("min")?).folded(Fold::Least).against(Target::AtLeast(0.0)),
        Figure::new("half", "ms", ms("p50")?),
        Figure::new("last", "ms", ms("max")?).against(Target::AtMost(220.0)),
    ])
}

fn run(setting: &Setting, preset: &str, jobs: u32) -> Result<Measured> {
    setting.rig()?.bench(&words(setting, preset, jobs))
}

fn words(setting: &Setting, preset: &str, jobs: u32) -> String {
    format!("{preset} --jobs {}", setting.jobs(jobs))
}

fn rate(measured: &Measured) -> Result<Figure> {
    Ok(Figure::new("rate", "jobs/s", measured.rate()?))
}
