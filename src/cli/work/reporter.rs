//! Reporter on stderr: a line for each job, and events of the worker itself.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::time::Instant;

use super::super::exit::print_error;
use super::super::text::printable;
use super::outcome::CommandOutcome;
use crate::client::{Delivery, Outcome, Summary};
use crate::clock::Clock;
use crate::config::{io_problem, variable};
use crate::stderr;

/// State of the terminal, which commands and reporter share.
#[derive(Debug)]
pub(super) struct TerminalState {
    /// Set if commands write to the terminal of the reporter: they may leave an unfinished line.
    shared_with_commands: bool,
    /// Number of running commands.
    running: AtomicUsize,
    /// Set if a command has run since the reporter wrote its last line.
    command_ran: AtomicBool,
    /// Set if the terminal can clear a line.
    can_clear: bool,
}

/// Reporter of one process.
#[derive(Debug)]
pub(super) struct WorkReporter {
    quiet: bool,
    screen: Arc<TerminalState>,
    colour: bool,
    zone: TimeZone,
    clock: Clock,
}

/// Command that runs.
pub(super) struct RunningCommand {
    report: Arc<WorkReporter>,
    job_name: String,
    attempt: String,
    begin: Instant,
    ended: bool,
}

// === impl TerminalState ===

impl TerminalState {
    /// Creates the state; `stdout`: commands write there themselves.
    pub(super) fn new(stdout: bool) -> TerminalState {
        let mixed = stdout && io::stdout().is_terminal() && stderr::is_terminal();
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

    /// Returns the text that moves to the start of a line: empty if no command can have written since the last one.
    pub(super) fn line_start(&self) -> String {
        let was_touched = self.command_ran.swap(self.running() > 0, Ordering::Relaxed);
        if self.shared_with_commands && was_touched {
            line_start_escape(stderr::columns().into(), self.can_clear)
        } else {
            String::new()
        }
    }
}

// === impl WorkReporter ===

impl WorkReporter {
    pub(super) fn new(quiet: bool, screen: Arc<TerminalState>) -> WorkReporter {
        WorkReporter {
            quiet,
            screen,
            colour: stderr::is_coloured(),
            zone: TimeZone::system(),
            clock: Clock::system(),
        }
    }

    /// Records the start of a command.
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

    /// Prints that no more jobs are taken; `why` is given if no person asked for it.
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

    /// Prints that standard output cannot be written.
    pub(super) fn unwritable(&self, error: &io::Error) {
        print_error(&format!("cannot write to standard output: {}", io_problem(error)));
    }

    /// Prints that running commands are killed, because of this signal.
    pub(super) fn killing(&self, signal: &str) {
        self.print_note(&match self.screen.running() {
            0 => format!("ringq: {signal}: not waiting for jobs that are not settled yet"),
            1 => format!("ringq: {signal}: killing the command"),
            n => format!("ringq: {signal}: killing {n} commands"),
        });
    }

    /// Prints the summary at the end.
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

    /// Writes in one piece, as commands write here, too.
    fn write(&self, text: &str) {
        let line = format!("{}{text}\n", self.screen.line_start());
        stderr::write(line.as_bytes());
    }

    /// Returns the time of day.
    fn time(&self) -> String {
        let now = Timestamp::from_microsecond(self.clock.now().0).unwrap_or_default();
        now.to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string()
    }
}

// === impl RunningCommand ===

impl RunningCommand {
    /// Prints the outcome of a command that ended by itself.
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

/// Returns the text that moves to the start of a line on a terminal of this width. The spaces fill the line and run
/// on to the next one, unless they begin at the start of a line; they are cleared there. The position of the cursor
/// after a command's own output is unknown.
fn line_start_escape(width: usize, clears: bool) -> String {
    match width {
        0 => String::new(),
        _ if clears => format!("{}\r\u{1b}[K", " ".repeat(width)),
        _ => format!("{}\r", " ".repeat(width)),
    }
}

/// Formats a time with its significant digits.
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
