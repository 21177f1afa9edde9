//! What `ringq bench` measures by its presets, beside the targets of this product.

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
    Ok(vec![rate(&run(setting, "unary", UNARY_JOBS)?)?.against(Target::AtLeast(20_000.0))])
}

pub(super) fn bulk(setting: &Setting) -> Result<Vec<Figure>> {
    Ok(vec![rate(&run(setting, "bulk", BULK_JOBS)?)?])
}

pub(super) fn consume(setting: &Setting) -> Result<Vec<Figure>> {
    Ok(vec![rate(&run(setting, "consume", BULK_JOBS)?)?])
}

pub(super) fn lifecycle(setting: &Setting) -> Result<Vec<Figure>> {
    let rig = setting.rig()?;
    let cpu = rig.server.cpu()?;
    let measured = rig.bench(&words(setting, "lifecycle", BULK_JOBS))?;
    let cpu_us = (rig.server.cpu()? - cpu).as_secs_f64() * 1e6;
    let mut figures = vec![
        rate(&measured)?.against(Target::AtLeast(60_000.0)),
        Figure::new("server cpu", "us/job", cpu_us / measured.jobs()?),
    ];
    if !rig.redis.is_empty() {
        let scripts: f64 = rig.script_us()?.into_iter().sum();
        figures.push(Figure::new("redis scripts", "us/job", scripts / measured.jobs()?));
    }
    Ok(figures)
}

pub(super) fn both(setting: &Setting) -> Result<Vec<Figure>> {
    Ok(vec![rate(&run(setting, "both", BULK_JOBS)?)?])
}

pub(super) fn idle(setting: &Setting) -> Result<Vec<Figure>> {
    let measured = run(setting, "idle", IDLE_JOBS)?;
    let ms = |part| measured.latency_ms("dispatch", part);
    Ok(vec![
        Figure::new("p50", "ms", ms("p50")?).against(Target::AtMost(1.0)),
        Figure::new("p99", "ms", ms("p99")?).against(Target::AtMost(5.0)),
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
        Figure::new("last", "ms", ms("max")?),
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
