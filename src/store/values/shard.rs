//! A shard about itself: what it can do, what it holds, what keeps it from working.

use std::fmt;

use crate::domain::ring::ShardState;
use crate::domain::{Durability, ShardName, Time};

/// Which shard a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the shard, as written on it.
    pub name: ShardName,
    /// Address without credentials.
    pub address: String,
    /// Whether other servers may use the shard too. A server learns of their changes by hints, and hints can be lost:
    /// it has to poll as well.
    pub is_shared: bool,
}

/// What a store knows of the state of its shard without asking it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// What keeps the shard from working.
    pub trouble: Option<Trouble>,
    /// Durability of writes; `None`: not known yet, and nothing is promised.
    pub reach: Option<Reach>,
    /// Whether jobs do not outlive the process or the machine that holds them: there is no file.
    pub is_volatile: bool,
}

/// What keeps a shard from working. Each text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Not reached since the server started; connecting is retried.
    Unreached(String),
    /// Misconfigured, and out of use until that is fixed.
    Unusable(String),
    /// New jobs would not be safe and are refused; the jobs on it are delivered and settled.
    NoJobs(String),
}

/// How safe a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Every write, when it is answered.
    pub plain: Durability,
    /// One that asks for it: at least `plain`.
    pub most: Durability,
}

/// A shard about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// `sqlite` or `redis`.
    pub kind: &'static str,
    /// Whether it takes new jobs; `None` until somebody said so.
    pub state: Option<ShardState>,
    /// Records.
    pub jobs: u64,
    /// The records by what they are.
    pub content: Content,
    /// Bytes that it takes, on disk or in memory.
    pub bytes: u64,
}

/// What lies on a shard, and how long it stays if nobody works on it. Records are counted as they lie there:
/// what is past its time counts until it is pruned, so that a shard that cannot be written tells it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Jobs whose due time is ahead and that never failed.
    pub scheduled: u64,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Leased jobs.
    pub running: u64,
    /// Failed jobs whose next attempt is ahead.
    pub backoff: u64,
    /// Dead letters.
    pub dead: u64,
    /// Other finished jobs whose record is kept.
    pub finished: u64,
    /// The latest due time that is ahead.
    pub latest_due: Option<Time>,
    /// When the last dead or finished job is forgotten; a little later than that where looking closer
    /// would be work without bounds.
    pub latest_forget: Option<Time>,
}

// === impl Condition ===

impl Condition {
    /// Of a shard that works.
    #[must_use]
    pub fn good(reach: Reach) -> Condition {
        Condition { reach: Some(reach), ..Condition::default() }
    }

    /// Whether the shard cannot be used at all.
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(self.trouble, Some(Trouble::Unreached(_) | Trouble::Unusable(_)))
    }

    /// Durability of writes, as far as it is known.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach.unwrap_or(Reach::MEMORY)
    }
}

// === impl Reach ===

impl Reach {
    /// Nothing but memory, whatever is asked.
    pub const MEMORY: Reach = Reach { plain: Durability::Memory, most: Durability::Memory };
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reach { plain, most } = self;
        match plain == most {
            true => plain.fmt(f),
            false => write!(f, "{plain}, {most} when asked for"),
        }
    }
}

// === impl Content ===

impl Content {
    /// All records.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.scheduled + self.ready + self.running + self.backoff + self.dead + self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_is_told_in_the_words_of_the_contract() {
        let told = |plain, most| Reach { plain, most }.to_string();
        assert_eq!(told(Durability::Fsynced, Durability::Fsynced), "FSYNCED");
        let told = told(Durability::Memory, Durability::Replicated);
        assert_eq!(told, "MEMORY, REPLICATED when asked for");
    }
}
