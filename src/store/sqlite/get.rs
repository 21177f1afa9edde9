//! Get: jobs by identity.

use rusqlite::{CachedStatement, OptionalExtension as _, params};

use crate::domain::{Job, JobKey};

use super::error_mapping::SqliteResult;
use super::job_row::{BY_ID, JobRow};
use super::reader::SqliteReader;

/// The jobs to read.
pub(super) struct GetJobs {
    pub(super) keys: Vec<JobKey>,
    pub(super) full: bool,
}

/// [`Store::get`](crate::store::Store::get).
pub(super) fn get(reader: &SqliteReader<'_>, get: &GetJobs) -> SqliteResult<Vec<Option<Job>>> {
    let mut by_id = reader.connection.prepare_cached(BY_ID)?;
    get.keys.iter().map(|key| get_one(reader, &mut by_id, key, get.full)).collect()
}

fn get_one(
    reader: &SqliteReader<'_>,
    by_id: &mut CachedStatement<'_>,
    key: &JobKey,
    full: bool,
) -> SqliteResult<Option<Job>> {
    let Some(topic) = reader.topic(&key.topic)? else { return Ok(None) };
    let found = by_id
        .query_row(params![topic, key.id.as_str()], |row| JobRow::read_with(row, full))
        .optional()?;
    let Some((row, blobs)) = found else { return Ok(None) };
    reader.job(row, blobs, &key.topic, full)
}
