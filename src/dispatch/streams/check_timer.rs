//! Timer of the next check of the streams. Any caller can move it to an earlier time.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::Time;

/// Due time that many tasks move to an earlier time and one task sleeps on.
pub(in crate::dispatch) struct CheckTimer {
    at: AtomicI64,
    moved: Notify,
}

// === impl CheckTimer ===

impl Default for CheckTimer {
    fn default() -> CheckTimer {
        CheckTimer { at: AtomicI64::new(i64::MAX), moved: Notify::new() }
    }
}

impl CheckTimer {
    /// Sets the timer to `at`, unless it is set to an earlier time.
    pub(in crate::dispatch) fn set_no_later_than(&self, at: Time) {
        if at.0 < self.at.fetch_min(at.0, Ordering::AcqRel) {
            self.moved.notify_one();
        }
    }

    /// Returns the due time; `i64::MAX` when the timer is not set.
    pub(in crate::dispatch) fn due_at(&self) -> Time {
        Time(self.at.load(Ordering::Acquire))
    }

    /// Clears the timer. The next [`CheckTimer::set_no_later_than`] sets it.
    pub(in crate::dispatch) fn reset(&self) {
        self.at.store(i64::MAX, Ordering::Release);
    }

    /// Waits until the timer is moved to an earlier time.
    pub(in crate::dispatch) async fn wait_changed(&self) {
        self.moved.notified().await;
    }
}
