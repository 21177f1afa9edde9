//! What is looked for among leases, and what is done to jobs and topics whose time has passed.

use std::sync::Arc;

use crate::domain::engine::{Record, Refused};
use crate::domain::{Away, StreamId, Time, TopicName};

use super::{Lease, LeaseRef};

/// Which running leases to read.
#[derive(Clone, Debug)]
pub enum Select {
    /// At most `limit` of those whose deadline has passed. Also answers when the next one passes, and when no server
    /// served the shard: while nobody had called [`Store::beat`](crate::store::Store::beat) for
    /// [`AWAY_MIN`](crate::domain::limit::AWAY_MIN), and, where no other server can serve it, before it was opened.
    Overdue {
        /// How many.
        limit: usize,
    },
    /// Those that carry a grace and belong to streams of other replicas than these.
    Orphans {
        /// Nonces of replicas.
        living: Vec<u32>,
    },
    /// Those that these streams answer for, or did when they were detached.
    OfStreams(Vec<StreamId>),
    /// These, if they run.
    Named(Vec<LeaseRef>),
    /// Those of one claim, a part of all that run at a time, beside other claims.
    OfClaim {
        /// The claim.
        nonce: u32,
        /// The topics that it asked for.
        topics: Arc<[TopicName]>,
        /// Where the last part ended, in the store's own words; empty: the first part.
        from: String,
    },
}

/// Leases that were looked for.
#[derive(Clone, Debug, Default)]
pub struct Selected {
    /// The store's time of the look.
    pub now: Time,
    /// The leases.
    pub leases: Vec<Lease>,
    /// Of [`Select::Named`]: those whose job is gone, too; its lease alone is gone where it is in neither list.
    pub gone: Vec<LeaseRef>,
    /// Of [`Select::Overdue`]: when the next deadline passes that is not among them; now or earlier: there are more.
    pub next: Option<Time>,
    /// Of [`Select::Overdue`]: when no server served the shard last.
    pub away: Option<Away>,
    /// Of [`Select::OfClaim`]: where the next part begins; `None` at the end.
    pub rest: Option<String>,
}

// === impl Selected ===

impl Selected {
    /// Of [`Select::Named`]: adds what was found of a lease in the record of its job, if there is one.
    pub fn add(&mut self, lease: &LeaseRef, record: Option<&Record>) {
        let held = record.filter(|record| record.lease_of(lease.token).is_some());
        match held.and_then(|record| Lease::of(lease.key.clone(), record, self.now)) {
            Some(lease) => self.leases.push(lease),
            None if Refused::of(record, self.now) == Refused::NotFound => {
                self.gone.push(lease.clone());
            }
            None => {}
        }
    }
}

/// What a prune did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The store's time of it.
    pub now: Time,
    /// Jobs expired or forgotten.
    pub pruned: u64,
    /// When there is more to do.
    pub next: Option<Time>,
}

/// What a look for empty topics did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Topics that were forgotten.
    pub forgotten: Vec<TopicName>,
    /// The last topic that was looked at; `None` at the end.
    pub next: Option<TopicName>,
}
