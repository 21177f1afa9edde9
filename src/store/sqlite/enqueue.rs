//! Enqueue: write a job, or do to the one that has its id what [`conflict::resolve`] says.

use rusqlite::{CachedStatement, OptionalExtension as _, params};

use crate::domain::conflict::{self, Action};
use crate::domain::{Durability, Outcome, State, Time, TopicName, limit};
use crate::store::{Enqueue, NewJob, Prior, codec};

use super::fault::Done;
use super::lifecycle::{self, Place};
use super::row::{self, BY_ID, INLINE_BYTES_MAX, Row, micros, signed};
use super::session::{Session, Total};
use super::sql::statement;

const FILE: &str = include_str!("enqueue.sql");
const INSERT: &str = statement(FILE, "insert");
const INSERT_BODY: &str = statement(FILE, "insert_body");
const DELETE_BODY: &str = statement(FILE, "delete_body");
const OVERWRITE: &str = statement(FILE, "overwrite");
const DEFER: &str = statement(FILE, "defer");
const DEFERRED: &str = statement(FILE, "deferred");
const NEXT: &str = statement(FILE, "next");
const MOVE_NEXT: &str = statement(FILE, "move_next");
const DELETE_NEXT: &str = statement(FILE, "delete_next");
const PAYLOAD: &str = statement(FILE, "payload");

/// A job with its blobs encoded, which happens before it reaches the writer.
#[derive(Debug)]
pub(super) struct Prepared {
    job: NewJob,
    body: Body,
}

/// What is stored of a spec.
#[derive(Debug)]
struct Body {
    payload: Option<Vec<u8>>,
    terms: Option<Vec<u8>>,
    bytes: i64,
    keep: i64,
    own_lease: Option<i64>,
    retention: Option<i64>,
}

/// When a job runs, as the store's clock has it.
#[derive(Clone, Copy)]
struct Schedule {
    rank: u8,
    due: Time,
    expire: Option<Time>,
}

// === impl Prepared ===

