//! A job's record as stored in the file.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};

use crate::domain::engine::{Finish, JobParts, Lease, Phase, Record};
use crate::domain::{
    GroupName, Job, JobId, JobKey, ShardName, Spec, State, Time, Token, TopicName, limit,
};
use crate::store::{self, codec};

use super::error_mapping::{SqliteError, SqliteResult, skip_damaged};
use super::statement::statement;

const FILE: &str = include_str!("job_row.sql");
pub(super) const BY_ID: &str = statement(FILE, "by_id");
pub(super) const BY_KEY: &str = statement(FILE, "by_key");
const BODY: &str = statement(FILE, "body");
const CHECKPOINT: &str = statement(FILE, "checkpoint");
const TOPIC_NAME: &str = statement(include_str!("topics.sql"), "name");

/// Largest payload kept in the row of its job. Larger ones have a table of their own, so that moving a row stays
/// cheap.
pub(super) const INLINE_BYTES_MAX: usize = 2_048;

/// Codes of the phases of waiting and running jobs.
pub(super) const WAITING: i64 = 0;
pub(super) const RUNNING: i64 = 1;

/// A row of the table of jobs, without its parts.
#[derive(Clone, Debug)]
pub(super) struct JobRow {
    pub(super) key: i64,
    pub(super) topic: i64,
    pub(super) id: String,
    /// Set when the payload is in the table of bodies.
    pub(super) large: bool,
    pub(super) record: Record,
}

/// The parts of a job that are stored in its row.
#[derive(Default)]
pub(super) struct RowBlobs {
    attempts: Option<Vec<u8>>,
    result: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
}

/// Returns the code of the phase for jobs of `state`.
pub(super) fn phase_of(state: State) -> i64 {
    match state {
        State::Scheduled | State::Ready | State::Backoff => WAITING,
        State::Running => RUNNING,
        State::Succeeded => 2,
        State::Dead => 3,
        State::Cancelled => 4,
        State::Expired => 5,
    }
}

/// Returns the terminal state with this code.
fn finished_in(phase: i64) -> State {
    match phase {
        2 => State::Succeeded,
        3 => State::Dead,
        4 => State::Cancelled,
        _ => State::Expired,
    }
}

/// Number of ranks of jobs without a group. A job with a group has its rank behind these: orders of whole topics then
/// need not skip it.
pub(super) const RANKS: u8 = limit::PRIORITY_MAX + 1;

/// Converts a priority to a rank: the highest priority sorts first.
pub(super) fn rank_of(priority: u8) -> u8 {
    limit::PRIORITY_MAX.saturating_sub(priority)
}

/// Returns the rank of a job in the table.
pub(super) fn stored_rank(priority: u8, group: Option<&GroupName>) -> u8 {
    rank_of(priority) + if group.is_some() { RANKS } else { 0 }
}

/// Converts a rank of the table to the priority.
pub(super) fn priority_of(rank: u8) -> u8 {
    rank_of(rank % RANKS)
}

/// Returns the name of the topic with this key.
pub(super) fn topic_name(connection: &Connection, key: i64) -> SqliteResult<TopicName> {
    let mut named = connection.prepare_cached(TOPIC_NAME)?;
    let name: Option<String> = named.query_row(params![key], |row| row.get(0)).optional()?;
    Ok(TopicName::stored(&name.unwrap_or_default()))
}

// === impl JobRow ===

impl JobRow {
    /// Returns the row found by `statement`, which selects all columns.
    pub(super) fn find(
        statement: &mut CachedStatement<'_>,
        params: impl rusqlite::Params,
    ) -> SqliteResult<Option<JobRow>> {
        Ok(statement.query_row(params, JobRow::read).optional()?)
    }

