//! The steps of a job's life that several verbs share: find it as the clock has it, end its lease, let it
//! wait again.

use rusqlite::{CachedStatement, params};

use crate::domain::{AttemptOutcome, Payload, State, Time};

use super::fault::Done;
use super::finish::{Ended, conclude, expire, forget, forget_kept, history_with};
use super::generation::{self, Schedule, begin_next};
use super::phase::Phase;
use super::row::{self, Row, signed};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("lifecycle.sql");
const WAIT: &str = statement(FILE, "wait");
const SETTLED: &str = statement(FILE, "settled");
const UNCLAIM: &str = statement(FILE, "unclaim");
const MOVE: &str = statement(FILE, "move");
const REVIVE: &str = statement(FILE, "revive");

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

/// A waiting or running job is deleted.
pub(super) fn cancel(session: &mut Session<'_>, row: &Row) -> Done<()> {
    let revoked = Ended::plain(AttemptOutcome::Revoked);
    let ended = (row.phase == Phase::Running).then_some(revoked);
    match row.keep.until(session.now) {
        Some(until) if until > session.now => {
            let now = session.now;
            conclude(session, row, Phase::Cancelled, now, until, ended, None)
        }
        _ => forget(session, row, Phase::Cancelled),
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
        _ => forget(session, row, Phase::Succeeded),
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
    let history = history_with(session, row, ended)?;
    session.prepare(WAIT)?.execute(params![
        row.key,
        due.0,
        row.expire.map(|expire| expire.0),
        ended.code(),
        row.deliveries + 1,
        row.failures + u32::from(ended.counted),
        ended.last_error(row),
        history,
    ])?;
    waits(session, row, due)
}

/// A claim reached nobody.
pub(super) fn unclaim(session: &mut Session<'_>, row: &Row) -> Done<()> {
    session.prepare(UNCLAIM)?.execute(params![row.key])?;
    if row.next {
        return begin_next(session, row);
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
    let topic = row::topic_name(session.connection, row.topic)?;
    session.claimable(&topic, rank, due);
    Ok(())
}

/// A finished job waits again in `topic`, with fresh counters. An expire time that has passed has had its say:
/// who revives the job wants it run.
pub(super) fn revive(
    session: &mut Session<'_>,
    row: &Row,
    topic: i64,
    schedule: Schedule,
    request: Option<u64>,
) -> Done<()> {
    let Schedule { rank, due, expire } = schedule;
    let ahead = expire.filter(|&expire| expire > session.now);
    let expire = ahead.map(|expire| expire.0);
    let request = request.map(signed);
    let params = params![row.key, due.0, rank, request, topic, expire];
    session.prepare(REVIVE)?.execute(params)?;
    if let Some(expire) = ahead {
        session.prune_at(expire);
    }
    let topic = row::topic_name(session.connection, topic)?;
    session.claimable(&topic, rank, due);
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
    let topic = row::topic_name(session.connection, row.topic)?;
    let schedule = Schedule { rank: row.rank, due, expire: row.expire };
    generation::waits(session, row.key, &topic, schedule)
}
