//! What producers and operators ask about jobs, topics and shards, and do to them.

use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, ShardName, State, Time, TopicName, When};
use crate::store::{self, Hint, Info, Reschedule, Rescheduled, Revoked, Stats, Topic};

use super::Scheduler;

/// A topic and its numbers.
#[derive(Clone, Debug)]
pub struct TopicRow {
    /// The topic.
    pub topic: Topic,
    /// Its numbers, summed over shards.
    pub stats: Stats,
    /// Enqueued, finished and failed per second over the last minute.
    pub rates: [f64; 3],
    /// Shards that did not answer.
    pub unreachable: Vec<String>,
}

/// A shard as seen from here.
#[derive(Clone, Debug)]
pub struct ShardInfo {
    /// Its name.
    pub name: String,
    /// Its part of the jobs.
    pub weight: u32,
    /// Whether it takes new jobs.
    pub state: ShardState,
    /// What it says of itself, or why it does not answer.
    pub info: store::Result<Info>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Reads one job.
    ///
    /// # Errors
    /// As the store's.
    pub async fn get(&self, key: JobKey, full: bool) -> store::Result<Option<Job>> {
        let Some(shard) = self.inner.shards.owner(&key) else { return Ok(None) };
        let found = shard.call("get", |store| store.get(vec![key], full)).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Cancels or forgets one job; the state it was in, or `None` when there is none.
    ///
    /// # Errors
    /// As the store's.
    pub async fn delete(&self, key: JobKey) -> store::Result<Option<State>> {
        let scheduler = self.clone();
        Scheduler::see_through(async move { scheduler.delete_one(key).await }).await
    }

    async fn delete_one(&self, key: JobKey) -> store::Result<Option<State>> {
        let Some(shard) = self.inner.shards.owner(&key) else { return Ok(None) };
        let deleted = shard.call("delete", |store| store.delete(vec![key])).await?;
        let Some(deleted) = deleted.into_iter().next().flatten() else { return Ok(None) };
        if let Some((owner, stream, token)) = deleted.revoked {
            let (tokens, reason) = (vec![token], Revoked::Deleted);
            self.hint(shard, owner, Hint::Revoked { stream, tokens, reason });
        }
        Ok(Some(deleted.previous))
    }

    /// Moves one waiting or dead job.
    ///
    /// # Errors
    /// As the store's.
    pub async fn reschedule(
        &self,
        key: JobKey,
        due: Option<When>,
        priority: Option<u8>,
    ) -> store::Result<Rescheduled> {
        let Some(shard) = self.inner.shards.owner(&key) else { return Ok(Ok(None)) };
        let items = vec![Reschedule { key, due, priority }];
        let moved = shard.call("reschedule", |store| store.reschedule(items)).await?;
        Ok(moved.into_iter().next().unwrap_or(Ok(None)))
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
    ) -> store::Result<Vec<TopicRow>> {
        let prefix = prefix.to_owned();
        let asked = self
            .inner
            .shards
            .ask_all("topics", move |store| store.topics(prefix.clone(), after.clone(), limit));
        let (pages, _) = asked.await.partial()?;
        let topics = pages.into_iter().flat_map(|(_, topics)| topics);
        let mut names: Vec<TopicName> = topics.map(|topic| topic.name).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(limit);
        let (rows, _) = self.stats(names).await?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// One topic and its numbers.
    ///
    /// # Errors
    /// As the store's, when no shard that answers has it: another one may.
    pub async fn topic(&self, name: TopicName) -> store::Result<Option<TopicRow>> {
        let (rows, unreachable) = self.stats(vec![name]).await?;
        match (rows.into_iter().next().flatten(), unreachable.first()) {
            (None, Some(shard)) => {
                let text = format!("only {shard} may have the topic, and it does not answer");
                Err(store::Error::Unavailable(text))
            }
            (row, _) => Ok(row),
        }
    }

    /// Every shard about itself.
    pub async fn shard_infos(&self) -> Vec<ShardInfo> {
        let shards = &self.inner.shards;
        let asked = shards.ask_all("info", |store| store.info()).await;
        let answers =
            asked.answers.into_iter().map(|(shard, info)| (shard.name().clone(), Ok(info)));
        let failures = asked.failed.into_iter().map(|(name, error)| (name, Err(error)));
        let info = |(name, info): (ShardName, store::Result<Info>)| {
            let shard = shards.named(&name)?;
            let (weight, state) = (shard.weight(), shard.state());
            Some(ShardInfo { name: name.to_string(), weight, state, info })
        };
        answers.chain(failures).filter_map(info).collect()
    }

    /// The numbers of topics, summed over the shards that answer, and who does not.
    async fn stats(
        &self,
        names: Vec<TopicName>,
    ) -> store::Result<(Vec<Option<TopicRow>>, Vec<ShardName>)> {
        let topics = names.clone();
        let asked = self.inner.shards.ask_all("stats", move |store| store.stats(topics.clone()));
        let (found, unreachable) = asked.await.partial()?;
        let mut sums: Vec<Option<Stats>> = vec![None; names.len()];
        for (_, stats) in found {
            for (sum, stats) in sums.iter_mut().zip(stats) {
                *sum = add(*sum, stats);
            }
        }
        let (now, missing) = (self.now(), names_of(&unreachable));
        let row = |(name, stats): (TopicName, Option<Stats>)| {
            stats.map(|stats| TopicRow {
                rates: self.inner.rates.of(&name, now),
                topic: Topic { name, create_time: stats.create_time },
                stats,
                unreachable: missing.clone(),
            })
        };
        Ok((names.into_iter().zip(sums).map(row).collect(), unreachable))
    }
}

/// As answers name shards.
pub(super) fn names_of(shards: &[ShardName]) -> Vec<String> {
    shards.iter().map(ToString::to_string).collect()
}

/// Numbers of one topic on two shards together.
fn add(a: Option<Stats>, b: Option<Stats>) -> Option<Stats> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    let earlier = |x: Time, y: Time| x.min(y);
    Some(Stats {
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
