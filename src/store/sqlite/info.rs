//! Statistics of the shard.

use std::path::PathBuf;

use rusqlite::params;
use rustix::fs::statvfs;

use crate::domain::ring::ShardState;
use crate::domain::{State, Time};
use crate::store::{RecordCounts, StoreUsage};

use super::error_mapping::SqliteResult;
use super::heartbeat;
use super::job_row::phase_of;
use super::reader::SqliteReader;
use super::statement::statement;

const FILE: &str = include_str!("info.sql");
const STATE: &str = statement(FILE, "state");
const TOPICS: &str = statement(FILE, "topics");
const WAITING: &str = statement(FILE, "waiting");
const ENDED: &str = statement(FILE, "ended");
const LEASED: &str = statement(FILE, "leased");
const LATEST_FORGET: &str = statement(FILE, "latest_forget");
const BYTES: &str = statement(FILE, "bytes");
const PAGES: &str = statement(FILE, "pages");

/// Statistics read from the file.
pub(super) struct FileInfo {
    pub(super) state: Option<ShardState>,
    pub(super) content: RecordCounts,
    pub(super) bytes: u64,
}

/// [`Store::info`](crate::store::Store::info).
pub(super) fn info(reader: &SqliteReader<'_>, _: &()) -> SqliteResult<FileInfo> {
    let connection = reader.connection;
    let state: Option<i64> = connection.prepare_cached(STATE)?.query_row([], |row| row.get(0))?;
    let mut content = RecordCounts::default();
    let mut topics = connection.prepare_cached(TOPICS)?;
    for topic in topics.query_map([], |row| row.get(0))? {
        count_topic(reader, topic?, &mut content)?;
    }
    content.running = connection.prepare_cached(LEASED)?.query_row([], |row| row.get(0))?;
    let mut latest = connection.prepare_cached(LATEST_FORGET)?;
    for state in State::ALL.into_iter().filter(|state| state.is_terminal()) {
        let alarm: Option<i64> = latest.query_row(params![phase_of(state)], |row| row.get(0))?;
        content.latest_forget = content.latest_forget.max(alarm.map(Time));
    }
    let bytes = connection.prepare_cached(BYTES)?.query_row([], |row| row.get(0))?;
    Ok(FileInfo { state: state.map(heartbeat::state_from_code), content, bytes })
}

/// [`Store::usage`](crate::store::Store::usage) of the database at a path, or of one in memory. Pages that are free
/// inside the file count as free: the file never shrinks, and jobs use them first.
pub(super) fn usage(reader: &SqliteReader<'_>, path: &Option<PathBuf>) -> SqliteResult<StoreUsage> {
    let mut pages = reader.connection.prepare_cached(PAGES)?;
    let (used, free) = pages.query_row([], |row| Ok((row.get(0)?, row.get::<_, u64>(1)?)))?;
    let Some(path) = path else { return Ok(StoreUsage { bytes: used, max_bytes: None }) };
    let mut log = path.clone().into_os_string();
    log.push("-wal");
    let log_bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    let bytes = used + log_bytes;
    let max_bytes = statvfs(path).ok().map(|disk| bytes + free + disk.f_bavail * disk.f_frsize);
    Ok(StoreUsage { bytes, max_bytes })
}

fn count_topic(
    reader: &SqliteReader<'_>,
    topic: i64,
    content: &mut RecordCounts,
) -> SqliteResult<()> {
    let mut waiting = reader.connection.prepare_cached(WAITING)?;
    let (all, ready, scheduled, last) = waiting.query_row(params![topic, reader.now.0], |row| {
        let last: Option<i64> = row.get(3)?;
        Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?, row.get::<_, u64>(2)?, last))
    })?;
    content.ready += ready;
    content.scheduled += scheduled;
    content.backoff += all - ready - scheduled;
    let ahead = last.map(Time).filter(|&due| due > reader.now);
    content.latest_due = content.latest_due.max(ahead);
    let mut ended = reader.connection.prepare_cached(ENDED)?;
    let (ended, dead) = ended
        .query_row(params![topic], |row| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?)))?;
    content.dead += dead;
    content.finished += ended - dead;
    Ok(())
}
