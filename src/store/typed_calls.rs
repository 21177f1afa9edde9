//! Typed store calls on top of [`Store::apply`] and [`Store::query_leases`]. Each call here succeeds or fails as a
//! whole; a caller that joins the calls of many others uses [`Store::apply`] and answers each.

use foldhash::{HashMap, HashSet};

use crate::domain::{ShardName, StreamId, Time};

use super::{
    AdoptBatch, Deleted, Error, JobDeletion, JobRequest, JobReschedule, LeaseExtension, LeaseQuery,
    LeaseQueryResult, LeaseRef, LeaseRefusal, LeaseSettlement, LostClaim, NewJob, RedriveBatch,
    RedriveResult, RequestResult, RescheduleResult, Result, RunningLease, SettleCommandReply,
    Store, StoreFuture, StreamLeaseRef, Unclaim, UnclaimResult, WriteDurability, WriteResult,
};

type LeaseResults<T> = Vec<std::result::Result<T, LeaseRefusal>>;

impl<'s> dyn Store + 's {
    /// Returns the name of the shard.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        &self.identity().name
    }

    /// Returns whether other servers may use the shard too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.identity().is_shared
    }

    /// Returns the durability of writes, as last observed.
    #[must_use]
    pub fn write_durability(&self) -> WriteDurability {
        self.status().borrow().write_durability()
    }

    /// Writes jobs. Each result contains the outcome and the durability reached: less than the job requests if that
    /// is not confirmed in time, which undoes nothing.
    pub fn enqueue<'a>(&'a self, jobs: Vec<NewJob>) -> StoreFuture<'a, Vec<WriteResult>>
    where
        's: 'a,
    {
        self.apply_all(jobs, |applied| applied.to_write_result())
    }

    /// Ends leases.
    pub fn settle<'a>(
        &'a self,
        items: Vec<LeaseSettlement>,
    ) -> StoreFuture<'a, LeaseResults<SettleCommandReply>>
    where
        's: 'a,
    {
        self.apply_all(items, |applied| applied.settle_result())
    }

    /// Extends running leases. A lease that expired while its shard was away is extended only if it is still the
    /// current one.
    pub fn extend<'a>(&'a self, items: Vec<LeaseExtension>) -> StoreFuture<'a, LeaseResults<Time>>
    where
        's: 'a,
    {
        self.apply_all(items, |applied| applied.extend_result())
    }

    /// Detaches leases, which then outlive their streams, if these streams still answer for them. Returns the number
    /// of leases detached.
    pub fn detach<'a>(&'a self, leases: Vec<StreamLeaseRef>) -> StoreFuture<'a, u64>
    where
        's: 'a,
    {
        Box::pin(async move {
            let detached = self.apply_all(leases, |applied| applied.is_done()).await?;
            Ok(detached.into_iter().filter(|&is_done| is_done).count() as u64)
        })
    }

    /// Moves leases to another stream, and returns for each whether it moved: not if the lease has ended, if a stream
    /// other than the named one answers for it, or if it is neither detached nor extended as required. A retry
    /// changes nothing and returns the same. The replica of the old stream receives
    /// [`LeaseEvent::Adopted`](super::LeaseEvent::Adopted).
    pub fn adopt<'a>(&'a self, adopt: AdoptBatch) -> StoreFuture<'a, Vec<bool>>
    where
        's: 'a,
    {
        let requests: Vec<JobRequest> = adopt.into();
        self.apply_all(requests, |applied| applied.is_done())
    }

    /// Cancels waiting and running jobs, deletes the records of finished ones. `None` for a job that does not exist,
    /// or that does not match the condition of the request.
    pub fn delete<'a>(&'a self, items: Vec<JobDeletion>) -> StoreFuture<'a, Vec<Option<Deleted>>>
    where
        's: 'a,
    {
        self.apply_all(items, RequestResult::into_delete_result)
    }

    /// Reschedules waiting and dead jobs; returns the changed job, or the state that forbids it.
    pub fn reschedule<'a>(
        &'a self,
        items: Vec<JobReschedule>,
    ) -> StoreFuture<'a, Vec<RescheduleResult>>
    where
        's: 'a,
    {
        Box::pin(async move {
            let keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
            let moved = self.apply_all(items, |applied| applied).await?;
            let shard = self.name();
            let moved = keys.into_iter().zip(moved);
            Ok(moved
                .map(|(key, applied)| applied.into_reschedule_result(key, shard.clone()))
                .collect())
        })
    }

    /// Puts terminal jobs back to READY with fresh counters; at most
    /// [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) a call.
    pub fn redrive<'a>(&'a self, redrive: RedriveBatch) -> StoreFuture<'a, RedriveResult>
    where
        's: 'a,
    {
        Box::pin(async move {
            let redriven = count_done(self.apply(redrive.requests()).await)?;
            Ok(RedriveResult { redriven, skipped: redrive.ids.len() as u64 - redriven })
        })
    }

    /// Undoes leases that no worker received: the jobs return to their old place, and nothing is counted. The leases
    /// of a lost claim are searched among all running leases, about
    /// [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) in one call; the first of these calls only cancels the
    /// claim, so that it takes nothing if it arrives later.
    pub fn unclaim<'a>(&'a self, what: Unclaim) -> StoreFuture<'a, UnclaimResult>
    where
        's: 'a,
    {
        Box::pin(async move {
            let (refs, next) = match what {
                Unclaim::Leases(refs) => (refs, None),
                Unclaim::Claim(LostClaim { nonce, topics, cursor: None }) => {
                    self.cancel_lost_claim(nonce).await?;
                    let next = (!topics.is_empty()).then(String::new);
                    return Ok(UnclaimResult { leases: 0, cursor: next });
                }
                Unclaim::Claim(LostClaim { nonce, topics, cursor: Some(from) }) => {
                    let found = self
                        .query_leases(LeaseQuery::OfLostClaim { nonce, topics, cursor: from })
                        .await?;
                    (
                        found
                            .leases
                            .into_iter()
                            .map(|lease| lease.stream_lease_ref().lease)
                            .collect(),
                        found.cursor,
                    )
                }
            };
            let leases = count_done(self.apply(refs.into_iter().map(Into::into).collect()).await)?;
            Ok(UnclaimResult { leases, cursor: next })
        })
    }

    /// Reads leases whose deadline has passed, see [`LeaseQuery::Overdue`].
    pub fn overdue_leases<'a>(&'a self, limit: usize) -> StoreFuture<'a, LeaseQueryResult>
    where
        's: 'a,
    {
        self.query_leases(LeaseQuery::Overdue { limit })
    }

    /// Reads leases that carry a grace and belong to streams of replicas not in `living`.
    pub fn orphaned_leases<'a>(&'a self, living: Vec<u32>) -> StoreFuture<'a, Vec<RunningLease>>
    where
        's: 'a,
    {
        Box::pin(async move {
            Ok(self.query_leases(LeaseQuery::Orphaned { live_owners: living }).await?.leases)
        })
    }

    /// Reads the leases that these streams answer for, or did when they were detached.
    pub fn leases_of_streams<'a>(
        &'a self,
        streams: Vec<StreamId>,
    ) -> StoreFuture<'a, Vec<RunningLease>>
    where
        's: 'a,
    {
        Box::pin(async move { Ok(self.query_leases(LeaseQuery::OfStreams(streams)).await?.leases) })
    }

    /// Reads these running leases; the error is the reason why there is no such lease.
    pub fn running_leases<'a>(
        &'a self,
        refs: Vec<LeaseRef>,
    ) -> StoreFuture<'a, LeaseResults<RunningLease>>
    where
        's: 'a,
    {
        Box::pin(async move {
            let found = self.query_leases(LeaseQuery::ByRef(refs.clone())).await?;
            let leases =
                found.leases.into_iter().map(|lease| (lease.stream_lease_ref().lease, lease));
            let leases: HashMap<LeaseRef, RunningLease> = leases.collect();
            let gone: HashSet<LeaseRef> = found.missing_jobs.into_iter().collect();
            let answer = |lease: &LeaseRef| match leases.get(lease) {
                Some(lease) => Ok(lease.clone()),
                None if gone.contains(lease) => Err(LeaseRefusal::NotFound),
                None => Err(LeaseRefusal::Stale),
            };
            Ok(refs.iter().map(answer).collect())
        })
    }

    fn apply_all<'a, I, T>(
        &'a self,
        items: Vec<I>,
        answer: impl Fn(RequestResult) -> T + Send + Sync + 'a,
    ) -> StoreFuture<'a, Vec<T>>
    where
        's: 'a,
        I: Into<JobRequest> + Send + 'a,
        T: Send + 'a,
    {
        Box::pin(async move {
            let applied = self.apply(items.into_iter().map(Into::into).collect()).await;
            Ok(all_or_worst_error(applied)?.into_iter().map(answer).collect())
        })
    }
}

