//! States of jobs, as they are printed and waited for.

use super::info::strip_enum_prefix;
use crate::pb::JobState;

/// Returns a state like `READY`.
pub(super) fn name(state: JobState) -> &'static str {
    strip_enum_prefix(state.as_str_name(), "JOB_STATE_")
}

/// Returns whether a job in this state is not delivered again, unless it is redriven.
pub(super) fn is_terminal(state: JobState) -> bool {
    matches!(state, JobState::Succeeded | JobState::Dead | JobState::Cancelled | JobState::Expired)
}
