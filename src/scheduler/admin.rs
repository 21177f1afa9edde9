//! What producers and operators ask about jobs, topics and shards, and do to them.

use std::time::Duration;

use crate::domain::{Job, JobId, JobKey, State, Time, TopicName, When, limit};
use crate::shards::Shard;
use crate::store::{
    self, Cursor, Info, List, Redrive, Redriven, Reschedule, Rescheduled, Stats, Topic,
};

use super::{Hint, Revoked, Scheduler};

/// A page of jobs and what is missing from it.
#[derive(Clone, Debug, Default)]
pub struct JobsPage {
    /// In the order of due times.
    pub jobs: Vec<Job>,
    /// Where the next page begins.
    pub next: Option<Cursor>,
    /// Shards that did not answer.
    pub unreachable: Vec<String>,
}

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

/// Puts jobs back.
#[derive(Clone, Debug)]
pub struct RedriveJobs {
    /// Their topic.
    pub topic: TopicName,
    /// Which; empty: every job that is a dead letter when the call begins.
    pub ids: Vec<JobId>,
    /// Move them there.
    pub target: Option<TopicName>,
    /// Jobs per second; `None`: all at once.
    pub rate: Option<f64>,
    /// Only count.
    pub dry_run: bool,
}

/// A shard as seen from here.
#[derive(Clone, Debug)]
pub struct ShardInfo {
    /// Its name.
    pub name: String,
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
        let found = shard.observe("get", shard.store().get(vec![key], full)).await?;
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
        let deleted = shard.observe("delete", shard.store().delete(vec![key])).await?;
        let Some(deleted) = deleted.into_iter().next().flatten() else { return Ok(None) };
        if let Some((owner, stream, token)) = deleted.revoked {
            self.hint(owner, Hint::Revoked { stream, token, reason: Revoked::Deleted });
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
        let moved = shard.observe("reschedule", shard.store().reschedule(items)).await?;
        Ok(moved.into_iter().next().unwrap_or(Ok(None)))
    }

    /// Puts jobs back with fresh counters, in chunks: a caller that stops waiting has moved part,
    /// and the same call goes on.
    ///
    /// # Errors
    /// As the store's.
    pub async fn redrive(&self, redrive: RedriveJobs) -> store::Result<Redriven> {
        let (begin, mut total) = (self.now(), Redriven::default());
        for shard in self.inner.shards.all() {
            if redrive.ids.is_empty() {
                redrive.dead_since_before(begin, shard, &mut total).await?;
            } else {
                self.redrive_named(shard, &redrive, &mut total).await?;
            }
        }
        Ok(total)
    }

    /// Puts back the jobs of an explicit list that lie on one shard.
    async fn redrive_named(
        &self,
        shard: &Shard,
        redrive: &RedriveJobs,
        total: &mut Redriven,
    ) -> store::Result<()> {
        let here = redrive.ids.iter().filter(|&id| self.lies_on(&redrive.topic, id, shard));
        let ids: Vec<JobId> = here.cloned().collect();
        for ids in ids.chunks(limit::CALL_JOBS_MAX) {
            redrive.part(shard, ids.to_vec(), total).await?;
        }
        Ok(())
    }

    /// A page of a topic's jobs in one state.
    ///
    /// # Errors
    /// As the store's.
    pub async fn list_jobs(&self, list: List) -> store::Result<JobsPage> {
        let mut merged = JobsPage::default();
        for shard in self.inner.shards.all() {
            let page = shard.observe("list", shard.store().list(list.clone())).await?;
            merged.jobs.extend(page.jobs);
            merged.next = page.next;
        }
        Ok(merged)
    }

