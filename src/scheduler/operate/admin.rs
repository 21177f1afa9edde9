//! Topics with their statistics, and shards.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::ring::ShardState;
use crate::domain::{ShardName, Time, TopicName};
use crate::scheduler::Core;
use crate::shards::{self, Op, Shard, ShardError};
use crate::store::{self, ShardTopicStats, StatsOptions, StoreInfo, TopicInfo};

use super::Operator;

/// A topic and its statistics.
#[derive(Clone, Debug)]
pub struct TopicRow {
    /// Name and creation time of the topic.
    pub topic: TopicInfo,
    /// Statistics, summed over shards.
    pub stats: ShardTopicStats,
    /// Jobs enqueued, finished and failed per second over the last minute, where they were counted.
    pub rates: Option<[f64; 3]>,
    /// Shards that did not answer, or that only other replicas have.
    pub unreachable: Vec<String>,
}

/// A shard as this replica sees it.
#[derive(Clone, Debug)]
pub struct ShardInfo {
    /// Name of the shard.
    pub name: String,
    /// Address, without credentials.
    pub address: String,
    /// Weight: its part of the jobs, relative to the other shards.
    pub weight: u32,
    /// State: whether it takes new jobs; known also while it does not answer.
    pub state: ShardState,
    /// Reason why it refuses new jobs or reads though it answers, if it does.
    pub refusal: Option<String>,
    /// True if it is on an open ring: jobs with ids that clients chose are looked up there.
    pub is_on_ring: bool,
    /// Information that it reports, or the error if it does not answer.
    pub info: store::Result<StoreInfo>,
}

/// Reason why the state of a shard was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetShardStateError {
    /// No shard has that name.
    #[error("no such shard: {0}")]
    NotFound(ShardName),
    /// No other shard takes new jobs.
    #[error("shard {0} is the last active shard and cannot be drained")]
    LastActive(ShardName),
    /// Error of the shard.
    #[error(transparent)]
    Store(#[from] ShardError),
}

// === impl Operator ===

impl Operator {
    /// Returns topics in the order of their names, of all shards that answer.
    ///
    /// # Errors
    /// Errors of the store, when no shard answers.
    pub async fn topics(
        &self,
        prefix: &str,
        after: Option<TopicName>,
        limit: usize,
    ) -> shards::Result<Vec<TopicRow>> {
        let read = |shard: Shard| {
            let (prefix, after) = (prefix.to_owned(), after.clone());
            async move { shard.call(Op::Topics, |store| store.topics(prefix, after, limit)).await }
        };
        let (pages, _) = self.inner.shards.call_all(read).await.into_partial()?;
        let topics = pages.into_iter().flat_map(|(_, topics)| topics);
        let mut names: Vec<TopicName> = topics.map(|topic| topic.name).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(limit);
        self.topics_named(names).await
    }

