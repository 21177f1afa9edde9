//! Handler of one job or batch: runs the command and reports its outcome.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::command::{self, CommandSpec, CommandStdout, FinishedCommand};
use super::outcome::{self, CommandOutcome};
use super::reporter::WorkReporter;
use super::shutdown::{self, ShutdownWatch};
use super::stdout::SharedStdout;
use super::{WorkArgs, environment};
use crate::client::{Delivery, Outcome};

/// Pause before jobs are released because no process can be started: another attempt would likely fail, too, and
/// releasing job after job would drive all of them into their longest waits.
const EXHAUSTED_DELAY: Duration = Duration::from_secs(1);

pub(super) struct CommandHandler {
    exec: String,
    batch: bool,
    timeout: Option<Duration>,
    result: bool,
    /// Standard output of this process, if several commands write to it.
    stdout: Option<SharedStdout>,
    report: Arc<WorkReporter>,
    stop: ShutdownWatch,
}

// === impl CommandHandler ===

impl CommandHandler {
    pub(super) fn new(
        work: &WorkArgs,
        exec: &str,
        report: Arc<WorkReporter>,
        stop: ShutdownWatch,
    ) -> io::Result<CommandHandler> {
        let is_shared = work.concurrency > 1 && !work.result;
        let stdout = if is_shared { Some(SharedStdout::stdout()?) } else { None };
        Ok(CommandHandler {
            exec: exec.to_owned(),
            stdout,
            batch: work.batch > 1,
            timeout: work.run_timeout,
            result: work.result,
            report,
            stop,
        })
    }

    /// Runs the command. Dropping the future kills it.
    pub(super) async fn handle(&self, jobs: Vec<Delivery>) -> Outcome {
        let running = self.report.begin(&jobs);
        let verdict = self.run_or_split(&jobs).await;
        running.end(&verdict);
        verdict.outcome
    }

    /// Runs the command once, or several times if so many jobs exceed the limit of the system.
    async fn run_or_split(&self, jobs: &[Delivery]) -> CommandOutcome {
        let mut verdict = CommandOutcome::released("");
        let mut rest = vec![jobs];
        while let Some(jobs) = rest.pop() {
            let finished = self.run(jobs).await;
            if jobs.len() > 1 && finished.end.is_too_big() {
                let (first, second) = jobs.split_at(jobs.len() / 2);
                rest.extend([second, first]);
                continue;
            }
            verdict = self.verdict(finished).await;
            // Uses the first failure for the whole batch.
            if !verdict.is_acked() {
                break;
            }
        }
        verdict
    }

    async fn run(&self, jobs: &[Delivery]) -> FinishedCommand {
        let order = CommandSpec {
            exec: &self.exec,
            variables: environment::variables(jobs, self.batch, self.timeout),
            stdin: &self.stdin(jobs),
            timeout: self.timeout,
            stdout: self.stdout(),
        };
        command::run(order, self.stop.kill_requested()).await
    }

    async fn verdict(&self, finished: FinishedCommand) -> CommandOutcome {
        if let Err(error) = finished.written {
            // Before the release, or the job would be delivered again at once.
            let why = self.stop.report_write_error(error).await;
            return CommandOutcome::released(why);
        }
        if finished.end.is_broken_pipe() && self.stop.is_stdout_closed().await {
            return CommandOutcome::released(shutdown::STDOUT_CLOSED);
        }
        if outcome::was_not_run(&finished.end) {
            self.pause().await;
        }
        CommandOutcome::from_finished(finished, self.timeout)
    }

    fn stdout(&self) -> CommandStdout<'_> {
        match &self.stdout {
            _ if self.result => CommandStdout::Result,
            Some(shared) => CommandStdout::Shared(shared),
            None => CommandStdout::Inherited,
        }
    }

    fn stdin<'a>(&self, jobs: &'a [Delivery]) -> Cow<'a, [u8]> {
        match jobs {
            [job] if !self.batch => Cow::Borrowed(job.bytes()),
            jobs => {
                let lines = jobs.iter().flat_map(|job| [job.bytes(), b"\n"]);
                Cow::Owned(lines.collect::<Vec<_>>().concat())
            }
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = sleep(EXHAUSTED_DELAY) => {}
            _ = self.stop.stop_requested() => {}
        }
    }
}
