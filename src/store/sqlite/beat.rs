//! What all replicas of a shard share: here there is one, but what it knows of rings must survive it.

use rusqlite::params;

use crate::domain::ring::ShardState;
use crate::domain::rings::{self, Mark, Members, Records};
use crate::store::{Beat, Census, Sign};

use super::fault::Done;
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("beat.sql");
const FIRST_STATE: &str = statement(FILE, "first_state");
const STATE: &str = statement(FILE, "state");
const SET_STATE: &str = statement(FILE, "set_state");
const TOUCH: &str = statement(FILE, "touch");
const RECORD: &str = statement(FILE, "record");
const RINGS: &str = statement(FILE, "rings");

/// [`Store::beat`](crate::store::Store::beat).
pub(super) fn beat(session: &mut Session<'_>, beat: &Beat) -> Done<Census> {
    session.sign();
    session.prepare(FIRST_STATE)?.execute([code(beat.state)])?;
    let mut known = records(session)?;
    let news = rings::news_for(&known, &beat.rings);
    for (members, mark) in &news {
        let version = i64::try_from(mark.version).unwrap_or(i64::MAX);
        session.prepare(RECORD)?.execute(params![members.as_str(), version, mark.open])?;
    }
    rings::merge(&mut known, &news);
    let state = session.prepare(STATE)?.query_row([], |row| row.get(0))?;
    let state = self::state(state);
    let caller = Sign { owner: beat.owner, ring: beat.ring, at: session.now };
    Ok(Census { now: session.now, state, rings: known, replicas: vec![caller] })
}

/// [`Store::set_state`](crate::store::Store::set_state).
pub(super) fn set_state(session: &mut Session<'_>, state: &ShardState) -> Done<()> {
    session.prepare(SET_STATE)?.execute([code(*state)])?;
    session.configured();
    Ok(())
}

/// Writes a row as it is: a transaction that writes no page succeeds on a disk that cannot be written.
pub(super) fn touch(session: &mut Session<'_>, (): &()) -> Done<()> {
    session.prepare(TOUCH)?.execute([])?;
    Ok(())
}

/// Whether the shard takes no new jobs.
pub(super) fn drains(session: &Session<'_>) -> Done<bool> {
    let state: Option<i64> = session.prepare(STATE)?.query_row([], |row| row.get(0))?;
    Ok(state.map(self::state) == Some(ShardState::Draining))
}

fn records(session: &Session<'_>) -> Done<Records> {
    let mut records = Records::new();
    let mut select = session.prepare(RINGS)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (text, version): (String, i64) = (row.get(0)?, row.get(1)?);
        let mark = Mark { version: u64::try_from(version).unwrap_or(0), open: row.get(2)? };
        records.extend(Members::stored(&text).map(|members| (members, mark)));
    }
    Ok(records)
}

fn code(state: ShardState) -> i64 {
    match state {
        ShardState::Active => 0,
        ShardState::Draining => 1,
    }
}

/// The state that is stored so.
pub(super) fn state(code: i64) -> ShardState {
    if code == self::code(ShardState::Draining) { ShardState::Draining } else { ShardState::Active }
}
