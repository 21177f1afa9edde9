//! Moves jobs that have crashed as often as they may to their crash topics. A job is written there before its lease ends
//! here, so that it is never lost. If a server stops in between, the lease is found as expired or orphaned by the next
//! one that looks: the repeated move finds its own copy by the request code, and removes the job here.
//!
//! A copy has no crash topic of its own, whatever its topics have: jobs do not go round in circles.

use crate::domain::engine::{CrashMove, Enqueue, NewJob};
use crate::domain::lifecycle::{LeaseEndCause, crash_target, lease_end};
use crate::domain::{
    CrashTopic, EnqueueOutcome, Job, JobKey, OnConflict, RetryOverrides, Spec, State, TopicName,
    When, limit,
};
use crate::shards::{self, Op, Shard};
use crate::store::{
    CarriedHistory, Error, JobRequest, RequestResult, RunningLease, WritePrecondition,
};

use super::by_shard::ByShard;
use super::locate::{BlockingShard, UncertainJobs, absent_owner_error};
use super::{Scheduler, request_hash};

/// Jobs to write to the shards that own their ids in their crash topics.
struct CrashCopies<'s> {
    /// Shard on which the leases end.
    origin: &'s Shard,
    /// Outcomes so far, in the order of the leases; `None`: the lease is to be ended later.
    moves: Vec<Option<CrashMove>>,
    /// Copies, by the shards that own their ids.
    by_owner: ByShard<'s, NewJob>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Returns the topic to which the end of a lease for `cause` moves its job, if any.
    pub(super) fn crash_topic(
        &self,
        lease: &RunningLease,
        cause: &LeaseEndCause,
    ) -> Option<TopicName> {
        if !cause.is_crash() {
            return None;
        }
        let topic = &lease.key.topic;
        let policy = self.retry_policy(topic, lease.attempt.retry.as_deref());
        crash_target(cause, &lease.attempt, &policy, topic).cloned()
    }

    /// Writes the jobs of these leases, which end for `cause`, to their crash topics. Returns the leases to end with the
    /// outcomes, and those to be ended later. A topic whose shard fails does not hold up the end of a lease: many such
    /// leases would hold up the others of their shard.
    ///
    /// # Errors
    /// Errors of the shard on which the leases end; they are to be ended later.
    pub(super) async fn copy_crashed(
        &self,
        shard: &Shard,
        leases: Vec<(RunningLease, TopicName)>,
        cause: &LeaseEndCause,
    ) -> shards::Result<(Vec<(RunningLease, CrashMove)>, Vec<RunningLease>)> {
        let moves = vec![Some(CrashMove::None); leases.len()];
        let mut work = CrashCopies { origin: shard, moves, by_owner: ByShard::new() };
        let jobs = read_jobs(shard, leases.iter().map(|(lease, _)| lease.key.clone())).await?;
        let mut copies = Vec::with_capacity(leases.len());
        for (index, ((lease, topic), job)) in leases.iter().zip(jobs).enumerate() {
            match job {
                Ok(Some(job)) if has_lease(&job, lease) => {
                    let error = self.last_error(lease, cause);
                    let mut copy = copy(job, topic.clone(), error);
                    copy.enqueue.max_bytes = self.only_counted(topic);
                    copies.push((index, copy));
                }
                // Without the job of this lease, its end will be refused, too.
                Ok(_) => {}
                Err(Error::Corrupt(_)) => {
                    work.reject(index, format!("it cannot be read to move to topic {topic}"));
                }
                Err(_) => work.moves[index] = None,
            }
        }
        work.route(self, copies).await;
        let moves = work.write().await?;
        let (mut copied, mut later) = (Vec::with_capacity(leases.len()), Vec::new());
        for ((lease, _), crash_move) in leases.into_iter().zip(moves) {
            match crash_move {
                Some(crash_move) => copied.push((lease, crash_move)),
                None => later.push(lease),
            }
        }
        Ok((copied, later))
    }

    /// Returns the error that the end of a lease for `cause` leaves with its job.
    fn last_error(&self, lease: &RunningLease, cause: &LeaseEndCause) -> String {
        let policy = self.retry_policy(&lease.key.topic, lease.attempt.retry.as_deref());
        let end = lease_end(cause.clone(), &lease.attempt, &policy, lease.now, 0.0);
        format!("{}; moved from topic {}", end.error, lease.key.topic)
    }

    /// Logs that a job has moved to its crash topic, or could not.
    pub(super) fn log_crash_move(
        &self,
        lease: &RunningLease,
        crash_move: &CrashMove,
        applied: &RequestResult,
    ) {
        let is_dead = |settled: &crate::store::SettleCommandReply| {
            settled.state == State::Dead && !settled.repeated
        };
        if applied.settle_result().is_ok_and(|settled| is_dead(&settled)) {
            match crash_move {
                CrashMove::None => {}
                CrashMove::Copied => self.log_crashed_job(lease, None),
                CrashMove::Rejected(reason) => self.log_crashed_job(lease, Some(reason)),
            }
        }
    }
}

// === impl CrashCopies ===

