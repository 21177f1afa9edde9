//! What happens by itself: leases that ran out, those of dead replicas, jobs that expire or were kept long enough.

use rusqlite::params;

use crate::domain::Time;
use crate::store::{Lease, Pruned, Reaped};

use super::fault::Done;
use super::finish;
use super::leases::lease_of;
use super::row::{Phase, Row};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("upkeep.sql");
const EXPIRED: &str = statement(FILE, "expired");
const NEXT_DEADLINE: &str = statement(FILE, "next_deadline");
const ORPHANS: &str = statement(FILE, "orphans");
const PASSED: &str = statement(FILE, "passed");
const NEXT_ALARM: &str = statement(FILE, "next_alarm");

/// Everything but running jobs, whose alarms are deadlines.
const PHASES: [Phase; 5] =
    [Phase::Waiting, Phase::Succeeded, Phase::Dead, Phase::Cancelled, Phase::Expired];

/// [`Store::reap`](crate::store::Store::reap).
pub(super) fn reap(session: &mut Session<'_>, limit: &usize) -> Done<Reaped> {
    let mut rows = Row::select(session, EXPIRED, params![session.now.0, limit + 1])?;
    let next = if rows.len() > *limit {
        rows.pop().and_then(|row| row.alarm)
    } else {
        let mut next = session.prepare(NEXT_DEADLINE)?;
        next.query_row(params![session.now.0], |row| row.get::<_, Option<i64>>(0))?.map(Time)
    };
    session.reaped_until(next);
    Ok(Reaped { now: session.now, leases: leases(session, rows)?, next })
}

/// [`Store::orphans`](crate::store::Store::orphans).
pub(super) fn orphans(session: &mut Session<'_>, living: &Vec<u32>) -> Done<Vec<Lease>> {
    let rows = Row::select(session, ORPHANS, params![format!("{living:?}")])?;
    leases(session, rows)
}

fn leases(session: &Session<'_>, rows: Vec<Row>) -> Done<Vec<Lease>> {
    rows.into_iter().map(|row| lease_of(session, row)).collect()
}

/// [`Store::prune`](crate::store::Store::prune).
pub(super) fn prune(session: &mut Session<'_>, limit: &usize) -> Done<Pruned> {
    let mut pruned = 0;
    for phase in PHASES {
        for row in passed(session, phase, limit - pruned)? {
            if phase == Phase::Waiting {
                finish::expire(session, &row)?;
            } else {
                finish::forget_kept(session, &row)?;
            }
            pruned += 1;
        }
    }
    let next = next_alarm(session)?;
    session.pruned_until(next);
    Ok(Pruned { now: session.now, pruned: pruned as u64, next })
}

fn passed(session: &Session<'_>, phase: Phase, limit: usize) -> rusqlite::Result<Vec<Row>> {
    Row::select(session, PASSED, params![phase.code(), session.now.0, limit])
}

fn next_alarm(session: &Session<'_>) -> rusqlite::Result<Option<Time>> {
    let mut next = session.prepare(NEXT_ALARM)?;
    let mut earliest: Option<i64> = None;
    for phase in PHASES {
        let alarm: Option<i64> = next.query_row(params![phase.code()], |row| row.get(0))?;
        earliest = earliest.into_iter().chain(alarm).min();
    }
    Ok(earliest.map(Time))
}
