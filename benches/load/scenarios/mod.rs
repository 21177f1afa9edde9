//! The scenarios. Each run has a server of its own on an empty database.

mod cross_replica;
mod delivery_gaps;
mod depth;
mod memory;
mod presets;
mod shards;
mod topics_file;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use tempfile::TempDir;

use crate::bench_command::{self, BenchRunResult};
use crate::redis::RedisProcess;
use crate::report::LoadFigure;
use crate::server::{LoadServer, LoadServerLauncher, sqlite};

/// A measurable scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Enqueue, one job per call, 50 calls in flight: jobs/s.
    Unary,
    /// BatchEnqueue of 128, 8 calls in flight: jobs/s.
    Bulk,
    /// Take and ack a backlog, 4 streams of credit 1000, acks of 100: jobs/s.
    Consume,
    /// Bulk enqueue, then consume: whole lives per second.
    Lifecycle,
    /// Bulk enqueue while consuming: whole lives per second.
    Both,
    /// A job every 5 ms to an idle worker: from its scheduled send time to the delivery.
    Idle,
    /// A job every 5 ms to a worker that idles on another replica, over one Redis: from the call to the
    /// delivery.
    Cross,
    /// Jobs whose due times spread over 5 s: their lateness.
    Delayed,
    /// Jobs that are all due in one instant: time until the last one has arrived.
    Burst,
    /// Lives of jobs over 1, 2, 4 and 8 Redis: work of each of them.
    Shards,
    /// A file of 9,000 topics on two Redis and two servers: time until it is in force.
    TopicsFile,
    /// Cost of an enqueue with 1,000,000 delayed jobs stored, against 10,000.
    Depth,
    /// The longest gap of deliveries while a deep server is read, against that of an empty one.
    Gaps,
    /// A server with one stream and nothing to do: CPU and memory.
    Quiet,
    /// A worker that reads one message of 1 MiB per second: memory.
    Slowreader,
    /// 1,000 streams that hold 10 jobs each: memory.
    Streams,
    /// A stream that holds 10,000 jobs: memory.
    Hoard,
    /// Memory after 10,000,000 jobs, against that after 1,000,000.
    Endless,
}

impl Scenario {
    /// Returns its name on the command line, here and in `ringq bench`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Bulk => "bulk",
            Self::Consume => "consume",
            Self::Lifecycle => "lifecycle",
            Self::Both => "both",
            Self::Idle => "idle",
            Self::Cross => "cross",
            Self::Delayed => "delayed",
            Self::Burst => "burst",
            Self::Shards => "shards",
            Self::TopicsFile => "topics-file",
            Self::Depth => "depth",
            Self::Gaps => "gaps",
            Self::Quiet => "quiet",
            Self::Slowreader => "slowreader",
            Self::Streams => "streams",
            Self::Hoard => "hoard",
            Self::Endless => "endless",
        }
    }

    /// Runs it once.
    pub(crate) fn run(self, setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
        match self {
            Self::Unary => presets::unary(setting),
            Self::Bulk => presets::bulk(setting),
            Self::Consume => presets::consume(setting),
            Self::Lifecycle => presets::lifecycle(setting),
            Self::Both => presets::both(setting),
            Self::Idle => presets::idle(setting),
            Self::Cross => cross_replica::cross(setting),
            Self::Delayed => presets::delayed(setting),
            Self::Burst => presets::burst(setting),
            Self::Shards => shards::shards(setting),
            Self::TopicsFile => topics_file::topics_file(setting),
            Self::Depth => depth::depth(setting),
            Self::Gaps => delivery_gaps::gaps(setting),
            Self::Quiet => memory::quiet(setting),
            Self::Slowreader => memory::slowreader(setting),
            Self::Streams => memory::streams(setting),
            Self::Hoard => memory::hoard(setting),
            Self::Endless => memory::endless(setting),
        }
    }
}

/// Settings that all scenarios share.
#[derive(Clone, Debug)]
pub(crate) struct LoadSettings {
    /// Directory of databases.
    pub(crate) dir: PathBuf,
    /// Factor of every number of jobs.
    pub(crate) scale: f64,
    /// Number of Redis shards instead of a SQLite file.
    pub(crate) redis: usize,
    /// Threads of the client.
    pub(crate) threads: usize,
    /// Measures only the background work of `gaps` whose figures begin with this.
    pub(crate) only: String,
}

impl LoadSettings {
    /// Scales a number of jobs.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "job counts")]
    fn jobs(&self, jobs: u32) -> u32 {
        (f64::from(jobs) * self.scale).max(1.0) as u32
    }

    /// Starts a fresh server.
    fn rig(&self) -> Result<LoadRig> {
        self.rig_on(self.redis)
    }

    /// Starts a fresh server on this number of Redis; 0: on a SQLite file.
    fn rig_on(&self, redis: usize) -> Result<LoadRig> {
        self.rig_with(redis, 1)
    }

    /// Starts a fresh server on this number of shards.
    fn rig_of_shards(&self, count: usize) -> Result<LoadRig> {
        if self.redis > 0 { self.rig_on(count) } else { self.rig_with(0, count) }
    }

    /// Starts a fresh server on this number of Redis; 0: on this number of SQLite files.
    fn rig_with(&self, redis: usize, files: usize) -> Result<LoadRig> {
        let dir = tempfile::Builder::new().prefix("ringq-load-").tempdir_in(&self.dir)?;
        let redis =
            (0..redis).map(|_| RedisProcess::start(dir.path())).collect::<Result<Vec<_>>>()?;
        let mut launch = LoadServerLauncher::in_dir(dir.path());
        let file = |n| sqlite(&dir.path().join(format!("ringq-{n}.db")));
        launch.shards = (0..files).map(file).collect();
        if !redis.is_empty() {
            launch.shards = redis.iter().map(RedisProcess::url).collect();
        }
        Ok(LoadRig { server: launch.start()?, redis, threads: self.threads, _dir: dir })
    }
}

/// A server with its shards and its directory. The server is dropped first.
struct LoadRig {
    server: LoadServer,
    redis: Vec<RedisProcess>,
    threads: usize,
    _dir: TempDir,
}

impl LoadRig {
    /// Returns the microseconds that each of its Redis has spent in scripts.
    fn script_us(&self) -> Result<Vec<f64>> {
        self.redis.iter().map(RedisProcess::script_us).collect()
    }

    /// Runs `ringq bench` against it.
    fn bench(&self, words: &str) -> Result<BenchRunResult> {
        bench_command::run(&self.server, &format!("{words} --threads {}", self.threads))
    }
}
