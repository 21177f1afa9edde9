//! Steps that several verbs share: find a job as the clock has it, let it finish, wait again, or be
//! forgotten.

use rusqlite::{CachedStatement, OptionalExtension as _, params};

use crate::domain::{Attempt, AttemptOutcome, Keep, Payload, State, Time, TopicName};
use crate::store::codec;

use super::enqueue::begin_next;
use super::fault::Done;
use super::row::{BY_KEY, Phase, Row, signed, with_attempt};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("lifecycle.sql");
const FINISH: &str = statement(FILE, "finish");
const STRIP: &str = statement(FILE, "strip");
const FORGET: &str = statement(FILE, "forget");
const FORGET_BODY: &str = statement(FILE, "forget_body");
const WAIT: &str = statement(FILE, "wait");
const SETTLED: &str = statement(FILE, "settled");
const UNCLAIM: &str = statement(FILE, "unclaim");
const MOVE: &str = statement(FILE, "move");
const REVIVE: &str = statement(FILE, "revive");
const HISTORY: &str = statement(FILE, "history");
const TOPIC_NAME: &str = statement(FILE, "topic_name");

/// Where a job that waits again is put.
pub(super) struct Place {
    pub(super) topic: i64,
    pub(super) rank: u8,
    pub(super) due: Time,
    pub(super) expire: Option<Time>,
}

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
    fn plain(outcome: AttemptOutcome) -> Ended<'a> {
        Ended { outcome, counted: false, dead_lettered: false, error: "" }
    }

    /// What recognizes a repeat of the settle that brought this end.
    pub(super) fn code(&self) -> u32 {
        codec::settled_code(self.outcome, self.dead_lettered)
    }
}

/// The job of that id, after everything that its clock has brought about: an expired one is
/// expired, one that was kept long enough is gone.
pub(super) fn find(
    session: &mut Session<'_>,
    by_id: &mut CachedStatement<'_>,
    topic: i64,
    id: &str,
) -> Done<Option<(Row, State)>> {
    let Some(row) = Row::find(by_id, params![topic, id])? else { return Ok(None) };
    if row.is_forgotten(session.now) {
        forget_kept(session, &row)?;
        return Ok(None);
    }
    if row.has_expired(session.now) {
        expire(session, &row)?;
        let Some(row) = Row::find(by_id, params![topic, id])? else { return Ok(None) };
        return Ok(row.state(session.now).map(|state| (row, state)));
    }
    Ok(row.state(session.now).map(|state| (row, state)))
}

/// The topic's name.
pub(super) fn topic_name(session: &Session<'_>, topic: i64) -> Done<TopicName> {
    let name: Option<String> =
        session.prepare(TOPIC_NAME)?.query_row(params![topic], |row| row.get(0)).optional()?;
    Ok(TopicName::stored(&name.unwrap_or_default()))
}

/// Removes a finished job that was kept for long enough.
pub(super) fn forget_kept(session: &mut Session<'_>, row: &Row) -> Done<()> {
    if row.phase == Phase::Succeeded {
        session.leaves_nothing(row.topic, &row.id);
    }
    forget(session, row)
}

/// Removes the job and everything of it.
pub(super) fn forget(session: &Session<'_>, row: &Row) -> Done<()> {
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
        _ => forget(session, row),
    }
}

/// A waiting or running job is deleted.
pub(super) fn cancel(session: &mut Session<'_>, row: &Row) -> Done<()> {
    let revoked = Ended::plain(AttemptOutcome::Revoked);
    let ended = (row.phase == Phase::Running).then_some(revoked);
    match row.keep.until(session.now) {
        Some(until) if until > session.now => {
            let now = session.now;
            conclude(session, row, Phase::Cancelled, now, until, ended, None)
        }
        _ => forget(session, row),
    }
}

/// A running job was acknowledged.
pub(super) fn succeed(session: &mut Session<'_>, row: &Row, result: Option<&Payload>) -> Done<()> {
    let ended = Ended::plain(AttemptOutcome::Succeeded);
    if row.next {
        return hand_on(session, row, &ended);
    }
    match row.keep.until(session.now) {
        Some(until) if until > session.now => {
            let now = session.now;
            conclude(session, row, Phase::Succeeded, now, until, Some(ended), result)
        }
        _ => {
            session.leaves_nothing(row.topic, &row.id);
            forget(session, row)
        }
    }
}

