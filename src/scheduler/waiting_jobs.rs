//! Counts waiting jobs of many topics, without keeping a shard busy with it.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{TopicName, limit};
use crate::shards::{self, Shard};

use super::Scheduler;

/// Maximum pause behind a page: a call that took long because the shard hung does not delay the next ones for minutes.
const PAUSE_MAX: Duration = Duration::from_secs(5);

// === impl Scheduler ===

impl Scheduler {
    /// Counts the waiting jobs of each topic of a shard whose name begins with `prefix`, and passes those that are not
    /// 0 to `add`. Reads a page of topics at a time, and pauses behind each for `rest` times as long as it took: with
    /// any number of topics, one part in `rest + 1` of the shard's time is used at most.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn count_waiting(
        &self,
        shard: &Shard,
        prefix: &str,
        rest: u32,
        mut add: impl FnMut(&TopicName, u64),
    ) -> shards::Result<()> {
        let mut after: Option<TopicName> = None;
        loop {
            let begun = Instant::now();
            let page = shard.topics(prefix.to_owned(), after, limit::CALL_JOBS_MAX).await?;
            let names: Vec<TopicName> = page.into_iter().map(|topic| topic.name).collect();
            let stats = shard.stats(names.clone()).await?;
            for (name, stats) in names.iter().zip(stats) {
                let waiting = stats.map_or(0, |s| s.scheduled + s.ready + s.backoff);
                if waiting > 0 {
                    add(name, waiting);
                }
            }
            let pause = begun.elapsed().saturating_mul(rest);
            tokio::time::sleep(pause.min(PAUSE_MAX)).await;
            if names.len() < limit::CALL_JOBS_MAX {
                return Ok(());
            }
            after = names.into_iter().next_back();
        }
    }
}
