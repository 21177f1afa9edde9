//! What cannot be settled or extended at the moment: one line for each cause, however many jobs wait.

use std::collections::HashMap;
use std::sync::Arc;

use super::Slot;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// The cause for which each job waits.
    causes: HashMap<Slot, Arc<str>>,
    /// How many wait for each cause that was told.
    told: HashMap<Arc<str>, usize>,
}

// === impl Trouble ===

impl Trouble {
    /// A job waits for this cause to pass: whether that is news.
    pub(super) fn meets(&mut self, slot: Slot, cause: &str) -> bool {
        if self.of(slot) == Some(cause) && self.told.contains_key(cause) {
            return false;
        }
        self.leaves(slot);
        let cause: Arc<str> = cause.into();
        let waiting = self.told.entry(Arc::clone(&cause)).or_default();
        *waiting += 1;
        let is_news = *waiting == 1;
        self.causes.insert(slot, cause);
        is_news
    }

    /// What a job waits for.
    pub(super) fn of(&self, slot: Slot) -> Option<&str> {
        self.causes.get(&slot).map(AsRef::as_ref)
    }

    /// A job waits no more, which says nothing of the cause.
    pub(super) fn leaves(&mut self, slot: Slot) {
        let Some(cause) = self.causes.remove(&slot) else { return };
        if let Some(waiting) = self.told.get_mut(&cause) {
            *waiting -= 1;
            if *waiting == 0 {
                self.told.remove(&cause);
            }
        }
    }

    /// A job waited for this, and got through: so the cause has passed, for all. None: that is known.
    pub(super) fn passed(&mut self, slot: Slot) -> Option<Arc<str>> {
        let cause = self.causes.remove(&slot)?;
        self.told.remove(&cause).map(|_| cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_until_it_has_passed() {
        let mut trouble = Trouble::default();
        let meets = [trouble.meets(1, "b"), trouble.meets(1, "b"), trouble.meets(2, "b")];
        assert_eq!(meets, [true, false, false]);
        assert_eq!((trouble.passed(2).as_deref(), trouble.passed(1)), (Some("b"), None));
        assert!(trouble.meets(3, "b"), "it is back");
        assert!(trouble.meets(3, "c"), "and now another one");
        assert_eq!((trouble.of(3), trouble.told.len()), (Some("c"), 1));
    }

    #[test]
    fn one_that_still_waits_for_what_has_passed_tells_it_anew() {
        let mut trouble = Trouble::default();
        assert!(trouble.meets(1, "b") && !trouble.meets(2, "b"));
        assert!(trouble.passed(1).is_some());
        assert!(trouble.meets(2, "b") && !trouble.meets(2, "b"));
        assert!(trouble.passed(2).is_some());
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let mut trouble = Trouble::default();
        assert!(trouble.meets(1, "b"));
        trouble.leaves(1);
        trouble.leaves(1);
        assert_eq!((trouble.of(1), trouble.told.len(), trouble.causes.len()), (None, 0, 0));
    }
}
