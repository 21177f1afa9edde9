//! Running leases by name: read them, move their deadlines, let them outlive their stream or tie them to another.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::domain::lifecycle::Standing;
use crate::domain::{JobId, JobKey, State, StreamId, Time, Token};
use crate::store::{Adopt, Adoptee, Extend, Lease, LeaseRef, Refused, Tied};

use super::fault::Done;
use super::lifecycle;
use super::phase::Phase;
use super::reader::Reader;
use super::row::{self, BY_ID, Row, micros, past_end, signed};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("leases.sql");
const PAST: &str = statement(FILE, "past");
const LEASE: &str = statement(FILE, "lease");
const EXTEND: &str = statement(FILE, "extend");
const DETACH: &str = statement(FILE, "detach");
const ADOPT: &str = statement(FILE, "adopt");
const OF_STREAMS: &str = statement(FILE, "of_streams");
const ORPHANS: &str = statement(FILE, "orphans");

type Answer<T> = Result<T, Refused>;

/// [`Store::extend`](crate::store::Store::extend).
pub(super) fn extend(session: &mut Session<'_>, items: &Vec<Extend>) -> Done<Vec<Answer<Time>>> {
    items.iter().map(|item| extend_one(session, item)).collect::<Done<_>>()
}

fn extend_one(session: &mut Session<'_>, item: &Extend) -> Done<Answer<Time>> {
    let key = &item.lease.key;
    let Some(topic) = session.topic(&key.topic)? else { return Ok(Err(Refused::NotFound)) };
    let mut lease = session.prepare(LEASE)?;
    let arguments = params![topic, key.id.as_str(), signed(item.lease.token.0)];
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?));
    match lease.query_row(arguments, read).optional()? {
        Some((_, _, alarm)) if item.lapsed.is_some_and(|lapsed| lapsed.deadline != Time(alarm)) => {
            Ok(Err(Refused::Stale))
        }
        Some((row, lease, _)) => {
            let duration = item.duration.unwrap_or_else(|| row::duration(lease));
            let extended = item.lapsed.map_or(session.now, |lapsed| lapsed.served);
            let deadline = extended.plus(duration);
            let mut extend = session.prepare(EXTEND)?;
            extend.execute(params![row, deadline.0, extended.0, item.progress])?;
            session.reap_at(deadline);
            Ok(Ok(deadline))
        }
        None => Ok(Err(match leased(session, topic, &item.lease)? {
            Err(Instead::Refused(refused)) => refused,
            _ => Refused::Stale,
        })),
    }
}

/// [`Store::leases`](crate::store::Store::leases).
pub(super) fn leases(session: &mut Session<'_>, refs: &Vec<LeaseRef>) -> Done<Vec<Answer<Lease>>> {
    let mut found = Vec::with_capacity(refs.len());
    for lease in refs {
        let Some(topic) = session.topic(&lease.key.topic)? else {
            found.push(Err(Refused::NotFound));
            continue;
        };
        found.push(match leased(session, topic, lease)? {
            Ok(row) => Ok(lease_of(session.connection, session.now, row)?),
            Err(Instead::Refused(refused)) => Err(refused),
            Err(Instead::Ended(..)) => Err(Refused::Stale),
        });
    }
    Ok(found)
}

/// [`Store::detach`](crate::store::Store::detach).
pub(super) fn detach(session: &mut Session<'_>, leases: &Vec<Tied>) -> Done<u64> {
    let mut detach = session.prepare(DETACH)?;
    let mut detached = 0;
    for Tied { lease, stream: StreamId { owner, stream } } in leases {
        let Some(topic) = session.topic(&lease.key.topic)? else { continue };
        let (id, token) = (lease.key.id.as_str(), signed(lease.token.0));
        detached += detach.execute(params![topic, id, token, owner, stream])? as u64;
    }
    Ok(detached)
}

