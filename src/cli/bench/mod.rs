//! `ringq bench`: measures a running server over gRPC, and verifies every job that it measures.
//!
//! [`plan`] is what to measure, from [`preset`] and [`args`]. [`session`] runs it: [`produce`] enqueues by a
//! [`schedule`], [`consume`] takes and acks, [`stall_detector`] ends a round without progress; they share a [`round`]
//! with its [`audit`] and its latencies. [`figures`] sums up, [`report`] and [`json`] print.
//!
//! The client usually shares its machine with the server, so it is frugal: a task per call in flight and per stream,
//! none per job; one thread that waits for the slots of a rate; one clock reading per call and per message; one byte
//! of audit per job.

mod args;
mod audit;
mod audit_report;
mod body;
mod clocks;
mod consume;
mod error;
mod figures;
mod histogram;
mod json;
mod plan;
mod preset;
mod produce;
mod receive;
mod report;
mod round;
mod schedule;
mod server;
mod session;
mod settle;
mod stall_detector;

use anyhow::Context as _;
use rand::distr::{Alphanumeric, SampleString as _};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use super::connect::wait_for_ctrl_c;
use super::exit::{self, CommandFailure, print_note};
use super::output::StdoutWriter;
use super::text::jobs;
use plan::Plan;
use server::BenchTopicStats;
use session::{BenchOutcome, BenchSession};

pub(super) use args::BenchArgs;

/// Random characters in the name of a topic.
const TOPIC_CHARS: usize = 8;

// === impl BenchArgs ===

impl BenchArgs {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        let plan = self.load.plan(self.preset)?;
        if cfg!(debug_assertions) {
            print_note(
                "WARNING: this is a debug build, its figures are meaningless; build with --release",
            );
        }
        exit::queue_stderr()?;
        let runtime = runtime(plan.threads).context("cannot start the runtime")?;
        let result = runtime.block_on(self.measure(plan));
        runtime.shutdown_background();
        result
    }

    async fn measure(&self, plan: Plan) -> Result<(), CommandFailure> {
        let clients = (0..plan.connections).map(|_| self.connect.client());
        let session = BenchSession {
            preset: self.preset,
            plan,
            topic: self.load.topic.clone().unwrap_or_else(fresh_topic),
            connection: self.connect.connection()?,
            clients: clients.collect::<Result<_, _>>()?,
            interrupt: cancel_on_interrupt(),
        };
        let outcome = session.run().await?;
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            let value = json::value(&session, &outcome);
            out.write_line(&serde_json::to_string_pretty(&value).context("cannot write JSON")?)?;
            out.flush()?;
        } else {
            report::print(&session, &outcome, &mut out)?;
        }
        warn_of_overdue(&outcome);
        session.verdict(&outcome, self.load.topic.is_some()).await
    }
}

/// Returns a token that the first Ctrl-C cancels.
fn cancel_on_interrupt() -> CancellationToken {
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        wait_for_ctrl_c().await;
        cancelled.cancel();
    });
    token
}

/// Returns the name of a topic without other users.
fn fresh_topic() -> String {
    let name = Alphanumeric.sample_string(&mut rand::rng(), TOPIC_CHARS);
    format!("bench-{}", name.to_ascii_lowercase())
}

/// Builds a single-threaded runtime, which costs least, unless more threads are requested.
fn runtime(threads: u32) -> std::io::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads as usize).enable_all().build()
}

fn warn_of_overdue(outcome: &BenchOutcome) {
    let overdue: u64 = outcome.rounds.iter().map(|round| round.overdue).sum();
    if overdue > 0 {
        print_note(&format!(
            "WARNING: {overdue} jobs were due before their enqueue was answered, so their lateness \
             is not the server's; raise --lead"
        ));
    }
}

// === impl BenchSession ===

impl BenchSession {
    /// Returns the result of the command.
    async fn verdict(&self, outcome: &BenchOutcome, named: bool) -> Result<(), CommandFailure> {
        let last = outcome.rounds.last().or(outcome.warm_up.as_ref());
        let faults = last.map(|round| round.audit.faults.join("; ")).unwrap_or_default();
        let failure = match &outcome.error {
            Some(trouble) => {
                if !faults.is_empty() {
                    print_note(&format!("WARNING: before the run stopped, {faults}"));
                }
                trouble.failure(&self.connection)
            }
            None if faults.is_empty() => return Ok(()),
            None => CommandFailure::new(exit::FAILED, format!("the audit failed: {faults}")),
        };
        match self.leftovers(named).await {
            Some(hint) => Err(failure.with_hint(hint)),
            None => Err(failure),
        }
    }

    /// Describes the jobs that an unsuccessful run has left, and how to delete them. A topic that was named may have
    /// jobs of others, which must not be deleted.
    async fn leftovers(&self, named: bool) -> Option<String> {
        let topic = &self.topic;
        let left = match BenchTopicStats::fetch(&self.connection, topic).await {
            Ok(BenchTopicStats { unfinished: 0, .. }) => return None,
            Ok(stats) => format!("{} left on topic {topic}", jobs(stats.unfinished)),
            Err(_) => format!("jobs may be left on topic {topic}"),
        };
        if named {
            return Some(format!("{left}; see `ringq job list {topic}`"));
        }
        Some(format!(
            "{left}; to remove them:\n  ringq job list {topic} --limit 0 -o json | \
             jq -r '.[].spec.id' | xargs ringq job delete {topic} --allow-missing --"
        ))
    }
}
