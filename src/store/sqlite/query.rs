//! Lists of jobs and topics, and statistics of topics.

use std::time::Duration;

use rusqlite::{OptionalExtension as _, Row, ToSql, params, params_from_iter};

use crate::domain::{GroupName, JobId, State, Time, TopicName, limit};
use crate::store::{
    IdsPage, ListCursor, ListEntry, ListPage, ListQuery, ShardTopicStats, StatsOptions, TopicInfo,
};

use super::error_mapping::SqliteResult;
use super::job_row::{self, JobRow, RANKS, RUNNING as RUNS, RowBlobs, phase_of};
use super::reader::SqliteReader;
use super::statement::statement;

const FILE: &str = include_str!("query.sql");
const IDS: &str = statement(FILE, "ids");
const STORED: &str = statement(FILE, "stored");
const LIST_WAITING: &str = statement(FILE, "list_waiting");
const LIST_WAITING_OF_LANE: &str = statement(FILE, "list_waiting_of_lane");
const LIST_RUNNING: &str = statement(FILE, "list_running");
const LIST_FINISHED: &str = statement(FILE, "list_finished");
const TOPICS: &str = include_str!("topics.sql");
const TOPIC_LIST: &str = statement(TOPICS, "list");
const TOPIC_READ: &str = statement(TOPICS, "read");
const WAITING: &str = statement(TOPICS, "waiting");
const RUNNING: &str = statement(TOPICS, "running");
const FINISHED: &str = statement(TOPICS, "finished");
const LANE_TOTALS: &str = statement(include_str!("lanes.sql"), "totals");

/// The topics to list.
pub(super) struct TopicsQuery {
    pub(super) prefix: String,
    pub(super) after: Option<TopicName>,
    pub(super) limit: usize,
}

/// [`Store::list`](crate::store::Store::list).
pub(super) fn list(reader: &SqliteReader<'_>, list: &ListQuery) -> SqliteResult<ListPage> {
    let now = reader.now;
    let Some(topic) = reader.topic(&list.topic)? else {
        return Ok(ListPage { now, ..ListPage::default() });
    };
    let mut found = match phase_of(list.state) {
        job_row::WAITING => list_waiting(reader, topic, list)?,
        phase => list_others(reader, topic, phase, list)?,
    };
    let more = found.len() > list.limit;
    found.truncate(list.limit);
    let next = found.last().map(|(row, _)| cursor_after(row)).filter(|_| more);
    let mut jobs = Vec::with_capacity(found.len());
    for (row, blobs) in found {
        let place = cursor_after(&row);
        let job = reader.job(row, blobs, &list.topic, list.full)?;
        let job = job.filter(|job| job.state == list.state);
        jobs.extend(job.map(|job| ListEntry { job, cursor: place }));
    }
    Ok(ListPage { now, jobs, next })
}

/// Returns the position behind a row.
fn cursor_after(row: &JobRow) -> ListCursor {
    ListCursor { due: row.record.due.at, sequence: row.key }
}

