//! `ringq work`: runs a shell command for each job.
//!
//! The client library's [`Worker`] takes the jobs, keeps their leases and settles them; here is what
//! its handler does ([`handler`]: one job or batch, [`command`]: one process), and around it the start
//! ([`server`]), the signals ([`stop`]) and what is said on stderr ([`report`], [`log`]).

mod command;
mod environment;
mod handler;
mod log;
mod report;
mod result;
mod server;
mod stderr;
mod stop;
mod verdict;

use std::sync::Arc;
use std::time::Duration;
use std::{fs, process};

use anyhow::Context as _;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap::value_parser;
use tokio::runtime::Builder;

use super::connect::Connect;
use super::exit::Failure;
use super::values;
use crate::client::{Client, Delivery, Summary, Worker};
use crate::domain::limit;
use handler::Handler;
use report::Report;
use stop::{Reason, Stop};

/// How long the process waits for what is blocked at its end.
const LINGER: Duration = Duration::from_secs(1);

/// Below the help of `ringq work`.
const AFTER_HELP: &str = "\
The command is run by `sh -c`, in a process group of its own, with the payload on standard input.
How it ends settles the job:
  exit code 0   done
  exit code 75  given back, not counted as tried; it waits nothing at first, then 1s, 2s, 4s … 60s
  any other     failed with the end of its standard error as the reason; its retry policy says when
                it runs again. So does a signal, and --timeout
While it runs its lease is extended. If the job is deleted or its lease is lost, the process group
of the command is killed at once.

Environment of the command, beside that of ringq itself:
  RINGQ_TOPIC, RINGQ_ID        whose job it is
  RINGQ_ATTEMPT                failures so far + 1
  RINGQ_DELIVERY               how often it was handed out, counted as tried or not
  RINGQ_RECEIPT                the proof of the lease, for Ack, Nack and Extend
  RINGQ_DEADLINE               when --timeout ends it; without, when its lease ends unless extended
  RINGQ_HEADER_<NAME>          its headers; what is not A-Z, 0-9 or _ in the upper-case name is a _
With --batch N, N > 1, standard input is one payload per line, and RINGQ_BATCH says how many.
RINGQ_ID, RINGQ_ATTEMPT, RINGQ_DELIVERY and RINGQ_RECEIPT then have a line for each, and headers are
left out. A payload with a line break in it gets a run of its own, after that of the others; the
first run that fails counts for all jobs of the batch.

The first SIGTERM or Ctrl-C takes no more jobs, gives back those that have not begun and waits for
the commands that run; the second one kills these and gives their jobs back, too. When the reader of
standard output goes away, ringq stops like after SIGTERM.

Exit codes:
  0    ended by --max-jobs, --idle-exit or SIGTERM, also if jobs failed
  1    the server refused
  2    wrong usage; nothing was sent
  4    no server within 5 s of the start (later it is tried for ever)
  130  ended by Ctrl-C or a second signal

Examples:
  ringq work emails --exec './send.sh'
  ringq work 'resize.*' --exec 'convert - -resize 50% \"out/$RINGQ_ID.png\"' --concurrency 4
  ringq work events --exec 'psql -c \"copy events from stdin\"' --batch 500
  ringq work reports --exec 'make-report | gzip -9' --result --timeout 10m
  ringq work emails --exec ./send.sh --idle-exit 5s          all there is, then end";

