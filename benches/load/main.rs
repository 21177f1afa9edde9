//! Load: throughput, punctuality and resource use of a real server process, over real gRPC.
//!
//! `cargo bench --bench load -- lifecycle unary --rounds 3`; without names, everything. The rounds are interleaved,
//! and the table shows their medians beside the targets. Client and server share the machine, so every figure
//! includes the cost of the client. Exit code 1: a job was lost, doubled, damaged or early. A missed target is shown
//! and is no error: speed depends on the machine.
//!
//! `ringq bench` measures, as anyone can run it against their own server; this program starts servers on fresh
//! stores, and has the expected figures. `RINGQ_BIN` names another binary that serves and measures, for example that
//! of an earlier commit.

#![allow(
    clippy::disallowed_methods,
    reason = "a measuring tool reads clocks and the environment; nothing in it decides by them"
)]

mod bench_command;
mod disk;
mod percentile;
mod redis;
mod report;
mod scenarios;
mod server;

use std::io::{Write as _, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum as _};

use crate::report::LoadReport;
use crate::scenarios::{LoadSettings, Scenario};

/// Measures a ringq server.
#[derive(Debug, Parser)]
struct LoadOptions {
    /// Scenarios to measure; everything if none is named.
    scenarios: Vec<Scenario>,
    /// Number of rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Threads of the client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Factor of every number of jobs.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Number of Redis shards without persistence, instead of a SQLite file.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=64))]
    redis: u16,
    /// Measures only the background work of `gaps` whose figures begin with this: `list ready`.
    #[arg(long, default_value = "")]
    only: String,
    /// Directory of databases; the disk under it is part of every figure.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<ExitCode> {
    let options = LoadOptions::parse();
    if !options.bench {
        writeln!(stderr(), "load: nothing is measured by a test run; use `cargo bench`")?;
        return Ok(ExitCode::SUCCESS);
    }
    let setting = LoadSettings {
        dir: options.dir.clone().unwrap_or_else(std::env::temp_dir),
        scale: options.scale,
        redis: usize::from(options.redis),
        threads: usize::from(options.threads),
        only: options.only.clone(),
    };
    let fsync = disk::probe(&setting.dir)?;
    let report = measure(&options, &setting)?;
    let mut out = stdout().lock();
    writeln!(out, "server {}", server::binary().display())?;
    writeln!(out, "fsync of 4 KiB: p50 {:.0} us, p99 {:.0} us", fsync.p50_us, fsync.p99_us)?;
    report.table(&mut out)?;
    writeln!(
        out,
        "{}",
        report.json(usize::from(options.rounds), usize::from(options.threads), fsync)
    )?;
    Ok(if report.failed_scenarios.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all rounds of all scenarios, interleaved.
fn measure(options: &LoadOptions, setting: &LoadSettings) -> Result<LoadReport> {
    let all = Scenario::value_variants();
    let chosen = if options.scenarios.is_empty() { all } else { &options.scenarios };
    let mut report = LoadReport::default();
    for round in 1..=options.rounds {
        for scenario in chosen {
            let name = scenario.name();
            writeln!(stderr(), "round {round} of {}: {name}", options.rounds)?;
            match scenario.run(setting) {
                Ok(figures) => report.add(name, figures),
                Err(error) => {
                    report.failed_scenarios.push(format!("{name}, round {round}: {error:#}"))
                }
            }
        }
    }
    Ok(report)
}
