//! What people read on stderr: a line for each job, and what happens to the worker itself.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

use super::super::exit::print_error;
use super::super::text::printable;
use super::outcome::CommandOutcome;
use crate::client::{Delivery, Outcome, Summary};
use crate::clock::Clock;
use crate::config::{io_problem, variable};

/// What commands and the lines here share.
#[derive(Debug)]
pub(super) struct TerminalState {
    /// Commands write to the terminal that the lines here go to, and may leave one unfinished.
    shared_with_commands: bool,
    /// Commands that run.
    running: AtomicUsize,
    /// One has run since a line was written here.
    command_ran: AtomicBool,
    /// Whether the terminal knows more than lines.
    can_clear: bool,
}

/// The reporter of one process.
#[derive(Debug)]
pub(super) struct WorkReporter {
    quiet: bool,
    screen: Arc<TerminalState>,
    colour: bool,
    zone: TimeZone,
    clock: Clock,
}

/// A command that runs.
pub(super) struct RunningCommand {
    report: Arc<WorkReporter>,
    job_name: String,
    attempt: String,
    begin: Instant,
    ended: bool,
}

// === impl Screen ===

impl TerminalState {
    /// `stdout`: whether commands write there by themselves.
    pub(super) fn new(stdout: bool) -> TerminalState {
        let mixed = stdout && io::stdout().is_terminal() && io::stderr().is_terminal();
        let clears = variable("TERM").is_some_and(|term| term != "dumb");
        TerminalState {
            shared_with_commands: mixed,
            running: AtomicUsize::new(0),
            command_ran: AtomicBool::new(false),
            can_clear: clears,
        }
    }

    fn begin(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.command_ran.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        self.command_ran.store(true, Ordering::Relaxed);
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// What makes the next character the first of a line: nothing where no command can have written since the
    /// last one.
    pub(super) fn line_start(&self) -> String {
        let was_touched = self.command_ran.swap(self.running() > 0, Ordering::Relaxed);
        if self.shared_with_commands && was_touched {
            line_start_escape(terminal_width(), self.can_clear)
        } else {
            String::new()
        }
    }
}

// === impl Report ===

impl WorkReporter {
    pub(super) fn new(quiet: bool, screen: Arc<TerminalState>) -> WorkReporter {
        WorkReporter {
            quiet,
            screen,
            // Also asks NO_COLOR, CLICOLOR and TERM.
            colour: AutoStream::choice(&io::stderr()) != ColorChoice::Never,
            zone: TimeZone::system(),
            clock: Clock::system(),
        }
    }

    /// A command begins.
    pub(super) fn begin(self: &Arc<WorkReporter>, jobs: &[Delivery]) -> RunningCommand {
        self.screen.begin();
        let (what, attempt) = match jobs {
            [job] => (format!("{}/{}", job.topic, job.id), attempt(job)),
            jobs => {
                let topic = jobs.first().map(|job| &*job.topic).unwrap_or_default();
                (format!("{topic}: {} jobs", jobs.len()), String::new())
            }
        };
        RunningCommand {
            report: Arc::clone(self),
            job_name: what,
            attempt,
            begin: Instant::now(),
            ended: false,
        }
    }

    /// No more jobs are taken; `why` is for people who did not ask for it.
    pub(super) fn stopping(&self, why: Option<&str>) {
        let why = why.map(|why| format!("{why}: ")).unwrap_or_default();
        let hint = "a second signal kills";
        self.print_note(&match self.screen.running() {
            0 => format!("ringq: {why}stopping"),
            1 => format!("ringq: {why}stopping when the command that runs has ended; {hint} it"),
            n => format!(
                "ringq: {why}stopping when the {n} commands that run have ended; {hint} them"
            ),
        });
    }

    /// Standard output takes no more.
    pub(super) fn unwritable(&self, error: &io::Error) {
        print_error(&format!("cannot write to standard output: {}", io_problem(error)));
    }

