//! The scenarios. Each run has a server of its own on an empty database.

mod depth;
mod due;
mod idle;
mod memory;
mod throughput;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;
use tempfile::TempDir;

use crate::client::Client;
use crate::ledger::Ledger;
use crate::report::Figure;
use crate::server::{Launch, Server};

/// Connections of the client.
const CONNECTIONS: usize = 4;
/// Bytes of a body, unless the scenario says otherwise.
const BODY_BYTES: usize = 100;

/// What can be measured.
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
    /// One job at a time to an idle worker: start of the enqueue call to delivery.
    Idle,
    /// Jobs whose due times spread over 5 s: how late they come.
    Delayed,
    /// Jobs that are all due in one instant: how long until the last one is there.
    Burst,
    /// What an enqueue costs with 1,000,000 delayed jobs stored, against 10,000.
    Depth,
    /// A server with one stream and nothing to do: CPU and memory.
    Quiet,
    /// A worker that reads one message of 1 MiB per second: memory.
    Slowreader,
}

impl Scenario {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Bulk => "bulk",
            Self::Consume => "consume",
            Self::Lifecycle => "lifecycle",
            Self::Both => "both",
            Self::Idle => "idle",
            Self::Delayed => "delayed",
            Self::Burst => "burst",
            Self::Depth => "depth",
            Self::Quiet => "quiet",
            Self::Slowreader => "slowreader",
        }
    }

    /// Runs it once.
    pub(crate) fn run(self, setting: &Setting) -> Run<'_> {
        match self {
            Self::Unary => Box::pin(throughput::unary(setting)),
            Self::Bulk => Box::pin(throughput::bulk(setting)),
            Self::Consume => Box::pin(throughput::consume(setting)),
            Self::Lifecycle => Box::pin(throughput::lifecycle(setting)),
            Self::Both => Box::pin(throughput::both(setting)),
            Self::Idle => Box::pin(idle::idle(setting)),
            Self::Delayed => Box::pin(due::delayed(setting)),
            Self::Burst => Box::pin(due::burst(setting)),
            Self::Depth => Box::pin(depth::depth(setting)),
            Self::Quiet => Box::pin(memory::quiet(setting)),
            Self::Slowreader => Box::pin(memory::slowreader(setting)),
        }
    }
}

/// One round of a scenario.
pub(crate) type Run<'a> = Pin<Box<dyn Future<Output = Result<Vec<Figure>>> + 'a>>;

/// What all scenarios share.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Where databases go.
    pub(crate) dir: PathBuf,
    /// Every number of jobs is multiplied by this.
    pub(crate) scale: f64,
}

impl Setting {
    /// A number of jobs, scaled.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "job counts")]
    fn jobs(&self, jobs: u32) -> u32 {
        (f64::from(jobs) * self.scale).max(1.0) as u32
    }

    /// A fresh server, connected, with books for `jobs` jobs.
    async fn bench(&self, jobs: u32, body_bytes: usize) -> Result<Bench> {
        let dir = tempfile::Builder::new().prefix("ringq-load-").tempdir_in(&self.dir)?;
        let server = Launch::in_dir(dir.path()).start()?;
        let client = Client::connect(&server.address, CONNECTIONS).await?;
        Ok(Bench { server, client, ledger: Arc::new(Ledger::new(jobs, body_bytes)), _dir: dir })
    }
}

/// A server, a client, the books. The server goes before its directory.
struct Bench {
    server: Server,
    client: Client,
    ledger: Arc<Ledger>,
    _dir: TempDir,
}
