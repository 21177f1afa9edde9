//! What is read of jobs and topics.

use std::time::Duration;

use crate::domain::{Job, JobId, State, Time, TopicName};

/// Asks for a page of jobs.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Their topic.
    pub topic: TopicName,
    /// Their state.
    pub state: State,
    /// With payload, result and attempts.
    pub full: bool,
    /// At most so many.
    pub limit: usize,
    /// Where the last page ended.
    pub after: Option<ListCursor>,
}

/// A place in a list: behind the job with this due time and sequence.
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
    /// The store's time of the look.
    pub now: Time,
    /// In the order of due times.
    pub jobs: Vec<ListEntry>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<ListCursor>,
}

/// A job of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListEntry {
    /// The job.
    pub job: Job,
    /// The place behind it: a page may end here, too.
    pub cursor: ListCursor,
}

/// A part of the ids of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdsPage {
    /// In no order.
    pub ids: Vec<JobId>,
    /// Where the next part begins, in the store's own words; `None` at the end.
    pub cursor: Option<String>,
}

/// A topic as the shard knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// When it came to be.
    pub create_time: Time,
}

/// Numbers of a topic on one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardTopicStats {
    /// When the topic came to be.
    pub create_time: Time,
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
    /// Age of the job that has been ready longest.
    pub oldest_ready: Option<Duration>,
    /// Jobs written since the topic exists.
    pub enqueued_total: u64,
    /// Jobs acknowledged since the topic exists.
    pub succeeded_total: u64,
    /// Jobs that died since the topic exists.
    pub dead_total: u64,
}