    /// Topics in the order of their names.
    ///
    /// # Errors
    /// As the store's.
    pub async fn topics(
        &self,
        prefix: &str,
        after: Option<TopicName>,
        limit: usize,
    ) -> store::Result<Vec<TopicRow>> {
        let mut topics: Vec<Topic> = Vec::new();
        for shard in self.inner.shards.all() {
            let store = shard.store();
            let call = store.topics(prefix.to_owned(), after.clone(), limit);
            topics.extend(shard.observe("topics", call).await?);
        }
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        topics.dedup_by(|later, earlier| later.name == earlier.name);
        topics.truncate(limit);
        let names: Vec<_> = topics.iter().map(|topic| topic.name.clone()).collect();
        let rows = self.stats(names).await?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// One topic and its numbers.
    ///
    /// # Errors
    /// As the store's.
    pub async fn topic(&self, name: TopicName) -> store::Result<Option<TopicRow>> {
        Ok(self.stats(vec![name]).await?.into_iter().next().flatten())
    }

    /// Every shard about itself.
    pub async fn shard_infos(&self) -> Vec<ShardInfo> {
        let mut infos = Vec::new();
        for shard in self.inner.shards.all() {
            let info = shard.observe("info", shard.store().info()).await;
            infos.push(ShardInfo { name: shard.name().to_string(), info });
        }
        infos
    }

    async fn stats(&self, names: Vec<TopicName>) -> store::Result<Vec<Option<TopicRow>>> {
        let mut sums: Vec<Option<Stats>> = vec![None; names.len()];
        for shard in self.inner.shards.all() {
            let found = shard.observe("stats", shard.store().stats(names.clone())).await?;
            for (sum, stats) in sums.iter_mut().zip(found) {
                *sum = add(*sum, stats);
            }
        }
        let now = self.now();
        let row = |(name, stats): (TopicName, Option<Stats>)| {
            stats.map(|stats| TopicRow {
                rates: self.inner.rates.of(&name, now),
                topic: Topic { name, create_time: stats.create_time },
                stats,
                unreachable: Vec::new(),
            })
        };
        Ok(names.into_iter().zip(sums).map(row).collect())
    }

    fn lies_on(&self, topic: &TopicName, id: &JobId, shard: &Shard) -> bool {
        let key = JobKey { topic: topic.clone(), id: id.clone() };
        self.inner.shards.owner(&key).is_some_and(|owner| owner.name() == shard.name())
    }
}

// === impl RedriveJobs ===

impl RedriveJobs {
    /// Puts back the dead letters of one shard that died before the call began, page by page. Those
    /// that die again meanwhile are not met twice: they finished later, and lie behind the end.
    async fn dead_since_before(
        &self,
        begin: Time,
        shard: &Shard,
        total: &mut Redriven,
    ) -> store::Result<()> {
        let mut after = None;
        loop {
            let page = shard.observe("list", shard.store().list(self.dead_after(after))).await?;
            let jobs = page.jobs.into_iter();
            let meant = jobs.filter(|job| job.finish_time.is_some_and(|finish| finish <= begin));
            let ids: Vec<JobId> = meant.map(|job| job.key.id).collect();
            if !ids.is_empty() {
                self.part(shard, ids, total).await?;
            }
            // A job is due before it dies: from here on all died after the call began.
            after = page.next.filter(|cursor| cursor.due <= begin);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn dead_after(&self, after: Option<Cursor>) -> List {
        let (topic, state, limit) = (self.topic.clone(), State::Dead, limit::CALL_JOBS_MAX);
        List { topic, state, full: false, limit, after }
    }

    /// One chunk; the due times go on where the last chunk ended.
    async fn part(
        &self,
        shard: &Shard,
        ids: Vec<JobId>,
        total: &mut Redriven,
    ) -> store::Result<()> {
        let spacing = self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        let moved = u32::try_from(total.redriven).unwrap_or(u32::MAX);
        let part = Redrive {
            topic: self.topic.clone(),
            ids,
            spacing,
            delay: spacing.saturating_mul(moved),
            target: self.target.clone(),
            dry_run: self.dry_run,
        };
        let done = shard.observe("redrive", shard.store().redrive(part)).await?;
        total.redriven += done.redriven;
        total.skipped += done.skipped;
        Ok(())
    }
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
