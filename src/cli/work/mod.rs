//! `ringq work`: runs a shell command for each job.
//!
//! The client library's [`Worker`] takes the jobs, extends their leases and settles them; this module has its handler
//! ([`handler`]: one job or batch, [`command`]: one process), the start ([`server_check`]), the signals
//! ([`shutdown`]) and the lines on stderr ([`reporter`], [`log`]).

mod command;
mod environment;
mod handler;
mod log;
mod outcome;
mod process_group;
mod reporter;
mod result;
mod server_check;
mod shard_check;
mod shutdown;
mod stderr;
mod stdout;
mod topic_check;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, process};

use anyhow::Context as _;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tokio::runtime::Builder;

use super::connect::ConnectArgs;
use super::exit::CommandFailure;
use super::{exit, values};
use crate::client::{Client, Delivery, Summary, Worker};
use crate::domain::limit;
use crate::pb;
use handler::CommandHandler;
use reporter::{TerminalState, WorkReporter};
use shutdown::{ShutdownWatch, StopReason};

/// Time that the process waits for blocked threads at its end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Text below the help of `ringq work`.
const AFTER_HELP: &str = "\
The command is run by `sh -c`, in a process group of its own, with the payload on standard input. \
It writes to the standard output of ringq itself. With --concurrency above 1 the output of each \
command is held until it has ended and printed whole, with a line break at its end; of output beyond \
1 MiB the lines so far are printed earlier. With --result it is kept with the job instead, if the \
job was enqueued with --retention.

How it ends settles the job:
  exit code 0   done
  exit code 75  released, the attempt does not count; no wait at first, then 1s, 2s, 4s … 60s
  126 or 127    released like that, after 1s at least: the shell could not run the command or did \
                not find it, so the fault is in the worker and not in the job. env, timeout and other \
                commands that run commands end like this, too
  any other     failed with the end of its standard error as the reason; its retry policy decides \
                when it runs again. A signal and --run-timeout count as failures, too
A line is printed when the command ends, before the server confirms; a failed settle gets a line of its \
own, and the summary counts what was settled.

A pipeline ends with the exit code of its last command: with `make-report | gzip -9` a job whose \
make-report failed counts as done.

While a command runs the lease of its job is extended. If the job is deleted or its lease is lost, the process group \
of the command is killed at once, and its output that is still held is dropped.

Environment of the command, beside that of ringq itself:
  RINGQ_TOPIC, RINGQ_ID        topic and id of the job
  RINGQ_ATTEMPT                failures so far + 1
  RINGQ_DELIVERY               deliveries of the job, released ones included
  RINGQ_RECEIPT                the proof of the lease, for Ack, Nack and Extend
  RINGQ_DEADLINE               time at which --run-timeout, or else its lease unless extended, ends it
  RINGQ_HEADER_<NAME>          its headers; what is not A-Z, 0-9 or _ in the upper-case name is a _

With --batch N, N > 1, standard input is one payload per line, and RINGQ_BATCH is their number. \
RINGQ_ID, RINGQ_ATTEMPT, RINGQ_DELIVERY and RINGQ_RECEIPT then have a line for each, and headers are \
left out. A job whose payload has a line break in it comes by itself, and a batch ends before a list \
in its environment is longer than 64 KiB.

The first SIGTERM, Ctrl-C or SIGHUP takes no more jobs, releases those that have not begun and \
waits for the commands that run; the second SIGTERM or Ctrl-C, or SIGQUIT at any time, kills these \
and releases their jobs, too. Closing the terminal is SIGHUP; under nohup it changes nothing. When \
the reader of standard output closes it, ringq stops like after SIGTERM. If output that was held \
cannot be written, it stops, too, and the job is released.

