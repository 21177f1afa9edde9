//! Limits scrapes of the metrics, each of which reads from the shards: few at once, and one read for all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::Refresh;

/// Maximum number of scrapes at once; more are refused. Prometheus needs one or two.
pub(super) const AT_ONCE_MAX: usize = 8;
/// Age below which gauges are not read again: no scraper needs newer ones, and reading a deep shard is expensive.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Limits scrapes at once and reads of the gauges.
#[derive(Clone)]
pub(super) struct ScrapeLimiter {
    permits: Arc<Semaphore>,
    refresh: Refresh,
    /// Time of the last read of the gauges; locked during a read.
    refreshed: Arc<Mutex<Option<Instant>>>,
}

// === impl ScrapeLimiter ===

impl ScrapeLimiter {
    pub(super) fn new(refresh: Refresh) -> ScrapeLimiter {
        let places = Arc::new(Semaphore::new(AT_ONCE_MAX));
        ScrapeLimiter { permits: places, refresh, refreshed: Arc::default() }
    }

    /// Returns a permit for a scrape, unless all are taken.
    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Updates the gauges unless they are fresh. Returns whether that was done within `longest`. A slower update goes
    /// on, and no other one starts meanwhile.
    pub(super) async fn refresh(&self, longest: Duration) -> bool {
        let (refresh, refreshed) = (Arc::clone(&self.refresh), Arc::clone(&self.refreshed));
        let fresh = async move {
            let mut refreshed = refreshed.lock_owned().await;
            if refreshed.is_some_and(|at| at.elapsed() < FRESH_FOR) {
                return;
            }
            let task = tokio::spawn(async move {
                refresh().await;
                *refreshed = Some(Instant::now());
            });
            let _ = task.await;
        };
        timeout(longest, fresh).await.is_ok()
    }
}
