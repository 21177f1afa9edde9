//! Queries of leases, and results of the pruning of jobs and topics.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use crate::domain::engine::{LeaseRefusal, Record};
use crate::domain::{ShardOutage, StreamId, Time, TopicName};

use super::{LeaseRef, RunningLease};

/// The running leases to read.
#[derive(Clone, Debug)]
pub enum LeaseQuery {
    /// Overdue leases: at most `limit` whose deadline has passed. The result also contains the next deadline, and the
    /// last time in which no server served the shard: no call of [`Store::heartbeat`](crate::store::Store::heartbeat)
    /// for [`OUTAGE_MIN`](crate::domain::limit::OUTAGE_MIN), or, if no other server can serve it, the time before it was
    /// opened.
    Overdue {
        /// Maximum number of leases.
        limit: usize,
    },
    /// Leases with a grace that belong to streams of other replicas than these.
    Orphaned {
        /// Nonces of the live replicas.
        live_owners: Vec<u32>,
    },
    /// Leases that these streams answer for, or did when they were detached.
    OfStreams(Vec<StreamId>),
    /// The listed leases, if they run.
    ByRef(Vec<LeaseRef>),
    /// Leases of one claim. Each call reads a part of all running leases; other claims run in between.
    OfLostClaim {
        /// Nonce of the claim.
        nonce: u32,
        /// The topics of the claim.
        topics: Arc<[TopicName]>,
        /// End of the last part, in a format of the store; empty: the first part.
        cursor: String,
    },
}

/// Result of a lease query.
#[derive(Clone, Debug, Default)]
pub struct LeaseQueryResult {
    /// The store's time of the read.
    pub now: Time,
    /// The leases.
    pub leases: Vec<RunningLease>,
    /// For [`LeaseQuery::ByRef`]: leases whose job is gone. A lease in neither list has ended, but its job exists.
    pub missing_jobs: Vec<LeaseRef>,
    /// For [`LeaseQuery::Overdue`]: next deadline that is not among the leases; now or earlier: there are more.
    pub next_deadline: Option<Time>,
    /// For [`LeaseQuery::Overdue`]: the last time in which no server served the shard.
    pub outage: Option<ShardOutage>,
    /// For [`LeaseQuery::OfLostClaim`]: position of the next part; `None` at the end.
    pub cursor: Option<String>,
}

// === impl LeaseQueryResult ===

impl LeaseQueryResult {
    /// Adds one lease of [`LeaseQuery::ByRef`], looked up in the record of its job, if there is one.
    pub fn add_by_ref(&mut self, lease: &LeaseRef, record: Option<&Record>) {
        let held = record.filter(|record| record.lease_of(lease.token).is_some());
        match held.and_then(|record| RunningLease::from_record(lease.key.clone(), record, self.now))
        {
            Some(lease) => self.leases.push(lease),
            None if LeaseRefusal::classify(record, self.now) == LeaseRefusal::NotFound => {
                self.missing_jobs.push(lease.clone());
            }
            None => {}
        }
    }

    /// Returns the leases of [`LeaseQuery::ByRef`] in the order of these references; the error is the reason why there is no
    /// such lease.
    #[must_use]
    pub fn into_results(self, refs: &[LeaseRef]) -> Vec<Result<RunningLease, LeaseRefusal>> {
        let leases = self.leases.into_iter().map(|lease| (lease.lease_ref(), lease));
        let leases: HashMap<LeaseRef, RunningLease> = leases.collect();
        let gone: HashSet<LeaseRef> = self.missing_jobs.into_iter().collect();
        let result = |lease: &LeaseRef| match leases.get(lease) {
            Some(lease) => Ok(lease.clone()),
            None if gone.contains(lease) => Err(LeaseRefusal::NotFound),
            None => Err(LeaseRefusal::Stale),
        };
        refs.iter().map(result).collect()
    }
}

/// Result of a prune.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneResult {
    /// The store's time of the prune.
    pub now: Time,
    /// Number of jobs expired or deleted.
    pub pruned: u64,
    /// Time at which more is to be pruned.
    pub next_due: Option<Time>,
}

/// Result of a prune of empty topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneTopicsResult {
    /// Topics that were deleted.
    pub forgotten: Vec<TopicName>,
    /// The last topic that was checked; `None` at the end.
    pub last_topic: Option<TopicName>,
}