Do not end ringq by SIGKILL: it leaves the commands running, while other workers get their jobs. As \
the first process of a container (ENTRYPOINT [\"ringq\", \"work\", …]) ringq does not reap what \
commands leave in the background: run it with an init, as by `docker run --init`.

Exit codes:
  0    ended by --max-jobs, --idle-exit, SIGTERM or SIGHUP, also if jobs failed
  1    the server rejected a request, or output that was held could not be written
  2    wrong usage; nothing was sent
  4    no server within 5 s of the start (later it is tried for ever); or after --idle-exit a shard \
       that does not answer
  130  ended by Ctrl-C, SIGQUIT or a second signal

Examples:
  ringq work emails --exec './send.sh'
  ringq work high=5 mid=3 low=2 --exec ./do.sh
  ringq work 'resize.*' --exec 'convert - -resize 50% \"$RINGQ_ID.png\"' -c 4
  ringq work events --exec 'psql -c \"copy events from stdin\"' --batch 500
  ringq work reports --exec 'make-report > r && gzip < r' --result
  ringq work emails --exec ./send.sh --idle-exit 5s          all there is, then end";

/// Run a command for each job
#[derive(Debug, Args)]
// In other commands `--timeout` is about answers; people who use it here mean the timeout of a run.
#[command(
    after_help = AFTER_HELP,
    override_usage = "ringq work [OPTIONS] --exec <CMD> <TOPIC[=N]>...",
    mut_arg("timeout", |arg| arg.long("answer-timeout").hide(true))
)]
pub(super) struct WorkArgs {
    /// Take jobs of these topics: exact names, or a prefix and a final *. With =N, 1 to 100, a topic has N turns per
    /// round, others 1: `high=5 mid=3 low=2` shares the jobs 5:3:2 while all three have some
    #[arg(value_name = "TOPIC[=N]", required = true, num_args = 1..=limit::STREAM_TOPICS_MAX, value_parser = topic_turns)]
    topics: Vec<TopicTurns>,
    /// Run this by `sh -c` for each job, its payload on standard input
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new())]
    // Not required by clap, whose message could not show an example.
    exec: Option<String>,
    /// Run this many commands at once; above 1 the output of each is printed whole at its end
    #[arg(long, short = 'c', value_name = "N", default_value_t = 1)]
    #[arg(allow_negative_numbers = true, value_parser = values::integer_in_range::<u16>(1..=i64::from(limit::STREAM_CREDIT_MAX)))]
    concurrency: u16,
    /// Give each command up to N jobs of one topic, as lines; its exit code counts for all of them
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(allow_negative_numbers = true, value_parser = values::integer_in_range::<u16>(1..=1_000))]
    batch: u16,
    /// End a command that runs longer: SIGTERM, 3 s later SIGKILL; the attempt fails
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    run_timeout: Option<Duration>,
    /// Keep standard output, at most 1 MiB, as the job's result instead of printing it; only jobs enqueued with
    /// --retention keep a result
    #[arg(long, conflicts_with = "batch")]
    result: bool,
    /// End after this many jobs. The server ends the stream after the last one: if the worker is killed then, the job
    /// comes back when its lease ends, which counts as a failure
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = jobs)]
    max_jobs: Option<u64>,
    /// End after this long without a job; with exit code 4 if a shard does not answer, as it may have more jobs
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    idle_exit: Option<Duration>,
    /// Lease of jobs that set none, 1s to 24h: time after which other workers take over from one that hangs (from a dead
    /// one: 5s)
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    lease: Option<Duration>,
    /// Hold this many jobs beyond those that run; they wait here even if other workers are free
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(allow_negative_numbers = true, value_parser = values::integer_in_range::<u16>(0..=i64::from(limit::STREAM_CREDIT_MAX)))]
    prefetch: u16,
    /// The name that operators see [default: HOST:PID]
    #[arg(long, value_name = "NAME", value_parser = worker_id)]
    worker_id: Option<String>,
    /// Print no line for each job, and no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A topic, and its turns per round if they are given.
#[derive(Clone, Debug)]
struct TopicTurns {
    topic: String,
    turns: Option<u32>,
}

// === impl WorkArgs ===

impl WorkArgs {
    pub(super) fn run(mut self) -> Result<(), CommandFailure> {
        let Some(exec) = self.exec.clone() else { return Err(self.no_command()) };
        let mut known = HashSet::new();
        self.topics.retain(|named| known.insert(named.topic.clone()));
        let screen = Arc::new(TerminalState::new(self.commands_own_stdout()));
        // While the reader of standard error has stopped, leases are extended and jobs go on.
        exit::queue_stderr()?;
        log::init(self.quiet, Arc::clone(&screen));
        let runtime =
            Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
        let result = runtime.block_on(self.work(&exec, screen));
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        result
    }

    fn topic_names(&self) -> Vec<String> {
        self.topics.iter().map(|named| named.topic.clone()).collect()
    }

    /// Returns whether commands write to standard output themselves.
    fn commands_own_stdout(&self) -> bool {
        self.concurrency == 1 && !self.result
    }

    fn no_command(&self) -> CommandFailure {
        let topic = self.topics.first().map_or("TOPIC", |named| &named.topic);
        let example = format!("as in `ringq work {topic} --exec 'cat; echo'`");
        CommandFailure::usage("no command was given: it is one argument, after --exec")
            .with_hint(example)
    }