impl<'s> CrashCopies<'s> {
    /// Assigns the copies to the shards that own their ids.
    async fn route(&mut self, scheduler: &'s Scheduler, copies: Vec<(usize, NewJob)>) {
        let shards = &scheduler.inner.shards;
        let mut doubts = UncertainJobs::new();
        for (index, copy) in &copies {
            doubts.add(*index, &copy.key, shards.former_owners(&copy.key));
        }
        let mut found = doubts.locate().await;
        for (index, copy) in copies {
            let key = &copy.key;
            match (found.remove(&index), absent_owner_error(shards, key), shards.owner(key)) {
                (Some(Ok(_)), ..) => self.reject(index, taken(key)),
                (Some(Err(BlockingShard { error, .. })), ..) | (None, Some(error), _) => {
                    self.reject(index, unreachable(key, &error));
                }
                (None, None, None) => {
                    self.reject(index, format!("no shard takes its id in topic {}", key.topic));
                }
                (None, None, Some(owner)) => self.by_owner.add(owner, (index, copy), 0),
            }
        }
    }

    /// Writes the copies, and returns the outcomes.
    ///
    /// # Errors
    /// Errors of the shard on which the leases end.
    async fn write(mut self) -> shards::Result<Vec<Option<CrashMove>>> {
        let copies = std::mem::replace(&mut self.by_owner, ByShard::new());
        let write = async |owner: &'s Shard, copies: Vec<NewJob>| {
            let keys: Vec<JobKey> = copies.iter().map(|copy| copy.key.clone()).collect();
            let written = owner.apply(copies.into_iter().map(JobRequest::from).collect()).await;
            let results = keys.into_iter().zip(written).map(|(key, written)| (owner, key, written));
            results.collect::<Vec<_>>()
        };
        for (index, (owner, key, written)) in copies.call(write).await {
            match written.map(|written| written.enqueue_result().outcome) {
                // UNCHANGED: an earlier move has written it, and did not get to remove the job here.
                Ok(Some(EnqueueOutcome::Created | EnqueueOutcome::Unchanged)) => {
                    self.moves[index] = Some(CrashMove::Copied);
                }
                Ok(_) => self.reject(index, taken(&key)),
                Err(error) => match error.error {
                    Error::Overloaded(_) | Error::Contention(_) | Error::DeadlineExceeded(_) => {
                        self.moves[index] = None;
                    }
                    // The lease cannot be ended there, either, unless the shard refuses new jobs alone.
                    Error::Unavailable(_) | Error::OutcomeUnknown(_)
                        if owner.name() == self.origin.name()
                            && owner.health().jobs_refused.is_none() =>
                    {
                        return Err(error);
                    }
                    // The repeat finds the copy, or gets a definite error.
                    Error::OutcomeUnknown(_) => self.moves[index] = None,
                    _ => self.reject(index, unreachable(&key, &error)),
                },
            }
        }
        Ok(self.moves)
    }

    fn reject(&mut self, index: usize, reason: String) {
        self.moves[index] = Some(CrashMove::Rejected(reason));
    }
}

/// Reads jobs of a shard. A job that cannot be read fails alone.
///
/// # Errors
/// Errors of the shard as a whole.
async fn read_jobs(
    shard: &Shard,
    keys: impl Iterator<Item = JobKey>,
) -> shards::Result<Vec<Result<Option<Job>, Error>>> {
    let keys: Vec<JobKey> = keys.collect();
    let all = keys.clone();
    match shard.call(Op::Get, |store| store.get(all, true)).await {
        Ok(jobs) => return Ok(jobs.into_iter().map(Ok).collect()),
        Err(error) if error.error.is_shard_failure() => return Err(error),
        Err(_) => {}
    }
    let mut jobs = Vec::with_capacity(keys.len());
    for key in keys {
        match shard.call(Op::Get, |store| store.get(vec![key], true)).await {
            Ok(read) => jobs.push(Ok(read.into_iter().next().flatten())),
            Err(error) if error.error.is_shard_failure() => return Err(error),
            Err(error) => jobs.push(Err(error.error)),
        }
    }
    Ok(jobs)
}

fn taken(key: &JobKey) -> String {
    format!("topic {} has another job of this id, so the job stays here", key.topic)
}

/// Describes the error of a shard. The text of the shard is in the server's log.
fn unreachable(key: &JobKey, error: &shards::ShardError) -> String {
    format!("shard {} did not take it to topic {}, so the job stays here", error.shard, key.topic)
}

/// Returns whether the job is the one that was read with the lease, still under that lease.
fn has_lease(job: &Job, lease: &RunningLease) -> bool {
    job.state == State::Running
        && job.lease_expire_time == Some(lease.deadline)
        && job.deliveries == lease.attempt.deliveries + 1
}

/// Builds the job in its crash topic: due now, with fresh counters. It does not expire: it waits there until a worker or an
/// operator has seen to it.
fn copy(job: Job, topic: TopicName, last_error: String) -> NewJob {
    let request = request_hash::crash_request_code(&job);
    let own = job.spec.retry.as_deref().cloned().unwrap_or_default();
    let retry = RetryOverrides { crash_topic: Some(CrashTopic::Off), ..own }.boxed();
    let enqueue = Enqueue {
        retention: job.spec.retention_rule(true, limit::TOMBSTONE),
        spec: Spec { retry, ..job.spec },
        due: When::Now,
        priority: Some(job.priority),
        expire: None,
        on_conflict: OnConflict::Reject,
        request_code: Some(request),
        precondition: WritePrecondition::Anything,
        max_waiting: None,
        max_bytes: None,
        history: CarriedHistory { checkpoint: job.checkpoint, last_error }.boxed(),
    };
    NewJob { key: JobKey { topic, id: job.key.id }, enqueue: Box::new(enqueue) }
}
