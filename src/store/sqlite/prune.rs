//! Prune: expire what waited too long, forget what was kept long enough.

use rusqlite::params;

use crate::domain::Time;
use crate::store::Pruned;

use super::fault::Done;
use super::finish;
use super::row::{Phase, Row};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("prune.sql");
const DUE: &str = statement(FILE, "due");
const NEXT: &str = statement(FILE, "next");

/// Everything but running jobs, whose alarms are deadlines.
const PHASES: [Phase; 5] =
    [Phase::Waiting, Phase::Succeeded, Phase::Dead, Phase::Cancelled, Phase::Expired];

/// [`Store::prune`](crate::store::Store::prune).
pub(super) fn prune(session: &mut Session<'_>, limit: &usize) -> Done<Pruned> {
    let mut pruned = 0;
    for phase in PHASES {
        for row in due(session, phase, limit - pruned)? {
            if phase == Phase::Waiting {
                finish::expire(session, &row)?;
            } else {
                finish::forget_kept(session, &row)?;
            }
            pruned += 1;
        }
    }
    let next = next(session)?;
    session.pruned_until(next);
    Ok(Pruned { now: session.now, pruned: pruned as u64, next })
}

fn due(session: &Session<'_>, phase: Phase, limit: usize) -> rusqlite::Result<Vec<Row>> {
    let mut due = session.prepare(DUE)?;
    due.query_map(params![phase.code(), session.now.0, limit], Row::read)?.collect()
}

fn next(session: &Session<'_>) -> rusqlite::Result<Option<Time>> {
    let mut next = session.prepare(NEXT)?;
    let mut earliest: Option<i64> = None;
    for phase in PHASES {
        let alarm: Option<i64> = next.query_row(params![phase.code()], |row| row.get(0))?;
        earliest = earliest.into_iter().chain(alarm).min();
    }
    Ok(earliest.map(Time))
}
