//! Explain: one job, and the number of jobs before it.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::explain::{GroupTurn, ReadyBefore};
use crate::domain::{JobKey, PriorityAgeing, State, Time, limit, turns};
use crate::store::ExplainedJob;

use super::error_mapping::SqliteResult;
use super::job_row::{BY_ID, JobRow, RANKS, stored_rank};
use super::lane_setting::{FIND, LaneSetting};
use super::reader::SqliteReader;
use super::statement::statement;

const FILE: &str = include_str!("explain.sql");
const COUNT_BEFORE: &str = statement(FILE, "count_before");
const COUNT_BEFORE_IN_LANE: &str = statement(FILE, "count_before_in_lane");
const LANE: &str = statement(FILE, "lane");
const LANES_BEFORE: &str = statement(FILE, "lanes_before");
const RUNNING: &str = statement(FILE, "running");
const ANY_READY: &str = statement(FILE, "any_ready");
const TOTALS: &str = statement(include_str!("lanes.sql"), "totals");

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
    let (before, turn) = match row.record.state(reader.now) {
        Some(State::Ready) => {
            (count_before(reader, &row, query)?, count_groups_before(reader, &row, query)?)
        }
        _ => (ReadyBefore::default(), None),
    };
    let key = query.key.clone();
    Ok(ExplainedJob::from_record(key, reader.shard, row.record, reader.now, before, turn))
}

/// Counts the lanes that come before the one of a ready job; `None`: its topic has none, or its own has no turn, because
/// it is paused.
fn count_groups_before(
    reader: &SqliteReader<'_>,
    row: &JobRow,
    query: &ExplainQuery,
) -> SqliteResult<Option<GroupTurn>> {
    let prepare = |sql| reader.connection.prepare_cached(sql);
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
    let totals = prepare(TOTALS)?.query_row([row.topic], read).optional()?;
    let Some((ungrouped_served, grouped)) = totals else { return Ok(None) };
    let name = query.key.topic.as_str();
    let ungrouped = prepare(FIND)?.query_row(params![name, ""], LaneSetting::read).optional()?;
    let ungrouped = ungrouped.unwrap_or_default();
    let limit = query.limit.cast_signed();
    // No more than the limit: of a topic with more running jobs, those without a group come late.
    let running = |most: i64| -> SqliteResult<i64> {
        let most = grouped.saturating_add(most);
        let all: i64 = prepare(RUNNING)?.query_row(params![row.topic, most], |row| row.get(0))?;
        Ok(all.saturating_sub(grouped))
    };
    let score = |running| turns::score(ungrouped_served, running, ungrouped.weight);
    let before = |score: i64, first: i64| -> SqliteResult<i64> {
        let place = params![row.topic, score, first, limit.saturating_add(1)];
        Ok(prepare(LANES_BEFORE)?.query_row(place, |row| row.get(0))?)
    };
    let (running, lanes) = match &row.record.spec.group {
        None if ungrouped.paused => return Ok(None),
        None => {
            let running = running(limit)?;
            (running, before(score(running), i64::MAX)?)
        }
        Some(group) => {
            let read = |row: &rusqlite::Row<'_>| {
                let (running, weight, paused) = (row.get(0)?, row.get(1)?, row.get::<_, bool>(2)?);
                let score = turns::score(row.get(3)?, running, weight);
                Ok((running, paused, score, row.get::<_, i64>(4)?))
            };
            let place = params![row.topic, group.as_str()];
            let lane = prepare(LANE)?.query_row(place, read).optional()?;
            let Some((own, false, own_score, first)) = lane else { return Ok(None) };
            let mut is_ungrouped_ready = false;
            let mut any_ready = prepare(ANY_READY)?;
            for rank in 0..RANKS {
                let place = params![row.topic, rank, reader.now.0];
                is_ungrouped_ready |= any_ready.query_row(place, |row| row.get::<_, bool>(0))?;
            }
            let mut lanes = before(own_score, first)?;
            let may_be_first = !ungrouped.paused && is_ungrouped_ready;
            if may_be_first && score(running(limit)?) < own_score {
                lanes += 1;
            }
            (own, lanes)
        }
    };
    Ok(Some(GroupTurn {
        running: running.unsigned_abs(),
        groups_before: lanes.min(limit).unsigned_abs(),
        has_more: lanes > limit,
    }))
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
