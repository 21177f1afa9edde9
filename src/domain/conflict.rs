//! What an enqueue does when its id is taken: one table, the same for every store.

use xxhash_rust::xxh3::xxh3_64;

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

/// How a call stands to the one that was applied last under its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// Another call, or one of them has no request id.
    No,
    /// The same request id, and the same is asked for.
    Same,
    /// The same request id, and something else is asked for.
    Changed,
}

/// Bits of a stored request that stand for what was asked for; those above them stand for the request id. Two request
/// ids of one job are taken for one in 1 of 2^40 cases, two jobs under one request id in 1 of 2^24.
const CONTENT: u64 = (1 << 24) - 1;

/// A request as stores keep it: by its request id, and a hash of everything that it asks for.
#[must_use]
pub fn request(request_id: &str, content: u64) -> u64 {
    xxh3_64(request_id.as_bytes()) & !CONTENT | content & CONTENT
}

// === impl Repeat ===

impl Repeat {
    /// All of them.
    pub const ALL: [Repeat; 3] = [Repeat::No, Repeat::Same, Repeat::Changed];

    /// What a call with the request `new` is to the one with `known`; see [`request`].
    #[must_use]
    pub fn of(known: Option<u64>, new: Option<u64>) -> Repeat {
        match known.zip(new) {
            Some((known, new)) if known == new => Repeat::Same,
            Some((known, new)) if known & !CONTENT == new & !CONTENT => Repeat::Changed,
            _ => Repeat::No,
        }
    }
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

/// The table of `on_conflict`, for a call that is such a repeat.
#[must_use]
pub fn resolve(policy: OnConflict, found: Found, repeat: Repeat) -> Action {
    use OnConflict::{Keep, Reject, Replace, Reschedule};
    use State::{Backoff, Cancelled, Dead, Expired, Ready, Running, Scheduled, Succeeded};
    let state = match found {
        Found::Nothing => return Action::Write(EnqueueOutcome::Created),
        _ if repeat == Repeat::Same => return Action::Leave,
        _ if repeat == Repeat::Changed => return Action::Refuse,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_id_and_by_what_it_asks_for() {
        let request = |request_id, content| Some(request(request_id, content));
        let first = request("a", 1);
        for (new, expected) in [
            (request("a", 1), Repeat::Same),
            (request("a", 2), Repeat::Changed),
            (request("a", 1 << 23), Repeat::Changed),
            (request("b", 1), Repeat::No),
            (None, Repeat::No),
        ] {
            assert_eq!(Repeat::of(first, new), expected, "{new:?}");
            assert_eq!(Repeat::of(new, first), expected, "{new:?}");
        }
        assert_eq!(Repeat::of(None, None), Repeat::No);
    }

    #[test]
    fn a_repeat_changes_nothing_and_another_job_is_no_repeat() {
        let policies =
            [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject];
        let found = State::ALL.map(Found::Job).into_iter().chain([Found::RunningWithNext]);
        for (found, policy) in found.flat_map(|found| policies.map(|policy| (found, policy))) {
            assert_eq!(resolve(policy, found, Repeat::Same), Action::Leave);
            assert_eq!(resolve(policy, found, Repeat::Changed), Action::Refuse);
        }
        for repeat in Repeat::ALL {
            let created = Action::Write(EnqueueOutcome::Created);
            assert_eq!(resolve(OnConflict::Reject, Found::Nothing, repeat), created);
        }
    }
}
