//! Cost of the scripts in Redis, which executes one at a time: its main thread is the capacity of a shard.
//!
//! Instructions decide. Microseconds are the real cost, but they depend on the machine and on its other load: so they
//! are taken as the ratio to a constant script, run in turn with the life of the jobs, the least of several rounds of
//! each, and a wide tolerance catches costs that instructions do not show, for example cache misses.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use ringq::store::Store;
use tempfile::TempDir;

use crate::callgrind::CallgrindCounts;
use crate::redis_server::RedisProcess;
use crate::{RegressFigure, life};

/// Path of the redis-server on every machine, installed by `.ci/install-test-tools`.
const PROGRAM: &str = ".tools/bin/redis-server-8";
/// Options that minimize work by the clock instead of by requests.
const QUIET_OPTIONS: [&str; 6] = ["--hz", "1", "--dynamic-hz", "no", "--activerehashing", "no"];
/// A command that no script runs, and its request.
const MARK: (&str, &str) = ("lolwutCommand", "LOLWUT VERSION 9");
/// Jobs per call, and calls.
const SHAPES: [(usize, usize); 2] = [(1, 1_000), (128, 40)];
/// Calls in flight at once where time is measured: a Redis that idles between calls has cold caches.
const IN_FLIGHT: usize = 32;
/// Number of rounds in turn with the constant script.
const ROUNDS: usize = 15;
/// The constant script: writes and reads, like ours.
const YARDSTICK: &str = "EVAL \"for i = 1, 5000 do local k = 'y' .. i % 100; \
    redis.call('HSET', k, i % 7, i); redis.call('HGET', k, i % 5) end\" 0";

/// Returns the path of that program.
pub(crate) fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAM)
}

/// Returns the cost of the life of a job: instructions per job, for each verb.
pub(crate) async fn count() -> Result<Vec<RegressFigure>> {
    let mut counts = CallgrindCounts::new()?;
    let mut command = counts.command(program(), MARK.0);
    command.args(QUIET_OPTIONS);
    let redis = RedisProcess::launch(command, counts.dir())?;
    let store = life::open(&redis.url()).await?;
    let mut figures = Vec::new();
    for (jobs, calls) in SHAPES {
        // Work for the first job of a topic.
        run_jobs(&*store, (jobs, 2), 1, || Ok(())).await?;
        redis.send_command(MARK.1)?;
        counts.parts()?;
        run_jobs(&*store, (jobs, calls), 1, || redis.send_command(MARK.1).map(drop)).await?;
        let parts = counts.parts()?;
        for (verb, part) in ["enqueue", "claim", "settle"].iter().zip(parts) {
            let name = format!("redis.{verb}.by_{jobs}");
            figures.push(RegressFigure::new(name, part as f64 / (jobs * calls) as f64));
        }
    }
    Ok(figures)
}

/// Returns the time of the life of a job as a ratio to the constant script, and in microseconds of this machine.
pub(crate) async fn time() -> Result<Vec<RegressFigure>> {
    let dir = TempDir::new()?;
    let redis = RedisProcess::launch(Command::new(program()), dir.path())?;
    let store = life::open(&redis.url()).await?;
    let mut figures = Vec::new();
    for (jobs, calls) in SHAPES {
        let (mut yardstick, mut least) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ROUNDS {
            let before = redis.spent_us("eval:")?;
            redis.send_command(YARDSTICK)?;
            yardstick = yardstick.min(redis.spent_us("eval:")? - before);
            let before = redis.spent_us("evalsha:")?;
            run_jobs(&*store, (jobs, calls), IN_FLIGHT, || Ok(())).await?;
            least = least.min((redis.spent_us("evalsha:")? - before) / (jobs * calls) as f64);
        }
        let name = format!("redis.time.by_{jobs}");
        figures.push(RegressFigure {
            micros: Some(least),
            ..RegressFigure::new(name, 1_000.0 * least / yardstick)
        });
    }
    Ok(figures)
}

/// Runs jobs, this number per call; `mark` follows each verb.
async fn run_jobs(
    store: &dyn Store,
    (jobs, calls): (usize, usize),
    under_way: usize,
    mark: impl Fn() -> Result<()>,
) -> Result<()> {
    let enqueues = stream::iter(0..calls).map(|nth| life::enqueue(store, jobs, nth));
    enqueues.buffered(under_way).try_collect::<Vec<()>>().await?;
    mark()?;
    let claims = stream::iter(0..calls).map(|_| life::claim(store, jobs));
    let claimed: Vec<_> = claims.buffered(under_way).try_collect().await?;
    mark()?;
    let settles = stream::iter(claimed).map(|acks| life::settle(store, acks));
    settles.buffered(under_way).try_collect::<Vec<()>>().await?;
    mark()
}
