//! Delete, reschedule and redrive: what people do to single jobs.

use std::collections::HashSet;

use rusqlite::params;

use crate::domain::lifecycle::{Transition, next};
use crate::domain::{Job, State, TopicName};
use crate::store::{Delete, Deleted, Redrive, Redriven, Reschedule, Rescheduled};

use super::fault::Done;
use super::finish;
use super::generation::{Schedule, rank_of};
use super::lifecycle;
use super::phase::Phase;
use super::row::{BY_ID, BY_KEY, Row};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("change.sql");
const DROP_NEXT: &str = statement(FILE, "drop_next");
const ARRIVE_ANEW: &str = statement(FILE, "arrive_anew");
const MOVE_BODY: &str = statement(FILE, "move_body");

/// [`Store::delete`](crate::store::Store::delete): cancel what waits or runs, forget what is finished.
pub(super) fn delete(session: &mut Session<'_>, items: &Vec<Delete>) -> Done<Vec<Option<Deleted>>> {
    let mut by_id = session.prepare(BY_ID)?;
    let mut deleted = Vec::with_capacity(items.len());
    for Delete { key, finished, until: _ } in items {
        let Some(topic) = session.topic(&key.topic)? else {
            deleted.push(None);
            continue;
        };
        let found = lifecycle::find(session, &mut by_id, topic, key.id.as_str())?;
        let is_meant = |row: &Row, state: State| {
            finished.is_none() || state.is_terminal() && row.finished == *finished
        };
        deleted.push(match found.filter(|(row, state)| is_meant(row, *state)) {
            Some((row, state)) => Some(delete_row(session, &row, state)?),
            None => None,
        });
    }
    Ok(deleted)
}

fn delete_row(session: &mut Session<'_>, row: &Row, previous: State) -> Done<Deleted> {
    if row.next {
        session.prepare(DROP_NEXT)?.execute(params![row.key])?;
    }
    if previous.is_terminal() {
        finish::forget_kept(session, row)?;
    } else {
        lifecycle::cancel(session, row)?;
    }
    let lease = (row.phase == Phase::Running).then_some(row.token).flatten();
    Ok(Deleted { previous, revoked: lease.map(|token| (row.owner, row.stream, token)) })
}

/// [`Store::reschedule`](crate::store::Store::reschedule): move what waits, revive what is dead.
pub(super) fn reschedule(
    session: &mut Session<'_>,
    items: &Vec<Reschedule>,
) -> Done<Vec<Rescheduled>> {
    items.iter().map(|item| reschedule_one(session, item)).collect()
}

fn reschedule_one(session: &mut Session<'_>, item: &Reschedule) -> Done<Rescheduled> {
    let Some(topic) = session.topic(&item.key.topic)? else { return Ok(Ok(None)) };
    let mut by_id = session.prepare(BY_ID)?;
    let id = item.key.id.as_str();
    let Some((row, state)) = lifecycle::find(session, &mut by_id, topic, id)? else {
        return Ok(Ok(None));
    };
    if next(state, Transition::Reschedule).is_err() {
        return Ok(Err(state));
    }
    let revived = state == State::Dead;
    let now = session.now;
    let due = match item.due {
        Some(when) => when.due(now),
        None if revived => now,
        None => row.due,
    };
    let rank = item.priority.map_or(row.rank, rank_of);
    if revived {
        let schedule = Schedule { rank, due, expire: row.expire };
        lifecycle::revive(session, &row, topic, schedule, None)?;
    } else {
        lifecycle::relocate(session, &row, rank, due, None)?;
    }
    Ok(Ok(read_back(session, &item.key.topic, row.key)?))
}

/// The job as it is now, without its bodies.
fn read_back(session: &Session<'_>, topic: &TopicName, key: i64) -> Done<Option<Job>> {
    let row = Row::find(&mut session.prepare(BY_KEY)?, params![key])?;
    let Some(row) = row else { return Ok(None) };
    let Some(state) = row.state(session.now) else { return Ok(None) };
    let shard = session.shard().clone();
    Ok(Some(row.job(state, Default::default(), topic, &shard)?))
}

/// [`Store::redrive`](crate::store::Store::redrive): put terminal jobs back with fresh counters.
pub(super) fn redrive(session: &mut Session<'_>, redrive: &Redrive) -> Done<Redriven> {
    let mut done = Redriven::default();
    let Some(topic) = session.topic(&redrive.topic)? else {
        done.skipped = redrive.ids.len() as u64;
        return Ok(done);
    };
    for row in selected(session, topic, redrive, &mut done)? {
        if redrive_row(session, row, redrive, done.redriven)? {
            done.redriven += 1;
        } else {
            done.skipped += 1;
        }
    }
    Ok(done)
}

/// The jobs that are meant, in the order of their ids; those that cannot be redriven count as
/// skipped, and so does a job that is named again.
fn selected(
    session: &mut Session<'_>,
    topic: i64,
    redrive: &Redrive,
    done: &mut Redriven,
) -> Done<Vec<Row>> {
    let mut by_id = session.prepare(BY_ID)?;
    let mut rows = Vec::with_capacity(redrive.ids.len());
    let mut met = HashSet::new();
    for id in &redrive.ids {
        let found = lifecycle::find(session, &mut by_id, topic, id.as_str())?;
        match found.filter(|(row, _)| met.insert(row.key)) {
            Some((row, state)) if can_redrive(redrive, &row, state) => rows.push(row),
            _ => done.skipped += 1,
        }
    }
    Ok(rows)
}

fn can_redrive(redrive: &Redrive, row: &Row, state: State) -> bool {
    let is_meant = redrive.states.contains(&state) && next(state, Transition::Redrive).is_ok();
    is_meant && !row.is_tombstone()
}

fn redrive_row(session: &mut Session<'_>, row: Row, redrive: &Redrive, nth: u64) -> Done<bool> {
    let target = redrive.target.as_ref().unwrap_or(&redrive.topic);
    let moves = *target != redrive.topic;
    if moves && is_taken(session, target, &row.id)? {
        return Ok(false);
    }
    let nth = u32::try_from(nth).unwrap_or(u32::MAX);
    let due = session.now.plus(redrive.delay + redrive.spacing.saturating_mul(nth));
    let expire = match row.expire.filter(|&expire| expire <= due) {
        None => row.expire,
        Some(_) => match redrive.ttl {
            Some(ttl) => Some(due.plus(ttl)),
            None => return Ok(false),
        },
    };
    if redrive.dry_run {
        return Ok(true);
    }
    let topic = session.topic_or_create(target)?;
    let schedule = Schedule { rank: row.rank, due, expire };
    lifecycle::revive(session, &row, topic, schedule, None)?;
    if moves {
        session.leaves_nothing(row.topic, row.id.as_str(), row.phase);
        arrive_anew(session, &row)?;
    }
    Ok(true)
}

/// Puts a job that came from another topic behind those that arrived in its new one before: what is due in
/// the same microsecond goes by arrival. It is no longer in any list of the old topic.
fn arrive_anew(session: &mut Session<'_>, row: &Row) -> Done<()> {
    let key: i64 = session.prepare(ARRIVE_ANEW)?.query_one([row.key], |found| found.get(0))?;
    if row.large {
        session.prepare(MOVE_BODY)?.execute([row.key, key])?;
    }
    Ok(())
}

fn is_taken(session: &mut Session<'_>, target: &TopicName, id: &str) -> Done<bool> {
    let Some(topic) = session.topic(target)? else { return Ok(false) };
    let mut by_id = session.prepare(BY_ID)?;
    Ok(lifecycle::find(session, &mut by_id, topic, id)?.is_some())
}
