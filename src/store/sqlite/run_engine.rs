//! Runs the engine on the records of a shard, within the transaction that writes them.

use rusqlite::params;

use crate::domain::JobKey;
use crate::domain::engine::{
    self, Command, CommandReply, Decision, EnqueueCommandReply, IdHistory, IdLookup, NewJob,
    NotWrittenReason, Record, RecordChange, WritePrecondition,
};

use super::error_mapping::SqliteResult;
use super::heartbeat;
use super::job_row::{BY_ID, JobRow};
use super::transaction::WriteTransaction;
use super::write_job::write;

/// Applies a command to the job of this key, with all its effects; returns the reply, and the record if it was
/// written.
pub(super) fn apply(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    command: &Command,
) -> SqliteResult<(CommandReply, Option<Record>)> {
    let row = find(session, key)?;
    apply_to(session, key, row.as_ref(), command)
}

/// Applies a command as [`apply`] does, where the row of the job, if there is one, is already read.
pub(super) fn apply_to(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    row: Option<&JobRow>,
    command: &Command,
) -> SqliteResult<(CommandReply, Option<Record>)> {
    let mut decision = decide(session, key, row, command)?;
    if let Command::Enqueue(new) = command
        && new.is_limited()
        && !has_room(session, key, row, new, &decision)?
    {
        let full = EnqueueCommandReply::topic_full(session.now);
        return Ok((CommandReply::Enqueued(full), None));
    }
    write(session, key, row, &decision)?;
    for NewJob { key, enqueue } in std::mem::take(&mut decision.effects.follow_ups) {
        apply(session, &key, &Command::Enqueue(enqueue))?;
    }
    Ok(reply(decision))
}

/// Applies a redrive, which may move the job to another topic; returns the same as [`apply`].
pub(super) fn redrive_job(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    redrive: &engine::Redrive,
) -> SqliteResult<(CommandReply, Option<Record>)> {
    let Some(topic) = &redrive.target else {
        return apply(session, key, &Command::Redrive(redrive.clone()));
    };
    let target = JobKey { topic: topic.clone(), id: key.id.clone() };
    let (row, taken) = (find(session, key)?, find(session, &target)?);
    let found = |row: Option<&JobRow>| match row {
        Some(row) => IdLookup::Record(Box::new(row.record.clone())),
        None => IdLookup::Absent(IdHistory::Free),
    };
    let (decision, elapsed) =
        engine::redrive_to(found(row.as_ref()), found(taken.as_ref()), redrive, session.now);
    if decision.change != RecordChange::Keep {
        write(session, &target, taken.as_ref(), &elapsed)?;
        write(session, key, row.as_ref(), &decision)?;
    }
    Ok(reply(decision))
}

/// Returns the reply of a decision that was written, and the record.
fn reply(decision: Decision) -> (CommandReply, Option<Record>) {
    let record = match decision.change {
        RecordChange::Write(record) | RecordChange::Insert(record) => Some(*record),
        RecordChange::Keep | RecordChange::Remove => None,
    };
    (decision.reply, record)
}

/// Returns whether the topic has room for what the decision about a new job adds to it.
fn has_room(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    row: Option<&JobRow>,
    new: &engine::Enqueue,
    decision: &Decision,
) -> SqliteResult<bool> {
    let before = row.map(|row| &row.record);
    let jobs = u64::from(decision.adds_waiting(before, session.now));
    let bytes = decision.added_bytes(before.map_or(0, Record::counted_bytes));
    session.has_room(&key.topic, new, jobs, bytes)
}

/// Decides the effects of a command; nothing is written.
fn decide(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    row: Option<&JobRow>,
    command: &Command,
) -> SqliteResult<Decision> {
    let found = match row {
        Some(row) => IdLookup::Record(Box::new(row.record.clone())),
        None => IdLookup::Absent(memory(session, key, command)?),
    };
    Ok(engine::apply(found, command, session.now))
}

/// Returns the row of the job of this key.
pub(super) fn find(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
) -> SqliteResult<Option<JobRow>> {
    let Some(topic) = session.topic(&key.topic)? else { return Ok(None) };
    JobRow::find(&mut session.prepare(BY_ID)?, params![topic, key.id.as_str()])
}

/// Returns the history of an id without a record, where that matters.
fn memory(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    command: &Command,
) -> SqliteResult<IdHistory> {
    if !matches!(command, Command::Enqueue(new) if new.precondition == WritePrecondition::SameJob) {
        return Ok(IdHistory::Free);
    }
    if let Some(topic) = session.topic(&key.topic)?
        && let Some(state) = session.ended_state(topic, &key.id)
    {
        return Ok(IdHistory::Ended(state));
    }
    Ok(match session.refusal(&key.id) {
        Some(why) => IdHistory::Rejected(why),
        None if heartbeat::is_draining(session)? => IdHistory::Rejected(NotWrittenReason::Draining),
        None => IdHistory::Free,
    })
}
