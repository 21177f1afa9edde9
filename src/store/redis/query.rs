//! Reads many jobs or topics: lists, and numbers of topics.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deadpool_redis::redis::Value;

use crate::domain::{JobId, JobKey, State, Time, TopicName, limit};
use crate::store::{
    IdsPage, ListCursor, ListEntry, ListPage, ListQuery, Result, ShardTopicStats, StatsOptions,
    TopicInfo,
};

use super::lease_query::RunningJob;
use super::order_member::{arrival_of, id_of};
use super::reply::ScriptReply;
use super::script::{ScriptCall, Verb};
use super::{ConnectionLane, RedisStore, error_mapping};

/// Maximum number of list steps that find nothing, because they read only gaps: with [`limit::CALL_LOOKS_MAX`]
/// members in each step a page skips 64,000 of them and takes less than a tenth of a second.
const LIST_STEPS_MAX: usize = 64;

/// Position of a job in a list, and its key.
type ListedKey = (ListCursor, JobKey);

/// Result of one step of a list.
struct ListStep {
    now: Time,
    entries: Vec<ListedKey>,
    /// Position where the step stopped before it had found enough or had reached the end.
    stopped_at: Option<ListCursor>,
}

impl RedisStore {
    /// Implements [`Store::list`](crate::store::Store::list).
    pub(super) async fn list(&self, list: ListQuery) -> Result<ListPage> {
        let ListStep { now, entries: mut places, stopped_at: stop } = match list.state {
            State::Running => self.list_running(&list).await?,
            _ => self.list_keys(&list).await?,
        };
        let more = places.len() > list.limit;
        places.truncate(list.limit);
        let next = places.last().map(|(cursor, _)| *cursor).filter(|_| more).or(stop);
        let (cursors, keys): (Vec<_>, Vec<_>) = places.into_iter().unzip();
        let mut found = Vec::with_capacity(keys.len());
        for part in keys.chunks(limit::SCAN_PART_MAX) {
            found.extend(self.get(part.to_vec(), list.full).await?);
        }
        let found = found.into_iter().zip(cursors);
        let listed = found.filter_map(|(job, place)| Some(ListEntry { job: job?, cursor: place }));
        // A job that has left the state since then is not in the list.
        let jobs = listed.filter(|listed| listed.job.state == list.state).collect();
        Ok(ListPage { now, jobs, next })
    }

    /// Implements [`Store::ids`](crate::store::Store::ids).
    pub(super) async fn ids(
        &self,
        topic: TopicName,
        from: Option<String>,
        limit: usize,
    ) -> Result<IdsPage> {
        let mut call = self.call(Verb::Ids);
        call.arg(topic.as_str()).arg(from.unwrap_or_else(|| "0".into())).arg(limit);
        let mut reply = self.run(ConnectionLane::Read, &call).await?;
        let next = Some(reply.text()?).filter(|cursor| cursor != "0");
        let mut ids = Vec::new();
        while !reply.is_empty() {
            ids.push(JobId::stored(&reply.text()?));
        }
        Ok(IdsPage { ids, cursor: next })
    }

    /// Lists running jobs: reads all of them, and keeps only the first ones after the cursor.
    async fn list_running(&self, list: &ListQuery) -> Result<ListStep> {
        let after = list.after.map(|after| (after.due, after.sequence));
        let mut first = BTreeMap::new();
        let visit = |run: RunningJob| {
            let place = (run.due, run.sequence);
            if after.is_none_or(|after| after < place) {
                first.insert(place, run.key);
            }
            if first.len() > list.limit + 1 {
                first.pop_last();
            }
        };
        let now = self.visit_running(&list.topic, visit).await?;
        let spot = |((due, sequence), key)| (ListCursor { due, sequence }, key);
        Ok(ListStep { now, entries: first.into_iter().map(spot).collect(), stopped_at: None })
    }

    /// Lists jobs of the topic, in as many steps as it takes to find one; returns where the last step stopped.
    async fn list_keys(&self, list: &ListQuery) -> Result<ListStep> {
        let mut after = list.after;
        for _ in 1..LIST_STEPS_MAX {
            let found = self.list_step(list, after).await?;
            if !found.entries.is_empty() || found.stopped_at.is_none() {
                return Ok(found);
            }
            after = found.stopped_at;
        }
        self.list_step(list, after).await
    }

    async fn list_step(&self, list: &ListQuery, after: Option<ListCursor>) -> Result<ListStep> {
        let add = |call: &mut ScriptCall| {
            call.arg(list.topic.as_str()).arg(state_letter(list.state));
            match after {
                Some(after) => call.arg(after.due.0).arg(after.sequence),
                None => call.arg("").arg(""),
            };
            call.arg(list.limit + 1);
            match &list.group {
                None => call.arg("a"),
                Some(None) => call.arg("u"),
                Some(Some(group)) => call.arg(format!("g{}", group.as_str())),
            };
        };
        let mut reply = self.run_pruned(Verb::List, add).await?;
        let now = reply.time()?;
        let (stop_due, sequence) = (reply.maybe_time()?, reply.number()?);
        let stop = stop_due.map(|due| ListCursor { due, sequence });
        let members = reply.list()?.all_bytes()?;
        let mut dues = reply.list()?;
        let place = |member: bytes::Bytes| {
            let cursor = ListCursor { due: dues.time()?, sequence: arrival_of(&member) };
            Ok((cursor, JobKey { topic: list.topic.clone(), id: id_of(&member)? }))
        };
        let places = members.into_iter().map(place).collect::<Result<_>>()?;
        Ok(ListStep { now, entries: places, stopped_at: stop })
    }