    async fn work(self, exec: &str, screen: Arc<TerminalState>) -> Result<(), CommandFailure> {
        let client = self.connect.client()?;
        let report = Arc::new(WorkReporter::new(self.quiet, screen));
        let stop = ShutdownWatch::listen(Arc::clone(&report), !self.result)
            .context("cannot listen to signals")?;
        command::probe().await.context("cannot run /bin/sh")?;
        tokio::select! {
            reached = self.check_server(&client) => reached?,
            reason = stop.stop_requested() => return reason.exit_result(),
        }
        let handler = CommandHandler::new(&self, exec, Arc::clone(&report), stop.clone());
        let handler = Arc::new(handler.context("cannot use standard output")?);
        let summary = tokio::select! {
            summary = self.run_worker(client.clone(), handler, &stop) => summary?,
            () = stop.release_overdue() => return StopReason::Killed.exit_result(),
        };
        report.summary(&summary);
        // Read only after a signal: the worker may have ended by itself.
        if let Some(reason) = stop.reason() {
            return reason.exit_result();
        }
        match self.idle_exit {
            Some(_) => exit::fail_if_partial(shard_check::unreachable_shards(&client).await.iter()),
            None => Ok(()),
        }
    }

    /// Checks the server at the start, and prints what is missing.
    async fn check_server(&self, client: &Client) -> Result<(), CommandFailure> {
        server_check::wait_for_server(&self.connect).await?;
        if !self.quiet {
            topic_check::warn_missing_topics(client, &self.topic_names()).await;
            shard_check::warn_unreachable_shards(client).await;
        }
        Ok(())
    }

    /// Runs the worker from the first job to the last.
    async fn run_worker(
        &self,
        client: Client,
        handler: Arc<CommandHandler>,
        stop: &ShutdownWatch,
    ) -> Result<Summary, CommandFailure> {
        let mut worker = Worker::new(client, self.topic_names())
            .id(self.worker_id.clone().unwrap_or_else(default_worker_id))
            .concurrency(self.concurrency.into())
            .prefetch(self.prefetch.into());
        for TopicTurns { topic, turns } in &self.topics {
            if let Some(turns) = turns {
                worker = worker.topic_weight(topic, *turns);
            }
        }
        if let Some(lease) = self.lease {
            worker = worker.lease(lease);
        }
        if let Some(jobs) = self.max_jobs {
            worker = worker.max_jobs(jobs);
        }
        if let Some(idle) = self.idle_exit {
            worker = worker.idle_exit(idle);
        }
        if self.batch > 1 {
            let has_lines = |job: &pb::Delivery| {
                job.payload.as_ref().is_some_and(|payload| payload.bytes().contains(&b'\n'))
            };
            // In a batch such a payload would look like two jobs.
            worker = worker.unbatched(has_lines);
            worker = worker.batch_weight(environment::LIST_BYTES, environment::list_bytes);
        }
        let each = move |jobs: Vec<Delivery>| {
            let handler = Arc::clone(&handler);
            async move { handler.handle(jobs).await }
        };
        let stopped = async { _ = stop.stop_requested().await };
        let done = worker.run_batches(self.batch.into(), each, stopped).await;
        done.map_err(|error| CommandFailure::from_call("cannot take jobs", &error))
    }
}

/// Parses `TOPIC` or `TOPIC=N`.
fn topic_turns(text: &str) -> Result<TopicTurns, String> {
    let Some((topic, turns)) = text.split_once('=') else {
        return Ok(TopicTurns { topic: text.to_owned(), turns: None });
    };
    let turns = values::integer_in_range::<u32>(1..=i64::from(limit::TOPIC_WEIGHT_MAX))(turns)
        .map_err(|wrong| format!("its turns per round are {wrong}"))?;
    Ok(TopicTurns { topic: topic.to_owned(), turns: Some(turns) })
}

fn positive(text: &str) -> Result<Duration, String> {
    match values::duration(text)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        duration => Ok(duration),
    }
}

fn jobs(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|jobs| *jobs > 0)
        .ok_or_else(|| "not a whole number from 1 on".to_owned())
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

/// Returns `HOST:PID`, or only the pid if the host has no name.
fn default_worker_id() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let pid = process::id();
    let id = format!("{}:{pid}", host.trim());
    let short = id.len() <= limit::WORKER_ID_BYTES_MAX;
    if host.trim().is_empty() || !short { pid.to_string() } else { id }
}
