//! Enumerations: numbers that this server does not support are refused, not guessed.

use crate::domain::ring::ShardState;
use crate::domain::{AttemptOutcome, Durability, EnqueueOutcome, OnConflict, State};
use crate::pb;
use crate::scheduler::RevokeReason;

use super::{Checks, FieldPath};

/// Parts of a job that a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadView {
    /// Everything except payload, result and attempts.
    Basic,
    /// Everything.
    Full,
}

/// Returns the value with this number.
fn known<E: TryFrom<i32>>(checks: &mut Checks, path: FieldPath<'_>, number: i32) -> Option<E> {
    let value = E::try_from(number).ok();
    if value.is_none() {
        checks.invalid(path, format!("{number} is not a value that this server supports"));
    }
    value
}

/// Reads the conflict policy for an id that is taken; not set is KEEP.
pub(crate) fn on_conflict(
    checks: &mut Checks,
    path: FieldPath<'_>,
    number: i32,
) -> Option<OnConflict> {
    use pb::ConflictPolicy as Policy;
    Some(match known(checks, path, number)? {
        Policy::Unspecified | Policy::Keep => OnConflict::Keep,
        Policy::Replace => OnConflict::Replace,
        Policy::Reschedule => OnConflict::Reschedule,
        Policy::Reject => OnConflict::Reject,
    })
}

/// Reads the minimum durability, if one is requested.
pub(crate) fn durability(
    checks: &mut Checks,
    path: FieldPath<'_>,
    number: i32,
) -> Option<Durability> {
    match known(checks, path, number)? {
        pb::Durability::Unspecified => None,
        pb::Durability::Memory => Some(Durability::Memory),
        pb::Durability::Fsynced => Some(Durability::Fsynced),
        pb::Durability::Replicated => Some(Durability::Replicated),
    }
}

/// Reads the view, with the default of the call.
pub(crate) fn view(
    checks: &mut Checks,
    path: FieldPath<'_>,
    number: i32,
    default: ReadView,
) -> Option<ReadView> {
    Some(match known(checks, path, number)? {
        pb::JobView::Unspecified => default,
        pb::JobView::Basic => ReadView::Basic,
        pb::JobView::Full => ReadView::Full,
    })
}

/// Reads a state of a job, which is required.
pub(crate) fn job_state(checks: &mut Checks, path: FieldPath<'_>, number: i32) -> Option<State> {
    Some(match known(checks, path, number)? {
        pb::JobState::Unspecified => {
            checks.invalid(path, "must name a state, for example JOB_STATE_READY");
            return None;
        }
        pb::JobState::Scheduled => State::Scheduled,
        pb::JobState::Ready => State::Ready,
        pb::JobState::Running => State::Running,
        pb::JobState::Backoff => State::Backoff,
        pb::JobState::Succeeded => State::Succeeded,
        pb::JobState::Dead => State::Dead,
        pb::JobState::Cancelled => State::Cancelled,
        pb::JobState::Expired => State::Expired,
    })
}

/// Reads a state of a shard that an operator can set; the others are only observed.
pub(crate) fn shard_state(
    checks: &mut Checks,
    path: FieldPath<'_>,
    number: i32,
) -> Option<ShardState> {
    match pb::ShardState::try_from(number) {
        Ok(pb::ShardState::Active) => Some(ShardState::Active),
        Ok(pb::ShardState::Draining) => Some(ShardState::Draining),
        Ok(pb::ShardState::Unspecified | pb::ShardState::Unreachable) | Err(_) => {
            checks.invalid(path, "must be ACTIVE or DRAINING");
            None
        }
    }
}

/// Reads the action of a Nack; not set is RETRY.
pub(crate) fn nack_action(
    checks: &mut Checks,
    path: FieldPath<'_>,
    number: i32,
) -> Option<pb::NackAction> {
    known(checks, path, number)
}

/// Converts the state of a job.
pub(crate) fn to_job_state(state: State) -> pb::JobState {
    match state {
        State::Scheduled => pb::JobState::Scheduled,
        State::Ready => pb::JobState::Ready,
        State::Running => pb::JobState::Running,
        State::Backoff => pb::JobState::Backoff,
        State::Succeeded => pb::JobState::Succeeded,
        State::Dead => pb::JobState::Dead,
        State::Cancelled => pb::JobState::Cancelled,
        State::Expired => pb::JobState::Expired,
    }
}

