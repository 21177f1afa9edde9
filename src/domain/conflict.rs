//! Result of an enqueue whose id is taken: one table, the same for every store.

use xxhash_rust::xxh3::xxh3_64;

use super::job::State;

/// Policy of the caller for an enqueue whose `(topic, id)` exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnConflict {
    /// Keeps the existing job.
    #[default]
    Keep,
    /// Replaces payload, due time and policy; counters restart.
    Replace,
    /// Moves only due time and priority.
    Reschedule,
    /// Rejects the enqueue.
    Reject,
}

/// Outcome of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnqueueOutcome {
    /// A new job, or a new generation of a finished one.
    Created,
    /// The waiting job was replaced.
    Replaced,
    /// Nothing changed: the job exists already.
    Unchanged,
    /// Stored as the next generation of a running job.
    Deferred,
    /// Due time and priority were moved.
    Rescheduled,
}

/// Existing job under the id of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExistingJob {
    /// No record.
    Absent,
    /// A record in this state.
    Job(State),
    /// A running job with its next generation waiting.
    RunningWithNext,
}

/// Relation of a call to the last call that was applied under its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestMatch {
    /// Another request id, or one of the calls has none.
    Different,
    /// Request id and request are the same.
    Same,
    /// Request id is the same, the request is another one.
    Changed,
}

/// Bits of a request code for the content of the request; the bits above them are for the request id. Two request ids
/// of one job are confused in 1 of 2^40 cases, two jobs under one request id in 1 of 2^24.
const CONTENT_BITS: u64 = (1 << 24) - 1;

/// Returns the code of a request, as stores keep it: hashes of its request id and of its content.
#[must_use]
pub fn request_code(request_id: &str, content: u64) -> u64 {
    xxh3_64(request_id.as_bytes()) & !CONTENT_BITS | content & CONTENT_BITS
}

// === impl RequestMatch ===

impl RequestMatch {
    /// Every variant.
    pub const ALL: [RequestMatch; 3] =
        [RequestMatch::Different, RequestMatch::Same, RequestMatch::Changed];

    /// Compares the request code `new` of a call with the stored code `known`, see [`request_code`].
    #[must_use]
    pub fn compare(known: Option<u64>, new: Option<u64>) -> RequestMatch {
        match known.zip(new) {
            Some((known, new)) if known == new => RequestMatch::Same,
            Some((known, new)) if known & !CONTENT_BITS == new & !CONTENT_BITS => {
                RequestMatch::Changed
            }
            _ => RequestMatch::Different,
        }
    }
}

/// Action of the store on a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictAction {
    /// Changes nothing and returns [`EnqueueOutcome::Unchanged`].
    Keep,
    /// Changes nothing and returns ALREADY_EXISTS.
    Refuse,
    /// Writes the new job over the existing one, with fresh counters, and returns this outcome.
    Write(EnqueueOutcome),
    /// Moves due time and priority of the waiting job.
    Reschedule,
    /// Makes the dead job wait again with counters at zero, and moves its due time and priority.
    Revive,
    /// Stores the new job as the next generation, in place of one that waits already.
    Defer,
    /// Stores the running job's own spec as its next generation.
    DeferSame,
    /// Moves due time and priority of the next generation.
    RescheduleNext,
}

/// Returns the action for `policy`, the existing job and the relation to the last call: the table of `on_conflict`.
#[must_use]
pub fn resolve(policy: OnConflict, found: ExistingJob, repeat: RequestMatch) -> ConflictAction {
    use OnConflict::{Keep, Reject, Replace, Reschedule};
    use State::{Backoff, Cancelled, Dead, Expired, Ready, Running, Scheduled, Succeeded};
    let state = match found {
        ExistingJob::Absent => return ConflictAction::Write(EnqueueOutcome::Created),
        _ if repeat == RequestMatch::Same => return ConflictAction::Keep,
        _ if repeat == RequestMatch::Changed => return ConflictAction::Refuse,
        ExistingJob::Job(Cancelled) => return ConflictAction::Write(EnqueueOutcome::Created),
        ExistingJob::RunningWithNext => Running,
        ExistingJob::Job(state) => state,
    };
    match (policy, state) {
        (Keep, _) => ConflictAction::Keep,
        (Reject, _) => ConflictAction::Refuse,
        (Replace, Scheduled | Ready | Backoff | Dead) => {
            ConflictAction::Write(EnqueueOutcome::Replaced)
        }
        (Reschedule, Scheduled | Ready | Backoff) => ConflictAction::Reschedule,
        (Replace, Running) => ConflictAction::Defer,
        (Reschedule, Running) if found == ExistingJob::RunningWithNext => {
            ConflictAction::RescheduleNext
        }
        (Reschedule, Running) => ConflictAction::DeferSame,
        (Reschedule, Dead) => ConflictAction::Revive,
        (_, Succeeded | Expired | Cancelled) => ConflictAction::Write(EnqueueOutcome::Created),
    }
}

// === impl ConflictAction ===

impl ConflictAction {
    /// Returns the outcome in the reply; `None`: ALREADY_EXISTS.
    #[must_use]
    pub fn outcome(self) -> Option<EnqueueOutcome> {
        match self {
            ConflictAction::Keep => Some(EnqueueOutcome::Unchanged),
            ConflictAction::Refuse => None,
            ConflictAction::Write(outcome) => Some(outcome),
            ConflictAction::Reschedule | ConflictAction::Revive => {
                Some(EnqueueOutcome::Rescheduled)
            }
            ConflictAction::Defer | ConflictAction::DeferSame | ConflictAction::RescheduleNext => {
                Some(EnqueueOutcome::Deferred)
            }
        }
    }
}

// === impl EnqueueOutcome ===

impl EnqueueOutcome {
    /// Returns the lowercase name, as in metrics and logs.
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
        let request = |request_id, content| Some(request_code(request_id, content));
        let first = request("a", 1);
        for (new, expected) in [
            (request("a", 1), RequestMatch::Same),
            (request("a", 2), RequestMatch::Changed),
            (request("a", 1 << 23), RequestMatch::Changed),
            (request("b", 1), RequestMatch::Different),
            (None, RequestMatch::Different),
        ] {
            assert_eq!(RequestMatch::compare(first, new), expected, "{new:?}");
            assert_eq!(RequestMatch::compare(new, first), expected, "{new:?}");
        }
        assert_eq!(RequestMatch::compare(None, None), RequestMatch::Different);
    }

    #[test]
    fn a_repeat_changes_nothing_and_another_job_is_no_repeat() {
        let policies =
            [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject];
        let found =
            State::ALL.map(ExistingJob::Job).into_iter().chain([ExistingJob::RunningWithNext]);
        for (found, policy) in found.flat_map(|found| policies.map(|policy| (found, policy))) {
            assert_eq!(resolve(policy, found, RequestMatch::Same), ConflictAction::Keep);
            assert_eq!(resolve(policy, found, RequestMatch::Changed), ConflictAction::Refuse);
        }
        for repeat in RequestMatch::ALL {
            let created = ConflictAction::Write(EnqueueOutcome::Created);
            assert_eq!(resolve(OnConflict::Reject, ExistingJob::Absent, repeat), created);
        }
    }
}
