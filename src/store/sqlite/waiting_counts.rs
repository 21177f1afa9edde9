//! Numbers of waiting jobs of the topics that have a limit of them. They are kept in memory, because counting reads the
//! whole topic: each is read once, and adjusted by every write after that. A topic without a limit has no number here.

use std::collections::HashMap;

use rusqlite::params;

use crate::domain::TopicName;

use super::error_mapping::SqliteResult;
use super::statement::statement;
use super::transaction::WriteTransaction;

const WAITING: &str = statement(include_str!("topics.sql"), "count_waiting");

/// Numbers of waiting jobs by topic.
#[derive(Default)]
pub(super) struct WaitingCounts(HashMap<TopicName, i64>);

// === impl WaitingCounts ===

impl WaitingCounts {
    /// Adds to the number of a topic, if it is kept.
    pub(super) fn add(&mut self, topic: &TopicName, jobs: i64) {
        // Most servers have no such topic, and this is on the path of every job.
        if !self.0.is_empty()
            && let Some(count) = self.0.get_mut(topic)
        {
            *count += jobs;
        }
    }

    /// Forgets the number of a topic.
    pub(super) fn forget(&mut self, topic: &TopicName) {
        self.0.remove(topic);
    }

    /// Forgets all numbers: they are read again.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

// === impl WriteTransaction ===

impl WriteTransaction<'_> {
    /// Returns the number of waiting jobs of a topic; jobs that have expired count until they are pruned.
    pub(super) fn waiting_count(&mut self, name: &TopicName) -> SqliteResult<u64> {
        let known = self.waiting_counts().0.get(name).copied();
        let count = match (known, self.topic(name)?) {
            (Some(count), _) => count,
            (None, None) => return Ok(0),
            (None, Some(topic)) => {
                let count: i64 =
                    self.prepare(WAITING)?.query_one(params![topic], |row| row.get(0))?;
                self.waiting_counts().0.insert(name.clone(), count);
                count
            }
        };
        Ok(u64::try_from(count).unwrap_or(0))
    }
}
