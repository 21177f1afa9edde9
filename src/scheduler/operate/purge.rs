//! Purge: deletes the jobs of a topic that are in some states, on all shards at once and in chunks.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use crate::scheduler::Core;

use super::Operator;
use crate::domain::engine::Command;
use crate::domain::{
    GroupName, Job, JobKey, RetentionRule, ShardName, State, Time, TopicName, limit,
};
use crate::shards::{self, Op, Shard, ShardError};
use crate::store::{
    self, Deleted, JobRequest, LeaseEvent, ListQuery, Purge, RequestResult, RevokeReason,
    ShardTopicStats, StatsOptions,
};

use super::admin::shard_names;

/// Request to delete the jobs of a topic that are in some states.
#[derive(Clone, Debug)]
pub struct PurgeTopic {
    /// The topic.
    pub topic: TopicName,
    /// States of the jobs; others are left.
    pub states: Vec<State>,
    /// Group of the jobs; `Some(None)`: those without one. `None`: all jobs.
    pub group: Option<Option<GroupName>>,
    /// True: only count.
    pub dry_run: bool,
}

/// Result of a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PurgedJobs {
    /// Number of jobs deleted, each counted by the write that deleted it.
    pub purged: u64,
    /// Names of shards of which some or all jobs were left.
    pub unreachable: Vec<String>,
}

/// Order in which a shard is searched: that in which jobs go through the states, so that one which moves on meanwhile
/// is met in its next state. Cancelled jobs come first, before the purge leaves records of its own.
const SEARCH_ORDER: [State; 8] = [
    State::Cancelled,
    State::Scheduled,
    State::Ready,
    State::Running,
    State::Backoff,
    State::Succeeded,
    State::Dead,
    State::Expired,
];

/// A purge of one shard in progress.
struct ShardPurge<'a> {
    operator: &'a Operator,
    shard: &'a Shard,
    purge: &'a PurgeTopic,
    until: Option<Instant>,
    /// Time of the first read by the clock of the shard: jobs that were enqueued later stay.
    begin: Option<Time>,
    purged: u64,
    /// Longest time of a chunk so far: none begins that may still run at the deadline, when it could not be counted.
    chunk_took: Duration,
    /// First error because of which jobs were left.
    failed: Option<ShardError>,
}

// === impl Operator ===

impl Operator {
    /// Deletes the jobs of a topic that are in some states, as a single delete does, in chunks: if the caller stops
    /// waiting, a part is done, and the same call goes on with the rest. The same holds for the jobs of a shard
    /// that does not answer: all others are done by then. Nothing is deleted after `until`. Only jobs that were
    /// enqueued before the call began are deleted.
    ///
    /// # Errors
    /// Errors of the store, when no shard was purged because of them.
    pub async fn purge(
        &self,
        purge: PurgeTopic,
        until: Option<Instant>,
    ) -> shards::Result<PurgedJobs> {
        // Numbers of groups are not kept: such jobs are counted one by one.
        if purge.dry_run && purge.group.is_none() {
            return self.count_purged(&purge).await;
        }
        let shards = self.inner.shards.all();
        let runs = shards.iter().map(|shard| ShardPurge::new(self, shard, &purge, until).run());
        let (mut purged, mut failed) = (0, BTreeMap::new());
        for run in join_all(runs).await {
            purged += run.purged;
            failed.extend(run.failed.map(|error| (run.shard.name().clone(), error)));
        }
        if purged == 0
            && failed.len() == shards.len()
            && let Some((_, error)) = failed.pop_first()
        {
            return Err(error);
        }
        let absent = self.inner.shards.absent_shards();
        Ok(PurgedJobs { purged, unreachable: sorted_names(failed.into_keys().chain(absent)) })
    }

