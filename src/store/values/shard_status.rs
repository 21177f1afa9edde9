//! Description of a shard: capabilities, content, problems.

use std::fmt;

use crate::domain::ring::ShardState;
use crate::domain::{Durability, ShardName, Time};

/// Identity of the shard of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIdentity {
    /// Name of the shard, as written on it.
    pub name: ShardName,
    /// Address without credentials.
    pub address: String,
    /// Set when other servers may use the shard too. A server receives their changes as hints, and hints can be lost:
    /// it has to poll as well.
    pub is_shared: bool,
}

/// State of a shard as the store has it without a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardStatus {
    /// The problem that keeps the shard from working.
    pub problem: Option<ShardProblem>,
    /// Durability of writes; `None`: not known yet, and nothing is promised.
    pub write_durability: Option<WriteDurability>,
    /// Set when jobs do not outlive the process or the machine that holds them: there is no file.
    pub is_volatile: bool,
}

/// Problem that keeps a shard from working. Each text contains the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardProblem {
    /// The shard was not reached since the server started; connecting is retried.
    NeverConnected(String),
    /// The shard is misconfigured, and out of use until that is fixed.
    Misconfigured(String),
    /// New jobs would not be safe and are refused; the jobs on it are delivered and settled.
    RejectsEnqueues(String),
}

/// Durability of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteDurability {
    /// Durability of every write when it is answered.
    pub by_default: Durability,
    /// Durability of a write that requests it: at least `by_default`.
    pub max: Durability,
}

/// Statistics of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// Kind of the store: `sqlite` or `redis`.
    pub kind: &'static str,
    /// State of the shard: takes new jobs or drains; `None`: never set.
    pub state: Option<ShardState>,
    /// Number of records.
    pub jobs: u64,
    /// Number of records by state.
    pub counts: RecordCounts,
    /// Bytes used, on disk or in memory.
    pub bytes: u64,
}

/// Space that a store uses and has, read cheaply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes used: of a file, pages with content and the log; of a Redis, its memory.
    pub bytes: u64,
    /// Value of `bytes` at which the store is full; `None`: it has no limit of its own.
    pub max_bytes: Option<u64>,
}

/// Records of a shard by state, and how long they stay if no worker takes them. Records count as stored: one past its
/// time counts until it is pruned, so that a shard that accepts no writes reports it too.
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
    /// The latest due time in the future.
    pub latest_due: Option<Time>,
    /// Time at which the last dead or finished job is deleted; a little later where the exact time would take
    /// unbounded work.
    pub latest_forget: Option<Time>,
}

// === impl ShardStatus ===

impl ShardStatus {
    /// Returns the status of a shard that works.
    #[must_use]
    pub fn healthy(reach: WriteDurability) -> ShardStatus {
        ShardStatus { write_durability: Some(reach), ..ShardStatus::default() }
    }

    /// Returns whether the shard cannot be used at all.
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(
            self.problem,
            Some(ShardProblem::NeverConnected(_) | ShardProblem::Misconfigured(_))
        )
    }

    /// Returns the durability of writes, [`WriteDurability::MEMORY`] while it is not known.
    #[must_use]
    pub fn write_durability(&self) -> WriteDurability {
        self.write_durability.unwrap_or(WriteDurability::MEMORY)
    }
}

// === impl WriteDurability ===

impl WriteDurability {
    /// Durability MEMORY, also if more is requested.
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

// === impl RecordCounts ===

impl RecordCounts {
    /// Returns the number of all records.
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
        let text = |plain, most| WriteDurability { by_default: plain, max: most }.to_string();
        assert_eq!(text(Durability::Fsynced, Durability::Fsynced), "FSYNCED");
        let text = text(Durability::Memory, Durability::Replicated);
        assert_eq!(text, "MEMORY, REPLICATED when asked for");
    }
}