/// Run a command for each job
#[derive(Debug, Args)]
// Single calls are rare here, and `--timeout` is what people give a command.
#[command(
    after_help = AFTER_HELP,
    mut_arg("timeout", |arg| arg.long("answer-timeout").hide(true))
)]
pub(super) struct Work {
    /// Take jobs of these topics: exact names, or a prefix and a final *
    #[arg(value_name = "TOPIC", required = true, num_args = 1..=limit::STREAM_TOPICS_MAX)]
    topics: Vec<String>,
    /// Run this by `sh -c` for each job, its payload on standard input
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new())]
    exec: String,
    /// Run so many commands at once
    #[arg(long, short = 'c', value_name = "N", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u16).range(1..=10_000))]
    concurrency: u16,
    /// Give each command up to N jobs of one topic, as lines; its exit code counts for all of them
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u16).range(1..=1_000))]
    batch: u16,
    /// End a command that runs longer: SIGTERM, 3 s later SIGKILL; the job has failed
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    #[arg(id = "run_timeout", long = "timeout")]
    run_timeout: Option<Duration>,
    /// Keep standard output as the job's result, at most 1 MiB, rather than print it
    #[arg(long, conflicts_with = "batch")]
    result: bool,
    /// End after so many jobs
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    max_jobs: Option<u64>,
    /// End after so long without a job
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    idle_exit: Option<Duration>,
    /// Leases of jobs that set none, 1s to 24h: how soon others take over from a dead worker
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    lease: Option<Duration>,
    /// Hold so many jobs beyond those that run; they wait here even if other workers are free
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = value_parser!(u16).range(..=10_000))]
    prefetch: u16,
    /// The name that operators see [default: HOST:PID]
    #[arg(long, value_name = "NAME", value_parser = worker_id)]
    worker_id: Option<String>,
    /// Print no line for each job, and no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    connect: Connect,
}

// === impl Work ===

impl Work {
    pub(super) fn run(self) -> Result<(), Failure> {
        log::init(self.quiet);
        let runtime =
            Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
        let result = runtime.block_on(self.work());
        runtime.shutdown_timeout(LINGER);
        result
    }

    async fn work(self) -> Result<(), Failure> {
        let client = self.connect.client()?;
        let report = Arc::new(Report::new(self.quiet));
        let stop =
            Stop::listen(Arc::clone(&report), !self.result).context("cannot listen to signals")?;
        command::probe().await.context("cannot run /bin/sh")?;
        tokio::select! {
            reached = server::reach(&self.connect) => reached?,
            reason = stop.asked() => return reason.end(),
        }
        let handler = Arc::new(Handler::new(&self, Arc::clone(&report), stop.clone()));
        let summary = tokio::select! {
            summary = self.jobs(client, handler, &stop) => summary?,
            () = stop.overdue() => return Reason::Killed.end(),
        };
        report.summary(&summary);
        // Asked for only if it came: the worker may have ended by itself.
        stop.reason().map_or(Ok(()), Reason::end)
    }

    /// Everything between the first job and the last.
    async fn jobs(
        &self,
        client: Client,
        handler: Arc<Handler>,
        stop: &Stop,
    ) -> Result<Summary, Failure> {
        let mut worker = Worker::new(client, &self.topics)
            .id(self.worker_id.clone().unwrap_or_else(default_worker_id))
            .concurrency(self.concurrency.into())
            .prefetch(self.prefetch.into());
        if let Some(lease) = self.lease {
            worker = worker.lease(lease);
        }
        if let Some(jobs) = self.max_jobs {
            worker = worker.max_jobs(jobs);
        }
        if let Some(idle) = self.idle_exit {
            worker = worker.idle_exit(idle);
        }
        let each = move |jobs: Vec<Delivery>| {
            let handler = Arc::clone(&handler);
            async move { handler.handle(jobs).await }
        };
        let stopped = async { _ = stop.asked().await };
        let done = worker.run_batches(self.batch.into(), each, stopped).await;
        done.map_err(|error| Failure::call("cannot take jobs", &error))
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match values::duration(text)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        duration => Ok(duration),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = values::duration(text)?;
    if (limit::LEASE_MIN..=limit::LEASE_MAX).contains(&lease) {
        Ok(lease)
    } else {
        Err("it must be 1s to 24h".to_owned())
    }
}

fn worker_id(text: &str) -> Result<String, String> {
    match text.len() {
        1..=limit::WORKER_ID_BYTES_MAX => Ok(text.to_owned()),
        _ => Err(format!("it must be 1 to {} bytes", limit::WORKER_ID_BYTES_MAX)),
    }
}

/// `HOST:PID`; the pid alone where the host has no name.
fn default_worker_id() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let pid = process::id();
    let id = format!("{}:{pid}", host.trim());
    let short = id.len() <= limit::WORKER_ID_BYTES_MAX;
    if host.trim().is_empty() || !short { pid.to_string() } else { id }
}
