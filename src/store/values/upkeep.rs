//! What a look at deadlines finds.

use crate::domain::{Away, Time, TopicName};

use super::Lease;

/// Expired leases.
#[derive(Clone, Debug, Default)]
pub struct Reaped {
    /// The store's time of the look.
    pub now: Time,
    /// At most as many as asked for.
    pub leases: Vec<Lease>,
    /// When the next deadline passes that is not among them; now or earlier: there are more.
    pub next: Option<Time>,
    /// When no server served the shard last.
    pub away: Option<Away>,
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
