//! A generation of a job: what is stored of its spec, and when it runs. One lies in the job's row; another
//! may wait behind it while it runs, in a table of its own.

use rusqlite::{CachedStatement, OptionalExtension as _, ToSql, params};

use crate::domain::{Time, TopicName, limit};
use crate::store::codec;

use super::fault::Done;
use super::finish;
use super::row::{self, INLINE_BYTES_MAX, Row, micros, signed};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("generation.sql");
const INSERT_BODY: &str = statement(FILE, "insert_body");
const DELETE_BODY: &str = statement(FILE, "delete_body");
const OVERWRITE: &str = statement(FILE, "overwrite");
const DEFER: &str = statement(FILE, "defer");
const DEFERRED: &str = statement(FILE, "deferred");
const NEXT: &str = statement(FILE, "next");
const MOVE_NEXT: &str = statement(FILE, "move_next");
const DELETE_NEXT: &str = statement(FILE, "delete_next");
const PAYLOAD: &str = statement(FILE, "payload");

/// What is stored of a spec.
#[derive(Debug)]
pub(super) struct StoredSpec {
    pub(super) payload: Option<Vec<u8>>,
    pub(super) terms: Option<Vec<u8>>,
    pub(super) bytes: i64,
    pub(super) keep: i64,
    pub(super) own_lease: Option<i64>,
    pub(super) retention: Option<i64>,
}

/// When a job runs, as the store's clock has it.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    pub(super) rank: u8,
    pub(super) due: Time,
    pub(super) expire: Option<Time>,
}

/// All that a job's row says of a generation.
pub(super) struct Generation<'a> {
    pub(super) spec: &'a StoredSpec,
    pub(super) schedule: Schedule,
    pub(super) created: Time,
    pub(super) request: Option<u64>,
}

// === impl StoredSpec ===

impl StoredSpec {
    pub(super) fn is_large(&self) -> bool {
        self.payload.as_ref().is_some_and(|payload| payload.len() > INLINE_BYTES_MAX)
    }

    /// The payload, if it lies in the row.
    pub(super) fn inline(&self) -> Option<&[u8]> {
        self.payload.as_deref().filter(|_| !self.is_large())
    }
}

// === impl Generation ===

impl Generation<'_> {
    /// Writes it by `statement`, whose first arguments are those of every generation; `place` are the last two. How
    /// many rows that were.
    pub(super) fn write(
        &self,
        statement: &mut CachedStatement<'_>,
        place: [&dyn ToSql; 2],
    ) -> rusqlite::Result<usize> {
        let Generation { spec, schedule, created, request } = self;
        statement.execute(params![
            schedule.rank,
            schedule.due.0,
            created.0,
            schedule.expire.map(|expire| expire.0),
            spec.keep,
            request.map(signed),
            spec.bytes,
            spec.is_large(),
            spec.own_lease,
            spec.retention,
            spec.terms,
            spec.inline(),
            place[0],
            place[1],
        ])
    }
}

/// Writes a generation over a job that is not running; `raises`: it is one more, and not one that was counted when
/// it was deferred.
pub(super) fn overwrite(
    session: &mut Session<'_>,
    row: &Row,
    generation: &Generation<'_>,
    raises: bool,
) -> Done<()> {
    generation.write(&mut session.prepare(OVERWRITE)?, [&row.key, &raises])?;
    put_body(session, row.key, row.large, generation.spec)
}

/// Brings the table of large payloads in line with what the row says now.
pub(super) fn put_body(
    session: &Session<'_>,
    key: i64,
    was_large: bool,
    spec: &StoredSpec,
) -> Done<()> {
    if spec.is_large() {
        session.prepare(INSERT_BODY)?.execute(params![key, spec.payload])?;
    } else if was_large {
        session.prepare(DELETE_BODY)?.execute(params![key])?;
    }
    Ok(())
}

