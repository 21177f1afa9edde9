//! Enqueue: write a job. What has its id already is left to the engine.

use rusqlite::{CachedStatement, params};

use crate::domain::engine::{self, Answer, Command, Moment, Placement, Prior};
use crate::domain::{Durability, EnqueueOutcome, JobKey, State};
use crate::store::{Enqueue, NewJob, codec};

use super::apply::apply;
use super::fault::Done;
use super::record::{micros, rank_of, signed};
use super::session::{Session, Total};
use super::sql::statement;
use super::write::{StoredPayload, announce};

const INSERT: &str = statement(include_str!("enqueue.sql"), "insert");

/// A job with its blobs encoded, which happens before it reaches the writer.
pub(super) struct Prepared {
    key: JobKey,
    command: Command,
    spec: Option<Vec<u8>>,
    payload: StoredPayload,
}

// === impl Prepared ===

impl Prepared {
    pub(super) fn new(job: NewJob) -> Prepared {
        let spec = codec::encode_spec(&job.spec);
        let payload = StoredPayload::new(job.spec.payload.as_ref());
        let (key, new) = job.into_command();
        Prepared { key, command: Command::Enqueue(Box::new(new)), spec, payload }
    }
}

/// [`Store::enqueue`](crate::store::Store::enqueue).
pub(super) fn enqueue(session: &mut Session<'_>, jobs: &Vec<Prepared>) -> Done<Vec<Enqueue>> {
    let mut insert = session.prepare(INSERT)?;
    jobs.iter().map(|job| enqueue_one(session, &mut insert, job)).collect()
}

fn enqueue_one(
    session: &mut Session<'_>,
    insert: &mut CachedStatement<'_>,
    job: &Prepared,
) -> Done<Enqueue> {
    if let Command::Enqueue(new) = &job.command
        && let Some(created) = create(session, insert, job, new)?
    {
        return Ok(created);
    }
    match apply(session, &job.key, &job.command)? {
        Answer::Enqueued(answer) => Ok(Enqueue::of(answer, answer.due.at, Durability::Memory)),
        _ => unreachable!("an enqueue is answered as one"),
    }
}

/// The fast path: writes a job whose id is free. Proved equal to the engine by `tests/it/model`.
fn create(
    session: &mut Session<'_>,
    insert: &mut CachedStatement<'_>,
    job: &Prepared,
    new: &engine::Enqueue,
) -> Done<Option<Enqueue>> {
    let now = session.now;
    let expire = new.expire.map(|expire| expire.at(now));
    let is_left = new.prior == Prior::Itself || new.checkpoint.is_some();
    if is_left || expire.is_some_and(|expire| expire <= now) {
        return Ok(None);
    }
    let topic = session.topic_or_create(&job.key.topic)?;
    let (priority, due) = (new.priority.unwrap_or(0), new.due.due(now));
    let inserted = insert.execute(params![
        rank_of(priority),
        due.0,
        now.0,
        expire.map(|expire| expire.0),
        codec::keep_code(new.keep),
        new.request.map(signed),
        signed(new.spec.bytes() as u64),
        job.payload.is_large(),
        new.spec.lease.map(micros),
        job.spec,
        job.payload.inline(),
        topic,
        job.key.id.as_str(),
    ])?;
    if inserted == 0 {
        return Ok(None);
    }
    job.payload.put_apart(session, session.connection.last_insert_rowid())?;
    session.count(topic, Total::Enqueued, 1);
    let place = engine::Place::Waiting { priority, failed: false };
    announce(session, &job.key.topic, &Placement { place, alarm: expire }, Moment::fixed(due));
    Ok(Some(Enqueue {
        outcome: Some(EnqueueOutcome::Created),
        state: State::waiting(due, 0, now),
        due,
        durability: Durability::Memory,
        unwritten: None,
    }))
}
