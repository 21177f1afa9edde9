//! Regress: cost of the hot paths, against a committed baseline: a slow change shows on the day that it is made, on
//! any machine, however busy.
//!
//! `make bench-regress` compares, `make bench-regress BLESS=1` writes its figures as the baseline. Exit code 1: a
//! figure is off by more than its tolerance, in either direction, in three measurements of three.
//!
//! - [`hot`]: the pure functions of the bench of this name, in instructions per call
//! - [`server`]: a whole server on SQLite in memory and on Redis, in instructions per job: decoding, converting,
//!   batching, the store's side, claims, credit, messages, receipts, encoding; `traced`: on SQLite, with traces
//!   exported and one call of a hundred recorded; `token`: on SQLite, with an identity whose token each call brings;
//!   `tls`: on SQLite, with TLS. What traces and tokens may cost more than the plain server, in the same run, is limited
//! - [`redis`]: the scripts, in instructions of Redis per job and verb; and, loosely, in time
//!
//! The code is built like the tests, without further optimization: another build would cost minutes in every CI run,
//! and a path that does more shows in any build. `make bench` measures optimized code.

#![allow(
    clippy::disallowed_methods,
    reason = "a measuring tool reads the environment; nothing in it decides by it"
)]

mod baseline;
mod callgrind;
mod hot;
mod life;
#[path = "../hot/paths.rs"]
mod paths;
mod receiver;
mod redis;
#[path = "../load/redis.rs"]
#[allow(dead_code, reason = "the load bench shares this file and uses the rest")]
mod redis_server;
mod server;

use std::env;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::runtime::Builder;

use baseline::{Baseline, BaselineVerdict};
use server::Variant;

// The allocator of the server binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of times that a part is measured at most.
const MEASURED_MAX: usize = 3;

/// A figure.
#[derive(Clone, Debug)]
struct RegressFigure {
    name: String,
    value: f64,
    /// The time behind it, which depends on this machine.
    micros: Option<f64>,
}

/// Part that is measured together.
#[derive(Clone, Copy, Debug)]
enum Part {
    Hot,
    ServerOnSqlite(Variant),
    ServerOnRedis,
    Scripts,
    ScriptTimes,
}

// === impl RegressFigure ===

impl RegressFigure {
    fn new(name: String, value: f64) -> RegressFigure {
        RegressFigure { name, value, micros: None }
    }
}

// === impl Part ===

impl Part {
    /// Returns the parts that count instructions, which do not depend on what else runs.
    fn counted() -> Vec<Part> {
        let servers = Variant::ALL.into_iter().map(Part::ServerOnSqlite);
        let others = [Part::ServerOnRedis, Part::Scripts];
        [Part::Hot].into_iter().chain(servers).chain(others).collect()
    }

    fn measure(self) -> Result<Vec<RegressFigure>> {
        Builder::new_current_thread().enable_all().build()?.block_on(self.measure_on_runtime())
    }

    async fn measure_on_runtime(self) -> Result<Vec<RegressFigure>> {
        match self {
            Part::Hot => hot::count(),
            Part::ServerOnSqlite(variant) => {
                let name = if variant == Variant::Plain { "sqlite" } else { variant.name() };
                server::count(name, "sqlite::memory:", variant).await
            }
            Part::ServerOnRedis => {
                let dir = TempDir::new()?;
                let program = Command::new(redis::program());
                let redis = redis_server::RedisProcess::launch(program, dir.path())?;
                server::count("redis", &redis.url(), Variant::Plain).await
            }
            Part::Scripts => redis::count().await,
            Part::ScriptTimes => redis::time().await,
        }
    }
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [hot::COMMAND] => hot::run(),
        [server::COMMAND, url, variant, directory] => {
            let variant = Variant::ALL.into_iter().find(|known| known.name() == variant);
            server::serve(url, variant.context("a variant")?, Path::new(directory))?;
        }
        _ => return regress(arguments.iter().any(|argument| argument == "--bless")),
    }
    Ok(ExitCode::SUCCESS)
}

fn regress(bless: bool) -> Result<ExitCode> {
    if let Some(missing) = missing_tool() {
        if env::var("CI").is_ok_and(|ci| ci == "true") {
            bail!("{missing} is required with CI=true: .ci/install-test-tools");
        }
        writeln!(stdout(), "skipped: there is no {missing}, see .ci/install-test-tools")?;
        return Ok(ExitCode::SUCCESS);
    }
    let rustc = rustc()?;
    if bless {
        Baseline::write(&rustc, &each_part(medians)?)?;
    }
    let baseline = Baseline::read()?;
    let figures = each_part(|part| nearest(part, &baseline, &rustc))?;
    report(&baseline, &figures, &rustc)
}

/// Returns the name of a missing tool.
fn missing_tool() -> Option<&'static str> {
    if !callgrind::is_installed() {
        return Some("valgrind");
    }
    (!redis::program().exists()).then_some("redis-server-8")
}

