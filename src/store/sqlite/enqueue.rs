//! Enqueue: write a job, or do to the one that has its id what [`conflict::resolve`] says.

use rusqlite::CachedStatement;

use crate::domain::conflict::{self, Action, Repeat};
use crate::domain::{Durability, EnqueueOutcome, JobKey, State, Time};
use crate::store::{Enqueue, NewJob, Prior, Unwritten, codec};

use super::beat;
use super::fault::Done;
use super::generation::{
    self, Generation, Schedule, StoredSpec, due_of, overwrite, rank_of, waits,
};
use super::lifecycle;
use super::row::{BY_ID, Row, micros};
use super::session::{Session, Total};
use super::sql::statement;

const FILE: &str = include_str!("enqueue.sql");
const INSERT: &str = statement(FILE, "insert");

/// A job with its blobs encoded, which happens before it reaches the writer.
#[derive(Debug)]
pub(super) struct Prepared {
    job: NewJob,
    spec: StoredSpec,
}

// === impl Prepared ===

impl Prepared {
    pub(super) fn new(job: NewJob) -> Prepared {
        let spec = StoredSpec {
            payload: job.spec.payload.as_ref().map(codec::encode_payload),
            terms: codec::encode_terms(&job.spec),
            bytes: i64::try_from(job.spec.bytes()).unwrap_or(i64::MAX),
            keep: codec::keep_code(job.keep),
            own_lease: job.spec.lease.map(micros),
            retention: job.spec.retention.map(micros),
        };
        Prepared { job, spec }
    }

    /// The schedule at `now`; what the job leaves open is taken from `rank`.
    fn schedule(&self, now: Time, rank: u8) -> Schedule {
        Schedule {
            rank: self.job.priority.map_or(rank, rank_of),
            due: self.job.due.due(now),
            expire: self.job.expire.map(|expire| expire.at(now)),
        }
    }

