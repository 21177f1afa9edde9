//! Get: jobs by identity.

use rusqlite::{CachedStatement, OptionalExtension as _, params};

use crate::domain::{Job, JobKey};

use super::fault::Done;
use super::reader::Reader;
use super::record::{BY_ID, Row};

/// Which jobs to read.
pub(super) struct Get {
    pub(super) keys: Vec<JobKey>,
    pub(super) full: bool,
}

/// [`Store::get`](crate::store::Store::get).
pub(super) fn get(reader: &Reader<'_>, get: &Get) -> Done<Vec<Option<Job>>> {
    let mut by_id = reader.connection.prepare_cached(BY_ID)?;
    get.keys.iter().map(|key| get_one(reader, &mut by_id, key, get.full)).collect()
}

fn get_one(
    reader: &Reader<'_>,
    by_id: &mut CachedStatement<'_>,
    key: &JobKey,
    full: bool,
) -> Done<Option<Job>> {
    let Some(topic) = reader.topic(&key.topic)? else { return Ok(None) };
    let found = by_id
        .query_row(params![topic, key.id.as_str()], |row| Row::read_with(row, full))
        .optional()?;
    let Some((row, blobs)) = found else { return Ok(None) };
    reader.job(row, blobs, &key.topic, full)
}