    /// Runs a read that counts, after a prune. If there is more to prune each time, or very much is left, the read
    /// does not wait for the rest.
    pub(super) async fn run_pruned(
        &self,
        verb: Verb,
        add: impl Fn(&mut ScriptCall),
    ) -> Result<ScriptReply> {
        let mut prunes = 0;
        loop {
            let mut call = self.call(verb);
            call.arg(u8::from(prunes < limit::PRUNES_MAX));
            add(&mut call);
            match self.shard.run(ConnectionLane::Read, &call).await? {
                Value::Nil => self.prune(limit::CALL_JOBS_MAX).await?,
                value => return ScriptReply::new(value),
            };
            prunes += 1;
        }
    }

    /// Implements [`Store::topics`](crate::store::Store::topics).
    pub(super) async fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> Result<Vec<TopicInfo>> {
        let place = match after {
            Some(after) if after.as_str() >= prefix.as_str() => format!("({after}"),
            _ => format!("[{prefix}"),
        };
        let _permit = self.shard.permit().await?;
        let found = self.shard.topics_from(place, limit).await?;
        let found = found.into_iter().map(|(topic, _)| topic);
        Ok(found.take_while(|topic| topic.name.as_str().starts_with(&prefix)).collect())
    }

    /// Implements [`Store::stats`](crate::store::Store::stats).
    pub(super) async fn stats(
        &self,
        topics: Vec<TopicName>,
        options: StatsOptions,
    ) -> Result<Vec<Option<ShardTopicStats>>> {
        let mut numbers = Vec::with_capacity(topics.len());
        while numbers.len() < topics.len() {
            let left = topics[numbers.len()..].iter().take(limit::CALL_JOBS_MAX);
            let add = |call: &mut ScriptCall| {
                call.arg(u64::try_from(options.due_within.as_micros()).unwrap_or(u64::MAX));
                call.arg(u8::from(options.stored_bytes)).arg(u8::from(options.kept));
                left.clone().for_each(|topic| {
                    call.arg(topic.as_str());
                });
            };
            let mut reply = self.run_pruned(Verb::Stats, add).await?;
            let now = reply.time()?;
            // The script returns at least one topic, and fewer than requested if it would read too much.
            loop {
                numbers.push(match reply.value()? {
                    Value::Nil => None,
                    value => Some(self.read_stats(ScriptReply::new(value)?, now)?),
                });
                if reply.is_empty() {
                    break;
                }
            }
        }
        Ok(numbers)
    }

    fn read_stats(&self, mut reply: ScriptReply, now: Time) -> Result<ShardTopicStats> {
        let mut stats = stats(&mut reply, now)?;
        let stored_bytes = reply.value()?;
        (stats.succeeded, stats.cancelled, stats.expired) =
            (reply.count()?, reply.count()?, reply.count()?);
        let stored_bytes = match stored_bytes {
            Value::Nil => return Ok(stats),
            Value::Int(bytes) => Ok(u64::try_from(bytes).unwrap_or(0)),
            refusal => Err(error_mapping::one_line(
                &ScriptReply::new(Value::Array(vec![refusal]))?.text()?,
            )),
        };
        self.note_memory_usage(stored_bytes.as_ref().err());
        Ok(ShardTopicStats { stored_bytes: stored_bytes.ok(), ..stats })
    }

    /// Logs once that Redis refuses to report the memory of keys, and when it does again. The shard stays in use:
    /// nothing but quotas of stored bytes needs that.
    fn note_memory_usage(&self, refusal: Option<&String>) {
        let shard = &self.identity.name;
        match (refusal, self.memory_usage_refused.swap(refusal.is_some(), Ordering::Relaxed)) {
            (Some(error), false) => tracing::warn!(
                %shard, error,
                "redis does not report the memory of keys, so quotas of stored_bytes do not count what this shard \
                 stores; grant +memory|usage to the redis user, as in docs/redis.md"
            ),
            (None, true) => {
                tracing::info!(%shard, "redis reports the memory of keys again; quotas of stored_bytes count it");
            }
            _ => {}
        }
    }
}

fn state_letter(state: State) -> &'static str {
    match state {
        State::Ready => "r",
        State::Backoff => "b",
        State::Scheduled | State::Running => "s",
        State::Succeeded => "2",
        State::Dead => "3",
        State::Cancelled => "4",
        State::Expired => "5",
    }
}

fn stats(reply: &mut ScriptReply, now: Time) -> Result<ShardTopicStats> {
    Ok(ShardTopicStats {
        create_time: reply.time()?,
        enqueued_total: reply.count()?,
        succeeded_total: reply.count()?,
        dead_total: reply.count()?,
        scheduled: reply.count()?,
        ready: reply.count()?,
        running: reply.count()?,
        backoff: reply.count()?,
        due_soon: reply.count()?,
        dead: reply.count()?,
        oldest_ready: reply.maybe_time()?.map(|due| -> Duration { now.since(due) }),
        ..ShardTopicStats::default()
    })
}
