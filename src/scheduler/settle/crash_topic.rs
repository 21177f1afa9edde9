//! Moves jobs that have crashed as often as they may to their crash topics. A job is written there before its lease ends
//! here, so that it is never lost. If a server stops in between, the lease is found as expired or orphaned by the next
//! one that looks: the repeated move finds its own copy by the request code, and removes the job here.
//!
//! A copy has no crash topic of its own, whatever its topics have: jobs do not go round in circles.

use crate::domain::engine::{CrashMove, NewJob};
use crate::domain::lifecycle::{LeaseEndCause, crash_target, lease_end};
use crate::domain::{CrashTopic, Job, JobKey, RetryOverrides, State, TopicName};
use crate::scheduler::by_shard::ByShard;
use crate::scheduler::locate::Location;
use crate::scheduler::request_hash;
use crate::scheduler::transfer::{Transfer, write_copies};
use crate::shards::{self, Op, Shard};
use crate::store::{Error, RequestResult, RunningLease};

use super::Settler;

// === impl Settler ===

impl Settler {
    /// Returns the topic to which the end of a lease for `cause` moves its job, if any.
    pub(in crate::scheduler) fn crash_topic(
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
    pub(in crate::scheduler) async fn copy_crashed(
        &self,
        shard: &Shard,
        leases: Vec<(RunningLease, TopicName)>,
        cause: &LeaseEndCause,
    ) -> shards::Result<(Vec<(RunningLease, CrashMove)>, Vec<RunningLease>)> {
        let mut moves = vec![Some(CrashMove::None); leases.len()];
        let jobs = read_jobs(shard, leases.iter().map(|(lease, _)| lease.key.clone())).await?;
        let mut copies = Vec::with_capacity(leases.len());
        for (index, ((lease, topic), job)) in leases.iter().zip(jobs).enumerate() {
            match job {
                Ok(Some(job)) if has_lease(&job, lease) => {
                    copies
                        .push((index, self.crash_copy(job, topic, self.last_error(lease, cause))));
                }
                // Without the job of this lease, its end will be refused, too.
                Ok(_) => {}
                Err(Error::Corrupt(_)) => {
                    let reason = format!("it cannot be read to move to topic {topic}");
                    moves[index] = Some(CrashMove::Rejected(reason));
                }
                Err(_) => moves[index] = None,
            }
        }
        self.write_crash_copies(shard, copies, &mut moves).await?;
        let (mut copied, mut later) = (Vec::with_capacity(leases.len()), Vec::new());
        for ((lease, _), crash_move) in leases.into_iter().zip(moves) {
            match crash_move {
                Some(crash_move) => copied.push((lease, crash_move)),
                None => later.push(lease),
            }
        }
        Ok((copied, later))
    }

    /// Writes the copies of jobs whose leases end on `origin`, and stores their outcomes by index.
    ///
    /// # Errors
    /// Errors of `origin`.
    async fn write_crash_copies(
        &self,
        origin: &Shard,
        copies: Vec<(usize, NewJob)>,
        moves: &mut [Option<CrashMove>],
    ) -> shards::Result<()> {
        let keys: Vec<JobKey> = copies.iter().map(|(_, copy)| copy.key.clone()).collect();
        let mut by_owner = ByShard::new();
        for ((index, copy), location) in copies.into_iter().zip(self.locate(&keys).await) {
            let reason = match location {
                Location::On(owner) => {
                    by_owner.add(owner, (index, copy), 0);
                    continue;
                }
                Location::Blocked(_, error) | Location::Elsewhere { error, .. } => {
                    unreachable(&copy.key, &error)
                }
                Location::NoOwner => format!("no shard takes its id in topic {}", copy.key.topic),
            };
            moves[index] = Some(CrashMove::Rejected(reason));
        }
        let write = async |owner: &Shard, copies: Vec<NewJob>| {
            let keys: Vec<JobKey> = copies.iter().map(|copy| copy.key.clone()).collect();
            let written = write_copies(owner, copies, None).await;
            let refuses_jobs = owner.health().jobs_refused.is_some();
            let is_origin = owner.name() == origin.name() && !refuses_jobs;
            keys.into_iter().zip(written).map(|(key, done)| (key, done, is_origin)).collect()
        };
        for (index, (key, written, is_origin)) in by_owner.call(write).await {
            moves[index] = match written {
                Transfer::Copied => Some(CrashMove::Copied),
                Transfer::Taken => Some(CrashMove::Rejected(taken(&key))),
                Transfer::Failed(error) => match error.error {
                    Error::Overloaded(_) | Error::Contention(_) | Error::DeadlineExceeded(_) => {
                        None
                    }
                    // The lease cannot be ended there, either, unless the shard refuses new jobs alone.
                    Error::Unavailable(_) | Error::OutcomeUnknown(_) if is_origin => {
                        return Err(error);
                    }
                    // The repeat finds the copy, or gets a definite error.
                    Error::OutcomeUnknown(_) => None,
                    _ => Some(CrashMove::Rejected(unreachable(&key, &error))),
                },
            };
        }
        Ok(())
    }

    /// Builds the job in its crash topic. It does not expire: it waits there until a worker or an operator has seen to
    /// it.
    fn crash_copy(&self, job: Job, topic: &TopicName, last_error: String) -> NewJob {
        let key = JobKey { topic: topic.clone(), id: job.key.id.clone() };
        let request_code = request_hash::crash_request_code(&job);
        let mut copy = self.copy(Job { last_error, ..job }, key, request_code);
        let spec = &mut copy.enqueue.spec;
        let own = spec.retry.as_deref().cloned().unwrap_or_default();
        spec.retry = RetryOverrides { crash_topic: Some(CrashTopic::Off), ..own }.boxed();
        copy
    }

    /// Returns the error that the end of a lease for `cause` leaves with its job.
    fn last_error(&self, lease: &RunningLease, cause: &LeaseEndCause) -> String {
        let policy = self.retry_policy(&lease.key.topic, lease.attempt.retry.as_deref());
        let end = lease_end(cause.clone(), &lease.attempt, &policy, lease.now, 0.0);
        format!("{}; moved from topic {}", end.error, lease.key.topic)
    }

    /// Logs that a job has moved to its crash topic, or could not.
    pub(in crate::scheduler) fn log_crash_move(
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
