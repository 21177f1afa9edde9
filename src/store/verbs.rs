//! The verbs of a store by name: what most callers want of [`Store::apply`] and [`Store::select`]. Here each call succeeds or
//! fails as a whole; a caller that joins the calls of many others uses [`Store::apply`] and answers each.

use foldhash::{HashMap, HashSet};

use crate::domain::{ShardName, StreamId, Time};

use super::{
    Adopt, Applied, Delete, Deleted, Enqueue, Error, Extend, Lease, LeaseRef, LostClaim, NewJob,
    Reach, Redrive, Redriven, Refused, Reply, Request, Reschedule, Rescheduled, Result, Select,
    Selected, Settle, Settled, Store, Tied, Unclaim, Undone,
};

type Answers<T> = Vec<std::result::Result<T, Refused>>;

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
    pub fn reach(&self) -> Reach {
        self.condition().borrow().reach()
    }

    /// Writes jobs; each answer says what was found and made, and what that has reached: less than a job asks for where
    /// it is not confirmed in time, which undoes nothing.
    pub fn enqueue<'a>(&'a self, jobs: Vec<NewJob>) -> Reply<'a, Vec<Enqueue>>
    where
        's: 'a,
    {
        self.all(jobs, |applied| applied.enqueued())
    }

    /// Ends leases.
    pub fn settle<'a>(&'a self, items: Vec<Settle>) -> Reply<'a, Answers<Settled>>
    where
        's: 'a,
    {
        self.all(items, |applied| applied.settled())
    }

    /// Moves deadlines of running leases; of one that lapsed while its shard was away, only if that is still the one.
    pub fn extend<'a>(&'a self, items: Vec<Extend>) -> Reply<'a, Answers<Time>>
    where
        's: 'a,
    {
        self.all(items, |applied| applied.extended())
    }

    /// Lets leases outlive their streams, if these answer for them still, and answers of how many that was so.
    pub fn detach<'a>(&'a self, leases: Vec<Tied>) -> Reply<'a, u64>
    where
        's: 'a,
    {
        Box::pin(async move {
            let detached = self.all(leases, |applied| applied.is_done()).await?;
            Ok(detached.into_iter().filter(|&is_done| is_done).count() as u64)
        })
    }

    /// Ties leases to another stream, and answers of each whether it did: not if the lease has ended, if another stream
    /// than the one named answers for it, or if it is neither detached nor extended as is asked for. A repeat changes
    /// nothing and answers the same. The replica whose stream it came from is notified by
    /// [`Hint::Adopted`](super::Hint::Adopted).
    pub fn adopt<'a>(&'a self, adopt: Adopt) -> Reply<'a, Vec<bool>>
    where
        's: 'a,
    {
        let requests: Vec<Request> = adopt.into();
        self.all(requests, |applied| applied.is_done())
    }

    /// Cancels waiting and running jobs, forgets finished ones. Nothing for a job that is not there, or that is not the
    /// one that is meant.
    pub fn delete<'a>(&'a self, items: Vec<Delete>) -> Reply<'a, Vec<Option<Deleted>>>
    where
        's: 'a,
    {
        self.all(items, Applied::deleted)
    }

    /// Moves waiting and dead jobs; the job after it, or the state that refuses it.
    pub fn reschedule<'a>(&'a self, items: Vec<Reschedule>) -> Reply<'a, Vec<Rescheduled>>
    where
        's: 'a,
    {
        Box::pin(async move {
            let keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
            let moved = self.all(items, |applied| applied).await?;
            let shard = self.name();
            let moved = keys.into_iter().zip(moved);
            Ok(moved.map(|(key, applied)| applied.rescheduled(key, shard.clone())).collect())
        })
    }

    /// Puts terminal jobs back with fresh counters; at most
    /// [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) a call.
    pub fn redrive<'a>(&'a self, redrive: Redrive) -> Reply<'a, Redriven>
    where
        's: 'a,
    {
        Box::pin(async move {
            let redriven = done(self.apply(redrive.requests()).await)?;
            Ok(Redriven { redriven, skipped: redrive.ids.len() as u64 - redriven })
        })
    }

    /// Undoes leases that no worker received: back to the old place, nothing counted. The leases of a lost claim are
    /// searched among all that run, at most [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) or so in one call;
    /// the first of these calls only gives the claim up, so that it takes nothing if it arrives later.
    pub fn unclaim<'a>(&'a self, what: Unclaim) -> Reply<'a, Undone>
    where
        's: 'a,
    {
        Box::pin(async move {
            let (refs, next) = match what {
                Unclaim::Leases(refs) => (refs, None),
                Unclaim::Claim(LostClaim { nonce, topics, from: None }) => {
                    self.void(nonce).await?;
                    let next = (!topics.is_empty()).then(String::new);
                    return Ok(Undone { leases: 0, next });
                }
                Unclaim::Claim(LostClaim { nonce, topics, from: Some(from) }) => {
                    let found = self.select(Select::OfClaim { nonce, topics, from }).await?;
                    (found.leases.into_iter().map(|lease| lease.tied().lease).collect(), found.rest)
                }
            };
            let leases = done(self.apply(refs.into_iter().map(Into::into).collect()).await)?;
            Ok(Undone { leases, next })
        })
    }

    /// Reads leases whose deadline has passed, see [`Select::Overdue`].
    pub fn reap<'a>(&'a self, limit: usize) -> Reply<'a, Selected>
    where
        's: 'a,
    {
        self.select(Select::Overdue { limit })
    }

    /// Reads leases that carry a grace and belong to streams of other replicas than these.
    pub fn orphans<'a>(&'a self, living: Vec<u32>) -> Reply<'a, Vec<Lease>>
    where
        's: 'a,
    {
        Box::pin(async move { Ok(self.select(Select::Orphans { living }).await?.leases) })
    }

    /// Reads the leases that these streams answer for, or did when they were detached.
    pub fn leases_of<'a>(&'a self, streams: Vec<StreamId>) -> Reply<'a, Vec<Lease>>
    where
        's: 'a,
    {
        Box::pin(async move { Ok(self.select(Select::OfStreams(streams)).await?.leases) })
    }

    /// Reads these running leases, or why there is no such lease.
    pub fn leases<'a>(&'a self, refs: Vec<LeaseRef>) -> Reply<'a, Answers<Lease>>
    where
        's: 'a,
    {
        Box::pin(async move {
            let found = self.select(Select::Named(refs.clone())).await?;
            let leases = found.leases.into_iter().map(|lease| (lease.tied().lease, lease));
            let leases: HashMap<LeaseRef, Lease> = leases.collect();
            let gone: HashSet<LeaseRef> = found.gone.into_iter().collect();
            let answer = |lease: &LeaseRef| match leases.get(lease) {
                Some(lease) => Ok(lease.clone()),
                None if gone.contains(lease) => Err(Refused::NotFound),
                None => Err(Refused::Stale),
            };
            Ok(refs.iter().map(answer).collect())
        })
    }

    fn all<'a, I, T>(
        &'a self,
        items: Vec<I>,
        answer: impl Fn(Applied) -> T + Send + Sync + 'a,
    ) -> Reply<'a, Vec<T>>
    where
        's: 'a,
        I: Into<Request> + Send + 'a,
        T: Send + 'a,
    {
        Box::pin(async move {
            let applied = self.apply(items.into_iter().map(Into::into).collect()).await;
            Ok(whole(applied)?.into_iter().map(answer).collect())
        })
    }
}

