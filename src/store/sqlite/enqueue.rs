//! Fast path of an enqueue whose id is free.

use rusqlite::params;

use crate::domain::engine::{self, CommandReply, Placement, RecordTime, WritePrecondition};
use crate::domain::{EnqueueOutcome, JobKey, State};
use crate::store::codec;

use super::error_mapping::SqliteResult;
use super::job_row::{micros, signed, stored_rank};
use super::lanes::{LanePosition, TopicRef, join};
use super::statement::statement;
use super::transaction::{ReusedStatement, TotalKind, WriteTransaction};
use super::write_job::{StoredJob, notify};

pub(super) const INSERT: &str = statement(include_str!("enqueue.sql"), "insert");

/// Writes a job whose id is free, and returns the reply; `None`: the engine has to decide. Proved equal to the engine
/// by `tests/it/model`.
pub(super) fn create<'c>(
    session: &mut WriteTransaction<'c>,
    insert: &mut ReusedStatement<'c>,
    key: &JobKey,
    new: &engine::Enqueue,
    stored: &StoredJob,
) -> SqliteResult<Option<CommandReply>> {
    let now = session.now;
    let expire = new.expire.map(|expire| expire.at(now));
    let is_left = new.precondition == WritePrecondition::SameJob || new.history.is_some();
    if is_left || expire.is_some_and(|expire| expire <= now) {
        return Ok(None);
    }
    if new.is_limited() && !session.has_room(&key.topic, new, 1, new.spec.bytes() as u64)? {
        // The engine knows whether a job would come to wait at all.
        return Ok(None);
    }
    let topic = session.topic_or_create(&key.topic)?;
    let (priority, due) = (new.priority.unwrap_or(0), new.due.due(now));
    let group = new.spec.group.as_ref();
    let rank = stored_rank(priority, group);
    let inserted = insert.get(session)?.execute(params![
        rank,
        due.0,
        now.0,
        expire.map(|expire| expire.0),
        codec::retention_code(new.retention),
        new.request_code.map(signed),
        signed(new.spec.bytes() as u64),
        stored.payload.is_large(),
        new.spec.lease.map(micros),
        stored.spec,
        stored.payload.inline(),
        topic,
        key.id.as_str(),
    ])?;
    if inserted == 0 {
        return Ok(None);
    }
    let job = session.connection.last_insert_rowid();
    stored.payload.write_body(session, job)?;
    session.count(topic, TotalKind::Enqueued, 1);
    session.topic_counts().waiting.add(&key.topic, 1);
    session.topic_counts().bytes.add(&key.topic, new.spec.bytes() as i64);
    if let Some(group) = group {
        let topic = TopicRef { key: topic, name: &key.topic };
        join(session, topic, group, LanePosition { rank, due, key: job })?;
    }
    let place = engine::JobIndex::Waiting { priority, failed: false, group };
    notify(session, &key.topic, &Placement { index: place, alarm: expire }, RecordTime::fixed(due));
    Ok(Some(CommandReply::Enqueued(engine::EnqueueCommandReply {
        outcome: Some(EnqueueOutcome::Created),
        state: State::waiting(due, 0, now),
        due: RecordTime::fixed(due),
        not_written: None,
    })))
}
