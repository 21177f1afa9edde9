//! Why it is being asked whether a shard still answers, and what was seen meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::Error;

use super::super::op::Op;

/// See the module. None: nobody asks.
#[derive(Default)]
pub(super) struct Doubt(Mutex<Option<State>>);

#[derive(Default)]
struct State {
    /// There was a reason since it was asked last.
    is_fresh: bool,
    seen: Seen,
}

/// What was seen of a shard that answers after all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Calls that failed.
    pub(super) failed: u64,
    /// The first of them.
    pub(super) first: Option<(Op, String)>,
    /// It was asked in vain.
    pub(super) was_away: bool,
}

// === impl Doubt ===

impl Doubt {
    /// A call `failed`, or there is another reason. Answers whether nobody asks yet: the caller then does.
    pub(super) fn cast(&self, failed: Option<(Op, &Error)>) -> bool {
        let mut state = self.state();
        let is_first = state.is_none();
        let State { is_fresh, seen } = state.get_or_insert_default();
        *is_fresh = true;
        if let Some((op, error)) = failed {
            seen.failed += 1;
            seen.first.get_or_insert_with(|| (op, error.to_string()));
        }
        is_first
    }

    /// Whether to ask, which is then being done; else nobody asks any more.
    pub(super) fn is_open(&self) -> bool {
        let mut state = self.state();
        let is_open = state.as_mut().is_some_and(|state| std::mem::take(&mut state.is_fresh));
        if !is_open {
            *state = None;
        }
        is_open
    }

    /// It was asked in vain, and has to be asked again.
    pub(super) fn stays(&self) {
        if let Some(state) = &mut *self.state() {
            (state.is_fresh, state.seen.was_away) = (true, true);
        }
    }

    /// The shard has answered: what was seen until then.
    pub(super) fn answered(&self) -> Seen {
        self.state().as_mut().map(|state| std::mem::take(&mut state.seen)).unwrap_or_default()
    }

    /// The shard is known not to answer: there is nothing to ask, and what was seen is told by that.
    pub(super) fn settle(&self) {
        if let Some(state) = &mut *self.state() {
            *state = State::default();
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody asks.
    #[cfg(test)]
    pub(super) fn is_none(&self) -> bool {
        self.state().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asks_until_there_is_no_new_reason_and_what_was_seen_is_told_once() {
        let (doubt, error) = (Doubt::default(), Error::Unavailable("no".into()));
        assert!(doubt.cast(None) && !doubt.cast(None), "one is enough");
        assert!(doubt.is_open());
        assert!(!doubt.cast(Some((Op::Beat, &error))) && !doubt.cast(Some((Op::Claim, &error))));
        doubt.stays();
        assert!(doubt.is_open());
        let first = Some((Op::Beat, "no".to_owned()));
        assert_eq!(doubt.answered(), Seen { failed: 2, first, was_away: true });
        assert_eq!(doubt.answered(), Seen::default());
        assert!(!doubt.is_open() && doubt.is_none());
        assert!(doubt.cast(Some((Op::Beat, &error))), "the next one has to ask again");
        doubt.stays();
        doubt.settle();
        assert_eq!((doubt.answered(), doubt.is_open()), (Seen::default(), false));
    }
}