    /// What runs is killed, because of this signal.
    pub(super) fn killing(&self, signal: &str) {
        self.print_note(&match self.screen.running() {
            0 => format!("ringq: {signal}: not waiting for what is not settled yet"),
            1 => format!("ringq: {signal}: killing the command"),
            n => format!("ringq: {signal}: killing {n} commands"),
        });
    }

    /// All is over.
    pub(super) fn summary(&self, summary: &Summary) {
        if !self.quiet {
            self.print_note(&format!("ringq: {summary}"));
        }
    }

    fn print_line(&self, what: &str, style: Style, how: &str) {
        let how = printable(how);
        let how = if self.colour { format!("{style}{how}{style:#}") } else { how.into_owned() };
        self.write(&format!("{} {what}  {how}", self.time()));
    }

    fn print_note(&self, text: &str) {
        self.write(&printable(text));
    }

    /// In one piece, as commands write here, too. If nobody reads it, nobody misses it.
    fn write(&self, text: &str) {
        let line = format!("{}{text}\n", self.screen.line_start());
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }

    /// The time of day.
    fn time(&self) -> String {
        let now = Timestamp::from_microsecond(self.clock.now().0).unwrap_or_default();
        now.to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string()
    }
}

// === impl Running ===

impl RunningCommand {
    /// It has ended by itself.
    pub(super) fn end(mut self, verdict: &CommandOutcome) {
        self.ended = true;
        self.report.screen.end();
        if self.report.quiet {
            return;
        }
        let took = duration_text(self.begin.elapsed());
        let why = match &*verdict.message {
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
        self.report.print_line(&self.job_name, colour.on_default(), &how);
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if !self.report.quiet {
            let how = format!("taken away after {}, killed", duration_text(self.begin.elapsed()));
            self.report.print_line(&self.job_name, AnsiColor::Red.on_default(), &how);
        }
        self.report.screen.end();
    }
}

fn attempt(job: &Delivery) -> String {
    match job.max_attempts {
        ..=0 => format!(", attempt {}", job.attempt),
        max => format!(", attempt {} of {max}", job.attempt),
    }
}

/// On a terminal of this width: the spaces run on to the next line unless they begin at the start of one, and
/// are cleared away there. A command that writes to the terminal itself tells nobody where it has left the cursor.
fn line_start_escape(width: usize, clears: bool) -> String {
    match width {
        0 => String::new(),
        _ if clears => format!("{}\r\u{1b}[K", " ".repeat(width)),
        _ => format!("{}\r", " ".repeat(width)),
    }
}

fn terminal_width() -> usize {
    tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col.into())
}

/// A time with as many digits as matter.
fn duration_text(time: Duration) -> String {
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
        assert_eq!(
            (line_start_escape(0, true), line_start_escape(3, true)),
            (String::new(), "   \r\u{1b}[K".to_owned())
        );
        assert_eq!(line_start_escape(3, false), "   \r");
    }

    #[test]
    fn a_line_is_made_fresh_only_where_a_command_may_have_written() {
        let screen = TerminalState { shared_with_commands: true, ..TerminalState::new(true) };
        assert!(!screen.command_ran.load(Ordering::Relaxed), "none has run");
        screen.begin();
        screen.line_start();
        assert!(screen.command_ran.load(Ordering::Relaxed), "it still runs");
        screen.end();
        assert!(screen.command_ran.load(Ordering::Relaxed), "it may have written since");
        screen.line_start();
        assert!(!screen.command_ran.load(Ordering::Relaxed), "none has run since");
    }

    #[test]
    fn times_have_the_digits_that_matter() {
        for (ms, text) in [(0, "0 ms"), (999, "999 ms"), (1_250, "1.2 s"), (61_500, "1 min 1 s")] {
            assert_eq!(duration_text(Duration::from_millis(ms)), text);
        }
    }
}
