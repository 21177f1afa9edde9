//! What an enqueue does when its id is taken: one table, the same for every store.

use super::job::State;

/// What the caller wants when `(topic, id)` exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnConflict {
    /// Leave what is there.
    #[default]
    Keep,
    /// New payload, due time and policy; counters restart.
    Replace,
    /// Only due time and priority move.
    Reschedule,
    /// Refuse.
    Reject,
}

/// What an enqueue did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnqueueOutcome {
    /// A new job, or a new generation of a finished one.
    Created,
    /// The waiting job was replaced.
    Replaced,
    /// Nothing: the job is there already.
    Unchanged,
    /// Stored as the next generation of a running job.
    Deferred,
    /// Due time and priority moved.
    Rescheduled,
}

/// What an enqueue found under its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// No record.
    Nothing,
    /// A record in this state.
    Job(State),
    /// A running job with its next generation waiting.
    RunningWithNext,
}

/// What the store has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Leave everything as it is and answer [`EnqueueOutcome::Unchanged`].
    Leave,
    /// Answer ALREADY_EXISTS.
    Refuse,
    /// Write the new job in place of whatever is there, with fresh counters, and answer so.
    Write(EnqueueOutcome),
    /// Move due time and priority of the waiting job.
    Move,
    /// Make the dead job wait again with counters at zero, its due time and priority moved.
    Revive,
    /// Store the new job as the next generation, in place of one that waits already.
    Defer,
    /// Store the running job's own spec as its next generation.
    DeferSame,
    /// Move due time and priority of the next generation.
    MoveNext,
}

/// The table of `on_conflict`. `same_request`: the request id of this call was the last one applied
/// to the record, so the call is a repeat.
#[must_use]
pub fn resolve(policy: OnConflict, found: Found, same_request: bool) -> Action {
    use OnConflict::{Keep, Reject, Replace, Reschedule};
    use State::{Backoff, Cancelled, Dead, Expired, Ready, Running, Scheduled, Succeeded};
    let state = match found {
        Found::Nothing => return Action::Write(EnqueueOutcome::Created),
        _ if same_request => return Action::Leave,
        Found::Job(Cancelled) => return Action::Write(EnqueueOutcome::Created),
        Found::RunningWithNext => Running,
        Found::Job(state) => state,
    };
    match (policy, state) {
        (Keep, _) => Action::Leave,
        (Reject, _) => Action::Refuse,
        (Replace, Scheduled | Ready | Backoff | Dead) => Action::Write(EnqueueOutcome::Replaced),
        (Reschedule, Scheduled | Ready | Backoff) => Action::Move,
        (Replace, Running) => Action::Defer,
        (Reschedule, Running) if found == Found::RunningWithNext => Action::MoveNext,
        (Reschedule, Running) => Action::DeferSame,
        (Reschedule, Dead) => Action::Revive,
        (_, Succeeded | Expired | Cancelled) => Action::Write(EnqueueOutcome::Created),
    }
}

// === impl Action ===

impl Action {
    /// What the reply says; `None` is ALREADY_EXISTS.
    #[must_use]
    pub fn outcome(self) -> Option<EnqueueOutcome> {
        match self {
            Action::Leave => Some(EnqueueOutcome::Unchanged),
            Action::Refuse => None,
            Action::Write(outcome) => Some(outcome),
            Action::Move | Action::Revive => Some(EnqueueOutcome::Rescheduled),
            Action::Defer | Action::DeferSame | Action::MoveNext => Some(EnqueueOutcome::Deferred),
        }
    }
}

// === impl EnqueueOutcome ===

impl EnqueueOutcome {
    /// Lowercase name, as in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EnqueueOutcome::Created => "created",
            EnqueueOutcome::Replaced => "replaced",
            EnqueueOutcome::Unchanged => "unchanged",
            EnqueueOutcome::Deferred => "deferred",
            EnqueueOutcome::Rescheduled => "rescheduled",
        }
    }
}
