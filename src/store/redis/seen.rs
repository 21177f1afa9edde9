//! The store's clock as it was seen last, for what needs no more than to be told.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::domain::Time;

/// A time that a script has answered, and when.
#[derive(Default)]
pub(super) struct Seen(Mutex<Option<(Time, Instant)>>);

// === impl Seen ===

impl Seen {
    /// A script has answered its time.
    pub(super) fn note(&self, now: Time) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// About what the store's clock says; `None` as long as it has said nothing.
    pub(super) fn now(&self) -> Option<Time> {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.map(|(time, at)| time.plus(at.elapsed()))
    }
}
