//! Queries of running leases.

use rusqlite::params;

use crate::domain::engine::Phase;
use crate::domain::{StreamId, Time, Token, limit};
use crate::store::{LeaseQueryResult, RunningLease};

use super::error_mapping::{SqliteResult, skip_damaged};
use super::job_row::{BY_KEY, JobRow, signed};
use super::reader::SqliteReader;
use super::statement::statement;
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("lease_query.sql");
const EXPIRED: &str = statement(FILE, "expired");
const NEXT_DEADLINE: &str = statement(FILE, "next_deadline");
const ORPHANS: &str = statement(FILE, "orphans");
const OF_STREAMS: &str = statement(FILE, "of_streams");
const PART: &str = statement(FILE, "part");

/// Position of a lease among the running ones: its deadline, its topic and its job.
type LeasePosition = (i64, i64, i64);

/// Query of [`LeaseQuery::OfLostClaim`](crate::store::LeaseQuery::OfLostClaim).
pub(super) struct LostClaimQuery {
    pub(super) nonce: u32,
    pub(super) from: String,
}

/// [`LeaseQuery::Overdue`](crate::store::LeaseQuery::Overdue).
pub(super) fn overdue(
    session: &mut WriteTransaction<'_>,
    limit: &usize,
) -> SqliteResult<LeaseQueryResult> {
    let mut rows = JobRow::select(session.connection, EXPIRED, params![session.now.0, limit + 1])?;
    let next = if rows.len() > *limit {
        rows.pop().and_then(|row| match row.record.phase {
            Phase::Running(lease) => Some(lease.deadline.at),
            Phase::Waiting | Phase::Finished(_) => None,
        })
    } else {
        let mut next = session.prepare(NEXT_DEADLINE)?;
        next.query_row(params![session.now.0], |row| row.get::<_, Option<i64>>(0))?.map(Time)
    };
    session.set_next_reap(next);
    let away = Some(session.outage());
    let leases = leases(session, rows)?;
    Ok(LeaseQueryResult {
        now: session.now,
        leases,
        next_deadline: next,
        outage: away,
        ..LeaseQueryResult::default()
    })
}

fn leases(session: &WriteTransaction<'_>, rows: Vec<JobRow>) -> SqliteResult<Vec<RunningLease>> {
    let leases = rows.into_iter().map(|row| row.lease(session.connection, session.now));
    leases.filter_map(Result::transpose).collect()
}

/// [`LeaseQuery::OfLostClaim`](crate::store::LeaseQuery::OfLostClaim). The claim itself is over: the writer ran it
/// before this call.
pub(super) fn of_claim(
    session: &mut WriteTransaction<'_>,
    LostClaimQuery { nonce, from }: &LostClaimQuery,
) -> SqliteResult<LeaseQueryResult> {
    let from = parse_position(from).unwrap_or((i64::MIN, 0, 0));
    let mut part = session.prepare(PART)?;
    let read = |row: &rusqlite::Row<'_>| {
        let place: LeasePosition = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((place, Token(row.get::<_, i64>(3)?.cast_unsigned())))
    };
    let found = part.query_map(params![from.0, from.1, from.2, limit::CALL_JOBS_MAX], read)?;
    let found = found.collect::<rusqlite::Result<Vec<(LeasePosition, Token)>>>()?;
    let mut by_key = session.prepare(BY_KEY)?;
    let mut rows = Vec::new();
    for ((_, _, key), _) in found.iter().filter(|(_, token)| token.nonce() == *nonce) {
        let row = skip_damaged(JobRow::find(&mut by_key, params![key])).transpose()?;
        rows.extend(row.flatten());
    }
    let last = found.last().filter(|_| found.len() == limit::CALL_JOBS_MAX);
    let rest = last.map(|((alarm, topic, key), _)| format!("{alarm} {topic} {key}"));
    Ok(LeaseQueryResult {
        now: session.now,
        leases: leases(session, rows)?,
        cursor: rest,
        ..LeaseQueryResult::default()
    })
}

fn parse_position(text: &str) -> Option<LeasePosition> {
    let mut numbers = text.split(' ').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// [`LeaseQuery::OfStreams`](crate::store::LeaseQuery::OfStreams).
pub(super) fn of_streams(
    reader: &SqliteReader<'_>,
    streams: &Vec<StreamId>,
) -> SqliteResult<LeaseQueryResult> {
    let one = |id: &StreamId| signed(u64::from(id.owner) << 32 | u64::from(id.stream));
    let streams: Vec<i64> = streams.iter().map(one).collect();
    select(reader, OF_STREAMS, &format!("{streams:?}"))
}

/// [`LeaseQuery::Orphaned`](crate::store::LeaseQuery::Orphaned).
pub(super) fn orphans(
    reader: &SqliteReader<'_>,
    living: &Vec<u32>,
) -> SqliteResult<LeaseQueryResult> {
    select(reader, ORPHANS, &format!("{living:?}"))
}

/// Scans all leases, so it must not run on the writer. Writes that follow check each lease again.
fn select(reader: &SqliteReader<'_>, sql: &str, numbers: &str) -> SqliteResult<LeaseQueryResult> {
    let rows = JobRow::select(reader.connection, sql, params![numbers])?;
    let leases = rows.into_iter().map(|row| row.lease(reader.connection, reader.now));
    let leases = leases.filter_map(Result::transpose).collect::<SqliteResult<_>>()?;
    Ok(LeaseQueryResult { now: reader.now, leases, ..LeaseQueryResult::default() })
}
