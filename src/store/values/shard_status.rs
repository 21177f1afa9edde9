//! A shard about itself: what it can do, what it holds, what keeps it from working.

use std::fmt;

use crate::domain::ring::ShardState;
use crate::domain::{Durability, ShardName, Time};

/// Which shard a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIdentity {
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
pub struct ShardStatus {
    /// What keeps the shard from working.
    pub problem: Option<ShardProblem>,
    /// Durability of writes; `None`: not known yet, and nothing is promised.
    pub write_durability: Option<WriteDurability>,
    /// Whether jobs do not outlive the process or the machine that holds them: there is no file.
    pub is_volatile: bool,
}

/// What keeps a shard from working. Each text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardProblem {
    /// Not reached since the server started; connecting is retried.
    NeverConnected(String),
    /// Misconfigured, and out of use until that is fixed.
    Misconfigured(String),
    /// New jobs would not be safe and are refused; the jobs on it are delivered and settled.
    RejectsEnqueues(String),
}

/// How safe a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteDurability {
    /// Every write, when it is answered.
    pub by_default: Durability,
    /// One that asks for it: at least `plain`.
    pub max: Durability,
}

/// A shard about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// `sqlite` or `redis`.
    pub kind: &'static str,
    /// Whether it takes new jobs; `None` until somebody said so.
    pub state: Option<ShardState>,
    /// Records.
    pub jobs: u64,
    /// The records by what they are.
    pub counts: RecordCounts,
    /// Bytes that it takes, on disk or in memory.
    pub bytes: u64,
}

/// What lies on a shard, and how long it stays if nobody works on it. Records are counted as they lie there:
/// what is past its time counts until it is pruned, so that a shard that cannot be written tells it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
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

impl ShardStatus {
    /// Of a shard that works.
    #[must_use]
    pub fn healthy(reach: WriteDurability) -> ShardStatus {
        ShardStatus { write_durability: Some(reach), ..ShardStatus::default() }
    }

    /// Whether the shard cannot be used at all.
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(
            self.problem,
            Some(ShardProblem::NeverConnected(_) | ShardProblem::Misconfigured(_))
        )
    }

    /// Durability of writes, as far as it is known.
    #[must_use]
    pub fn write_durability(&self) -> WriteDurability {
        self.write_durability.unwrap_or(WriteDurability::MEMORY)
    }
}

// === impl Reach ===

impl WriteDurability {
    /// Nothing but memory, whatever is asked.
    pub const MEMORY: WriteDurability =
        WriteDurability { by_default: Durability::Memory, max: Durability::Memory };
}

impl fmt::Display for WriteDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WriteDurability { by_default: plain, max: most } = self;
        match plain == most {
            true => plain.fmt(f),
            false => write!(f, "{plain}, {most} when asked for"),
        }
    }
}

// === impl Content ===

impl RecordCounts {
    /// All records.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.scheduled + self.ready + self.running + self.backoff + self.dead + self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_durability_prints_contract_names() {
        let told = |plain, most| WriteDurability { by_default: plain, max: most }.to_string();
        assert_eq!(told(Durability::Fsynced, Durability::Fsynced), "FSYNCED");
        let told = told(Durability::Memory, Durability::Replicated);
        assert_eq!(told, "MEMORY, REPLICATED when asked for");
    }
}
