//! Queries and statistics of jobs and topics.

use std::time::Duration;

use crate::domain::{GroupName, Job, JobId, State, Time, TopicName};

/// Query for a page of jobs.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Topic of the jobs.
    pub topic: TopicName,
    /// State of the jobs.
    pub state: State,
    /// Group of the jobs; `Some(None)`: those without one. `None`: all jobs. Only SCHEDULED, READY and BACKOFF jobs are
    /// found by it; in other states all jobs are listed.
    pub group: Option<Option<GroupName>>,
    /// Includes payload, result and attempts.
    pub full: bool,
    /// Maximum number of jobs.
    pub limit: usize,
    /// End of the last page.
    pub after: Option<ListCursor>,
}

/// A position in a list: behind the job with this due time and sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListCursor {
    /// The job's due time.
    pub due: Time,
    /// Its sequence on the shard.
    pub sequence: i64,
}

/// A page of jobs.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The store's time of the read.
    pub now: Time,
    /// The jobs, in the order of due times.
    pub jobs: Vec<ListEntry>,
    /// Position of the next page; `None` at the end.
    pub next: Option<ListCursor>,
}

/// A job of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListEntry {
    /// The job.
    pub job: Job,
    /// The position behind the job: a page may end here, too.
    pub cursor: ListCursor,
}

/// A part of the ids of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdsPage {
    /// The ids, unordered.
    pub ids: Vec<JobId>,
    /// Position of the next part, in a format of the store; `None` at the end.
    pub cursor: Option<String>,
}

/// A topic of the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Name of the topic.
    pub name: TopicName,
    /// Time at which the topic was created.
    pub create_time: Time,
}

/// Parts of [`ShardTopicStats`] that are not read by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsOptions {
    /// Time from now within which jobs of [`ShardTopicStats::due_soon`] are due.
    pub due_within: Duration,
    /// Reads [`ShardTopicStats::stored_bytes`], which takes far longer than all the rest.
    pub stored_bytes: bool,
    /// Counts the kept records: [`ShardTopicStats::succeeded`], `cancelled` and `expired`.
    pub kept: bool,
}

/// Statistics of a topic on one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardTopicStats {
    /// Time at which the topic was created.
    pub create_time: Time,
    /// Jobs whose due time is ahead and that never failed.
    pub scheduled: u64,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Leased jobs.
    pub running: u64,
    /// Failed jobs whose next attempt is ahead.
    pub backoff: u64,
    /// Jobs of `scheduled` and `backoff` that are due within the time that the caller asked for.
    pub due_soon: u64,
    /// Dead letters.
    pub dead: u64,
    /// Kept records and tombstones of jobs that succeeded. 0 unless [`StatsOptions::kept`] asks for it, like the two
    /// below.
    pub succeeded: u64,
    /// Kept records and tombstones of cancelled jobs.
    pub cancelled: u64,
    /// Kept records and tombstones of expired jobs.
    pub expired: u64,
    /// Age of the job that has been ready longest.
    pub oldest_ready: Option<Duration>,
    /// Jobs written since the topic exists.
    pub enqueued_total: u64,
    /// Jobs acknowledged since the topic exists.
    pub succeeded_total: u64,
    /// Jobs that died since the topic exists.
    pub dead_total: u64,
    /// Bytes that the topic takes in the store, its finished jobs included, about. `None`: not asked for, or the store
    /// may not read it.
    pub stored_bytes: Option<u64>,
}

// === impl StatsOptions ===

impl StatsOptions {
    /// Returns the options that count jobs which are due within this time.
    #[must_use]
    pub fn due_within(due_within: Duration) -> StatsOptions {
        StatsOptions { due_within, ..StatsOptions::default() }
    }
}
