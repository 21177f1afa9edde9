//! The verbs of a store by name: what most callers want of [`Store::apply`] and [`Store::select`]. Here each call succeeds or
//! fails as a whole; a caller that joins the calls of many others uses [`Store::apply`] and answers each.

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
    /// The name of the shard.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        &self.identity().name
    }

    /// Whether other servers may use the shard too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.identity().is_shared
    }

    /// Durability of writes, as last observed.
    #[must_use]
    pub fn write_durability(&self) -> WriteDurability {
        self.status().borrow().write_durability()
    }

    /// Writes jobs; each answer says what was found and made, and what that has reached: less than a job asks for where
    /// it is not confirmed in time, which undoes nothing.
    pub fn enqueue<'a>(&'a self, jobs: Vec<NewJob>) -> StoreFuture<'a, Vec<WriteResult>>
    where
        's: 'a,
    {
        self.apply_all(jobs, |applied| applied.into_write_result())
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

    /// Moves deadlines of running leases; of one that lapsed while its shard was away, only if that is still the one.
    pub fn extend<'a>(&'a self, items: Vec<LeaseExtension>) -> StoreFuture<'a, LeaseResults<Time>>
    where
        's: 'a,
    {
        self.apply_all(items, |applied| applied.extend_result())
    }

    /// Lets leases outlive their streams, if these answer for them still, and answers of how many that was so.
    pub fn detach<'a>(&'a self, leases: Vec<StreamLeaseRef>) -> StoreFuture<'a, u64>
    where
        's: 'a,
    {
        Box::pin(async move {
            let detached = self.apply_all(leases, |applied| applied.is_done()).await?;
            Ok(detached.into_iter().filter(|&is_done| is_done).count() as u64)
        })
    }

    /// Ties leases to another stream, and answers of each whether it did: not if the lease has ended, if another stream
    /// than the one named answers for it, or if it is neither detached nor extended as is asked for. A repeat changes
    /// nothing and answers the same. The replica whose stream it came from is notified by
    /// [`LeaseEvent::Adopted`](super::Hint::Adopted).
    pub fn adopt<'a>(&'a self, adopt: AdoptBatch) -> StoreFuture<'a, Vec<bool>>
    where
        's: 'a,
    {
        let requests: Vec<JobRequest> = adopt.into();
        self.apply_all(requests, |applied| applied.is_done())
    }

    /// Cancels waiting and running jobs, forgets finished ones. Nothing for a job that is not there, or that is not the
    /// one that is meant.
    pub fn delete<'a>(&'a self, items: Vec<JobDeletion>) -> StoreFuture<'a, Vec<Option<Deleted>>>
    where
        's: 'a,
    {
        self.apply_all(items, RequestResult::into_delete_result)
    }

    /// Moves waiting and dead jobs; the job after it, or the state that refuses it.
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

    /// Puts terminal jobs back with fresh counters; at most
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

    /// Undoes leases that no worker received: back to the old place, nothing counted. The leases of a lost claim are
    /// searched among all that run, at most [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) or so in one call;
    /// the first of these calls only gives the claim up, so that it takes nothing if it arrives later.
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

    /// Reads leases that carry a grace and belong to streams of other replicas than these.
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

    /// Reads these running leases, or why there is no such lease.
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

/// The answers of a call as a whole.
///
/// # Errors
/// When a command failed, as the one that says most about the shard; others of the call may be applied then. Where the
/// shard failed between them that is [`Error::Unknown`].
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

/// How many were done of those that ask for no more. What is wrong with some jobs alone leaves these as they are.
///
/// # Errors
/// When the shard failed, or some failed and none was done.
fn count_done(applied: Vec<Result<RequestResult>>) -> Result<u64> {
    let done = applied.iter().flatten().filter(|applied| applied.is_done()).count() as u64;
    match worst_error(&applied) {
        Some(error) if done == 0 || error.is_shard_failure() => {
            all_or_worst_error(applied).map(|_| done)
        }
        Some(error) => {
            tracing::warn!(%error, "some jobs of a call are left as they are");
            Ok(done)
        }
        None => Ok(done),
    }
}

/// The failure that says most about a shard: that nobody knows, then that it does not answer, then any other.
pub(crate) fn worst_error<T>(results: &[Result<T>]) -> Option<&Error> {
    let rank = |error: &&Error| (!error.outcome_unknown(), !error.is_shard_failure());
    results.iter().filter_map(|result| result.as_ref().err()).min_by_key(rank)
}