/// Returns all figures, in the order of the parts. Two parts run at a time: each counts a program of one thread. The one
/// that takes times comes last, alone.
fn each_part(
    measure: impl Fn(Part) -> Result<Vec<RegressFigure>> + Sync,
) -> Result<Vec<RegressFigure>> {
    let (measure, mut figures) = (&measure, Vec::new());
    for pair in Part::counted().chunks(2) {
        let measured: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> =
                pair.iter().map(|&part| scope.spawn(move || measure(part))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a panic is printed")).collect()
        });
        for part in measured {
            figures.extend(part?);
        }
    }
    figures.extend(measure(Part::ScriptTimes)?);
    Ok(figures)
}

/// Returns the figures of a part, measured again if one is off: timing changes what a server does between calls, and a
/// machine that stands still for a moment is no regression. A path that does more is off every time.
fn nearest(part: Part, baseline: &Baseline, rustc: &str) -> Result<Vec<RegressFigure>> {
    let mut nearest = part.measure()?;
    for _ in 1..MEASURED_MAX {
        if nearest.iter().all(|figure| baseline.judge(figure, rustc).is_within()) {
            break;
        }
        let again = part.measure()?;
        nearest = nearest
            .into_iter()
            .zip(again)
            .map(|(figure, again)| baseline.nearer(figure, again))
            .collect();
    }
    Ok(nearest)
}

/// Returns the figures of a part, each the median of several.
fn medians(part: Part) -> Result<Vec<RegressFigure>> {
    let runs = (0..MEASURED_MAX).map(|_| part.measure()).collect::<Result<Vec<_>>>()?;
    let median = |figure: usize| {
        let mut values: Vec<RegressFigure> = runs.iter().map(|run| run[figure].clone()).collect();
        values.sort_by(|one, other| one.value.total_cmp(&other.value));
        values.swap_remove(MEASURED_MAX / 2)
    };
    Ok((0..runs[0].len()).map(median).collect())
}

/// Returns the maximum of what a variant may add to the cost of a job, in percent; `None`: it is only shown. The goal for
/// tokens is 3 % of a released server, where they add 1.0 %; here the standard library checks each step over the bytes of
/// the header, and the file of identities, which is read each second, counts for a server that is slowed down. The figures
/// for a job alone differ by 2 % from run to run, so the limits are that much above what was measured.
fn added_max(variant: Variant) -> Option<f64> {
    match variant {
        Variant::Plain | Variant::Tls => None,
        // Together 0 to 7.7 % by one build: which calls meet in a batch differs from run to run.
        Variant::Traced => Some(10.0),
        Variant::Token => Some(8.0),
    }
}

/// Returns what the variants add to the cost of a job in a plain server, in percent.
fn added(figures: &[RegressFigure]) -> Vec<(Variant, &'static str, f64)> {
    let value = |name: String| figures.iter().find(|figure| figure.name == name).map(|f| f.value);
    let added = |variant: Variant, way: &'static str| {
        let plain = value(format!("server.sqlite.{way}"))?;
        let with = value(format!("server.{}.{way}", variant.name()))?;
        Some((variant, way, 100.0 * (with / plain - 1.0)))
    };
    let rows = Variant::ALL
        .into_iter()
        .flat_map(|variant| ["alone", "together"].map(|way| (variant, way)));
    rows.filter_map(|(variant, way)| added(variant, way)).collect()
}

/// Prints the relation of each figure to the baseline; fails if one is off.
fn report(baseline: &Baseline, figures: &[RegressFigure], rustc: &str) -> Result<ExitCode> {
    let (mut out, mut off) = (stdout(), 0);
    for figure in figures {
        let before = baseline.value(&figure.name).unwrap_or(figure.value);
        let verdict = match baseline.judge(figure, rustc) {
            BaselineVerdict::Within => "",
            BaselineVerdict::NotInBaseline => "  is not in the baseline",
            BaselineVerdict::OutOfTolerance => "  OFF",
        };
        off += usize::from(!verdict.is_empty());
        let change = 100.0 * (figure.value / before - 1.0);
        let micros = figure.micros.map(|micros| format!("  {micros:.2} us here"));
        let micros = micros.unwrap_or_default();
        let RegressFigure { name, value, .. } = figure;
        writeln!(out, "{name:26} {value:12.2} {change:+7.2} %{micros}{verdict}")?;
    }
    for name in baseline.unmeasured(figures) {
        off += 1;
        writeln!(out, "{name:26} is not measured any more")?;
    }
    let mut slow = false;
    for (variant, way, added) in added(figures) {
        let max = added_max(variant);
        slow |= max.is_some_and(|max| added > max);
        let limit = max.map(|max| format!("; at most {max:+.2} %")).unwrap_or_default();
        writeln!(out, "{}: {added:+.2} % for a job {way}{limit}", variant.name())?;
    }
    if off == 0 {
        return Ok(if slow { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    writeln!(out, "{off} figures are off; if that is meant: make bench-regress BLESS=1")?;
    Ok(ExitCode::FAILURE)
}

/// Returns the compiler's version.
fn rustc() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().context("rustc")?;
    let text = String::from_utf8(version.stdout)?;
    Ok(text.split(' ').nth(1).context("an odd version of rustc")?.to_owned())
}

/// Returns the path of this program, to run it once more under callgrind.
fn own_program() -> Result<PathBuf> {
    Ok(env::current_exe()?)
}
