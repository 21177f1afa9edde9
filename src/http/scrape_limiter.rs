//! Scrapes of the metrics, each of which asks the shards: few at once, and one question for all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::Refresh;

/// Scrapes at once; more are refused. Prometheus is one or two.
pub(super) const AT_ONCE_MAX: usize = 8;
/// Gauges that are younger are not asked for again: no scraper wants them sooner, and on a deep shard asking is dear.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone)]
pub(super) struct ScrapeLimiter {
    permits: Arc<Semaphore>,
    refresh: Refresh,
    /// When the gauges were last asked for; held while they are.
    refreshed: Arc<Mutex<Option<Instant>>>,
}

// === impl Scrapes ===

impl ScrapeLimiter {
    pub(super) fn new(refresh: Refresh) -> ScrapeLimiter {
        let places = Arc::new(Semaphore::new(AT_ONCE_MAX));
        ScrapeLimiter { permits: places, refresh, refreshed: Arc::default() }
    }

    /// A place among the scrapes under way, unless all are taken.
    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Brings the gauges up to date unless they are. Returns whether that was done within `longest`. What takes longer
    /// goes on, and nothing else is asked meanwhile.
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
