//! State that all replicas of a shard share: here there is one, but its ring records must survive it.

use rusqlite::params;

use crate::domain::open_rings::{self, RingMembers, RingRecord, RingRecords};
use crate::domain::ring::ShardState;
use crate::store::{Heartbeat, ReplicaHeartbeat, SharedState};

use super::error_mapping::SqliteResult;
use super::statement::statement;
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("heartbeat.sql");
const FIRST_STATE: &str = statement(FILE, "first_state");
const STATE: &str = statement(FILE, "state");
const SET_STATE: &str = statement(FILE, "set_state");
const TOUCH: &str = statement(FILE, "touch");
const RECORD: &str = statement(FILE, "record");
const RINGS: &str = statement(FILE, "rings");

/// [`Store::heartbeat`](crate::store::Store::heartbeat).
pub(super) fn beat(
    session: &mut WriteTransaction<'_>,
    beat: &Heartbeat,
) -> SqliteResult<SharedState> {
    session.heartbeat();
    let is_new = session.prepare(FIRST_STATE)?.execute([state_code(beat.state)])? > 0;
    let mut known = records(session)?;
    let news = open_rings::missing_records(&known, &beat.rings);
    for (members, mark) in &news {
        let version = i64::try_from(mark.version).unwrap_or(i64::MAX);
        session.prepare(RECORD)?.execute(params![members.as_str(), version, mark.open])?;
    }
    open_rings::merge_records(&mut known, &news);
    let state = session.prepare(STATE)?.query_row([], |row| row.get(0))?;
    let state = self::state_from_code(state);
    let caller = ReplicaHeartbeat { owner: beat.owner, ring: beat.ring, time: session.now };
    Ok(SharedState {
        now: session.now,
        state,
        is_new,
        last_heartbeat: None,
        rings: known,
        replicas: vec![caller],
    })
}

/// [`Store::set_state`](crate::store::Store::set_state).
pub(super) fn set_state(
    session: &mut WriteTransaction<'_>,
    state: &ShardState,
) -> SqliteResult<()> {
    session.prepare(SET_STATE)?.execute([state_code(*state)])?;
    session.mark_state_set();
    Ok(())
}

/// Rewrites a row unchanged: a transaction that writes no page succeeds on a disk that cannot be written.
pub(super) fn touch(session: &mut WriteTransaction<'_>, (): &()) -> SqliteResult<()> {
    session.prepare(TOUCH)?.execute([])?;
    Ok(())
}

/// Returns whether the shard is draining.
pub(super) fn is_draining(session: &WriteTransaction<'_>) -> SqliteResult<bool> {
    let state: Option<i64> = session.prepare(STATE)?.query_row([], |row| row.get(0))?;
    Ok(state.map(self::state_from_code) == Some(ShardState::Draining))
}

fn records(session: &WriteTransaction<'_>) -> SqliteResult<RingRecords> {
    let mut records = RingRecords::new();
    let mut select = session.prepare(RINGS)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (text, version): (String, i64) = (row.get(0)?, row.get(1)?);
        let mark = RingRecord { version: u64::try_from(version).unwrap_or(0), open: row.get(2)? };
        records.extend(RingMembers::stored(&text).map(|members| (members, mark)));
    }
    Ok(records)
}

fn state_code(state: ShardState) -> i64 {
    match state {
        ShardState::Active => 0,
        ShardState::Draining => 1,
    }
}

/// Decodes a state.
pub(super) fn state_from_code(code: i64) -> ShardState {
    if code == self::state_code(ShardState::Draining) {
        ShardState::Draining
    } else {
        ShardState::Active
    }
}
