//! Redrive: puts jobs back with fresh counters, shard by shard and in chunks.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::engine::{Command, NewJob, Redrive};
use crate::domain::{Job, JobId, JobKey, ShardName, State, TopicName, When, limit};
use crate::scheduler::by_shard::ByShard;
use crate::scheduler::locate::Location;
use crate::scheduler::transfer::{Transfer, write_copies};
use crate::scheduler::{Core, request_hash};
use crate::shards::{self, Op, Shard, ShardError};
use crate::store::{JobRequest, ListCursor, ListQuery, RequestResult};

use super::Operator;

/// Request to put jobs back.
#[derive(Clone, Debug)]
pub struct RedriveJobs {
    /// Topic of the jobs.
    pub topic: TopicName,
    /// Ids of the jobs; empty: every job that is in one of the states when the call begins.
    pub ids: Vec<JobId>,
    /// States of the jobs: others are left.
    pub states: Vec<State>,
    /// Topic to which the jobs are moved, if any.
    pub target: Option<TopicName>,
    /// Jobs per second; `None`: all at once.
    pub rate: Option<f64>,
    /// Time after its new due time at which a job expires whose expire time is not after that; `None`: such a job is
    /// left.
    pub ttl: Option<Duration>,
    /// True: only count.
    pub dry_run: bool,
}

/// Result of a redrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedrivenJobs {
    /// Number of jobs put back.
    pub redriven: u64,
    /// Number of jobs left: no such job, in another state, a tombstone, past its expire time, or its id is taken in
    /// the target.
    pub skipped: u64,
    /// Names of shards of which some or all jobs were left, because of a shard that did not answer.
    pub unreachable: Vec<String>,
}

/// A redrive in progress.
struct RedriveRun<'a> {
    core: &'a Core,
    redrive: &'a RedriveJobs,
    until: Option<Instant>,
    /// Numbers of jobs put back and left so far.
    redriven: u64,
    skipped: u64,
    /// Error because of which jobs were left, by shard.
    failed: BTreeMap<ShardName, ShardError>,
}

/// A job that moves to another shard.
struct MovingJob {
    job: Job,
    /// Time from now until it is due.
    delay: Duration,
    /// Its new expire time.
    expire: Option<When>,
}

// === impl Operator ===

impl Operator {
    /// Puts jobs back with fresh counters, in chunks: if the caller stops waiting, a part is done, and the same call
    /// goes on with the rest. The same holds for the jobs of a shard that does not answer: all others are done by
    /// then. Nothing is put back after `until`.
    ///
    /// # Errors
    /// Errors of the store, when nothing was done because of them.
    pub async fn redrive(
        &self,
        redrive: RedriveJobs,
        until: Option<Instant>,
    ) -> shards::Result<RedrivenJobs> {
        // A job that goes to another shard is written there and deleted here, whether or not its caller still waits.
        let operator = self.clone();
        Core::run_to_completion(async move { operator.redrive_all(redrive, until).await }).await
    }

    async fn redrive_all(
        &self,
        redrive: RedriveJobs,
        until: Option<Instant>,
    ) -> shards::Result<RedrivenJobs> {
        let shards = &self.inner.shards;
        let mut work = RedriveRun {
            core: self,
            redrive: &redrive,
            until,
            redriven: 0,
            skipped: 0,
            failed: BTreeMap::new(),
        };
        if redrive.ids.is_empty() {
            for shard in shards.all() {
                for &state in &redrive.states {
                    let done = work.redrive_state(shard, state).await;
                    work.record_failure(shard, done);
                }
            }
            for shard in shards.absent_shards() {
                work.failed.insert(shard.clone(), ShardError::elsewhere(&shard));
            }
        } else {
            work.redrive_listed().await;
        }
        work.into_result()
    }
}

// === impl RedriveRun ===

