//! A job's record as it lies in the file, and how it reads to the world.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};

use crate::domain::conflict::Found;
use crate::domain::{
    Attempt, Job, JobId, JobKey, Keep, RetryOverrides, ShardName, State, Time, Token, TopicName,
    limit,
};
use crate::store::codec;

use super::fault::Done;
use super::phase::Phase;
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("row.sql");
pub(super) const BY_ID: &str = statement(FILE, "by_id");
pub(super) const BY_KEY: &str = statement(FILE, "by_key");
const BODY: &str = statement(FILE, "body");
const TOPIC_NAME: &str = statement(include_str!("topics.sql"), "name");

/// Payloads above this size lie in a table of their own, so that a job's row moves cheaply.
pub(super) const INLINE_BYTES_MAX: usize = 2_048;

/// One former lease in the column `past`: 16 hex digits of its token, 2 of how it ended.
const PAST_CHARS: usize = 18;
/// As many former leases are recognized as attempts are kept.
pub(super) const PAST_CHARS_MAX: usize = PAST_CHARS * limit::ATTEMPTS_KEPT;

/// The small columns of a job; payload, result and history are read on demand.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: i64,
    pub(super) topic: i64,
    pub(super) id: String,
    pub(super) phase: Phase,
    pub(super) rank: u8,
    pub(super) due: Time,
    pub(super) failures: u32,
    pub(super) deliveries: u32,
    pub(super) generation: u32,
    pub(super) created: Time,
    pub(super) alarm: Option<Time>,
    pub(super) expire: Option<Time>,
    pub(super) keep: Keep,
    pub(super) request: Option<u64>,
    pub(super) bytes: i64,
    pub(super) large: bool,
    pub(super) next: bool,
    pub(super) token: Option<Token>,
    pub(super) settled: Option<u32>,
    pub(super) owner: u32,
    pub(super) stream: u32,
    pub(super) grace: Option<Duration>,
    pub(super) extended: Option<Time>,
    pub(super) started: Time,
    pub(super) first_start: Option<Time>,
    pub(super) worker: String,
    pub(super) own_lease: Option<Duration>,
    pub(super) retention: Option<Duration>,
    pub(super) terms: Option<Vec<u8>>,
    pub(super) finished: Option<Time>,
    pub(super) error: String,
    pub(super) progress: String,
}

/// The large columns of a job.
#[derive(Default)]
pub(super) struct Blobs {
    history: Option<Vec<u8>>,
    result: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
}

/// The name of the topic with this key.
pub(super) fn topic_name(connection: &Connection, key: i64) -> Done<TopicName> {
    let mut named = connection.prepare_cached(TOPIC_NAME)?;
    let name: Option<String> = named.query_row(params![key], |row| row.get(0)).optional()?;
    Ok(TopicName::stored(&name.unwrap_or_default()))
}

// === impl Row ===

impl Row {
    /// The record that `statement` (one of the SELECTs of `row.sql`) finds.
    pub(super) fn find(
        statement: &mut CachedStatement<'_>,
        params: impl rusqlite::Params,
    ) -> Done<Option<Row>> {
        Ok(statement.query_row(params, Row::read).optional()?)
    }

    /// The records that `sql` finds, one of the SELECTs that read them whole.
    pub(super) fn select(
        session: &Session<'_>,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<Vec<Row>> {
        session.prepare(sql)?.query_map(params, Row::read)?.collect()
    }

    /// With `full`, reads blobs, too.
    pub(super) fn read_with(row: &rusqlite::Row<'_>, full: bool) -> rusqlite::Result<(Row, Blobs)> {
        let blobs = if full { Row::read_blobs(row)? } else { Blobs::default() };
        Ok((Row::read(row)?, blobs))
    }

