//! Runs the engine on the records of a shard, within the transaction that writes them.

use rusqlite::params;

use crate::domain::JobKey;
use crate::domain::engine::{
    self, Answer, Change, Command, Decision, Found, Memory, Prior, Record, Unwritten,
};

use super::beat;
use super::fault::Done;
use super::record::{BY_ID, Row};
use super::session::Session;
use super::write::write;

/// Applies a command to the job of this key, with all that follows from it; the answer, and the record if it was written.
pub(super) fn apply(
    session: &mut Session<'_>,
    key: &JobKey,
    command: &Command,
) -> Done<(Answer, Option<Record>)> {
    let row = find(session, key)?;
    apply_to(session, key, row.as_ref(), command)
}

/// As [`apply`], where the row of the job, if there is one, is known.
pub(super) fn apply_to(
    session: &mut Session<'_>,
    key: &JobKey,
    row: Option<&Row>,
    command: &Command,
) -> Done<(Answer, Option<Record>)> {
    let decision = decide(session, key, row, command)?;
    write(session, key, row, &decision)?;
    for (key, follow_up) in decision.effects.follow_ups {
        apply(session, &key, &Command::Enqueue(Box::new(follow_up)))?;
    }
    let record = match decision.change {
        Change::Write(record) | Change::Arrive(record) => Some(*record),
        Change::Keep | Change::Remove => None,
    };
    Ok((decision.answer, record))
}

/// What becomes of the job of this key; nothing is written.
fn decide(
    session: &mut Session<'_>,
    key: &JobKey,
    row: Option<&Row>,
    command: &Command,
) -> Done<Decision> {
    let found = match row {
        Some(row) => Found::Record(Box::new(row.record.clone())),
        None => Found::Nothing(memory(session, key, command)?),
    };
    Ok(engine::apply(found, command, session.now))
}

/// The row of the job of this key.
pub(super) fn find(session: &mut Session<'_>, key: &JobKey) -> Done<Option<Row>> {
    let Some(topic) = session.topic(&key.topic)? else { return Ok(None) };
    Row::find(&mut session.prepare(BY_ID)?, params![topic, key.id.as_str()])
}

/// What is known of an id without a record, where that matters.
fn memory(session: &mut Session<'_>, key: &JobKey, command: &Command) -> Done<Memory> {
    if !matches!(command, Command::Enqueue(new) if new.prior == Prior::Itself) {
        return Ok(Memory::Free);
    }
    if let Some(topic) = session.topic(&key.topic)?
        && let Some(state) = session.recalled(topic, &key.id)
    {
        return Ok(Memory::Ended(state));
    }
    Ok(match session.refusal(&key.id) {
        Some(why) => Memory::Refuses(why),
        None if beat::drains(session)? => Memory::Refuses(Unwritten::Draining),
        None => Memory::Free,
    })
}
