//! What is stored of a job's state.

use crate::domain::State;

/// What is stored of a job's state. Waiting has three names outside; see
/// [`crate::domain::lifecycle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting = 0,
    Running = 1,
    Succeeded = 2,
    Dead = 3,
    Cancelled = 4,
    Expired = 5,
}

// === impl Phase ===

impl Phase {
    pub(super) fn code(self) -> i64 {
        self as i64
    }

    pub(super) fn of(code: i64) -> Phase {
        match code {
            0 => Phase::Waiting,
            1 => Phase::Running,
            2 => Phase::Succeeded,
            3 => Phase::Dead,
            4 => Phase::Cancelled,
            _ => Phase::Expired,
        }
    }

    /// The phase in which jobs of `state` lie.
    pub(super) fn holding(state: State) -> Phase {
        match state {
            State::Scheduled | State::Ready | State::Backoff => Phase::Waiting,
            State::Running => Phase::Running,
            State::Succeeded => Phase::Succeeded,
            State::Dead => Phase::Dead,
            State::Cancelled => Phase::Cancelled,
            State::Expired => Phase::Expired,
        }
    }
}