    /// Returns the rows found by `sql`, which selects all columns. Damaged rows are skipped.
    pub(super) fn select(
        connection: &Connection,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> SqliteResult<Vec<JobRow>> {
        let mut found = connection.prepare_cached(sql)?;
        let rows = found.query_map(params, |row| Ok(JobRow::read(row)))?;
        rows.filter_map(|row| skip_damaged(row.flatten().map_err(SqliteError::from))).collect()
    }

    /// Reads a row; with `full`, also the parts in it.
    pub(super) fn read_with(
        row: &rusqlite::Row<'_>,
        full: bool,
    ) -> rusqlite::Result<(JobRow, RowBlobs)> {
        let blobs = if full { JobRow::read_blobs(row)? } else { RowBlobs::default() };
        Ok((JobRow::read(row)?, blobs))
    }

    /// Reads a row, by the positions of its columns.
    pub(super) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<JobRow> {
        let blob = |place| row.get_ref(place)?.as_blob_or_null().map_err(rusqlite::Error::from);
        let (life, next) = codec::decode_history(blob(27)?);
        let spec = Spec {
            lease: row.get::<_, Option<i64>>(17)?.map(duration),
            ..codec::decode_spec(blob(26)?)
        };
        let alarm = Time(row.get::<_, Option<i64>>(8)?.unwrap_or(i64::MIN));
        Ok(JobRow {
            key: row.get(0)?,
            topic: row.get(1)?,
            id: row.get(2)?,
            large: row.get(13)?,
            record: Record {
                phase: match row.get(3)? {
                    WAITING => Phase::Waiting,
                    RUNNING => Phase::Running(lease(row, alarm)?),
                    phase => Phase::Finished(Finish {
                        state: finished_in(phase),
                        at: Time(row.get::<_, Option<i64>>(16)?.unwrap_or(0)).into(),
                        until: alarm.into(),
                    }),
                },
                priority: priority_of(row.get(4)?),
                due: Time(row.get(5)?).into(),
                created: Time(row.get(7)?).into(),
                expire: row.get::<_, Option<i64>>(9)?.map(|expire| Time(expire).into()),
                retention: codec::retention_from_code(row.get(10)?),
                request_code: row.get::<_, Option<i64>>(11)?.map(unsigned),
                bytes: unsigned(row.get(12)?),
                spec,
                history: life,
                next: next.map(Box::new),
            },
        })
    }

    /// Reads the parts in a row.
    fn read_blobs(row: &rusqlite::Row<'_>) -> rusqlite::Result<RowBlobs> {
        Ok(RowBlobs { attempts: row.get(28)?, result: row.get(29)?, payload: row.get(30)? })
    }

    /// Returns whether the job has a checkpoint, which is stored separately.
    pub(super) fn has_checkpoint(&self) -> bool {
        self.record.history.checkpoint > 0
    }

    /// Returns the key of the row's job in `topic`.
    pub(super) fn job_key(&self, topic: TopicName) -> JobKey {
        JobKey { topic, id: JobId::stored(&self.id) }
    }

    /// Returns the job as it reads at `now`; `None`: its record is not kept any more.
    pub(super) fn job(
        self,
        bodies: JobParts,
        topic: &TopicName,
        shard: &ShardName,
        now: Time,
    ) -> Option<Job> {
        let key = self.job_key(topic.clone());
        self.record.job(key, shard.clone(), now, bodies)
    }

    /// Returns the lease of a running job.
    pub(super) fn lease(
        self,
        connection: &Connection,
        now: Time,
    ) -> SqliteResult<Option<store::RunningLease>> {
        let key = self.job_key(topic_name(connection, self.topic)?);
        Ok(store::RunningLease::from_record(key, &self.record, now))
    }
}

fn lease(row: &rusqlite::Row<'_>, deadline: Time) -> rusqlite::Result<Lease> {
    Ok(Lease {
        token: Token(unsigned(row.get::<_, Option<i64>>(18)?.unwrap_or(0))),
        started: Time(row.get::<_, Option<i64>>(24)?.unwrap_or(0)),
        deadline: deadline.into(),
        extended: row.get::<_, Option<i64>>(23)?.map(|extended| Time(extended).into()),
        owner: row.get::<_, Option<u32>>(19)?.unwrap_or(0),
        stream: row.get::<_, Option<u32>>(20)?.unwrap_or(0),
        grace: row.get::<_, Option<i64>>(21)?.map(duration),
        duration: duration(row.get::<_, Option<i64>>(22)?.unwrap_or(0)),
        worker: row.get::<_, Option<String>>(25)?.unwrap_or_default(),
    })
}

// === impl RowBlobs ===

impl RowBlobs {
    /// Decodes the parts of the row's job; fetches those stored outside of the row.
    pub(super) fn read(self, connection: &Connection, row: &JobRow) -> SqliteResult<JobParts> {
        let payload = match self.payload {
            None if row.large => body(connection, payload_key(row.key))?,
            payload => payload,
        };
        let checkpoint = match row.has_checkpoint() {
            true => checkpoint(connection, row.key)?,
            false => None,
        };
        let decode = |blob: Option<Vec<u8>>| {
            blob.map(|blob| codec::decode_payload(Bytes::from(blob))).transpose()
        };
        Ok(JobParts {
            payload: decode(payload)?,
            result: decode(self.result)?,
            checkpoint: decode(checkpoint)?,
            attempts: codec::decode_attempts(self.attempts.as_deref())?,
        })
    }
}

/// Returns the key of a job's payload in the table of bodies.
pub(super) fn payload_key(job: i64) -> i64 {
    job << 1
}

/// Returns the key of the payload of the waiting generation.
pub(super) fn next_payload_key(job: i64) -> i64 {
    payload_key(job) | 1
}

/// Returns the encoded checkpoint of a job that has one.
pub(super) fn checkpoint(connection: &Connection, job: i64) -> SqliteResult<Option<Vec<u8>>> {
    let mut checkpoint = connection.prepare_cached(CHECKPOINT)?;
    Ok(checkpoint.query_row(params![job], |row| row.get(0)).optional()?)
}

/// Returns an encoded payload from the table of bodies.
pub(super) fn body(connection: &Connection, key: i64) -> SqliteResult<Option<Vec<u8>>> {
    let mut body = connection.prepare_cached(BODY)?;
    Ok(body.query_row(params![key], |row| row.get(0)).optional()?)
}

/// Encodes a duration as a column.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(codec::micros(duration)).unwrap_or(i64::MAX)
}

/// Decodes a duration from a column.
pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}

/// Encodes 64 unsigned bits as a column, bit for bit.
pub(super) fn signed(bits: u64) -> i64 {
    i64::from_ne_bytes(bits.to_ne_bytes())
}

fn unsigned(bits: i64) -> u64 {
    u64::from_ne_bytes(bits.to_ne_bytes())
}
