//! Limits scrapes of the metrics: few at once, and each waits a limited time for fresh gauges.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Refresh;

/// Maximum number of scrapes at once; more are refused. Prometheus needs one or two.
pub(super) const AT_ONCE_MAX: usize = 8;

/// Limits scrapes at once.
#[derive(Clone)]
pub(super) struct ScrapeLimiter {
    permits: Arc<Semaphore>,
    refresh: Refresh,
}

// === impl ScrapeLimiter ===

impl ScrapeLimiter {
    pub(super) fn new(refresh: Refresh) -> ScrapeLimiter {
        ScrapeLimiter { permits: Arc::new(Semaphore::new(AT_ONCE_MAX)), refresh }
    }

    /// Returns a permit for a scrape, unless all are taken.
    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Updates the gauges. Returns whether that was done within `longest`.
    pub(super) async fn refresh(&self, longest: Duration) -> bool {
        timeout(longest, (self.refresh)()).await.is_ok()
    }
}