/// Converts the state that an operator has set on a shard.
pub(crate) fn to_shard_state(state: ShardState) -> pb::ShardState {
    match state {
        ShardState::Active => pb::ShardState::Active,
        ShardState::Draining => pb::ShardState::Draining,
    }
}

/// Converts the outcome of an enqueue.
pub(crate) fn to_enqueue_outcome(outcome: EnqueueOutcome) -> pb::EnqueueOutcome {
    match outcome {
        EnqueueOutcome::Created => pb::EnqueueOutcome::Created,
        EnqueueOutcome::Replaced => pb::EnqueueOutcome::Replaced,
        EnqueueOutcome::Unchanged => pb::EnqueueOutcome::Unchanged,
        EnqueueOutcome::Deferred => pb::EnqueueOutcome::Deferred,
        EnqueueOutcome::Rescheduled => pb::EnqueueOutcome::Rescheduled,
    }
}

/// Converts a durability that is reached.
pub(crate) fn to_durability(durability: Durability) -> pb::Durability {
    match durability {
        Durability::Memory => pb::Durability::Memory,
        Durability::Fsynced => pb::Durability::Fsynced,
        Durability::Replicated => pb::Durability::Replicated,
    }
}

/// Converts the outcome of an attempt.
pub(crate) fn to_attempt_outcome(outcome: AttemptOutcome) -> pb::AttemptOutcome {
    match outcome {
        AttemptOutcome::Succeeded => pb::AttemptOutcome::Succeeded,
        AttemptOutcome::Failed => pb::AttemptOutcome::Failed,
        AttemptOutcome::LeaseExpired => pb::AttemptOutcome::LeaseExpired,
        AttemptOutcome::Released => pb::AttemptOutcome::Released,
        AttemptOutcome::Revoked => pb::AttemptOutcome::Revoked,
    }
}

/// Converts the reason for a revocation.
pub(crate) fn to_revocation_reason(revoked: RevokeReason) -> pb::RevocationReason {
    match revoked {
        RevokeReason::Deleted => pb::RevocationReason::Deleted,
        RevokeReason::LeaseExpired => pb::RevocationReason::LeaseExpired,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noted;
    use super::*;

    #[test]
    fn unknown_numbers_are_refused() {
        type Convert = fn(&mut Checks, FieldPath<'_>, i32);
        let cases: [(Convert, i32); 5] = [
            (|c, p, n| _ = on_conflict(c, p, n), 4),
            (|c, p, n| _ = durability(c, p, n), 3),
            (|c, p, n| _ = view(c, p, n, ReadView::Full), 2),
            (|c, p, n| _ = job_state(c, p, n), 8),
            (|c, p, n| _ = nack_action(c, p, n), 3),
        ];
        for (convert, last) in cases {
            let path = FieldPath::ROOT.field("f");
            assert_eq!(noted(|checks| convert(checks, path, last)), []);
            for number in [-1, last + 1, i32::MAX] {
                let found = noted(|checks| convert(checks, path, number));
                assert_eq!(found, [("f".to_owned(), "INVALID_FIELD")], "{number}");
            }
        }
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let mut checks = Checks::default();
        assert_eq!(on_conflict(&mut checks, FieldPath::ROOT, 0), Some(OnConflict::Keep));
        assert_eq!(durability(&mut checks, FieldPath::ROOT, 0), None);
        assert_eq!(view(&mut checks, FieldPath::ROOT, 0, ReadView::Basic), Some(ReadView::Basic));
        assert!(checks.finish(Some(())).is_ok());
        let unnamed = noted(|checks| _ = job_state(checks, FieldPath::ROOT.field("state"), 0));
        assert_eq!(unnamed, [("state".to_owned(), "INVALID_FIELD")]);
    }

    #[test]
    fn every_state_survives_its_round_trip() {
        for expected in State::ALL {
            let number = to_job_state(expected).into();
            assert_eq!(job_state(&mut Checks::default(), FieldPath::ROOT, number), Some(expected));
        }
    }
}
