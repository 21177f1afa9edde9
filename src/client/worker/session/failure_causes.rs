//! Causes of failed settles and extends: one log line for each cause, for any number of waiting jobs.

use std::collections::HashMap;
use std::sync::Arc;

use super::JobSlot;

/// Causes that are logged, and the jobs that wait for each to pass.
#[derive(Debug, Default)]
pub(super) struct FailureCauses {
    /// The cause for which each job waits.
    causes: HashMap<JobSlot, Arc<str>>,
    /// Number of waiting jobs for each logged cause.
    logged: HashMap<Arc<str>, usize>,
}

// === impl FailureCauses ===

impl FailureCauses {
    /// Records that a job waits for this cause to pass; returns whether the cause is to be logged.
    pub(super) fn record(&mut self, slot: JobSlot, cause: &str) -> bool {
        if self.cause_of(slot) == Some(cause) && self.logged.contains_key(cause) {
            return false;
        }
        self.remove(slot);
        let cause: Arc<str> = cause.into();
        let waiting = self.logged.entry(Arc::clone(&cause)).or_default();
        *waiting += 1;
        let is_news = *waiting == 1;
        self.causes.insert(slot, cause);
        is_news
    }

    /// Returns the cause that a job waits for.
    pub(super) fn cause_of(&self, slot: JobSlot) -> Option<&str> {
        self.causes.get(&slot).map(AsRef::as_ref)
    }

    /// Removes a job that does not wait any more; the cause may still last.
    pub(super) fn remove(&mut self, slot: JobSlot) {
        let Some(cause) = self.causes.remove(&slot) else { return };
        if let Some(waiting) = self.logged.get_mut(&cause) {
            *waiting -= 1;
            if *waiting == 0 {
                self.logged.remove(&cause);
            }
        }
    }

    /// Records that a call for the job succeeded: its cause has passed, for all jobs. `None`: already logged as
    /// passed.
    pub(super) fn resolve(&mut self, slot: JobSlot) -> Option<Arc<str>> {
        let cause = self.causes.remove(&slot)?;
        self.logged.remove(&cause).map(|_| cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_once_until_resolved() {
        let mut trouble = FailureCauses::default();
        let logged = [trouble.record(1, "b"), trouble.record(1, "b"), trouble.record(2, "b")];
        assert_eq!(logged, [true, false, false]);
        assert_eq!((trouble.resolve(2).as_deref(), trouble.resolve(1)), (Some("b"), None));
        assert!(trouble.record(3, "b"), "it is back");
        assert!(trouble.record(3, "c"), "and now another one");
        assert_eq!((trouble.cause_of(3), trouble.logged.len()), (Some("c"), 1));
    }

    #[test]
    fn a_resolved_cause_that_recurs_is_logged_again() {
        let mut trouble = FailureCauses::default();
        assert!(trouble.record(1, "b") && !trouble.record(2, "b"));
        assert!(trouble.resolve(1).is_some());
        assert!(trouble.record(2, "b") && !trouble.record(2, "b"));
        assert!(trouble.resolve(2).is_some());
    }

    #[test]
    fn removed_jobs_leave_no_entries() {
        let mut trouble = FailureCauses::default();
        assert!(trouble.record(1, "b"));
        trouble.remove(1);
        trouble.remove(1);
        assert_eq!((trouble.cause_of(1), trouble.logged.len(), trouble.causes.len()), (None, 0, 0));
    }
}