    /// Counts the jobs of a topic that are in these states, on the shards that answer.
    async fn count_purged(&self, purge: &PurgeTopic) -> shards::Result<PurgedJobs> {
        let read = |shard: Shard| {
            let topic = purge.topic.clone();
            async move {
                let options = StatsOptions { kept: true, ..StatsOptions::default() };
                shard.call(Op::Stats, |store| store.stats(vec![topic], options)).await
            }
        };
        let (found, failed) = self.inner.shards.call_all(read).await.into_partial()?;
        let stats: Vec<ShardTopicStats> =
            found.into_iter().flat_map(|(_, stats)| stats).flatten().collect();
        let count = |state: &State| stats.iter().map(|stats| jobs_in(stats, *state)).sum::<u64>();
        let absent = self.inner.shards.absent_shards();
        Ok(PurgedJobs {
            purged: purge.states.iter().map(count).sum(),
            unreachable: sorted_names(failed.into_iter().chain(absent)),
        })
    }

    /// Notifies the streams of this server whose leases were revoked. A shard notifies the other servers.
    fn notify_revoked(&self, shard: &Shard, deleted: &[Deleted]) {
        let mut by_stream: BTreeMap<(u32, u32), Vec<_>> = BTreeMap::new();
        for (owner, stream, token) in deleted.iter().filter_map(|deleted| deleted.revoked) {
            by_stream.entry((owner, stream)).or_default().push(token);
        }
        for ((owner, stream), tokens) in by_stream {
            let reason = RevokeReason::Deleted;
            self.notify_stream(shard, owner, LeaseEvent::Revoked { stream, tokens, reason });
        }
    }
}

// === impl ShardPurge ===

