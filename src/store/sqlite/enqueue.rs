//! The fast path of a job whose id is free.

use rusqlite::params;

use crate::domain::engine::{self, Answer, Moment, Placement, Prior};
use crate::domain::{EnqueueOutcome, JobKey, State};
use crate::store::codec;

use super::fault::Done;
use super::record::{micros, rank_of, signed};
use super::session::{Reused, Session, Total};
use super::sql::statement;
use super::write::{StoredJob, announce};

pub(super) const INSERT: &str = statement(include_str!("enqueue.sql"), "insert");

/// Writes a job whose id is free; what is answered then. Proved equal to the engine by `tests/it/model`.
pub(super) fn create<'c>(
    session: &mut Session<'c>,
    insert: &mut Reused<'c>,
    key: &JobKey,
    new: &engine::Enqueue,
    stored: &StoredJob,
) -> Done<Option<Answer>> {
    let now = session.now;
    let expire = new.expire.map(|expire| expire.at(now));
    let is_left = new.prior == Prior::Itself || new.checkpoint.is_some();
    if is_left || expire.is_some_and(|expire| expire <= now) {
        return Ok(None);
    }
    let topic = session.topic_or_create(&key.topic)?;
    let (priority, due) = (new.priority.unwrap_or(0), new.due.due(now));
    let inserted = insert.get(session)?.execute(params![
        rank_of(priority),
        due.0,
        now.0,
        expire.map(|expire| expire.0),
        codec::keep_code(new.keep),
        new.request.map(signed),
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
    stored.payload.put_apart(session, session.connection.last_insert_rowid())?;
    session.count(topic, Total::Enqueued, 1);
    let place = engine::Place::Waiting { priority, failed: false };
    announce(session, &key.topic, &Placement { place, alarm: expire }, Moment::fixed(due));
    Ok(Some(Answer::Enqueued(engine::Enqueued {
        outcome: Some(EnqueueOutcome::Created),
        state: State::waiting(due, 0, now),
        due: Moment::fixed(due),
        unwritten: None,
    })))
}
