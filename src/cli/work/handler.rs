//! What is done for one job, or one batch: run the command, tell how it went.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::command::{self, End, Order};
use super::report::Report;
use super::stop::Stop;
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
    report: Arc<Report>,
    stop: Stop,
}

// === impl Handler ===

impl Handler {
    pub(super) fn new(work: &Work, report: Arc<Report>, stop: Stop) -> Handler {
        Handler {
            exec: work.exec.clone(),
            batch: work.batch > 1,
            timeout: work.run_timeout,
            result: work.result,
            report,
            stop,
        }
    }

    /// Dropping the future kills the command.
    pub(super) async fn handle(&self, jobs: Vec<Delivery>) -> Outcome {
        let running = self.report.begin(&jobs);
        let mut verdict = Verdict::released("");
        for jobs in self.groups(jobs) {
            verdict = self.run(&jobs).await;
            // One end counts for the whole batch: the first bad one.
            if !verdict.is_done() {
                break;
            }
        }
        running.end(&verdict);
        verdict.outcome
    }

    /// The runs for these jobs. A payload with a line break would look like two jobs among others.
    fn groups(&self, jobs: Vec<Delivery>) -> Vec<Vec<Delivery>> {
        if !self.batch {
            return vec![jobs];
        }
        let (alone, lines): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.bytes().contains(&b'\n'));
        let alone = alone.into_iter().map(|job| vec![job]);
        [lines].into_iter().chain(alone).filter(|group| !group.is_empty()).collect()
    }

    async fn run(&self, jobs: &[Delivery]) -> Verdict {
        let finished = command::run(Order {
            exec: &self.exec,
            variables: environment::variables(jobs, self.batch, self.timeout),
            stdin: &self.stdin(jobs),
            timeout: self.timeout,
            result: self.result,
            stop: &self.stop,
        })
        .await;
        if finished.end.is_broken_pipe() && self.stop.is_closed().await {
            return Verdict::released("nobody reads standard output");
        }
        if matches!(&finished.end, End::NotStarted(error) if verdict::is_exhausted(error)) {
            self.pause().await;
        }
        Verdict::of(finished, self.timeout)
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