/// [`Store::adopt`](crate::store::Store::adopt).
pub(super) fn adopt(session: &mut Session<'_>, adopt: &Adopt) -> Done<Vec<bool>> {
    let Adopt { to, grace, items } = adopt;
    let mut statement = session.prepare(ADOPT)?;
    let mut adopted = Vec::with_capacity(items.len());
    for Adoptee { tied: Tied { lease, stream: from }, since } in items {
        let Some(topic) = session.topic(&lease.key.topic)? else {
            adopted.push(false);
            continue;
        };
        let changed = statement.execute(params![
            topic,
            lease.key.id.as_str(),
            signed(lease.token.0),
            from.owner,
            from.stream,
            since.map(|since| since.0),
            to.owner,
            to.stream,
            micros(*grace),
        ])?;
        adopted.push(changed > 0);
    }
    Ok(adopted)
}

/// [`Store::leases_of`](crate::store::Store::leases_of).
pub(super) fn leases_of(reader: &Reader<'_>, streams: &Vec<StreamId>) -> Done<Vec<Lease>> {
    let one = |id: &StreamId| signed(u64::from(id.owner) << 32 | u64::from(id.stream));
    let streams: Vec<i64> = streams.iter().map(one).collect();
    select(reader, OF_STREAMS, &format!("{streams:?}"))
}

/// [`Store::orphans`](crate::store::Store::orphans).
pub(super) fn orphans(reader: &Reader<'_>, living: &Vec<u32>) -> Done<Vec<Lease>> {
    select(reader, ORPHANS, &format!("{living:?}"))
}

/// Goes through all leases, so it must not keep the writer waiting. What it finds is looked at again when it is written.
fn select(reader: &Reader<'_>, sql: &str, numbers: &str) -> Done<Vec<Lease>> {
    let mut found = reader.connection.prepare_cached(sql)?;
    let rows = found.query_map(params![numbers], Row::read)?;
    rows.map(|row| lease_of(reader.connection, reader.now, row?)).collect()
}

/// A running job's lease.
pub(super) fn lease_of(connection: &Connection, now: Time, row: Row) -> Done<Lease> {
    let topic = row::topic_name(connection, row.topic)?;
    Ok(Lease {
        standing: Standing {
            failures: row.failures,
            deliveries: row.deliveries,
            first_start: row.first_start.unwrap_or(row.started),
            retry: row.retry(),
        },
        key: JobKey { topic, id: JobId::stored(&row.id) },
        token: row.token.unwrap_or(Token(0)),
        deadline: row.alarm.unwrap_or(now),
        start_time: row.started,
        extend_time: row.extended,
        worker: row.worker,
        owner: row.owner,
        stream: row.stream,
        grace: row.grace,
        bytes: row.bytes.unsigned_abs(),
        now,
    })
}

/// What is there instead of the lease.
pub(super) enum Instead {
    Refused(Refused),
    /// The lease of this token ended like that, and the job is in this state now.
    Ended(u32, State),
}

/// The job that this token leases, or what is there instead: a deleted job is gone, any other goes on
/// without this lease.
pub(super) fn leased(
    session: &mut Session<'_>,
    topic: i64,
    lease: &LeaseRef,
) -> Done<Result<Row, Instead>> {
    let mut by_id = session.prepare(BY_ID)?;
    let found = lifecycle::find(session, &mut by_id, topic, lease.key.id.as_str())?;
    let Some((row, state)) = found else { return Ok(Err(Instead::Refused(Refused::NotFound))) };
    if row.is_leased_by(lease.token) {
        return Ok(Ok(row));
    }
    if row.phase == Phase::Cancelled {
        return Ok(Err(Instead::Refused(Refused::NotFound)));
    }
    Ok(Err(match how_ended(session, &row, lease.token)? {
        Some(how) => Instead::Ended(how, state),
        None => Instead::Refused(Refused::Stale),
    }))
}

/// How the lease of this token ended, as far back as that is remembered.
fn how_ended(session: &Session<'_>, row: &Row, token: Token) -> Done<Option<u32>> {
    if row.token == Some(token) {
        return Ok(row.settled);
    }
    let mut past = session.prepare(PAST)?;
    let past: Option<String> = past.query_row(params![row.key], |found| found.get(0))?;
    Ok(past.and_then(|past| past_end(&past, token)))
}