impl<'a> RedriveRun<'a> {
    /// Logs and stores the error of a piece of work on a shard.
    fn record_failure(&mut self, shard: &Shard, done: shards::Result<()>) {
        if let Err(error) = done {
            let (name, topic) = (shard.name(), &self.redrive.topic);
            // Another shard, which owns the ids in the target topic.
            let because_of = Some(&error.shard).filter(|other| *other != name);
            let because_of = because_of.map(tracing::field::display);
            tracing::warn!(
                shard = %name, %topic, because_of, error = %error.error,
                "redrive failed on this shard; its jobs keep their state"
            );
            self.failed.entry(shard.name().clone()).or_insert(error);
        }
    }

    /// Returns what was done, or an error if nothing could be done.
    fn into_result(mut self) -> shards::Result<RedrivenJobs> {
        let (redriven, skipped) = (self.redriven, self.skipped);
        let answered = |shard: &Shard| !self.failed.contains_key(shard.name());
        let looked_in_vain =
            self.redrive.ids.is_empty() && self.core.inner.shards.all().iter().any(answered);
        if redriven + skipped == 0
            && !looked_in_vain
            && let Some((_, error)) = self.failed.pop_first()
        {
            return Err(error);
        }
        let unreachable = self.failed.into_keys().map(|name| name.to_string()).collect();
        Ok(RedrivenJobs { redriven, skipped, unreachable })
    }

    /// Puts back the jobs of an explicit list, each on the shard that has it. A repeated id is skipped.
    async fn redrive_listed(&mut self) {
        let mut seen = HashSet::new();
        let ids: Vec<&JobId> = self.redrive.ids.iter().filter(|id| seen.insert(*id)).collect();
        self.skipped += (self.redrive.ids.len() - ids.len()) as u64;
        let keys: Vec<JobKey> = ids.iter().map(|id| self.key(id)).collect();
        let mut by_shard = ByShard::new();
        for (index, (id, location)) in
            ids.into_iter().zip(self.core.locate(&keys).await).enumerate()
        {
            if let Some(shard) = self.shard_of(location) {
                by_shard.add(shard, (index, id.clone()), 0);
            }
        }
        for (shard, ids) in by_shard {
            for ids in ids.chunks(limit::CALL_JOBS_MAX) {
                let done = self.redrive_chunk(shard, ids.to_vec()).await;
                self.record_failure(shard, done);
            }
        }
    }

