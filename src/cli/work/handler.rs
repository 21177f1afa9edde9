//! What is done for one job, or one batch: run the command, tell how it went.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::command::{self, Finished, Order, Stdout};
use super::output::Shared;
use super::report::Report;
use super::stop::{self, Stop};
use super::verdict::{self, Verdict};
use super::{Work, environment};
use crate::client::{Delivery, Outcome};

/// A machine that cannot start a process now can hardly start another one at once, and giving back
/// job after job would only drive them all into their longest waits.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Handler {
    exec: String,
    batch: bool,
    timeout: Option<Duration>,
    result: bool,
    /// Our standard output, where several commands write to it.
    stdout: Option<Shared>,
    report: Arc<Report>,
    stop: Stop,
}

// === impl Handler ===

impl Handler {
    pub(super) fn new(
        work: &Work,
        exec: &str,
        report: Arc<Report>,
        stop: Stop,
    ) -> io::Result<Handler> {
        let is_shared = work.concurrency > 1 && !work.result;
        let stdout = if is_shared { Some(Shared::stdout()?) } else { None };
        Ok(Handler {
            exec: exec.to_owned(),
            stdout,
            batch: work.batch > 1,
            timeout: work.run_timeout,
            result: work.result,
            report,
            stop,
        })
    }

    /// Dropping the future kills the command.
    pub(super) async fn handle(&self, jobs: Vec<Delivery>) -> Outcome {
        let running = self.report.begin(&jobs);
        let verdict = self.runs(&jobs).await;
        running.end(&verdict);
        verdict.outcome
    }

    /// One run, or several where the machine has no room for so many jobs at once.
    async fn runs(&self, jobs: &[Delivery]) -> Verdict {
        let mut verdict = Verdict::released("");
        let mut rest = vec![jobs];
        while let Some(jobs) = rest.pop() {
            let finished = self.run(jobs).await;
            if jobs.len() > 1 && finished.end.is_too_big() {
                let (first, second) = jobs.split_at(jobs.len() / 2);
                rest.extend([second, first]);
                continue;
            }
            verdict = self.verdict(finished).await;
            // One end counts for the whole batch: the first bad one.
            if !verdict.is_done() {
                break;
            }
        }
        verdict
    }

    async fn run(&self, jobs: &[Delivery]) -> Finished {
        let order = Order {
            exec: &self.exec,
            variables: environment::variables(jobs, self.batch, self.timeout),
            stdin: &self.stdin(jobs),
            timeout: self.timeout,
            stdout: self.stdout(),
        };
        command::run(order, self.stop.killed()).await
    }

    async fn verdict(&self, finished: Finished) -> Verdict {
        if let Err(error) = finished.written {
            // Before the job is given back, or it would come again at once.
            let why = self.stop.unwritable(error).await;
            return Verdict::released(why);
        }
        if finished.end.is_broken_pipe() && self.stop.is_closed().await {
            return Verdict::released(stop::CLOSED);
        }
        if verdict::was_not_run(&finished.end) {
            self.pause().await;
        }
        Verdict::of(finished, self.timeout)
    }

    fn stdout(&self) -> Stdout<'_> {
        match &self.stdout {
            _ if self.result => Stdout::Result,
            Some(shared) => Stdout::Shared(shared),
            None => Stdout::Ours,
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
            () = sleep(EXHAUSTED_PAUSE) => {}
            _ = self.stop.asked() => {}
        }
    }
}
