//! Explain: one job, and the number of jobs before it.

use rusqlite::params;

use crate::domain::explain::ReadyBefore;
use crate::domain::{JobKey, PriorityAgeing, State, Time, limit};
use crate::store::ExplainedJob;

use super::error_mapping::SqliteResult;
use super::job_row::{BY_ID, JobRow, stored_rank};
use super::reader::SqliteReader;
use super::statement::statement;

const FILE: &str = include_str!("explain.sql");
const COUNT_BEFORE: &str = statement(FILE, "count_before");
const COUNT_BEFORE_IN_LANE: &str = statement(FILE, "count_before_in_lane");

/// The job to explain.
pub(super) struct ExplainQuery {
    pub(super) key: JobKey,
    /// Ageing of the priorities of its topic.
    pub(super) ageing: Option<PriorityAgeing>,
    /// Most jobs before it that are counted.
    pub(super) limit: u64,
}

/// [`Store::explain`](crate::store::Store::explain).
pub(super) fn explain(
    reader: &SqliteReader<'_>,
    query: &ExplainQuery,
) -> SqliteResult<Option<ExplainedJob>> {
    let Some(topic) = reader.topic(&query.key.topic)? else { return Ok(None) };
    let mut by_id = reader.connection.prepare_cached(BY_ID)?;
    let found = JobRow::find(&mut by_id, params![topic, query.key.id.as_str()])?;
    let Some(row) = found else { return Ok(None) };
    let before = match row.record.state(reader.now) {
        Some(State::Ready) => count_before(reader, &row, query)?,
        _ => ReadyBefore::default(),
    };
    let key = query.key.clone();
    Ok(ExplainedJob::from_record(key, reader.shard, row.record, reader.now, before))
}

/// Counts the ready jobs before one, of its lane if it has a group: those of each other priority that are due early
/// enough, and those before it in its own.
fn count_before(
    reader: &SqliteReader<'_>,
    row: &JobRow,
    query: &ExplainQuery,
) -> SqliteResult<ReadyBefore> {
    let (group, limit) = (row.record.spec.group.as_ref(), query.limit);
    let sql = if group.is_some() { COUNT_BEFORE_IN_LANE } else { COUNT_BEFORE };
    let mut count = reader.connection.prepare_cached(sql)?;
    let mut jobs = 0;
    for other in (0..=limit::PRIORITY_MAX).rev() {
        let (due, key) = match other == row.record.priority {
            true => (row.record.due.at.0, row.key),
            false => match due_bound(reader.now, row, query.ageing, other) {
                Some(bound) => (bound.0, i64::MIN),
                None => continue,
            },
        };
        let rank = stored_rank(other, group);
        let left = limit.saturating_add(1) - jobs;
        let read = |row: &rusqlite::Row<'_>| row.get::<_, u64>(0);
        jobs += match group {
            Some(group) => {
                count.query_row(params![row.topic, rank, due, key, left, group.as_str()], read)?
            }
            None => count.query_row(params![row.topic, rank, due, key, left], read)?,
        };
        if jobs > limit {
            return Ok(ReadyBefore { jobs: limit, has_more: true });
        }
    }
    Ok(ReadyBefore { jobs, has_more: false })
}

/// Returns the due time before which the jobs of another priority come before a ready job; `None`: none does.
fn due_bound(now: Time, row: &JobRow, ageing: Option<PriorityAgeing>, other: u8) -> Option<Time> {
    let (due, own) = (row.record.due.at, row.record.priority);
    let ready = Time(now.0.saturating_add(1));
    match ageing {
        Some(ageing) => Some(ageing.bound(due, own, other).min(ready)),
        None => (other > own).then_some(ready),
    }
}