/// The answers of a call as a whole.
///
/// # Errors
/// When a command failed, as the one that says most about the shard; others of the call may be applied then. Where the
/// shard failed between them that is [`Error::Unknown`].
pub fn whole<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let Some(error) = worst(&results).cloned() else {
        return Ok(results.into_iter().flatten().collect());
    };
    let is_applied = results.iter().any(Result::is_ok);
    Err(match error {
        Error::Unknown(_) => error,
        error if is_applied && error.is_of_shard() => {
            Error::Unknown(format!("a part of the call was applied: {error}"))
        }
        error => error,
    })
}

/// How many were done of those that ask for no more. What is wrong with some jobs alone leaves these as they are.
///
/// # Errors
/// When the shard failed, or some failed and none was done.
fn done(applied: Vec<Result<Applied>>) -> Result<u64> {
    let done = applied.iter().flatten().filter(|applied| applied.is_done()).count() as u64;
    match worst(&applied) {
        Some(error) if done == 0 || error.is_of_shard() => whole(applied).map(|_| done),
        Some(error) => {
            tracing::warn!(%error, "some jobs of a call are left as they are");
            Ok(done)
        }
        None => Ok(done),
    }
}

/// The failure that says most about a shard: that nobody knows, then that it does not answer, then any other.
pub(crate) fn worst<T>(results: &[Result<T>]) -> Option<&Error> {
    let rank = |error: &&Error| (!error.outcome_unknown(), !error.is_of_shard());
    results.iter().filter_map(|result| result.as_ref().err()).min_by_key(rank)
}