    /// Returns the shard of a job, or counts the job as left.
    fn shard_of(&mut self, location: Location<'a>) -> Option<&'a Shard> {
        match location {
            Location::On(shard) => return Some(shard),
            Location::Blocked(shard, error) => self.record_failure(shard, Err(error)),
            Location::Elsewhere { error, .. } => {
                self.failed.entry(error.shard.clone()).or_insert(error);
            }
            Location::NoOwner => self.skipped += 1,
        }
        None
    }

    /// Puts back the jobs of one shard that ended in this state before its first page was read, page by page. Jobs
    /// that end again meanwhile are not put back twice: they finished later.
    async fn redrive_state(&mut self, shard: &Shard, state: State) -> shards::Result<()> {
        let (mut begin, mut after) = (None, None);
        // A job that has run was due before it ended: jobs due after the begin have also ended after it.
        let has_run = matches!(state, State::Dead | State::Succeeded);
        loop {
            let page = self.list_query(state, after);
            let page = shard.call(Op::List, |store| store.list(page)).await?;
            // Time by the clock of the shard, which set the finish times.
            let begin = *begin.get_or_insert(page.now);
            let jobs = page.jobs.into_iter().map(|listed| listed.job);
            let meant = jobs.filter(|job| job.finish_time.is_some_and(|at| at <= begin));
            let ids: Vec<JobId> = meant.map(|job| job.key.id).collect();
            if !ids.is_empty() {
                // The error may be that of another shard, which owns some of the ids in the target topic.
                let done = self.redrive_chunk(shard, ids).await;
                if shard.is_down() {
                    return done;
                }
                self.record_failure(shard, done);
            }
            after = page.next.filter(|cursor| !has_run || cursor.due <= begin);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn list_query(&self, state: State, after: Option<ListCursor>) -> ListQuery {
        let (topic, limit) = (self.redrive.topic.clone(), limit::CALL_JOBS_MAX);
        ListQuery { topic, state, group: None, full: false, limit, after }
    }

    /// Puts back one chunk. Ids that clients chose may belong to another shard in another topic.
    async fn redrive_chunk(&mut self, shard: &Shard, ids: Vec<JobId>) -> shards::Result<()> {
        let Some(target) = &self.redrive.target else {
            return self.redrive_in_place(shard, ids).await;
        };
        let key = |id: &JobId| JobKey { topic: target.clone(), id: id.clone() };
        let keys: Vec<JobKey> = ids.iter().map(key).collect();
        let (mut stay, mut leave) = (Vec::new(), ByShard::new());
        for (index, (id, location)) in
            ids.into_iter().zip(self.core.locate(&keys).await).enumerate()
        {
            match self.shard_of(location) {
                Some(owner) if owner.name() == shard.name() => stay.push(id),
                Some(owner) => leave.add(owner, (index, id), 0),
                None => {}
            }
        }
        self.redrive_in_place(shard, stay).await?;
        for (owner, ids) in leave {
            self.move_chunk(shard, owner, target, ids).await?;
        }
        Ok(())
    }

    /// Puts jobs back on their shard; the due times continue where the last chunk ended.
    async fn redrive_in_place(&mut self, shard: &Shard, ids: Vec<JobId>) -> shards::Result<()> {
        let redrive = Redrive {
            target: self.redrive.target.clone().filter(|target| *target != self.redrive.topic),
            dry_run: self.redrive.dry_run,
            ..self.dry_run(self.delay())
        };
        let request = |id: &JobId| {
            let request = JobRequest::new(self.key(id), Command::Redrive(redrive.clone()));
            JobRequest { deadline: self.until, ..request }
        };
        let requests = ids.iter().map(request).collect();
        let redriven = shard.apply_counted(requests).await?;
        self.redriven += redriven;
        self.skipped += ids.len() as u64 - redriven;
        Ok(())
    }

    /// Transfers jobs to the shard that owns their ids in `target`. Works in small pieces, because the payloads are moved
    /// too.
    async fn move_chunk(
        &mut self,
        shard: &Shard,
        owner: &Shard,
        target: &TopicName,
        ids: Vec<JobId>,
    ) -> shards::Result<()> {
        const PIECE: usize = 16;
        for ids in ids.chunks(PIECE) {
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return Err(ShardError::unavailable(
                    shard.name(),
                    "the deadline of the call has passed",
                ));
            }
            let moving = self.movable(shard, ids).await?;
            self.skipped += (ids.len() - moving.len()) as u64;
            let done = self.move_to_shard(owner, shard, target, moving).await;
            self.record_failure(shard, done);
        }
        Ok(())
    }

    /// Reads the jobs among these that the shard would redrive. The shard decides that, by its own rule and clock, as it does
    /// for jobs that stay there.
    async fn movable(&self, shard: &Shard, ids: &[JobId]) -> shards::Result<Vec<MovingJob>> {
        let request = |id: &JobId, redrive: Redrive| {
            let request = JobRequest::new(self.key(id), Command::Redrive(redrive));
            JobRequest { deadline: self.until, ..request }
        };
        let redrive = self.dry_run(self.delay());
        let asked = ids.iter().map(|id| request(id, redrive.clone())).collect();
        let answers = shard.apply_all(asked).await?;
        let meant = ids.iter().zip(answers).filter(|(_, answer)| answer.is_done());
        let meant: Vec<(JobId, Redrive)> = (0..)
            .zip(meant)
            .map(|(before, (id, _))| {
                (id.clone(), Redrive { spacing: Duration::ZERO, ..redrive.after(before) })
            })
            .collect();
        let keys = meant.iter().map(|(id, _)| self.key(id)).collect();
        let jobs = shard.call(Op::Get, |store| store.get(keys, true)).await?;
        // A job that is redriven only with a `ttl` would have expired by its new due time.
        let without_ttl = |(id, redrive): &(JobId, Redrive)| {
            request(id, Redrive { ttl: None, ..redrive.clone() })
        };
        let stays = match self.redrive.ttl {
            None => Vec::new(),
            Some(_) => shard.apply_all(meant.iter().map(without_ttl).collect()).await?,
        };
        let stays = stays.iter().map(RequestResult::is_done).chain(std::iter::repeat(true));
        let moving = meant.into_iter().zip(jobs).zip(stays);
        let moving = moving.filter_map(|(((_, Redrive { delay, ttl, .. }), job), stays)| {
            let job = job?;
            let expire = match ttl.filter(|_| !stays) {
                Some(ttl) => Some(When::After(delay + ttl)),
                None => job.expire_time.map(When::At),
            };
            Some(MovingJob { job, delay, expire })
        });
        Ok(moving.collect())
    }

    async fn move_to_shard(
        &mut self,
        owner: &Shard,
        shard: &Shard,
        target: &TopicName,
        jobs: Vec<MovingJob>,
    ) -> shards::Result<()> {
        let old: Vec<JobRequest> = jobs.iter().map(|moving| delete_moved(&moving.job)).collect();
        let key = |id: &JobId| JobKey { topic: target.clone(), id: id.clone() };
        let transfers = if self.redrive.dry_run {
            let keys = jobs.iter().map(|moving| key(&moving.job.key.id)).collect();
            let jobs = owner.call(Op::Get, |store| store.get(keys, false)).await?;
            let transfer = |job: Option<Job>| job.map_or(Transfer::Copied, |_| Transfer::Taken);
            jobs.into_iter().map(transfer).collect()
        } else {
            let copy = |moving: MovingJob| self.copy(key(&moving.job.key.id), moving);
            write_copies(owner, jobs.into_iter().map(copy).collect(), self.until).await
        };
        let (mut copied, mut failed) = (Vec::with_capacity(old.len()), None);
        for (old, transfer) in old.into_iter().zip(transfers) {
            match transfer {
                Transfer::Copied => copied.push(old),
                Transfer::Taken => self.skipped += 1,
                Transfer::Failed(error) => failed = failed.or(Some(error)),
            }
        }
        self.redriven += copied.len() as u64;
        if !self.redrive.dry_run {
            shard.apply_all(copied).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    fn copy(&self, key: JobKey, MovingJob { job, delay, expire }: MovingJob) -> NewJob {
        let request_code = request_hash::redrive_request_code(&job);
        let mut copy = self.core.copy(job, key, request_code);
        copy.enqueue.due = if delay.is_zero() { When::Now } else { When::After(delay) };
        copy.enqueue.expire = expire;
        copy
    }

    /// Returns the command that only asks whether a job would be redriven with this delay.
    fn dry_run(&self, delay: Duration) -> Redrive {
        Redrive {
            states: self.redrive.states.clone(),
            delay,
            spacing: self.redrive.spacing(),
            ttl: self.redrive.ttl,
            target: None,
            dry_run: true,
        }
    }

    /// Returns the time from now until the next job of a redrive with a rate is due.
    fn delay(&self) -> Duration {
        let moved = u32::try_from(self.redriven).unwrap_or(u32::MAX);
        self.redrive.spacing().saturating_mul(moved)
    }

    fn key(&self, id: &JobId) -> JobKey {
        JobKey { topic: self.redrive.topic.clone(), id: id.clone() }
    }
}

// === impl RedriveJobs ===

impl RedriveJobs {
    fn spacing(&self) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate))
    }
}

/// Builds the deletion of a job that was moved: a job that a client has enqueued under its id meanwhile stays.
fn delete_moved(job: &Job) -> JobRequest {
    JobRequest::new(job.key.clone(), Command::Delete { finished: job.finish_time })
}
