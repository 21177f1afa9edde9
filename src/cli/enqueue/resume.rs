//! Resumption of a stopped run of `--lines`: at its first unconfirmed line, under its request id.

use std::time::{Duration, SystemTime};

use clap::Args;
use jiff::{Timestamp, Unit};

use super::exit::CommandFailure;
use super::times::Now;
use super::values;

/// Shortest time for which a resume command with `--before` is printed: typing it takes some seconds.
const SAFE_MIN: Duration = Duration::from_secs(5);

/// Flags that resume a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Resume a run of --lines")]
pub(super) struct ResumeArgs {
    /// Skip all lines before line N; a run that stops prints N
    #[arg(long, value_name = "N", requires = "lines")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    from_line: Option<u64>,
    /// Fail after this time, RFC 3339: after it, the server may no longer recognize stored lines and would enqueue
    /// them again; take the TIME that the stopped run printed
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    #[arg(requires = "from_line", conflicts_with = "may_repeat")]
    before: Option<SystemTime>,
    /// Accept that up to 4000 lines of the stopped run that are stored are enqueued twice
    #[arg(long, requires = "from_line")]
    may_repeat: bool,
}

/// State of a run that stopped.
pub(super) struct Resume {
    /// First line that is not confirmed.
    pub(super) line: u64,
    /// Number of lines from there on that were sent: each may be stored.
    pub(super) unconfirmed: u64,
    /// Time for which the server certainly recognizes them by their ids; None: they have none.
    pub(super) recognized_for: Option<Duration>,
}

// === impl ResumeArgs ===

impl ResumeArgs {
    /// Returns the first line to send.
    pub(super) fn first_line(&self) -> Result<u64, CommandFailure> {
        let Some(line) = self.from_line else { return Ok(1) };
        match self.before {
            Some(time) if Timestamp::try_from(time).is_ok_and(|time| now() < time) => Ok(line),
            None if self.may_repeat => Ok(line),
            Some(_) => Err(unsafe_resume("the time of --before has passed")),
            None => Err(unsafe_resume(
                "--from-line needs --before TIME, which the stopped run printed, or --may-repeat",
            )),
        }
    }
}

fn now() -> Timestamp {
    Now::read().timestamp()
}

fn unsafe_resume(problem: &str) -> CommandFailure {
    CommandFailure::usage(problem).with_hint(
        "--may-repeat accepts that stored lines of the stopped run may be enqueued twice; \
         `ringq job list TOPIC --limit 0 --full -o json` prints the jobs to compare with",
    )
}

// === impl Resume ===

impl Resume {
    /// Describes how far the run came.
    pub(super) fn state(&self) -> String {
        let Resume { line, unconfirmed, .. } = self;
        match unconfirmed {
            0 => format!("not sent: from line {line} on"),
            _ => format!(
                "not confirmed: from line {line} on, of which up to {unconfirmed} lines may be enqueued"
            ),
        }
    }

    /// Returns the flags that resume the run.
    pub(super) fn hint(&self) -> String {
        let flags = format!(
            "  to go on, run the same command on the same input with --from-line {}",
            self.line
        );
        let twice = format!("up to {} lines may then be enqueued twice", self.unconfirmed);
        if self.unconfirmed == 0 {
            return format!("{flags} --may-repeat (no line is in doubt)");
        }
        let recognized = self.recognized_for.filter(|time| *time >= SAFE_MIN);
        match recognized.and_then(|time| (now() + time).round(Unit::Second).ok()) {
            Some(time) => format!(
                "{flags} --before {time}\n  later use --may-repeat in place of --before: {twice}"
            ),
            None if self.recognized_for.is_none() => format!(
                "{flags} --may-repeat: {twice}; a run with --request-id can be resumed without that risk"
            ),
            None => format!("{flags} --may-repeat: {twice}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resume(unconfirmed: u64, recognized_for: Option<u64>) -> Resume {
        let recognized_for = recognized_for.map(Duration::from_secs);
        Resume { line: 501, unconfirmed, recognized_for }
    }

    #[test]
    fn the_hint_names_the_line_and_the_time() {
        let hint = resume(4_000, Some(40)).hint();
        assert!(hint.contains("with --from-line 501 --before 2"), "{hint}");
        let later = "later use --may-repeat in place of --before: up to 4000 lines may then";
        assert!(hint.contains(later), "{hint}");
        let state = "not confirmed: from line 501 on, of which up to 4000 lines may be enqueued";
        assert_eq!(resume(4_000, Some(40)).state(), state);
    }

    #[test]
    fn lines_that_are_not_recognized_may_be_repeated() {
        let late = resume(500, Some(4)).hint();
        assert!(
            late.ends_with("--may-repeat: up to 500 lines may then be enqueued twice"),
            "{late}"
        );
        let without_ids = resume(500, None).hint();
        assert!(without_ids.contains("--may-repeat: up to 500 lines"), "{without_ids}");
        assert!(without_ids.ends_with("with --request-id can be resumed without that risk"));
    }

    #[test]
    fn a_run_without_lines_in_doubt_can_be_resumed_at_any_time() {
        for recognized_for in [None, Some(0), Some(60)] {
            let resume = resume(0, recognized_for);
            assert_eq!(resume.state(), "not sent: from line 501 on");
            assert!(resume.hint().ends_with("--may-repeat (no line is in doubt)"));
        }
    }

    #[test]
    fn a_resumed_run_needs_a_time_or_consent() {
        let args = |from_line, before, may_repeat| ResumeArgs { from_line, before, may_repeat };
        let now = SystemTime::from(now());
        let (soon, past) = (now + Duration::from_secs(60), now - Duration::from_secs(1));
        assert_eq!(args(None, None, false).first_line().unwrap(), 1);
        assert_eq!(args(Some(7), Some(soon), false).first_line().unwrap(), 7);
        assert_eq!(args(Some(7), None, true).first_line().unwrap(), 7);
        assert!(args(Some(7), Some(past), false).first_line().is_err());
        assert!(args(Some(7), None, false).first_line().is_err());
    }
}
