//! When the next look at the streams is due: whoever learns of a nearer time moves it forward.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::Time;

/// A time that others move forward and one sleeps on.
pub(super) struct Alarm {
    at: AtomicI64,
    moved: Notify,
}

// === impl Alarm ===

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm { at: AtomicI64::new(i64::MAX), moved: Notify::new() }
    }
}

impl Alarm {
    /// It must go off at `at`, or earlier.
    pub(super) fn by(&self, at: Time) {
        if at.0 < self.at.fetch_min(at.0, Ordering::AcqRel) {
            self.moved.notify_one();
        }
    }

    /// When it goes off.
    pub(super) fn at(&self) -> Time {
        Time(self.at.load(Ordering::Acquire))
    }

    /// It has gone off, and is set by the next [`Alarm::by`].
    pub(super) fn reset(&self) {
        self.at.store(i64::MAX, Ordering::Release);
    }

    /// Waits until it was moved forward.
    pub(super) async fn moved(&self) {
        self.moved.notified().await;
    }
}
