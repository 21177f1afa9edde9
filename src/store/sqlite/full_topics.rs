//! Full topics: the number of their waiting jobs, and the jobs that have to leave.

use rusqlite::params;

use crate::domain::{JobId, TopicName, limit};

use super::error_mapping::SqliteResult;
use super::job_row::{RANKS, rank_of};
use super::statement::statement;
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("full_topics.sql");
const COUNT: &str = statement(FILE, "count");
const OLDEST: &str = statement(FILE, "oldest");

/// The topic, the number of jobs to make room for, and the number of waiting jobs that it may have.
pub(super) struct EvictQuery {
    pub(super) topic: TopicName,
    pub(super) jobs: usize,
    pub(super) max_waiting: u64,
}

/// [`Store::oldest_waiting`](crate::store::Store::oldest_waiting). The writer runs it, because it has the count.
pub(super) fn oldest_waiting(
    session: &mut WriteTransaction<'_>,
    query: &EvictQuery,
) -> SqliteResult<Vec<JobId>> {
    let excess = session.waiting_count(&query.topic)? + query.jobs as u64;
    let excess = usize::try_from(excess.saturating_sub(query.max_waiting)).unwrap_or(usize::MAX);
    let (wanted, mut found) = (excess.min(query.jobs), Vec::new());
    let Some(topic) = session.topic(&query.topic)? else { return Ok(found) };
    let mut oldest = session.prepare(OLDEST)?;
    for priority in 0..=limit::PRIORITY_MAX {
        let (rank, mut level) = (rank_of(priority), Vec::new());
        for rank in [rank, rank + RANKS] {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let rows = oldest.query_map(params![topic, rank, wanted - found.len()], read)?;
            level.extend(rows.collect::<rusqlite::Result<Vec<(i64, i64, String)>>>()?);
        }
        level.sort_unstable();
        level.truncate(wanted - found.len());
        found.extend(level.iter().map(|(_, _, id)| JobId::stored(id)));
        if found.len() == wanted {
            break;
        }
    }
    Ok(found)
}

// === impl WriteTransaction ===

impl WriteTransaction<'_> {
    /// Returns the number of waiting jobs of a topic; jobs that have expired count until they are pruned.
    pub(super) fn waiting_count(&mut self, name: &TopicName) -> SqliteResult<u64> {
        let known = self.waiting_counts().get(name);
        let count = match (known, self.topic(name)?) {
            (Some(count), _) => count,
            (None, None) => return Ok(0),
            (None, Some(topic)) => {
                let count: i64 =
                    self.prepare(COUNT)?.query_one(params![topic], |row| row.get(0))?;
                self.waiting_counts().keep(name, count);
                count
            }
        };
        Ok(u64::try_from(count).unwrap_or(0))
    }
}