/// The due time to name: of the waiting generation, if there is one.
pub(super) fn due_of(session: &Session<'_>, row: &Row) -> Done<Time> {
    if !row.next {
        return Ok(row.due);
    }
    let mut next = session.prepare(NEXT)?;
    let due = next.query_row(params![row.key], |next| next.get(1)).optional()?;
    Ok(due.map_or(row.due, Time))
}

/// The rank of the waiting generation.
pub(super) fn next_rank(session: &Session<'_>, row: &Row) -> Done<u8> {
    let mut next = session.prepare(NEXT)?;
    Ok(next.query_row(params![row.key], |next| next.get(0))?)
}

/// Writes the generation that waits behind a running one.
pub(super) fn write_next(
    session: &Session<'_>,
    row: &Row,
    schedule: Schedule,
    spec: &StoredSpec,
) -> Done<()> {
    session.prepare(DEFER)?.execute(params![
        row.key,
        schedule.rank,
        schedule.due.0,
        session.now.0,
        schedule.expire.map(|expire| expire.0),
        spec.keep,
        spec.bytes,
        spec.own_lease,
        spec.retention,
        spec.terms,
        spec.payload,
    ])?;
    Ok(())
}

/// Moves the waiting generation to another due time and rank.
pub(super) fn move_next(session: &Session<'_>, row: &Row, schedule: Schedule) -> Done<()> {
    session.prepare(MOVE_NEXT)?.execute(params![row.key, schedule.due.0, schedule.rank])?;
    Ok(())
}

/// Counts a generation that waits behind a running one, or that was changed.
pub(super) fn deferred(session: &Session<'_>, row: &Row, request: Option<u64>) -> Done<()> {
    session.prepare(DEFERRED)?.execute(params![row.key, request.map(signed)])?;
    Ok(())
}

/// The spec of a stored job, as if it were enqueued again.
pub(super) fn stored_spec(session: &Session<'_>, row: &Row) -> Done<StoredSpec> {
    let payload: Option<Vec<u8>> = if row.large {
        row::body(session.connection, row.key)?
    } else {
        session.prepare(PAYLOAD)?.query_row(params![row.key], |found| found.get(0))?
    };
    Ok(StoredSpec {
        payload,
        terms: row.terms.clone(),
        bytes: row.bytes,
        keep: codec::keep_code(row.keep),
        own_lease: row.own_lease.map(micros),
        retention: row.retention.map(micros),
    })
}

/// Puts the waiting generation in the place of the one whose lease has just ended.
pub(super) fn begin_next(session: &mut Session<'_>, row: &Row) -> Done<()> {
    let mut next = session.prepare(NEXT)?;
    let (schedule, created, spec) = next.query_row(params![row.key], |next| {
        let schedule = Schedule {
            rank: next.get(0)?,
            due: Time(next.get(1)?),
            expire: next.get::<_, Option<i64>>(3)?.map(Time),
        };
        let spec = StoredSpec {
            keep: next.get(4)?,
            bytes: next.get(5)?,
            own_lease: next.get(6)?,
            retention: next.get(7)?,
            terms: next.get(8)?,
            payload: next.get(9)?,
        };
        Ok((schedule, next.get::<_, i64>(2)?, spec))
    })?;
    let (created, request) = (Time(created), row.request);
    let generation = Generation { spec: &spec, schedule, created, request };
    overwrite(session, row, &generation, false)?;
    session.prepare(DELETE_NEXT)?.execute(params![row.key])?;
    let topic = row::topic_name(session.connection, row.topic)?;
    waits(session, row.key, &topic, schedule)
}

/// The job has just been written as waiting.
pub(super) fn waits(
    session: &mut Session<'_>,
    key: i64,
    topic: &TopicName,
    schedule: Schedule,
) -> Done<()> {
    if let Some(expire) = schedule.expire {
        if expire <= session.now {
            return finish::expire_late(session, key).map(drop);
        }
        session.prune_at(expire);
    }
    session.claimable(topic, schedule.rank, schedule.due);
    Ok(())
}

/// Priorities as ranks: what comes first sorts first.
pub(super) fn rank_of(priority: u8) -> u8 {
    limit::PRIORITY_MAX.saturating_sub(priority)
}
