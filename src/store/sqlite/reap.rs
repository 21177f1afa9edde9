//! Running leases that nobody asks for by name: expired ones, those of dead replicas, and those of a
//! claim whose reply was lost.

use std::collections::HashSet;

use rusqlite::params;

use crate::domain::lifecycle::Standing;
use crate::domain::{JobId, JobKey, Time, Token};
use crate::store::{Lease, Reaped, Unclaim};

use super::fault::Done;
use super::lifecycle;
use super::row::{BY_ID, Row};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("reap.sql");
const EXPIRED: &str = statement(FILE, "expired");
const NEXT: &str = statement(FILE, "next");
const ORPHANS: &str = statement(FILE, "orphans");
const NONCE: &str = statement(FILE, "nonce");

/// The verb: leases whose deadline has passed.
pub(super) fn reap(session: &mut Session<'_>, limit: &usize) -> Done<Reaped> {
    let mut rows = select(session, EXPIRED, params![session.now.0, limit + 1])?;
    let next = if rows.len() > *limit {
        rows.pop().and_then(|row| row.alarm)
    } else {
        let mut next = session.prepare(NEXT)?;
        next.query_row(params![session.now.0], |row| row.get::<_, Option<i64>>(0))?.map(Time)
    };
    session.reaped_until(next);
    Ok(Reaped { now: session.now, leases: leases(session, rows)?, next })
}

/// The verb: leases of streams of other replicas than `living`.
pub(super) fn orphans(session: &mut Session<'_>, living: &Vec<u32>) -> Done<Vec<Lease>> {
    let rows = select(session, ORPHANS, params![format!("{living:?}")])?;
    leases(session, rows)
}

/// The verb: leases that reached nobody.
pub(super) fn unclaim(session: &mut Session<'_>, what: &Unclaim) -> Done<u64> {
    let rows = match what {
        Unclaim::Nonce(nonce) => select(session, NONCE, params![nonce])?,
        Unclaim::Leases(refs) => {
            let mut rows = Vec::with_capacity(refs.len());
            let mut met = HashSet::new();
            for lease in refs {
                let Some(topic) = session.topic(&lease.key.topic)? else { continue };
                let mut by_id = session.prepare(BY_ID)?;
                let row = Row::find(&mut by_id, params![topic, lease.key.id.as_str()])?;
                let held = row.filter(|row| row.is_leased_by(lease.token));
                rows.extend(held.filter(|row| met.insert(row.key)));
            }
            rows
        }
    };
    for row in &rows {
        lifecycle::unclaim(session, row)?;
    }
    Ok(rows.len() as u64)
}

/// A running job's lease.
pub(super) fn lease_of(session: &Session<'_>, row: Row) -> Done<Lease> {
    let topic = session.topic_name(row.topic)?;
    Ok(Lease {
        standing: Standing {
            failures: row.failures,
            deliveries: row.deliveries,
            first_start: row.first_start.unwrap_or(row.started),
            retry: row.retry(),
        },
        key: JobKey { topic, id: JobId::stored(&row.id) },
        token: row.token.unwrap_or(Token(0)),
        deadline: row.alarm.unwrap_or(session.now),
        extend_time: row.extended,
        owner: row.owner,
        stream: row.stream,
        grace: row.grace,
        now: session.now,
    })
}

fn leases(session: &Session<'_>, rows: Vec<Row>) -> Done<Vec<Lease>> {
    rows.into_iter().map(|row| lease_of(session, row)).collect()
}

fn select(
    session: &Session<'_>,
    sql: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Row>> {
    session.prepare(sql)?.query_map(params, Row::read)?.collect()
}
