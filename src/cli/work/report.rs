//! What people read on stderr: a line for each job, and what happens to the worker itself.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

use super::super::exit::complain;
use super::super::text::printable;
use super::verdict::Verdict;
use crate::client::{Delivery, Outcome, Summary};
use crate::clock::Clock;
use crate::config::io_problem;

/// The reporter of one process.
#[derive(Debug)]
pub(super) struct Report {
    quiet: bool,
    /// Commands write to the terminal that the lines here go to, and may leave one unfinished.
    mixed: bool,
    colour: bool,
    zone: TimeZone,
    clock: Clock,
    running: AtomicUsize,
}

/// A command that runs.
pub(super) struct Running {
    report: Arc<Report>,
    what: String,
    attempt: String,
    begin: Instant,
    over: bool,
}

// === impl Report ===

impl Report {
    /// `stdout`: whether commands write there by themselves.
    pub(super) fn new(quiet: bool, stdout: bool) -> Report {
        Report {
            quiet,
            mixed: is_mixed(stdout),
            // Also asks NO_COLOR, CLICOLOR and TERM.
            colour: AutoStream::choice(&io::stderr()) != ColorChoice::Never,
            zone: TimeZone::system(),
            clock: Clock::system(),
            running: AtomicUsize::new(0),
        }
    }

    /// A command begins.
    pub(super) fn begin(self: &Arc<Report>, jobs: &[Delivery]) -> Running {
        self.running.fetch_add(1, Ordering::Relaxed);
        let (what, attempt) = match jobs {
            [job] => (format!("{}/{}", job.topic, job.id), attempt(job)),
            jobs => {
                let topic = jobs.first().map(|job| &*job.topic).unwrap_or_default();
                (format!("{topic}: {} jobs", jobs.len()), String::new())
            }
        };
        Running { report: Arc::clone(self), what, attempt, begin: Instant::now(), over: false }
    }

    /// No more jobs are taken; `why` is for people who did not ask for it.
    pub(super) fn stopping(&self, why: Option<&str>) {
        let why = why.map(|why| format!("{why}: ")).unwrap_or_default();
        let hint = "a second signal kills";
        self.note(&match self.running.load(Ordering::Relaxed) {
            0 => format!("ringq: {why}stopping"),
            1 => format!("ringq: {why}stopping when the command that runs has ended; {hint} it"),
            n => format!(
                "ringq: {why}stopping when the {n} commands that run have ended; {hint} them"
            ),
        });
    }

    /// Standard output takes no more.
    pub(super) fn unwritable(&self, error: &io::Error) {
        complain(&format!("cannot write to standard output: {}", io_problem(error)));
    }

    /// What runs is killed, because of this signal.
    pub(super) fn killing(&self, signal: &str) {
        self.note(&match self.running.load(Ordering::Relaxed) {
            0 => format!("ringq: {signal}: not waiting for what is not settled yet"),
            1 => format!("ringq: {signal}: killing the command"),
            n => format!("ringq: {signal}: killing {n} commands"),
        });
    }

    /// All is over.
    pub(super) fn summary(&self, summary: &Summary) {
        if !self.quiet {
            self.note(&format!("ringq: {summary}"));
        }
    }

    fn line(&self, what: &str, style: Style, how: &str) {
        let how = printable(how);
        let how = if self.colour { format!("{style}{how}{style:#}") } else { how.into_owned() };
        self.write(&format!("{} {what}  {how}", self.time()));
    }

    fn note(&self, text: &str) {
        self.write(&printable(text));
    }

    /// In one piece, as commands write here, too. If nobody reads it, nobody misses it.
    fn write(&self, text: &str) {
        let line = format!("{}{text}\n", fresh_line(self.mixed));
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }

    /// The time of day.
    fn time(&self) -> String {
        let now = Timestamp::from_microsecond(self.clock.now().0).unwrap_or_default();
        now.to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string()
    }
}

// === impl Running ===

impl Running {
    /// It has ended by itself.
    pub(super) fn end(mut self, verdict: &Verdict) {
        self.over = true;
        if self.report.quiet {
            return;
        }
        let took = took(self.begin.elapsed());
        let why = match &*verdict.why {
            "" => String::new(),
            why => format!(": {why}"),
        };
        let (colour, word, attempt) = match verdict.outcome {
            Outcome::Ack { .. } => (AnsiColor::Green, "done", ""),
            Outcome::Release { .. } => (AnsiColor::Yellow, "released", ""),
            Outcome::Retry { .. } | Outcome::DeadLetter { .. } => {
                (AnsiColor::Red, "failed", &*self.attempt)
            }
        };
        let how = format!("{word} in {took}{attempt}{why}");
        self.report.line(&self.what, colour.on_default(), &how);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.report.running.fetch_sub(1, Ordering::Relaxed);
        if !self.over && !self.report.quiet {
            let how = format!("taken away after {}, killed", took(self.begin.elapsed()));
            self.report.line(&self.what, AnsiColor::Red.on_default(), &how);
        }
    }
}

fn attempt(job: &Delivery) -> String {
    match job.max_attempts {
        ..=0 => format!(", attempt {}", job.attempt),
        max => format!(", attempt {} of {max}", job.attempt),
    }
}

/// Whether commands that write to standard output, as `stdout` says, do so on the terminal of the lines here.
pub(super) fn is_mixed(stdout: bool) -> bool {
    stdout && io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// What makes the next character the first of a line where commands write, too.
pub(super) fn fresh_line(mixed: bool) -> String {
    fill(if mixed { terminal_width() } else { 0 })
}

/// On a terminal of this width: the spaces run on to the next line unless they begin at the start of one.
/// A command that writes to the terminal itself tells nobody where it has left the cursor.
fn fill(width: usize) -> String {
    if width == 0 { String::new() } else { format!("{}\r", " ".repeat(width)) }
}

fn terminal_width() -> usize {
    tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col.into())
}

/// A time with as many digits as matter.
fn took(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", time.as_secs_f64()),
        ms => format!("{} min {} s", ms / 60_000, ms / 1_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_made_fresh_where_the_width_is_known() {
        assert_eq!((fill(0), fill(3)), (String::new(), "   \r".to_owned()));
    }

    #[test]
    fn times_have_the_digits_that_matter() {
        for (ms, text) in [(0, "0 ms"), (999, "999 ms"), (1_250, "1.2 s"), (61_500, "1 min 1 s")] {
            assert_eq!(took(Duration::from_millis(ms)), text);
        }
    }
}
