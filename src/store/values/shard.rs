//! A shard about itself: what it can do, what it holds, what keeps it from working.

use std::fmt;

use crate::domain::ring::ShardState;
use crate::domain::{Durability, Time};

/// What keeps a shard from working, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was not reached yet, or must not be used as it is.
    Down(String),
    /// Jobs would not be safe on it: it takes no new ones, and goes on with those that it has.
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

// === impl Reach ===

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