/// Lists waiting jobs. They have one order per rank; a page is merged from a page of each.
fn list_waiting(
    reader: &SqliteReader<'_>,
    topic: i64,
    list: &ListQuery,
) -> SqliteResult<Vec<(JobRow, RowBlobs)>> {
    let (now, ahead) = (reader.now.0, reader.now.0.saturating_add(1));
    let (due_min, due_max, failed_min, failed_max) = match list.state {
        State::Ready => (i64::MIN, now, 0, 1),
        State::Backoff => (ahead, i64::MAX, 1, 1),
        _ => (ahead, i64::MAX, 0, 0),
    };
    let (due, sequence) = after(list);
    let group = list.group.as_ref().and_then(Option::as_ref);
    let sql = if group.is_some() { LIST_WAITING_OF_LANE } else { LIST_WAITING };
    let mut statement = reader.connection.prepare_cached(sql)?;
    // Jobs with a group have the ranks behind those of the others.
    let ranks = match &list.group {
        None => 0..ranks_of(reader, topic)?,
        Some(None) => 0..RANKS,
        Some(Some(_)) => RANKS..2 * RANKS,
    };
    let mut merged = Vec::new();
    for rank in ranks {
        let place: [&dyn ToSql; 9] = [
            &topic,
            &rank,
            &due_min.max(due),
            &due_max,
            &failed_min,
            &failed_max,
            &due,
            &sequence,
            &(list.limit + 1),
        ];
        let lane = group.map(GroupName::as_str);
        let values = place.into_iter().chain(lane.as_ref().map(|lane| lane as &dyn ToSql));
        let page = statement
            .query_map(params_from_iter(values), |row| JobRow::read_with(row, list.full))?;
        merged.extend(page.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    merged.sort_by_key(|(row, _)| (row.record.due.at, row.key));
    merged.truncate(list.limit + 1);
    Ok(merged)
}

fn list_others(
    reader: &SqliteReader<'_>,
    topic: i64,
    phase: i64,
    list: &ListQuery,
) -> SqliteResult<Vec<(JobRow, RowBlobs)>> {
    let (due, sequence) = after(list);
    let limit = list.limit + 1;
    let read = |row: &rusqlite::Row<'_>| JobRow::read_with(row, list.full);
    let found: rusqlite::Result<Vec<_>> = if phase == RUNS {
        let mut running = reader.connection.prepare_cached(LIST_RUNNING)?;
        running.query_map(params![topic, due, sequence, limit], read)?.collect()
    } else {
        let mut finished = reader.connection.prepare_cached(LIST_FINISHED)?;
        finished.query_map(params![topic, due, sequence, limit, phase], read)?.collect()
    };
    Ok(found?)
}

fn after(list: &ListQuery) -> (i64, i64) {
    list.after.map_or((i64::MIN, i64::MIN), |cursor| (cursor.due.0, cursor.sequence))
}

/// [`Store::topics`](crate::store::Store::topics).
pub(super) fn topics(
    reader: &SqliteReader<'_>,
    topics: &TopicsQuery,
) -> SqliteResult<Vec<TopicInfo>> {
    let after = topics.after.as_ref().map_or("", TopicName::as_str);
    let mut list = reader.connection.prepare_cached(TOPIC_LIST)?;
    let found = list.query_map(params![topics.prefix, after, topics.limit], |row| {
        let name = TopicName::stored(row.get_ref(0)?.as_str()?);
        Ok(TopicInfo { name, create_time: Time(row.get(1)?) })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// Query of [`Store::ids`](crate::store::Store::ids).
pub(super) struct IdsQuery {
    pub(super) topic: TopicName,
    /// Last id of the part before.
    pub(super) after_id: Option<String>,
    pub(super) limit: usize,
}

/// [`Store::ids`](crate::store::Store::ids).
pub(super) fn ids(reader: &SqliteReader<'_>, part: &IdsQuery) -> SqliteResult<IdsPage> {
    let from = part.after_id.as_deref().unwrap_or_default();
    let mut select = reader.connection.prepare_cached(IDS)?;
    let found = select.query_map(params![part.topic.as_str(), from, part.limit], |row| {
        Ok(JobId::stored(row.get_ref(0)?.as_str()?))
    })?;
    let ids: Vec<JobId> = found.collect::<rusqlite::Result<_>>()?;
    let next = ids.last().filter(|_| ids.len() >= part.limit).map(ToString::to_string);
    Ok(IdsPage { ids, cursor: next })
}

/// Number of jobs in one part of a [`StoredQuery`]: about 10 ms.
const STORED_JOBS_MAX: usize = 2_000;

/// Query for the bytes of a part of a topic.
pub(super) struct StoredQuery {
    pub(super) topic: TopicName,
    /// Last id of the part before.
    pub(super) after_id: Option<String>,
}

/// Bytes of the ids in [`limit::STORED_JOB_BYTES`]: the sum has those of the jobs.
const ID_BYTES: u64 = 2 * 36;

/// Bytes of a part of a topic.
pub(super) struct StoredPart {
    pub(super) bytes: u64,
    /// Last id of the part; `None`: the topic ends there.
    pub(super) last_id: Option<String>,
}

/// [`ShardTopicStats::stored_bytes`]
pub(super) fn stored(reader: &SqliteReader<'_>, part: &StoredQuery) -> SqliteResult<StoredPart> {
    let from = part.after_id.as_deref().unwrap_or_default();
    let mut sum = reader.connection.prepare_cached(STORED)?;
    let row = sum.query_row(params![part.topic.as_str(), from, STORED_JOBS_MAX], |row| {
        Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?, row.get::<_, Option<String>>(2)?))
    });
    let (jobs, bytes, last_id) = row?;
    let is_full = jobs >= STORED_JOBS_MAX as u64;
    Ok(StoredPart {
        bytes: bytes + jobs * (limit::STORED_JOB_BYTES - ID_BYTES),
        last_id: last_id.filter(|_| is_full),
    })
}

/// [`Store::stats`](crate::store::Store::stats), without stored bytes.
pub(super) fn stats(
    reader: &SqliteReader<'_>,
    (names, options): &(Vec<TopicName>, StatsOptions),
) -> SqliteResult<Vec<Option<ShardTopicStats>>> {
    names.iter().map(|name| stats_of(reader, name, *options)).collect()
}

fn stats_of(
    reader: &SqliteReader<'_>,
    name: &TopicName,
    options: StatsOptions,
) -> SqliteResult<Option<ShardTopicStats>> {
    let mut read = reader.connection.prepare_cached(TOPIC_READ)?;
    let found = read.query_row(params![name.as_str()], |row| {
        let totals = ShardTopicStats {
            create_time: Time(row.get(1)?),
            enqueued_total: row.get(2)?,
            succeeded_total: row.get(3)?,
            dead_total: row.get(4)?,
            ..ShardTopicStats::default()
        };
        Ok((row.get::<_, i64>(0)?, totals))
    });
    let Some((topic, mut stats)) = found.optional()? else { return Ok(None) };
    let soon = reader.now.plus(options.due_within);
    count_waiting(reader, topic, ranks_of(reader, topic)?, soon, &mut stats)?;
    stats.running = count_running(reader, topic)?;
    let finished = |state| -> rusqlite::Result<u64> {
        let mut count = reader.connection.prepare_cached(FINISHED)?;
        count.query_row(params![topic, phase_of(state)], |row| row.get(0))
    };
    stats.dead = finished(State::Dead)?;
    if options.kept {
        stats.succeeded = finished(State::Succeeded)?;
        stats.cancelled = finished(State::Cancelled)?;
        stats.expired = finished(State::Expired)?;
    }
    Ok(Some(stats))
}

/// Returns the number of running jobs of a topic.
pub(super) fn count_running(reader: &SqliteReader<'_>, topic: i64) -> SqliteResult<u64> {
    count(reader, topic, RUNNING)
}

fn count(reader: &SqliteReader<'_>, topic: i64, sql: &str) -> SqliteResult<u64> {
    Ok(reader.connection.prepare_cached(sql)?.query_row(params![topic], |row| row.get(0))?)
}

/// Counts the waiting jobs without a group.
pub(super) fn count_ungrouped(
    reader: &SqliteReader<'_>,
    topic: i64,
) -> SqliteResult<ShardTopicStats> {
    let mut stats = ShardTopicStats::default();
    count_waiting(reader, topic, RANKS, reader.now, &mut stats)?;
    Ok(stats)
}

/// Returns the number of ranks that jobs of the topic may have: twice as many if it has groups.
fn ranks_of(reader: &SqliteReader<'_>, topic: i64) -> SqliteResult<u8> {
    let has_lanes = reader.connection.prepare_cached(LANE_TOTALS)?.exists([topic])?;
    Ok(if has_lanes { 2 * RANKS } else { RANKS })
}

fn count_waiting(
    reader: &SqliteReader<'_>,
    topic: i64,
    ranks: u8,
    soon: Time,
    stats: &mut ShardTopicStats,
) -> SqliteResult<()> {
    let mut waiting = reader.connection.prepare_cached(WAITING)?;
    let mut oldest: Option<Time> = None;
    for rank in 0..ranks {
        let count = |row: &Row<'_>, n| row.get::<_, u64>(n);
        let (all, ready, scheduled, due_soon, first) =
            waiting.query_row(params![topic, rank, reader.now.0, soon.0], |row| {
                let first: Option<i64> = row.get(4)?;
                Ok((count(row, 0)?, count(row, 1)?, count(row, 2)?, count(row, 3)?, first))
            })?;
        stats.ready += ready;
        stats.scheduled += scheduled;
        stats.backoff += all - ready - scheduled;
        stats.due_soon += due_soon;
        oldest = oldest.into_iter().chain(first.map(Time)).min();
    }
    stats.oldest_ready =
        oldest.filter(|&due| due <= reader.now).map(|due| -> Duration { reader.now.since(due) });
    Ok(())
}
