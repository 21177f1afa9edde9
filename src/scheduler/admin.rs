//! What producers and operators ask about jobs, topics and shards, and do to them.

use std::collections::BTreeSet;

use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, ShardName, State, Time, TopicName, When};
use crate::shards::{self, Shard, ShardError};
use crate::store::{
    self, JobDeletion, JobReschedule, LeaseEvent, RescheduleResult, RevokeReason, ShardTopicStats,
    StoreInfo, TopicInfo,
};

use super::Scheduler;

/// A topic and its numbers.
#[derive(Clone, Debug)]
pub struct TopicRow {
    /// The topic.
    pub topic: TopicInfo,
    /// Its numbers, summed over shards.
    pub stats: ShardTopicStats,
    /// Enqueued, finished and failed per second over the last minute, where they were counted.
    pub rates: Option<[f64; 3]>,
    /// Shards that did not answer, or that only other replicas have.
    pub unreachable: Vec<String>,
}

/// A shard as seen from here.
#[derive(Clone, Debug)]
pub struct ShardInfo {
    /// Its name.
    pub name: String,
    /// Where it is, without credentials.
    pub address: String,
    /// Its part of the jobs.
    pub weight: u32,
    /// Whether it takes new jobs, also while it does not answer.
    pub state: ShardState,
    /// What it refuses though it answers, and why.
    pub refusal: Option<String>,
    /// Whether jobs are looked for there by ids that clients chose.
    pub is_on_ring: bool,
    /// What it says of itself, or why it does not answer.
    pub info: store::Result<StoreInfo>,
}

/// Why the state of a shard was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetShardStateError {
    /// There is none of that name.
    #[error("no such shard: {0}")]
    NotFound(ShardName),
    /// No other shard takes new jobs.
    #[error("the last active shard: {0}")]
    LastActive(ShardName),
    /// What the shard answers.
    #[error(transparent)]
    Store(#[from] ShardError),
}

// === impl Scheduler ===

impl Scheduler {
    /// Reads one job.
    ///
    /// # Errors
    /// As the store's.
    pub async fn get(&self, key: JobKey, full: bool) -> shards::Result<Option<Job>> {
        let get = |shard: Shard, key| async move { shard.get(vec![key], full).await };
        Ok(self.call_on_owners(&key, get, |found| found).await?.map(|(_, job)| job))
    }

    /// Cancels or forgets one job; the state it was in, or `None` when there is none. Nothing is done after `until`.
    ///
    /// # Errors
    /// As the store's.
    pub async fn delete(
        &self,
        key: JobKey,
        until: Option<Instant>,
    ) -> shards::Result<Option<State>> {
        let scheduler = self.clone();
        Scheduler::run_to_completion(async move { scheduler.delete_one(key, until).await }).await
    }

    async fn delete_one(
        &self,
        key: JobKey,
        until: Option<Instant>,
    ) -> shards::Result<Option<State>> {
        let delete = |shard: Shard, key| async move {
            shard.delete(vec![JobDeletion { key, finished: None, deadline: until }]).await
        };
        let deleted = self.call_on_owners(&key, delete, |found| found).await?;
        let Some((shard, deleted)) = deleted else { return Ok(None) };
        if let Some((owner, stream, token)) = deleted.revoked {
            let (tokens, reason) = (vec![token], RevokeReason::Deleted);
            self.notify_stream(&shard, owner, LeaseEvent::Revoked { stream, tokens, reason });
        }
        Ok(Some(deleted.previous))
    }

    /// Moves one waiting or dead job. Nothing is done after `until`.
    ///
    /// # Errors
    /// As the store's.
    pub async fn reschedule(
        &self,
        key: JobKey,
        due: Option<When>,
        priority: Option<u8>,
        until: Option<Instant>,
    ) -> shards::Result<RescheduleResult> {
        let reschedule = |shard: Shard, key| async move {
            shard.reschedule(vec![JobReschedule { key, due, priority, deadline: until }]).await
        };
        // Neither a job nor a state that refuses it: it is not there.
        let found = |moved| Some(moved).filter(|moved| !matches!(moved, Ok(None)));
        let moved = self.call_on_owners(&key, reschedule, found).await?;
        Ok(moved.map_or(Ok(None), |(_, moved)| moved))
    }

