//! What is looked for among leases, and what is done to jobs and topics whose time has passed.

use std::sync::Arc;

use crate::domain::engine::{LeaseRefusal, Record};
use crate::domain::{ShardOutage, StreamId, Time, TopicName};

use super::{LeaseRef, RunningLease};

/// Which running leases to read.
#[derive(Clone, Debug)]
pub enum LeaseQuery {
    /// At most `limit` of those whose deadline has passed. Also answers when the next one passes, and when no server
    /// served the shard: while nobody had called [`Store::beat`](crate::store::Store::beat) for
    /// [`AWAY_MIN`](crate::domain::limit::AWAY_MIN), and, where no other server can serve it, before it was opened.
    Overdue {
        /// How many.
        limit: usize,
    },
    /// Those that carry a grace and belong to streams of other replicas than these.
    Orphaned {
        /// Nonces of replicas.
        live_owners: Vec<u32>,
    },
    /// Those that these streams answer for, or did when they were detached.
    OfStreams(Vec<StreamId>),
    /// These, if they run.
    ByRef(Vec<LeaseRef>),
    /// Those of one claim, a part of all that run at a time, beside other claims.
    OfLostClaim {
        /// The claim.
        nonce: u32,
        /// The topics that it asked for.
        topics: Arc<[TopicName]>,
        /// Where the last part ended, in the store's own words; empty: the first part.
        cursor: String,
    },
}

/// Leases that were looked for.
#[derive(Clone, Debug, Default)]
pub struct LeaseQueryResult {
    /// The store's time of the look.
    pub now: Time,
    /// The leases.
    pub leases: Vec<RunningLease>,
    /// Of [`LeaseQuery::ByRef`]: those whose job is gone, too; its lease alone is gone where it is in neither list.
    pub missing_jobs: Vec<LeaseRef>,
    /// Of [`LeaseQuery::Overdue`]: when the next deadline passes that is not among them; now or earlier: there are more.
    pub next_deadline: Option<Time>,
    /// Of [`LeaseQuery::Overdue`]: when no server served the shard last.
    pub outage: Option<ShardOutage>,
    /// Of [`LeaseQuery::OfLostClaim`]: where the next part begins; `None` at the end.
    pub cursor: Option<String>,
}

// === impl Selected ===

impl LeaseQueryResult {
    /// Of [`LeaseQuery::ByRef`]: adds what was found of a lease in the record of its job, if there is one.
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
}

/// What a prune did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneResult {
    /// The store's time of it.
    pub now: Time,
    /// Jobs expired or forgotten.
    pub pruned: u64,
    /// When there is more to do.
    pub next_due: Option<Time>,
}

/// What a look for empty topics did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneTopicsResult {
    /// Topics that were forgotten.
    pub forgotten: Vec<TopicName>,
    /// The last topic that was looked at; `None` at the end.
    pub last_topic: Option<TopicName>,
}
