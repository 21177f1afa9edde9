//! States of jobs, as they are given, printed and waited for.

use clap::ValueEnum;

use super::info::strip_enum_prefix;
use crate::pb::JobState;

/// States in the order of the list: running, waiting, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum JobStateArg {
    /// Held by a worker
    Running,
    /// Waits for a worker
    Ready,
    /// Has failed and waits for its next attempt
    Backoff,
    /// Waits for its time
    Scheduled,
    /// A dead letter
    Dead,
    /// Done, and still kept
    Succeeded,
    /// Deleted before it had ended, and still kept
    Cancelled,
    /// Did not run in time
    Expired,
}

// === impl JobStateArg ===

impl From<JobStateArg> for JobState {
    fn from(state: JobStateArg) -> JobState {
        match state {
            JobStateArg::Running => JobState::Running,
            JobStateArg::Ready => JobState::Ready,
            JobStateArg::Backoff => JobState::Backoff,
            JobStateArg::Scheduled => JobState::Scheduled,
            JobStateArg::Dead => JobState::Dead,
            JobStateArg::Succeeded => JobState::Succeeded,
            JobStateArg::Cancelled => JobState::Cancelled,
            JobStateArg::Expired => JobState::Expired,
        }
    }
}

/// Returns a state like `READY`.
pub(super) fn name(state: JobState) -> &'static str {
    strip_enum_prefix(state.as_str_name(), "JOB_STATE_")
}

/// Returns whether a job in this state is not delivered again, unless it is redriven.
pub(super) fn is_terminal(state: JobState) -> bool {
    matches!(state, JobState::Succeeded | JobState::Dead | JobState::Cancelled | JobState::Expired)
}