    /// Topics in the order of their names, of all shards that answer.
    ///
    /// # Errors
    /// As the store's, when no shard answers.
    pub async fn topics(
        &self,
        prefix: &str,
        after: Option<TopicName>,
        limit: usize,
    ) -> shards::Result<Vec<TopicRow>> {
        let read = |shard: Shard| {
            let (prefix, after) = (prefix.to_owned(), after.clone());
            async move { shard.topics(prefix, after, limit).await }
        };
        let (pages, _) = self.inner.shards.call_all(read).await.into_partial()?;
        let topics = pages.into_iter().flat_map(|(_, topics)| topics);
        let mut names: Vec<TopicName> = topics.map(|topic| topic.name).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(limit);
        let (rows, _) = self.sum_stats(names).await?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// The numbers of these topics, and of the first other ones if these are fewer than `limit`; and the shards that
    /// are missing in them.
    ///
    /// # Errors
    /// As the store's, when no shard answers.
    pub async fn topic_stats(
        &self,
        mut names: Vec<TopicName>,
        limit: usize,
    ) -> shards::Result<(Vec<TopicRow>, Vec<ShardName>)> {
        let read = |shard: Shard| async move { shard.topics(String::new(), None, limit).await };
        let (pages, mut missing) = self.inner.shards.call_all(read).await.into_partial()?;
        let first: BTreeSet<_> =
            pages.into_iter().flat_map(|(_, page)| page).map(|topic| topic.name).collect();
        let known: BTreeSet<_> = names.iter().cloned().collect();
        names.extend(first.difference(&known).take(limit.saturating_sub(known.len())).cloned());
        let (rows, silent) = self.sum_stats(names).await?;
        missing.extend(silent);
        Ok((rows.into_iter().flatten().collect(), missing))
    }

    /// One topic and its numbers.
    ///
    /// # Errors
    /// As the store's, when no shard that answers has it: another one may.
    pub async fn topic(&self, name: TopicName) -> shards::Result<Option<TopicRow>> {
        let (rows, unreachable) = self.sum_stats(vec![name]).await?;
        match (rows.into_iter().next().flatten(), unreachable.first()) {
            (None, Some(shard)) if self.inner.shards.by_name(shard).is_none() => {
                Err(ShardError::elsewhere(shard))
            }
            (None, Some(shard)) => Err(ShardError::unavailable(
                shard,
                "only it may have the topic, and it cannot be asked",
            )),
            (row, _) => Ok(row),
        }
    }

    /// Every shard about itself.
    pub async fn shard_infos(&self) -> Vec<ShardInfo> {
        // Each is waited for: the one with the most topics takes longest, and one that does not answer is found out.
        let info = async |shard: &Shard| {
            let info = shard.info().await.map_err(|failed| failed.error);
            self.shard_info(shard, shard.state(), info)
        };
        join_all(self.inner.shards.all().iter().map(info)).await
    }

    /// Drains a shard or takes it back into use, for all replicas; the shard after it. Nothing is done after `until`.
    ///
    /// # Errors
    /// [`SetShardStateError`]; nothing has changed then, unless it is [`store::Error::Unknown`].
    pub async fn set_shard_state(
        &self,
        name: ShardName,
        state: ShardState,
        until: Option<Instant>,
    ) -> Result<ShardInfo, SetShardStateError> {
        let scheduler = self.clone();
        let set = async move { scheduler.set_state_of(name, state, until).await };
        Scheduler::run_to_completion(set).await
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

    /// A shard that had `state` last, and what it says itself.
    fn shard_info(
        &self,
        shard: &Shard,
        state: ShardState,
        info: store::Result<StoreInfo>,
    ) -> ShardInfo {
        let said = info.as_ref().ok().and_then(|info| info.state);
        ShardInfo {
            name: shard.name().to_string(),
            address: shard.address().to_owned(),
            weight: shard.weight(),
            state: said.unwrap_or(state),
            refusal: shard.health().refusal(),
            is_on_ring: self.inner.shards.is_on_ring(shard.name()),
            info,
        }
    }

    /// The numbers of topics, summed over the shards that answer, and who does not or cannot be asked.
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

/// As answers name shards.
pub(super) fn shard_names(shards: &[ShardName]) -> Vec<String> {
    shards.iter().map(ToString::to_string).collect()
}

/// Numbers of one topic on two shards together.
fn add(a: Option<ShardTopicStats>, b: Option<ShardTopicStats>) -> Option<ShardTopicStats> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    let earlier = |x: Time, y: Time| x.min(y);
    Some(ShardTopicStats {
        create_time: earlier(a.create_time, b.create_time),
        scheduled: a.scheduled + b.scheduled,
        ready: a.ready + b.ready,
        running: a.running + b.running,
        backoff: a.backoff + b.backoff,
        dead: a.dead + b.dead,
        oldest_ready: a.oldest_ready.max(b.oldest_ready),
        enqueued_total: a.enqueued_total + b.enqueued_total,
        succeeded_total: a.succeeded_total + b.succeeded_total,
        dead_total: a.dead_total + b.dead_total,
    })
}
