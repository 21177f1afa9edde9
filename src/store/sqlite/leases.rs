//! Running leases by name: read them, move their deadlines, let them outlive their stream or tie them to another.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::engine::{self, Command};
use crate::domain::{StreamId, Time};
use crate::store::{Adopt, Adoptee, Extend, Lease, LeaseRef, Refused, Tied};

use super::apply::{apply, find};
use super::fault::Done;
use super::reader::Reader;
use super::record::{Row, micros, signed};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("leases.sql");
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
    if let Some(deadline) = patch(session, item)? {
        return Ok(Ok(deadline));
    }
    match apply(session, &item.lease.key, &Command::Extend(item.command()))? {
        engine::Answer::Extended(extended) => Ok(extended.map(|deadline| deadline.at)),
        _ => unreachable!("an extend is answered as one"),
    }
}

/// Moves the deadline where nothing but the lease changes; the new one.
fn patch(session: &mut Session<'_>, item: &Extend) -> Done<Option<Time>> {
    let key = &item.lease.key;
    if item.progress.is_some() || item.checkpoint.is_some() || item.lapsed.is_some() {
        return Ok(None);
    }
    let Some(topic) = session.topic(&key.topic)? else { return Ok(None) };
    let mut extend = session.prepare(EXTEND)?;
    let arguments = params![
        topic,
        key.id.as_str(),
        signed(item.lease.token.0),
        session.now.0,
        item.duration.map(micros),
    ];
    let deadline: Option<i64> = extend.query_row(arguments, |row| row.get(0)).optional()?;
    if let Some(deadline) = deadline {
        session.reap_at(Time(deadline));
    }
    Ok(deadline.map(Time))
}

/// [`Store::leases`](crate::store::Store::leases).
pub(super) fn leases(session: &mut Session<'_>, refs: &Vec<LeaseRef>) -> Done<Vec<Answer<Lease>>> {
    let mut found = Vec::with_capacity(refs.len());
    for LeaseRef { key, token } in refs {
        let row = find(session, key)?;
        let record = row.as_ref().map(|row| &row.record);
        found.push(match record.filter(|record| record.lease_of(*token).is_some()) {
            Some(record) => Lease::of(key.clone(), record, session.now).ok_or(Refused::Stale),
            None => Err(Refused::of(record, session.now)),
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
    let leases = rows.map(|row| row?.lease(reader.connection, reader.now));
    leases.filter_map(Result::transpose).collect()
}