    fn fresh_schedule(&self, now: Time) -> Schedule {
        self.schedule(now, rank_of(0))
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
    new: &Prepared,
) -> Done<Enqueue> {
    if new.job.prior == Prior::Itself
        && let Some(answer) = recalled(session, new)?
    {
        return Ok(answer);
    }
    let topic = session.topic_or_create(&new.job.key.topic)?;
    let schedule = new.fresh_schedule(session.now);
    if insert_new(session, insert, topic, new, schedule)? {
        return Ok(answer(session, EnqueueOutcome::Created, schedule));
    }
    let mut by_id = session.prepare(BY_ID)?;
    let id = new.job.key.id.as_str();
    match lifecycle::find(session, &mut by_id, topic, id)? {
        Some((row, state)) => meet(session, row, state, new),
        // What was there had been kept long enough and is gone now.
        None => {
            insert_new(session, insert, topic, new, schedule)?;
            Ok(answer(session, EnqueueOutcome::Created, schedule))
        }
    }
}

/// The answer for a job that must not be written: it has ended, or it cannot be the repeat of a call, or that is not
/// known any more.
fn recalled(session: &mut Session<'_>, new: &Prepared) -> Done<Option<Enqueue>> {
    let JobKey { topic, id } = &new.job.key;
    let left = |state, due| Enqueue {
        outcome: Some(EnqueueOutcome::Unchanged),
        state,
        due,
        durability: Durability::Memory,
        unwritten: None,
    };
    if let Some(topic) = session.topic(topic)? {
        let mut by_id = session.prepare(BY_ID)?;
        if let Some((row, state)) = lifecycle::find(session, &mut by_id, topic, id.as_str())? {
            // An id that a server made is never free again.
            return Ok((state == State::Cancelled).then(|| left(state, row.due)));
        }
        if let Some(state) = session.recalled(topic, id) {
            return Ok(Some(left(state, session.now)));
        }
    }
    let refused = match session.refusal(id) {
        None if beat::drains(session)? => Some(Unwritten::Draining),
        refusal => refusal,
    };
    let unwritten =
        |refusal| Enqueue { unwritten: Some(refusal), ..left(State::Ready, session.now) };
    Ok(refused.map(unwritten))
}

/// Writes the job unless its id is taken; whether it did.
fn insert_new(
    session: &mut Session<'_>,
    insert: &mut CachedStatement<'_>,
    topic: i64,
    new: &Prepared,
    schedule: Schedule,
) -> Done<bool> {
    let (key, spec, created) = (&new.job.key, &new.spec, session.now);
    let generation = Generation { spec, schedule, created, request: new.job.request };
    let inserted = generation.write(insert, [&topic, &key.id.as_str()])?;
    if inserted == 0 {
        return Ok(false);
    }
    let key = session.connection.last_insert_rowid();
    generation::put_body(session, key, false, spec)?;
    announce(session, topic, key, new, schedule)?;
    Ok(true)
}

/// The id is taken by `row`.
fn meet(session: &mut Session<'_>, row: Row, state: State, new: &Prepared) -> Done<Enqueue> {
    let repeat = Repeat::of(row.request, new.job.request);
    let action = conflict::resolve(new.job.on_conflict, row.found(state), repeat);
    let reply = |outcome, state, due| {
        Ok(Enqueue { outcome, state, due, durability: Durability::Memory, unwritten: None })
    };
    match action {
        Action::Leave | Action::Refuse => reply(action.outcome(), state, due_of(session, &row)?),
        Action::Write(outcome) => {
            let schedule = new.fresh_schedule(session.now);
            let request = new.job.request.or(row.request);
            let (spec, created) = (&new.spec, session.now);
            let generation = Generation { spec, schedule, created, request };
            overwrite(session, &row, &generation, true)?;
            announce(session, row.topic, row.key, new, schedule)?;
            Ok(answer(session, outcome, schedule))
        }
        Action::Move | Action::Revive => {
            let schedule = new.schedule(session.now, row.rank);
            move_job(session, &row, action, new, schedule)?;
            let moved = State::waiting(schedule.due, moved_failures(action, &row), session.now);
            reply(action.outcome(), moved, schedule.due)
        }
        Action::Defer | Action::DeferSame | Action::MoveNext => {
            let due = defer(session, &row, action, new)?;
            reply(action.outcome(), state, due)
        }
    }
}

fn moved_failures(action: Action, row: &Row) -> u32 {
    if action == Action::Revive { 0 } else { row.failures }
}

fn move_job(
    session: &mut Session<'_>,
    row: &Row,
    action: Action,
    new: &Prepared,
    schedule: Schedule,
) -> Done<()> {
    let Schedule { rank, due, .. } = schedule;
    if action == Action::Revive {
        let schedule = Schedule { expire: row.expire, ..schedule };
        lifecycle::revive(session, row, row.topic, schedule, new.job.request)
    } else {
        lifecycle::relocate(session, row, rank, due, new.job.request)
    }
}

/// Stores or moves the next generation of a running job; its due time.
fn defer(session: &mut Session<'_>, row: &Row, action: Action, new: &Prepared) -> Done<Time> {
    let schedule = match action {
        Action::MoveNext => {
            let rank = generation::next_rank(session, row)?;
            let schedule = new.schedule(session.now, rank);
            generation::move_next(session, row, schedule)?;
            schedule
        }
        Action::DeferSame => {
            let schedule = new.schedule(session.now, row.rank);
            let same = Schedule { expire: None, ..schedule };
            let spec = generation::stored_spec(session, row)?;
            generation::write_next(session, row, same, &spec)?;
            same
        }
        _ => {
            let schedule = new.fresh_schedule(session.now);
            generation::write_next(session, row, schedule, &new.spec)?;
            schedule
        }
    };
    generation::deferred(session, row, new.job.request.or(row.request))?;
    session.count(row.topic, Total::Enqueued);
    Ok(schedule.due)
}

fn announce(
    session: &mut Session<'_>,
    topic: i64,
    key: i64,
    new: &Prepared,
    schedule: Schedule,
) -> Done<()> {
    session.count(topic, Total::Enqueued);
    waits(session, key, &new.job.key.topic, schedule)
}

/// The reply to a job that now waits and never failed.
fn answer(session: &Session<'_>, outcome: EnqueueOutcome, schedule: Schedule) -> Enqueue {
    let expired = schedule.expire.is_some_and(|expire| expire <= session.now);
    let waiting = State::waiting(schedule.due, 0, session.now);
    let state = if expired { State::Expired } else { waiting };
    let (outcome, durability) = (Some(outcome), Durability::Memory);
    Enqueue { outcome, state, due: schedule.due, durability, unwritten: None }
}
