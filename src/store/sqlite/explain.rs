//! Explain: one job, and the number of jobs before it.

use rusqlite::params;

use crate::domain::explain::ReadyBefore;
use crate::domain::{JobKey, State};
use crate::store::ExplainedJob;

use super::error_mapping::SqliteResult;
use super::job_row::{BY_ID, JobRow, rank_of};
use super::reader::SqliteReader;
use super::statement::statement;

const FILE: &str = include_str!("explain.sql");
const COUNT_BEFORE: &str = statement(FILE, "count_before");
const COUNT_BEFORE_IN_LANE: &str = statement(FILE, "count_before_in_lane");

/// The job to explain.
pub(super) struct ExplainQuery {
    pub(super) key: JobKey,
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
        Some(State::Ready) => count_before(reader, &row, query.limit)?,
        _ => ReadyBefore::default(),
    };
    let key = query.key.clone();
    Ok(ExplainedJob::from_record(key, reader.shard, row.record, reader.now, before))
}

/// Counts the ready jobs before one, of its lane if it has a group: those of all higher ranks that are due, then those
/// before it in its own.
fn count_before(reader: &SqliteReader<'_>, row: &JobRow, limit: u64) -> SqliteResult<ReadyBefore> {
    let group = row.record.spec.group.as_ref();
    let sql = if group.is_some() { COUNT_BEFORE_IN_LANE } else { COUNT_BEFORE };
    let mut count = reader.connection.prepare_cached(sql)?;
    let (own, mut jobs) = (rank_of(row.record.priority), 0);
    for rank in 0..=own {
        let (due, key) = match rank == own {
            true => (row.record.due.at.0, row.key),
            false => (reader.now.0.saturating_add(1), i64::MIN),
        };
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