/// Combines the results of a call.
///
/// # Errors
/// Returns the error that matters most for the shard; other commands of the call may be applied then. If the shard
/// failed between them, the error is [`Error::OutcomeUnknown`].
pub fn all_or_worst_error<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let Some(error) = worst_error(&results).cloned() else {
        return Ok(results.into_iter().flatten().collect());
    };
    let is_applied = results.iter().any(Result::is_ok);
    Err(match error {
        Error::OutcomeUnknown(_) => error,
        error if is_applied && error.is_shard_failure() => {
            Error::OutcomeUnknown(format!("a part of the call was applied: {error}"))
        }
        error => error,
    })
}

/// Returns the number of commands that were applied. Errors of single jobs are logged, and these jobs stay unchanged.
///
/// # Errors
/// Fails when the shard failed, or when some commands failed and none was applied.
fn count_done(applied: Vec<Result<RequestResult>>) -> Result<u64> {
    let done = applied.iter().flatten().filter(|applied| applied.is_done()).count() as u64;
    match worst_error(&applied) {
        Some(error) if done == 0 || error.is_shard_failure() => {
            all_or_worst_error(applied).map(|_| done)
        }
        Some(error) => {
            tracing::warn!(%error, "a command failed for some jobs of a call; they are unchanged");
            Ok(done)
        }
        None => Ok(done),
    }
}

/// Returns the error that matters most for the shard: first an unknown outcome, then an unavailable shard, then any
/// other.
pub(crate) fn worst_error<T>(results: &[Result<T>]) -> Option<&Error> {
    let rank = |error: &&Error| (!error.outcome_unknown(), !error.is_shard_failure());
    results.iter().filter_map(|result| result.as_ref().err()).min_by_key(rank)
}
