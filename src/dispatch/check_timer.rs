//! When the next look at the streams is due: whoever learns of a nearer time moves it forward.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::Time;

/// A time that others move forward and one sleeps on.
pub(super) struct CheckTimer {
    at: AtomicI64,
    moved: Notify,
}

// === impl Alarm ===

impl Default for CheckTimer {
    fn default() -> CheckTimer {
        CheckTimer { at: AtomicI64::new(i64::MAX), moved: Notify::new() }
    }
}

impl CheckTimer {
    /// It must go off at `at`, or earlier.
    pub(super) fn set_no_later_than(&self, at: Time) {
        if at.0 < self.at.fetch_min(at.0, Ordering::AcqRel) {
            self.moved.notify_one();
        }
    }

    /// When it goes off.
    pub(super) fn due_at(&self) -> Time {
        Time(self.at.load(Ordering::Acquire))
    }

    /// It has gone off, and is set by the next [`CheckTimer::by`].
    pub(super) fn reset(&self) {
        self.at.store(i64::MAX, Ordering::Release);
    }

    /// Waits until it was moved forward.
    pub(super) async fn wait_changed(&self) {
        self.moved.notified().await;
    }
}
