//! How a job comes to its end, and what stays of it.

use rusqlite::params;

use crate::domain::{Attempt, AttemptOutcome, Keep, Payload, Time};
use crate::store::codec;

use super::fault::Done;
use super::phase::Phase;
use super::row::{BY_KEY, Row, with_attempt};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("finish.sql");
const FINISH: &str = statement(FILE, "finish");
const STRIP: &str = statement(FILE, "strip");
const FORGET: &str = statement(FILE, "forget");
const FORGET_BODY: &str = statement(FILE, "forget_body");
const HISTORY: &str = statement(FILE, "history");

/// How an attempt ended, as it is remembered.
pub(super) struct Ended<'a> {
    pub(super) outcome: AttemptOutcome,
    pub(super) counted: bool,
    pub(super) dead_lettered: bool,
    pub(super) error: &'a str,
}

// === impl Ended ===

impl<'a> Ended<'a> {
    /// An end that counts no failure and leaves no error.
    pub(super) fn plain(outcome: AttemptOutcome) -> Ended<'a> {
        Ended { outcome, counted: false, dead_lettered: false, error: "" }
    }

    /// What recognizes a repeat of the settle that brought this end.
    pub(super) fn code(&self) -> u32 {
        codec::settled_code(self.outcome, self.dead_lettered)
    }

    /// What is read as the job's last error from now on: an attempt that counts as no failure leaves the older one.
    pub(super) fn last_error(&self, row: &Row) -> String {
        let failed = self.counted && !self.error.is_empty();
        if failed { self.error.to_owned() } else { row.error.clone() }
    }
}

/// Removes a finished job that was kept for long enough.
pub(super) fn forget_kept(session: &mut Session<'_>, row: &Row) -> Done<()> {
    forget(session, row, row.phase)
}

/// Removes the job, which has ended so, and everything of it.
pub(super) fn forget(session: &mut Session<'_>, row: &Row, ended: Phase) -> Done<()> {
    session.leaves_nothing(row.topic, &row.id, ended);
    session.prepare(FORGET)?.execute(params![row.key])?;
    if row.large {
        session.prepare(FORGET_BODY)?.execute(params![row.key])?;
    }
    Ok(())
}

/// A waiting job has passed its expire time: it finished then, not now.
pub(super) fn expire(session: &mut Session<'_>, row: &Row) -> Done<()> {
    expire_at(session, row, row.expire.unwrap_or(session.now))
}

/// A job has just begun to wait. If its expire time passed before that (while it ran, or before it
/// came), it finishes now, and is kept from now on; whether it did.
pub(super) fn expire_late(session: &mut Session<'_>, key: i64) -> Done<bool> {
    let row = Row::find(&mut session.prepare(BY_KEY)?, params![key])?;
    let Some(row) = row.filter(|row| row.has_expired(session.now)) else { return Ok(false) };
    expire_at(session, &row, session.now)?;
    Ok(true)
}

fn expire_at(session: &mut Session<'_>, row: &Row, at: Time) -> Done<()> {
    match row.keep.until(at) {
        Some(until) if until > session.now => {
            conclude(session, row, Phase::Expired, at, until, None, None)
        }
        _ => forget(session, row, Phase::Expired),
    }
}

/// The job has finished in `phase` and is kept until then.
pub(super) fn conclude(
    session: &mut Session<'_>,
    row: &Row,
    phase: Phase,
    finished: Time,
    until: Time,
    ended: Option<Ended<'_>>,
    result: Option<&Payload>,
) -> Done<()> {
    let tombstone = phase != Phase::Dead && matches!(row.keep, Keep::Tombstone(_));
    let history = match &ended {
        Some(ended) => Some(history_with(session, row, ended)?),
        None => history(session, row)?,
    };
    session.prepare(FINISH)?.execute(params![
        row.key,
        phase.code(),
        finished.0,
        until.0,
        ended.as_ref().map(|ended| ended.code()).or(row.settled),
        row.deliveries + u32::from(ended.is_some()),
        row.failures + u32::from(ended.as_ref().is_some_and(|ended| ended.counted)),
        ended.as_ref().map_or_else(|| row.error.clone(), |ended| ended.last_error(row)),
        history,
        result.filter(|_| !tombstone).map(codec::encode_payload),
    ])?;
    if tombstone {
        session.prepare(STRIP)?.execute(params![row.key])?;
        if row.large {
            session.prepare(FORGET_BODY)?.execute(params![row.key])?;
        }
    }
    session.prune_at(until);
    Ok(())
}

fn history(session: &Session<'_>, row: &Row) -> Done<Option<Vec<u8>>> {
    Ok(session.prepare(HISTORY)?.query_row(params![row.key], |found| found.get(0))?)
}

/// The attempts that are remembered, and the one that ended so.
pub(super) fn history_with(session: &Session<'_>, row: &Row, ended: &Ended<'_>) -> Done<Vec<u8>> {
    Ok(with_attempt(history(session, row)?.as_deref(), attempt(session, row, ended)))
}

fn attempt(session: &Session<'_>, row: &Row, ended: &Ended<'_>) -> Attempt {
    Attempt {
        number: row.deliveries + 1,
        start_time: row.started,
        finish_time: session.now,
        worker_id: row.worker.clone(),
        outcome: ended.outcome,
        error: ended.error.to_owned(),
    }
}
