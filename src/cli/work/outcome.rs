//! Outcome of a job, from the end of its command.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use super::command::{CommandEnd, FinishedCommand};
use crate::client::Outcome;
use crate::config::io_problem;
use crate::contract::duration_text::show_duration;

/// Exit code that releases the job: EX_TEMPFAIL of sysexits.h.
const TEMPORARY: i32 = 75;
/// Exit codes of a shell that could not run a command, or did not find it (POSIX, 2.8.2).
const COMMAND_NOT_RUN: [i32; 2] = [126, 127];
/// Errors of the machine, not of the job: another attempt, maybe on another machine, can succeed.
const EXHAUSTED: [Errno; 7] = [
    Errno::AGAIN,
    Errno::NOMEM,
    Errno::MFILE,
    Errno::NFILE,
    Errno::NOENT,
    Errno::ACCESS,
    Errno::TXTBSY,
];

/// Outcome of a job, for the server and as text for people.
#[derive(Debug, PartialEq)]
pub(super) struct CommandOutcome {
    pub(super) outcome: Outcome,
    /// Text for people; empty on success.
    pub(super) message: String,
}

/// Returns whether the command was not run because of something that may be available later, or elsewhere.
pub(super) fn was_not_run(end: &CommandEnd) -> bool {
    match end {
        CommandEnd::NotStarted(error) => is_exhausted(error),
        CommandEnd::Exited(status) => {
            status.code().is_some_and(|code| COMMAND_NOT_RUN.contains(&code))
        }
        CommandEnd::TimedOut | CommandEnd::Killed => false,
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| EXHAUSTED.iter().any(|e| e.raw_os_error() == code))
}

// === impl CommandOutcome ===

impl CommandOutcome {
    pub(super) fn from_finished(
        finished: FinishedCommand,
        timeout: Option<Duration>,
    ) -> CommandOutcome {
        let FinishedCommand { end, stderr, result, .. } = finished;
        match end {
            CommandEnd::Exited(status) if status.success() => match result.payload() {
                Ok(result) => CommandOutcome {
                    outcome: Outcome::Ack { result, enqueue: Vec::new() },
                    message: String::new(),
                },
                Err(why) => CommandOutcome::failed(why, ""),
            },
            CommandEnd::Exited(status) if status.code() == Some(TEMPORARY) => {
                let outcome = Outcome::Release { error: stderr, delay: None };
                CommandOutcome { outcome, message: exit_text(status) }
            }
            // The failure is caused by the worker's setup, not by the job.
            CommandEnd::Exited(status) if was_not_run(&CommandEnd::Exited(status)) => {
                let error = if stderr.is_empty() { exit_text(status) } else { stderr };
                CommandOutcome {
                    outcome: Outcome::Release { error, delay: None },
                    message: exit_text(status),
                }
            }
            // The exit code adds little to the command's own error text.
            CommandEnd::Exited(status) if status.code().is_some() && !stderr.is_empty() => {
                CommandOutcome { outcome: Outcome::retry(stderr), message: exit_text(status) }
            }
            CommandEnd::Exited(status) => CommandOutcome::failed(exit_text(status), &stderr),
            CommandEnd::TimedOut => {
                let time = show_duration(timeout.unwrap_or_default());
                CommandOutcome::failed(format!("timed out after {time}"), &stderr)
            }
            CommandEnd::Killed => CommandOutcome::released("the worker was stopped at once"),
            CommandEnd::NotStarted(error) if is_exhausted(&error) => CommandOutcome::released(
                format!("the command could not be started: {}", io_problem(&error)),
            ),
            end if end.is_too_big() => {
                let why = "the command could not be started: its variables, headers among them, \
                           are longer than the system allows";
                CommandOutcome::failed(why.to_owned(), "")
            }
            CommandEnd::NotStarted(error) => CommandOutcome::failed(
                format!("the command could not be started: {}", io_problem(&error)),
                "",
            ),
        }
    }

    /// Returns whether the job is acknowledged.
    pub(super) fn is_acked(&self) -> bool {
        matches!(self.outcome, Outcome::Ack { .. })
    }

    /// Builds a release, whose attempt does not count.
    pub(super) fn released(why: impl Into<String>) -> CommandOutcome {
        let why = why.into();
        CommandOutcome {
            outcome: Outcome::Release { error: why.clone(), delay: None },
            message: why,
        }
    }

    fn failed(why: String, stderr: &str) -> CommandOutcome {
        let error = if stderr.is_empty() { why.clone() } else { format!("{why}: {stderr}") };
        CommandOutcome { outcome: Outcome::retry(error), message: why }
    }
}

/// Describes the exit of a process.
fn exit_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("killed by signal {signal} ({name})"),
            None => format!("killed by signal {signal}"),
        },
        (None, None) => status.to_string(),
    }
}

/// Returns the name of a signal that ends processes.
fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::SYS, "SIGSYS"),
    ];
    names.into_iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: i32, stderr: &str) -> (Outcome, String) {
        let end = CommandEnd::Exited(ExitStatus::from_raw(status));
        let result = super::super::result::CapturedStdout::default();
        let finished = FinishedCommand { end, stderr: stderr.into(), result, written: Ok(()) };
        let verdict = CommandOutcome::from_finished(finished, None);
        (verdict.outcome, verdict.message)
    }

    #[test]
    fn exit_codes_decide() {
        assert_eq!(of(0, "warning"), (Outcome::ack(), String::new()));
        let released = Outcome::Release { error: "later".into(), delay: None };
        assert_eq!(of(75 << 8, "later"), (released, "exit code 75".into()));
        for code in COMMAND_NOT_RUN {
            let released = Outcome::Release { error: "not found".into(), delay: None };
            assert_eq!(of(code << 8, "not found"), (released, format!("exit code {code}")));
        }
        assert_eq!(
            of(3 << 8, "no such user"),
            (Outcome::retry("no such user"), "exit code 3".into())
        );
        assert_eq!(of(3 << 8, ""), (Outcome::retry("exit code 3"), "exit code 3".into()));
        let killed = "killed by signal 9 (SIGKILL)";
        assert_eq!(of(9, ""), (Outcome::retry(killed), killed.into()));
        assert_eq!(of(9, "oh"), (Outcome::retry(format!("{killed}: oh")), killed.into()));
    }

    #[test]
    fn a_machine_without_room_is_not_the_fault_of_the_job() {
        let start = |code| {
            let end = CommandEnd::NotStarted(io::Error::from_raw_os_error(code));
            let result = super::super::result::CapturedStdout::default();
            let stderr = String::new();
            CommandOutcome::from_finished(
                FinishedCommand { end, stderr, result, written: Ok(()) },
                None,
            )
            .outcome
        };
        assert!(matches!(start(Errno::AGAIN.raw_os_error()), Outcome::Release { .. }));
        // Only for a single job: a batch is split.
        let Outcome::Retry { error, .. } = start(Errno::TOOBIG.raw_os_error()) else { panic!() };
        assert!(error.contains("headers among them"), "{error}");
    }
}