    /// Returns those of these topics that exist, in their order.
    ///
    /// # Errors
    /// Errors of the store, when no shard answers.
    pub async fn topics_named(&self, names: Vec<TopicName>) -> shards::Result<Vec<TopicRow>> {
        let (rows, _) = self.sum_stats(names).await?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Returns the statistics of these topics, and of the first other ones if these are fewer than `limit`; and the
    /// shards that are missing in them.
    ///
    /// # Errors
    /// Errors of the store, when no shard answers.
    pub async fn topic_stats(
        &self,
        mut names: Vec<TopicName>,
        limit: usize,
    ) -> shards::Result<(Vec<TopicRow>, Vec<ShardName>)> {
        let read = |shard: Shard| async move {
            shard.call(Op::Topics, |store| store.topics(String::new(), None, limit)).await
        };
        let (pages, mut missing) = self.inner.shards.call_all(read).await.into_partial()?;
        let first: BTreeSet<_> =
            pages.into_iter().flat_map(|(_, page)| page).map(|topic| topic.name).collect();
        let known: BTreeSet<_> = names.iter().cloned().collect();
        names.extend(first.difference(&known).take(limit.saturating_sub(known.len())).cloned());
        let (rows, silent) = self.sum_stats(names).await?;
        missing.extend(silent);
        Ok((rows.into_iter().flatten().collect(), missing))
    }

    /// Returns one topic with its statistics.
    ///
    /// # Errors
    /// Errors of the store, when no shard that answers has the topic: another one may.
    pub async fn topic(&self, name: TopicName) -> shards::Result<Option<TopicRow>> {
        let (rows, unreachable) = self.sum_stats(vec![name]).await?;
        match (rows.into_iter().next().flatten(), unreachable.first()) {
            (None, Some(shard)) if self.inner.shards.by_name(shard).is_none() => {
                Err(ShardError::elsewhere(shard))
            }
            (None, Some(shard)) => Err(ShardError::unavailable(
                shard,
                "only this shard may have the topic, and the call failed",
            )),
            (row, _) => Ok(row),
        }
    }

    /// Returns the number of jobs of these topics that are ready, running, or due within `due_within`, on the shards
    /// that answer: the work that workers have now or soon. Of a paused topic only the running ones, and 0 for topics that do
    /// not exist. At most
    /// [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) topics.
    ///
    /// # Errors
    /// Errors of the store, when no shard answers.
    pub async fn workload(
        &self,
        names: Vec<TopicName>,
        due_within: Duration,
    ) -> shards::Result<u64> {
        let read = |shard: Shard| {
            let topics = names.clone();
            async move {
                let options = StatsOptions::due_within(due_within);
                shard.call(Op::Stats, |store| store.stats(topics, options)).await
            }
        };
        let (found, _) = self.inner.shards.call_all(read).await.into_partial()?;
        let now = self.now();
        let is_paused = |name| {
            let policy = self.inner.documents.of_topic(name);
            policy.is_some_and(|policy| policy.is_paused(now))
        };
        let paused: Vec<bool> = names.iter().map(is_paused).collect();
        let work = |(topic, paused): (ShardTopicStats, bool)| match paused {
            // Workers get no more of them.
            true => topic.running,
            false => topic.ready + topic.running + topic.due_soon,
        };
        let by_shard = found.into_iter().map(|(_, stats)| stats.into_iter().zip(paused.clone()));
        let stats = by_shard.flatten().filter_map(|(topic, paused)| Some((topic?, paused)));
        Ok(stats.map(work).sum())
    }

    /// Returns the information of every shard.
    pub async fn shard_infos(&self) -> Vec<ShardInfo> {
        // Every shard is awaited: the one with the most topics takes longest, and one that does not answer is
        // detected.
        let info = async |shard: &Shard| {
            let info = shard.info().await.map_err(|failed| failed.error);
            self.shard_info(shard, shard.state(), info)
        };
        join_all(self.inner.shards.all().iter().map(info)).await
    }

    /// Drains a shard or takes it back into use, for all replicas. Returns the shard after the change. Nothing is
    /// done after `until`.
    ///
    /// # Errors
    /// [`SetShardStateError`]; nothing has changed then, unless it is [`store::Error::OutcomeUnknown`].
    pub async fn set_shard_state(
        &self,
        name: ShardName,
        state: ShardState,
        until: Option<Instant>,
    ) -> Result<ShardInfo, SetShardStateError> {
        let operator = self.clone();
        let set = async move { operator.set_state_of(name, state, until).await };
        Core::run_to_completion(set).await
    }

    async fn set_state_of(
        &self,
        name: ShardName,
        state: ShardState,
        until: Option<Instant>,
    ) -> Result<ShardInfo, SetShardStateError> {
        let shards = &self.inner.shards;
        let shard = shards.by_name(&name).ok_or(SetShardStateError::NotFound(name.clone()))?;
        let is_active = |other: &Shard| other.state() == ShardState::Active;
        let mut others = shards.all().iter().filter(|other| *other.name() != name);
        if state == ShardState::Draining && !others.any(is_active) {
            return Err(SetShardStateError::LastActive(name));
        }
        shards.set_state(shard, state, until).await?;
        let info = shard.info().await.map_err(|failed| failed.error);
        Ok(self.shard_info(shard, state, info))
    }

    /// Builds the row of a shard. `state` is shown if the shard reports none.
    fn shard_info(
        &self,
        shard: &Shard,
        state: ShardState,
        info: store::Result<StoreInfo>,
    ) -> ShardInfo {
        let reported = info.as_ref().ok().and_then(|info| info.state);
        ShardInfo {
            name: shard.name().to_string(),
            address: shard.address().to_owned(),
            weight: shard.weight(),
            state: reported.unwrap_or(state),
            refusal: shard.refusal(),
            is_on_ring: self.inner.shards.is_on_ring(shard.name()),
            info,
        }
    }

    /// Returns the statistics of topics, summed over the shards that answer; and the shards that do not answer or are
    /// not configured here.
    async fn sum_stats(
        &self,
        names: Vec<TopicName>,
    ) -> shards::Result<(Vec<Option<TopicRow>>, Vec<ShardName>)> {
        let read = |shard: Shard| {
            let topics = names.clone();
            async move { shard.stats(topics).await }
        };
        let (found, mut unreachable) = self.inner.shards.call_all(read).await.into_partial()?;
        unreachable.extend(self.inner.shards.absent_shards());
        let mut sums: Vec<Option<ShardTopicStats>> = vec![None; names.len()];
        for (_, stats) in found {
            for (sum, stats) in sums.iter_mut().zip(stats) {
                *sum = add(*sum, stats);
            }
        }
        let (now, missing) = (self.now(), shard_names(&unreachable));
        let row = |(name, stats): (TopicName, Option<ShardTopicStats>)| {
            stats.map(|stats| TopicRow {
                rates: self.inner.rates.of(&name, now),
                topic: TopicInfo { name, create_time: stats.create_time },
                stats,
                unreachable: missing.clone(),
            })
        };
        Ok((names.into_iter().zip(sums).map(row).collect(), unreachable))
    }
}

/// Returns names of shards as answers have them.
pub(in crate::scheduler) fn shard_names(shards: &[ShardName]) -> Vec<String> {
    shards.iter().map(ToString::to_string).collect()
}

/// Adds the statistics of one topic on two shards.
fn add(a: Option<ShardTopicStats>, b: Option<ShardTopicStats>) -> Option<ShardTopicStats> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    let earlier = |x: Time, y: Time| x.min(y);
    Some(ShardTopicStats {
        create_time: earlier(a.create_time, b.create_time),
        scheduled: a.scheduled + b.scheduled,
        ready: a.ready + b.ready,
        running: a.running + b.running,
        backoff: a.backoff + b.backoff,
        due_soon: a.due_soon + b.due_soon,
        dead: a.dead + b.dead,
        succeeded: a.succeeded + b.succeeded,
        cancelled: a.cancelled + b.cancelled,
        expired: a.expired + b.expired,
        oldest_ready: a.oldest_ready.max(b.oldest_ready),
        enqueued_total: a.enqueued_total + b.enqueued_total,
        succeeded_total: a.succeeded_total + b.succeeded_total,
        dead_total: a.dead_total + b.dead_total,
        stored_bytes: a.stored_bytes.zip(b.stored_bytes).map(|(a, b)| a + b),
    })
}