impl<'a> ShardPurge<'a> {
    fn new(
        operator: &'a Operator,
        shard: &'a Shard,
        purge: &'a PurgeTopic,
        until: Option<Instant>,
    ) -> ShardPurge<'a> {
        let (begin, purged, failed) = (None, 0, None);
        let chunk_took = Duration::ZERO;
        ShardPurge { operator, shard, purge, until, begin, purged, chunk_took, failed }
    }

    /// Purges the shard, and returns what was done and what failed.
    async fn run(mut self) -> ShardPurge<'a> {
        if let Err(error) = self.purge_all().await {
            self.note_failure(error);
        }
        if let Some(error) = &self.failed {
            tracing::warn!(
                shard = %self.shard.name(), topic = %self.purge.topic, purged = self.purged, error = %error.error,
                "a purge left jobs on this shard; the same call again goes on with them"
            );
        }
        self
    }

    fn note_failure(&mut self, error: ShardError) {
        self.failed.get_or_insert(error);
    }

    /// Searches all states, and again as long as that finds something: a job that moves from state to state may pass
    /// by one search, but not by all. This ends because each finds fewer of the jobs that were there at the begin.
    async fn purge_all(&mut self) -> shards::Result<()> {
        let is_asked = |state: &State| self.purge.states.contains(state);
        let states: Vec<State> = SEARCH_ORDER.into_iter().filter(is_asked).collect();
        let (cancelled, others): (Vec<_>, Vec<_>) =
            states.into_iter().partition(|state| *state == State::Cancelled);
        for state in cancelled {
            self.purge_state(state, &[state]).await?;
        }
        if self.purge.dry_run {
            for &state in &others {
                self.purge_state(state, &others).await?;
            }
            return Ok(());
        }
        loop {
            let before = self.purged;
            for &state in &others {
                self.purge_state(state, &others).await?;
            }
            if self.purged == before || others.len() < 2 {
                return Ok(());
            }
        }
    }

    /// Deletes the jobs that are in `state` when they are read, page by page. One that has moved on to another one of
    /// `states` by the time of the write is deleted too.
    async fn purge_state(&mut self, state: State, states: &[State]) -> shards::Result<()> {
        let (mut end, mut after) = (None, None);
        // Jobs in these states were due before they came into them: what is due after the begin of the search has come
        // since, and a search of all that keeps coming would have no end.
        let was_due =
            matches!(state, State::Ready | State::Running | State::Succeeded | State::Dead);
        loop {
            self.check_deadline()?;
            let chunk_began = Instant::now();
            let (topic, limit) = (self.purge.topic.clone(), limit::CALL_JOBS_MAX);
            let group = self.purge.group.clone();
            let page = ListQuery { topic, state, group, full: false, limit, after };
            let page = self.shard.call(Op::List, |store| store.list(page)).await?;
            let begin = *self.begin.get_or_insert(page.now);
            let end = *end.get_or_insert(page.now);
            let jobs = page.jobs.into_iter().map(|listed| listed.job);
            let group = &self.purge.group;
            let is_meant = |job: &Job| {
                job.create_time <= begin
                    && group
                        .as_ref()
                        .is_none_or(|group| *group == job.spec.group && !is_tombstone(job))
            };
            let keys: Vec<JobKey> = jobs.filter(is_meant).map(|job| job.key).collect();
            if self.purge.dry_run {
                self.purged += keys.len() as u64;
            } else {
                let group = group.clone();
                self.purge_chunk(keys, Purge { states: states.to_vec(), begin, group }).await?;
            }
            self.chunk_took = self.chunk_took.max(chunk_began.elapsed());
            after = page.next.filter(|cursor| !was_due || cursor.due <= end);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn check_deadline(&self) -> shards::Result<()> {
        if self.until.is_some_and(|until| until <= Instant::now() + self.chunk_took) {
            let text = "the deadline of the call comes before all jobs are deleted";
            let error = store::Error::DeadlineExceeded(text.to_owned());
            return Err(ShardError::new(self.shard.name(), error));
        }
        Ok(())
    }

    /// Deletes one chunk, and counts each job that was deleted, also where others failed.
    ///
    /// # Errors
    /// The error of the shard or of the deadline, after which the next chunk would fail too.
    async fn purge_chunk(&mut self, keys: Vec<JobKey>, purge: Purge) -> shards::Result<()> {
        let deadline = self.until;
        let request =
            |key| JobRequest { deadline, ..JobRequest::new(key, Command::Purge(purge.clone())) };
        let requests = keys.into_iter().map(request).collect();
        let (operator, shard) = (self.operator.clone(), self.shard.clone());
        // Streams are notified whether or not the caller still waits.
        let results = Core::run_to_completion(async move {
            let purged = shard.apply(requests).await.into_iter();
            let results: Vec<shards::Result<Option<Deleted>>> =
                purged.map(|purged| purged.map(RequestResult::into_delete_result)).collect();
            let deleted: Vec<Deleted> =
                results.iter().flatten().filter_map(|deleted| deleted.clone()).collect();
            operator.notify_revoked(&shard, &deleted);
            results
        })
        .await;
        let mut end = None;
        for result in results {
            match result {
                Ok(deleted) => self.purged += u64::from(deleted.is_some()),
                Err(error) if is_of_job(&error) => self.note_failure(error),
                Err(error) => end = end.or(Some(error)),
            }
        }
        end.map_or(Ok(()), Err)
    }
}

/// Returns whether the error is one of single jobs, so that others can still be deleted.
fn is_of_job(error: &ShardError) -> bool {
    matches!(error.error, store::Error::Corrupt(_) | store::Error::Contention(_))
}

/// Returns whether the job has left only a tombstone, of which the group is not known.
fn is_tombstone(job: &Job) -> bool {
    let rule = job.spec.retention_rule(true, limit::TOMBSTONE);
    let is_record = job.state == State::Dead || matches!(rule, RetentionRule::Record(_));
    job.state.is_terminal() && !is_record
}

/// Returns the number of jobs in a state.
fn jobs_in(stats: &ShardTopicStats, state: State) -> u64 {
    match state {
        State::Scheduled => stats.scheduled,
        State::Ready => stats.ready,
        State::Running => stats.running,
        State::Backoff => stats.backoff,
        State::Succeeded => stats.succeeded,
        State::Dead => stats.dead,
        State::Cancelled => stats.cancelled,
        State::Expired => stats.expired,
    }
}

fn sorted_names(shards: impl Iterator<Item = ShardName>) -> Vec<String> {
    let mut shards: Vec<_> = shards.collect();
    shards.sort_unstable();
    shard_names(&shards)
}