    /// Reads the small columns, by their place in the table.
    pub(super) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
        Ok(Row {
            key: row.get(0)?,
            topic: row.get(1)?,
            id: row.get(2)?,
            phase: Phase::of(row.get(3)?),
            rank: row.get(4)?,
            due: Time(row.get(5)?),
            failures: row.get(6)?,
            deliveries: row.get(7)?,
            generation: row.get(8)?,
            created: Time(row.get(9)?),
            alarm: row.get::<_, Option<i64>>(10)?.map(Time),
            expire: row.get::<_, Option<i64>>(11)?.map(Time),
            keep: codec::keep(row.get(12)?),
            request: row.get::<_, Option<i64>>(13)?.map(unsigned),
            bytes: row.get(14)?,
            large: row.get(15)?,
            next: row.get(16)?,
            token: row.get::<_, Option<i64>>(17)?.map(|token| Token(unsigned(token))),
            settled: row.get(18)?,
            owner: row.get::<_, Option<u32>>(19)?.unwrap_or(0),
            stream: row.get::<_, Option<u32>>(20)?.unwrap_or(0),
            grace: row.get::<_, Option<i64>>(21)?.map(duration),
            extended: row.get::<_, Option<i64>>(23)?.map(Time),
            started: Time(row.get::<_, Option<i64>>(24)?.unwrap_or(0)),
            first_start: row.get::<_, Option<i64>>(25)?.map(Time),
            worker: row.get::<_, Option<String>>(26)?.unwrap_or_default(),
            own_lease: row.get::<_, Option<i64>>(27)?.map(duration),
            retention: row.get::<_, Option<i64>>(28)?.map(duration),
            terms: row.get(29)?,
            finished: row.get::<_, Option<i64>>(30)?.map(Time),
            error: row.get::<_, Option<String>>(31)?.unwrap_or_default(),
            progress: row.get::<_, Option<String>>(32)?.unwrap_or_default(),
        })
    }

    /// Reads the large columns of the same row.
    pub(super) fn read_blobs(row: &rusqlite::Row<'_>) -> rusqlite::Result<Blobs> {
        Ok(Blobs { history: row.get(33)?, result: row.get(34)?, payload: row.get(35)? })
    }

    /// Whether the job has passed its expire time while it waited.
    pub(super) fn has_expired(&self, now: Time) -> bool {
        self.phase == Phase::Waiting && self.expire.is_some_and(|expire| expire <= now)
    }

    /// Whether the finished job was kept long enough.
    pub(super) fn is_forgotten(&self, now: Time) -> bool {
        self.phase.code() >= Phase::Succeeded.code() && self.alarm.is_none_or(|alarm| alarm <= now)
    }

    /// The state that the world sees, time-outs included; `None`: the record is gone.
    pub(super) fn state(&self, now: Time) -> Option<State> {
        if self.is_forgotten(now) {
            return None;
        }
        if self.has_expired(now) {
            let gone = self.keep.until(self.expire.unwrap_or(now)).is_none_or(|until| until <= now);
            return (!gone).then_some(State::Expired);
        }
        Some(match self.phase {
            Phase::Waiting => State::waiting(self.due, self.failures, now),
            Phase::Running => State::Running,
            Phase::Succeeded => State::Succeeded,
            Phase::Dead => State::Dead,
            Phase::Cancelled => State::Cancelled,
            Phase::Expired => State::Expired,
        })
    }

    /// What an enqueue finds here.
    pub(super) fn found(&self, state: State) -> Found {
        if self.next { Found::RunningWithNext } else { Found::Job(state) }
    }

    /// Whether this token holds the running lease.
    pub(super) fn is_leased_by(&self, token: Token) -> bool {
        self.phase == Phase::Running && self.token == Some(token)
    }

    /// What the job says about retries.
    pub(super) fn retry(&self) -> RetryOverrides {
        codec::decode_terms(self.terms.as_deref()).retry
    }

    /// Whether only a tombstone is left: state and id, without payload and result.
    pub(super) fn is_tombstone(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Cancelled | Phase::Expired)
            && matches!(self.keep, Keep::Tombstone(_))
    }

    /// The job as it reads at `now`.
    pub(super) fn job(
        mut self,
        state: State,
        mut blobs: Blobs,
        topic: &TopicName,
        shard: &ShardName,
    ) -> Done<Job> {
        let expired = state == State::Expired && self.phase == Phase::Waiting;
        // An expired job reads as the tombstone that prune will make of it.
        if expired && matches!(self.keep, Keep::Tombstone(_)) {
            blobs = Blobs::default();
            self.terms = None;
            self.error.clear();
            self.progress.clear();
        }
        let mut spec = codec::decode_terms(self.terms.as_deref());
        spec.payload = match blobs.payload {
            Some(blob) => Some(codec::decode_payload(Bytes::from(blob))?),
            None => None,
        };
        spec.lease = self.own_lease;
        spec.retention = self.retention;
        let running = state == State::Running;
        Ok(Job {
            key: JobKey { topic: topic.clone(), id: JobId::stored(&self.id) },
            spec,
            priority: limit::PRIORITY_MAX - self.rank,
            expire_time: self.expire,
            state,
            failures: self.failures,
            deliveries: self.deliveries + u32::from(running),
            generation: self.generation,
            create_time: self.created,
            due_time: self.due,
            lease_expire_time: self.alarm.filter(|_| running),
            worker_id: self.worker,
            finish_time: if expired { self.expire } else { self.finished },
            result: match blobs.result {
                Some(blob) => Some(codec::decode_payload(Bytes::from(blob))?),
                None => None,
            },
            last_error: self.error,
            attempts: codec::decode_history(blobs.history.as_deref())?,
            progress: self.progress,
            shard: shard.clone(),
        })
    }
}

// === impl Blobs ===

impl Blobs {
    /// Fetches what lies apart from the row.
    pub(super) fn complete(mut self, connection: &Connection, row: &Row) -> Done<Blobs> {
        if row.large && self.payload.is_none() {
            self.payload = body(connection, row.key)?;
        }
        Ok(self)
    }
}

/// The payload of a large job.
pub(super) fn body(connection: &Connection, key: i64) -> Done<Option<Vec<u8>>> {
    let mut body = connection.prepare_cached(BODY)?;
    Ok(body.query_row(params![key], |row| row.get(0)).optional()?)
}

/// Attempts with one more in front, as many as are kept.
pub(super) fn with_attempt(history: Option<&[u8]>, attempt: Attempt) -> Vec<u8> {
    let mut attempts = codec::decode_history(history).unwrap_or_default();
    attempts.insert(0, attempt);
    attempts.truncate(limit::ATTEMPTS_KEPT);
    codec::encode_history(&attempts)
}

/// How the lease of `token` ended, if the column `past` still tells.
pub(super) fn past_end(past: &str, token: Token) -> Option<u32> {
    let name = format!("{:016x}", token.0);
    let ends = past.as_bytes().chunks_exact(PAST_CHARS).map(|end| end.split_at(name.len()));
    let (_, code) = ends.into_iter().find(|(lease, _)| *lease == name.as_bytes())?;
    u32::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()
}

/// A duration as a column.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(codec::micros(duration)).unwrap_or(i64::MAX)
}

/// A column as a duration.
pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}

/// 64 unsigned bits as a column, bit for bit.
pub(super) fn signed(bits: u64) -> i64 {
    i64::from_ne_bytes(bits.to_ne_bytes())
}

fn unsigned(bits: i64) -> u64 {
    u64::from_ne_bytes(bits.to_ne_bytes())
}