impl Prepared {
    pub(super) fn new(job: NewJob) -> Prepared {
        let body = Body {
            payload: job.spec.payload.as_ref().map(codec::encode_payload),
            terms: codec::encode_terms(&job.spec),
            bytes: i64::try_from(job.spec.bytes()).unwrap_or(i64::MAX),
            keep: codec::keep_code(job.keep),
            own_lease: job.spec.lease.map(micros),
            retention: job.spec.retention.map(micros),
        };
        Prepared { job, body }
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

// === impl Body ===

impl Body {
    fn is_large(&self) -> bool {
        self.payload.as_ref().is_some_and(|payload| payload.len() > INLINE_BYTES_MAX)
    }

    /// The payload, if it lies in the row.
    fn inline(&self) -> Option<&[u8]> {
        self.payload.as_deref().filter(|_| !self.is_large())
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
    let topic = session.topic_or_create(&new.job.key.topic)?;
    let schedule = new.fresh_schedule(session.now);
    if new.job.prior == Prior::Itself && is_recalled(session, topic, new)? {
        return Ok(Enqueue {
            outcome: Some(Outcome::Unchanged),
            state: State::Succeeded,
            due: session.now,
            durability: Durability::Memory,
        });
    }
    if insert_new(session, insert, topic, new, schedule)? {
        return Ok(answer(session, Outcome::Created, schedule));
    }
    let mut by_id = session.prepare(BY_ID)?;
    let id = new.job.key.id.as_str();
    match lifecycle::find(session, &mut by_id, topic, id)? {
        Some((row, state)) => meet(session, row, state, new),
        // What was there had been kept long enough and is gone now.
        None => {
            insert_new(session, insert, topic, new, schedule)?;
            Ok(answer(session, Outcome::Created, schedule))
        }
    }
}

/// Whether the job has succeeded a while ago and left nothing.
fn is_recalled(session: &mut Session<'_>, topic: i64, new: &Prepared) -> Done<bool> {
    let id = new.job.key.id.as_str();
    let mut by_id = session.prepare(BY_ID)?;
    Ok(lifecycle::find(session, &mut by_id, topic, id)?.is_none() && session.recalls(topic, id))
}

/// Writes the job unless its id is taken; whether it did.
fn insert_new(
    session: &mut Session<'_>,
    insert: &mut CachedStatement<'_>,
    topic: i64,
    new: &Prepared,
    schedule: Schedule,
) -> Done<bool> {
    let (job, body) = (&new.job, &new.body);
    let inserted = insert.execute(params![
        topic,
        job.key.id.as_str(),
        schedule.rank,
        schedule.due.0,
        session.now.0,
        schedule.expire.map(|expire| expire.0),
        body.keep,
        job.request.map(signed),
        body.bytes,
        body.is_large(),
        body.own_lease,
        body.retention,
        body.terms,
        body.inline(),
    ])?;
    if inserted == 0 {
        return Ok(false);
    }
    let key = session.connection.last_insert_rowid();
    if body.is_large() {
        session.prepare(INSERT_BODY)?.execute(params![key, body.payload])?;
    }
    announce(session, topic, key, new, schedule)?;
    Ok(true)
}

/// The id is taken by `row`.
fn meet(session: &mut Session<'_>, row: Row, state: State, new: &Prepared) -> Done<Enqueue> {
    let same_request = new.job.request.is_some() && new.job.request == row.request;
    let action = conflict::resolve(new.job.on_conflict, row.found(state), same_request);
    let reply =
        |outcome, state, due| Ok(Enqueue { outcome, state, due, durability: Durability::Memory });
    match action {
        Action::Leave | Action::Refuse => reply(action.outcome(), state, due_of(session, &row)?),
        Action::Write(outcome) => {
            let schedule = new.fresh_schedule(session.now);
            let request = new.job.request.or(row.request);
            let (body, created) = (&new.body, session.now);
            let successor = Successor { body, schedule, created, request, raises: true };
            overwrite(session, &row, &successor)?;
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

/// The due time to name: of the waiting generation, if there is one.
fn due_of(session: &Session<'_>, row: &Row) -> Done<Time> {
    if !row.next {
        return Ok(row.due);
    }
    let mut next = session.prepare(NEXT)?;
    let due = next.query_row(params![row.key], |next| next.get(1)).optional()?;
    Ok(due.map_or(row.due, Time))
}

/// What takes the place of a job that is not running any more.
struct Successor<'a> {
    body: &'a Body,
    schedule: Schedule,
    created: Time,
    request: Option<u64>,
    /// Whether it is one generation more, or one that was counted when it was deferred.
    raises: bool,
}

fn overwrite(session: &mut Session<'_>, row: &Row, successor: &Successor<'_>) -> Done<()> {
    let Successor { body, schedule, created, request, raises } = successor;
    session.prepare(OVERWRITE)?.execute(params![
        row.key,
        schedule.rank,
        schedule.due.0,
        created.0,
        schedule.expire.map(|expire| expire.0),
        body.keep,
        request.map(signed),
        body.bytes,
        body.is_large(),
        body.own_lease,
        body.retention,
        body.terms,
        body.inline(),
        raises,
    ])?;
    put_body(session, row, body)
}

/// Brings the table of large payloads in line with what the row says now.
fn put_body(session: &Session<'_>, row: &Row, body: &Body) -> Done<()> {
    if body.is_large() {
        session.prepare(INSERT_BODY)?.execute(params![row.key, body.payload])?;
    } else if row.large {
        session.prepare(DELETE_BODY)?.execute(params![row.key])?;
    }
    Ok(())
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
        let place = Place { topic: row.topic, rank, due, expire: row.expire };
        lifecycle::revive(session, row, &place, new.job.request)
    } else {
        lifecycle::relocate(session, row, rank, due, new.job.request)
    }
}

/// Stores or moves the next generation of a running job; its due time.
fn defer(session: &mut Session<'_>, row: &Row, action: Action, new: &Prepared) -> Done<Time> {
    let schedule = match action {
        Action::MoveNext => {
            let rank = next_rank(session, row)?;
            let schedule = new.schedule(session.now, rank);
            let mut move_next = session.prepare(MOVE_NEXT)?;
            move_next.execute(params![row.key, schedule.due.0, schedule.rank])?;
            schedule
        }
        Action::DeferSame => {
            let schedule = new.schedule(session.now, row.rank);
            let same = Schedule { expire: None, ..schedule };
            let body = body_of(session, row)?;
            write_next(session, row, same, &body)?;
            same
        }
        _ => {
            let schedule = new.fresh_schedule(session.now);
            write_next(session, row, schedule, &new.body)?;
            schedule
        }
    };
    let request = new.job.request.or(row.request).map(signed);
    session.prepare(DEFERRED)?.execute(params![row.key, request])?;
    session.count(row.topic, Total::Enqueued);
    Ok(schedule.due)
}

fn next_rank(session: &Session<'_>, row: &Row) -> Done<u8> {
    let mut next = session.prepare(NEXT)?;
    Ok(next.query_row(params![row.key], |next| next.get(0))?)
}

fn write_next(session: &Session<'_>, row: &Row, schedule: Schedule, body: &Body) -> Done<()> {
    session.prepare(DEFER)?.execute(params![
        row.key,
        schedule.rank,
        schedule.due.0,
        session.now.0,
        schedule.expire.map(|expire| expire.0),
        body.keep,
        body.bytes,
        body.own_lease,
        body.retention,
        body.terms,
        body.payload,
    ])?;
    Ok(())
}

/// The spec of a stored job, as if it were enqueued again.
fn body_of(session: &Session<'_>, row: &Row) -> Done<Body> {
    let payload: Option<Vec<u8>> = if row.large {
        row::body(session.connection, row.key)?
    } else {
        session.prepare(PAYLOAD)?.query_row(params![row.key], |found| found.get(0))?
    };
    Ok(Body {
        payload,
        terms: row.terms.clone(),
        bytes: row.bytes,
        keep: codec::keep_code(row.keep),
        own_lease: row.own_lease.map(micros),
        retention: row.retention.map(micros),
    })
}

/// Puts the waiting generation in the place of the one whose lease has just ended.
pub(super) fn begin_next(session: &mut Session<'_>, row: &Row) -> Done<Time> {
    let mut next = session.prepare(NEXT)?;
    let (schedule, created, body) = next.query_row(params![row.key], |next| {
        let schedule = Schedule {
            rank: next.get(0)?,
            due: Time(next.get(1)?),
            expire: next.get::<_, Option<i64>>(3)?.map(Time),
        };
        let body = Body {
            keep: next.get(4)?,
            bytes: next.get(5)?,
            own_lease: next.get(6)?,
            retention: next.get(7)?,
            terms: next.get(8)?,
            payload: next.get(9)?,
        };
        Ok((schedule, next.get::<_, i64>(2)?, body))
    })?;
    let (request, raises) = (row.request, false);
    let successor = Successor { body: &body, schedule, created: Time(created), request, raises };
    overwrite(session, row, &successor)?;
    session.prepare(DELETE_NEXT)?.execute(params![row.key])?;
    let topic = lifecycle::topic_name(session, row.topic)?;
    waits(session, row.key, &topic, schedule)?;
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

/// The job has just been written as waiting.
fn waits(session: &mut Session<'_>, key: i64, topic: &TopicName, schedule: Schedule) -> Done<()> {
    if let Some(expire) = schedule.expire {
        if expire <= session.now {
            return lifecycle::expire_late(session, key).map(drop);
        }
        session.prune_at(expire);
    }
    session.claimable(topic, schedule.rank, schedule.due);
    Ok(())
}

/// The reply to a job that now waits and never failed.
fn answer(session: &Session<'_>, outcome: Outcome, schedule: Schedule) -> Enqueue {
    let expired = schedule.expire.is_some_and(|expire| expire <= session.now);
    let waiting = State::waiting(schedule.due, 0, session.now);
    let state = if expired { State::Expired } else { waiting };
    let (outcome, durability) = (Some(outcome), Durability::Memory);
    Enqueue { outcome, state, due: schedule.due, durability }
}

/// Priorities as ranks: what comes first sorts first.
pub(super) fn rank_of(priority: u8) -> u8 {
    limit::PRIORITY_MAX.saturating_sub(priority)
}