/// A running job gives up.
pub(super) fn die(session: &mut Session<'_>, row: &Row, ended: Ended<'_>, until: Time) -> Done<()> {
    if row.next {
        return hand_on(session, row, &ended);
    }
    let now = session.now;
    conclude(session, row, Phase::Dead, now, until, Some(ended), None)
}

/// A running job waits for another attempt; `due`: when.
pub(super) fn wait(session: &mut Session<'_>, row: &Row, ended: &Ended<'_>, due: Time) -> Done<()> {
    if row.next {
        return hand_on(session, row, ended);
    }
    let history = with_attempt(history(session, row)?.as_deref(), attempt(session, row, ended));
    session.prepare(WAIT)?.execute(params![
        row.key,
        due.0,
        row.expire.map(|expire| expire.0),
        ended.code(),
        row.deliveries + 1,
        row.failures + u32::from(ended.counted),
        last_error(row, ended),
        history,
    ])?;
    waits(session, row, due)
}

/// A claim reached nobody.
pub(super) fn unclaim(session: &mut Session<'_>, row: &Row) -> Done<()> {
    session.prepare(UNCLAIM)?.execute(params![row.key])?;
    if row.next {
        begin_next(session, row)?;
        return Ok(());
    }
    waits(session, row, row.due)
}

/// A waiting job moves to another due time or rank.
pub(super) fn relocate(
    session: &mut Session<'_>,
    row: &Row,
    rank: u8,
    due: Time,
    request: Option<u64>,
) -> Done<()> {
    session.prepare(MOVE)?.execute(params![row.key, due.0, rank, request.map(signed)])?;
    let topic = topic_name(session, row.topic)?;
    session.claimable(&topic, rank, due);
    Ok(())
}

/// A finished job waits again, with fresh counters. An expire time that has passed has had its say:
/// who revives the job wants it run.
pub(super) fn revive(
    session: &mut Session<'_>,
    row: &Row,
    place: &Place,
    request: Option<u64>,
) -> Done<()> {
    let ahead = place.expire.filter(|&expire| expire > session.now);
    let expire = ahead.map(|expire| expire.0);
    let request = request.map(signed);
    let params = params![row.key, place.due.0, place.rank, request, place.topic, expire];
    session.prepare(REVIVE)?.execute(params)?;
    if let Some(expire) = ahead {
        session.prune_at(expire);
    }
    let topic = topic_name(session, place.topic)?;
    session.claimable(&topic, place.rank, place.due);
    Ok(())
}

/// The old generation ends and the waiting one takes its place; of the old one only the way its
/// lease ended is remembered, so that a repeated settle is recognized.
fn hand_on(session: &mut Session<'_>, row: &Row, ended: &Ended<'_>) -> Done<()> {
    begin_next(session, row)?;
    session.prepare(SETTLED)?.execute(params![row.key, ended.code()])?;
    Ok(())
}

fn waits(session: &mut Session<'_>, row: &Row, due: Time) -> Done<()> {
    if let Some(expire) = row.expire {
        if expire <= session.now {
            return expire_late(session, row.key).map(drop);
        }
        session.prune_at(expire);
    }
    let topic = topic_name(session, row.topic)?;
    session.claimable(&topic, row.rank, due);
    Ok(())
}

fn conclude(
    session: &mut Session<'_>,
    row: &Row,
    phase: Phase,
    finished: Time,
    until: Time,
    ended: Option<Ended<'_>>,
    result: Option<&Payload>,
) -> Done<()> {
    let tombstone = phase != Phase::Dead && matches!(row.keep, Keep::Tombstone(_));
    let stored = history(session, row)?;
    let history = match &ended {
        Some(ended) => Some(with_attempt(stored.as_deref(), attempt(session, row, ended))),
        None => stored,
    };
    session.prepare(FINISH)?.execute(params![
        row.key,
        phase.code(),
        finished.0,
        until.0,
        ended.as_ref().map(|ended| ended.code()).or(row.settled),
        row.deliveries + u32::from(ended.is_some()),
        row.failures + u32::from(ended.as_ref().is_some_and(|ended| ended.counted)),
        ended.as_ref().map_or_else(|| row.error.clone(), |ended| last_error(row, ended)),
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

fn last_error(row: &Row, ended: &Ended<'_>) -> String {
    if ended.error.is_empty() { row.error.clone() } else { ended.error.to_owned() }
}
