//! Gauges that are read from the shards at a scrape of the metrics.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, join_all};
use parking_lot::Mutex;
use tokio::join;
use tokio::time::Instant;

use crate::auth::Authenticator;
use crate::dispatch::Dispatcher;
use crate::domain::{TopicName, limit};
use crate::http::Refresh;
use crate::metrics::TopicGauges;
use crate::scheduler::{Operator, TopicRow};
use crate::shards::Shard;

/// Maximum number of topics that are read: those with series of their own, and others for their common series. One call
/// to a shard reads no more.
const TOPICS_READ_MAX: usize = limit::CALL_JOBS_MAX;
/// Maximum age of gauges in a scrape: more scrapes do not cause more reads.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Refresh that all waiting scrapes share.
#[derive(Clone, Default)]
struct SharedRefresh(Arc<Mutex<Option<(Instant, RefreshFuture)>>>);

type RefreshFuture = Shared<BoxFuture<'static, ()>>;

/// Returns the function that updates the gauges before a scrape.
pub(super) fn refresh(
    operator: Operator,
    dispatcher: Dispatcher,
    authenticator: Authenticator,
) -> Refresh {
    let refreshes = SharedRefresh::default();
    Arc::new(move || {
        let metrics = operator.metrics();
        metrics.set_identities_failed(authenticator.failed_reloads());
        let (operator, dispatcher) = (operator.clone(), dispatcher.clone());
        Box::pin(refreshes.join(async move { read_gauges(&operator, &dispatcher).await }))
    })
}

async fn read_gauges(operator: &Operator, dispatcher: &Dispatcher) {
    let metrics = operator.metrics();
    metrics.set_streams(dispatcher.streams_count());
    metrics.set_credit_waiting(dispatcher.credit_waiting());
    join!(read_topics(operator), join_all(operator.shards().all().iter().map(read_usage)));
}

async fn read_topics(operator: &Operator) {
    let metrics = operator.metrics();
    let known = metrics.topics().iter().map(|name| TopicName::stored(name)).collect();
    let missing = match operator.topic_stats(known, TOPICS_READ_MAX).await {
        Ok((rows, missing)) => {
            set_topics(operator, &rows);
            Some(missing)
        }
        Err(error) => {
            tracing::debug!(%error, "cannot read topic statistics for the metrics");
            metrics.forget_topics();
            None
        }
    };
    for shard in operator.shards().all() {
        let counted = missing.as_ref().is_some_and(|missing| !missing.contains(shard.name()));
        shard.metrics().set_counted(counted);
    }
}

/// Reads the space that a shard uses. A shard that is down is not asked: that would only count as an error.
async fn read_usage(shard: &Shard) {
    let usage = if shard.is_down() { None } else { shard.usage().await.ok() };
    let max_bytes = usage.and_then(|usage| usage.max_bytes);
    shard.metrics().set_bytes(usage.map(|usage| usage.bytes), max_bytes);
}

// === impl SharedRefresh ===

impl SharedRefresh {
    /// Waits for the refresh in flight, or for `read`, which goes on even when no scrape waits for it any more. A
    /// refresh that began a moment ago is used, too.
    fn join(&self, read: impl Future<Output = ()> + Send + 'static) -> RefreshFuture {
        let mut last = self.0.lock();
        if let Some((begun, refreshed)) = &*last
            && (refreshed.peek().is_none() || begun.elapsed() < FRESH_FOR)
        {
            return refreshed.clone();
        }
        let refreshed = tokio::spawn(read).map(drop).boxed().shared();
        *last = Some((Instant::now(), refreshed.clone()));
        refreshed
    }
}

fn set_topics(operator: &Operator, rows: &[TopicRow]) {
    let jobs: Vec<_> = rows
        .iter()
        .map(|row| {
            let stats = &row.stats;
            [
                ("scheduled", stats.scheduled),
                ("ready", stats.ready),
                ("running", stats.running),
                ("backoff", stats.backoff),
                ("dead", stats.dead),
            ]
        })
        .collect();
    let gauges: Vec<_> = rows
        .iter()
        .zip(&jobs)
        .map(|(row, jobs)| TopicGauges {
            topic: row.topic.name.as_str(),
            jobs,
            oldest_ready_age: row.stats.oldest_ready,
        })
        .collect();
    operator.metrics().set_topics(&gauges);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn scrapes_share_a_refresh_and_those_that_are_given_up_begin_no_other() {
        let (refreshes, reads) = (SharedRefresh::default(), Arc::new(AtomicUsize::new(0)));
        let end = Arc::new(Notify::new());
        let scrape = || {
            let (reads, end) = (Arc::clone(&reads), Arc::clone(&end));
            refreshes.join(async move {
                reads.fetch_add(1, Ordering::Relaxed);
                end.notified().await;
            })
        };
        for _ in 0..60 {
            assert!(tokio::time::timeout(FRESH_FOR, scrape()).await.is_err());
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        end.notify_one();
        scrape().await;
        assert_eq!(
            reads.load(Ordering::Relaxed),
            1,
            "it began before, and this scrape waited for it"
        );
        for (pause, expected) in [(FRESH_FOR, 2), (FRESH_FOR / 2, 2), (FRESH_FOR / 2, 3)] {
            tokio::time::sleep(pause).await;
            end.notify_one();
            scrape().await;
            assert_eq!(reads.load(Ordering::Relaxed), expected);
        }
    }
}
