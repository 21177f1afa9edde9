//! Sums over many topics, without keeping a shard busy with them.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{TopicName, limit};
use crate::shards::{self, Op, Shard};
use crate::store::ShardTopicStats;

use super::Upkeep;

/// Maximum pause behind a page of counts: a call that took long because the shard hung does not delay the next ones for
/// minutes.
const COUNT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Maximum pause behind a page of stored bytes, of which a read may take long without a fault.
const BYTES_PAUSE_MAX: Duration = Duration::from_secs(120);

/// The numbers to read of each topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopicNumbers {
    Counts,
    StoredBytes,
}

// === impl Upkeep ===

impl Upkeep {
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
        let numbers = (TopicNumbers::Counts, rest);
        read_pages(shard, prefix, numbers, |name, stats| {
            let waiting = stats.scheduled + stats.ready + stats.backoff;
            if waiting > 0 {
                add(name, waiting);
            }
        })
        .await
    }

    /// Passes the stored bytes of topics to `add`, as [`Upkeep::count_waiting`] does waiting jobs. Returns whether
    /// the shard knows those of all of them.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn sum_stored_bytes(
        &self,
        shard: &Shard,
        prefix: &str,
        rest: u32,
        mut add: impl FnMut(&TopicName, u64),
    ) -> shards::Result<bool> {
        let mut knows_all = true;
        let numbers = (TopicNumbers::StoredBytes, rest);
        read_pages(shard, prefix, numbers, |name, stats| match stats.stored_bytes {
            Some(0) => {}
            Some(bytes) => add(name, bytes),
            None => knows_all = false,
        })
        .await?;
        Ok(knows_all)
    }
}

/// Reads the statistics of all topics whose name begins with `prefix`, page by page.
async fn read_pages(
    shard: &Shard,
    prefix: &str,
    (numbers, rest): (TopicNumbers, u32),
    mut visit: impl FnMut(&TopicName, ShardTopicStats),
) -> shards::Result<()> {
    let mut after: Option<TopicName> = None;
    loop {
        let begun = Instant::now();
        let prefix = prefix.to_owned();
        let page = shard
            .call(Op::Topics, |store| store.topics(prefix, after, limit::CALL_JOBS_MAX))
            .await?;
        let names: Vec<TopicName> = page.into_iter().map(|topic| topic.name).collect();
        let (stats, pause_max) = match numbers {
            TopicNumbers::Counts => (shard.stats(names.clone()).await?, COUNT_PAUSE_MAX),
            TopicNumbers::StoredBytes => {
                (shard.stats_with_stored_bytes(names.clone()).await?, BYTES_PAUSE_MAX)
            }
        };
        for (name, stats) in names.iter().zip(stats) {
            if let Some(stats) = stats {
                visit(name, stats);
            }
        }
        let pause = begun.elapsed().saturating_mul(rest);
        tokio::time::sleep(pause.min(pause_max)).await;
        if names.len() < limit::CALL_JOBS_MAX {
            return Ok(());
        }
        after = names.into_iter().next_back();
    }
}
