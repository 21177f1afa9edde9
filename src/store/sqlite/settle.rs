//! Settle and extend: end leases, or move their deadlines. The token alone decides whether a settle
//! counts; see [`leased`] for what the others hear.

use std::time::Duration;

use rusqlite::{CachedStatement, OptionalExtension as _, params};

use crate::domain::lifecycle::{LeaseEnd, Step};
use crate::domain::{AttemptOutcome, Payload, State, Time, Token};
use crate::store::{End, Extend, Lease, LeaseRef, Refused, Settle, Settled, codec};

use super::enqueue::{Prepared, enqueue};
use super::fault::Done;
use super::finish::Ended;
use super::lifecycle;
use super::reap::lease_of;
use super::row::{self, BY_ID, BY_KEY, Phase, Row, past_end, signed};
use super::session::{Session, Total};
use super::sql::statement;

const FILE: &str = include_str!("settle.sql");
const PLAIN: &str = statement(FILE, "plain");
const PAST: &str = statement(FILE, "past");
const LEASE: &str = statement(FILE, "lease");
const EXTEND: &str = statement(FILE, "extend");
const DETACH: &str = statement(FILE, "detach");

/// A settle with its follow-ups encoded.
#[derive(Debug)]
pub(super) struct Prepare {
    settle: Settle,
    follow_ups: Vec<Prepared>,
}

type Answer<T> = Result<T, Refused>;

// === impl Prepare ===

impl Prepare {
    pub(super) fn new(mut settle: Settle) -> Prepare {
        let follow_ups = match &mut settle.end {
            End::Ack { follow_ups, .. } => std::mem::take(follow_ups),
            End::Decided { .. } => Vec::new(),
        };
        Prepare { settle, follow_ups: follow_ups.into_iter().map(Prepared::new).collect() }
    }
}

/// The statement of the hot path.
struct Plain<'c>(CachedStatement<'c>);

// === impl Plain ===

impl Plain<'_> {
    /// Removes the job if this is its lease and nothing of it stays; whether it did.
    fn ack(&mut self, topic: i64, lease: &LeaseRef) -> Done<bool> {
        let key = params![topic, lease.key.id.as_str(), signed(lease.token.0)];
        Ok(self.0.execute(key)? > 0)
    }
}

/// [`Store::settle`](crate::store::Store::settle).
pub(super) fn settle(
    session: &mut Session<'_>,
    items: &Vec<Prepare>,
) -> Done<Vec<Answer<Settled>>> {
    let mut plain = Plain(session.prepare(PLAIN)?);
    items.iter().map(|item| settle_one(session, &mut plain, item)).collect()
}

fn settle_one(
    session: &mut Session<'_>,
    plain: &mut Plain<'_>,
    item: &Prepare,
) -> Done<Answer<Settled>> {
    let Settle { lease, end, deadline, .. } = &item.settle;
    let Some(topic) = session.topic(&lease.key.topic)? else { return Ok(Err(Refused::NotFound)) };
    let settled = match end {
        End::Ack { result, .. } => ack(session, plain, topic, &item.settle, result.as_ref())?,
        End::Decided { end, dead_retention } => {
            decided(session, topic, lease, *deadline, end, *dead_retention)?
        }
    };
    if matches!(settled, Ok(Settled { repeated: false, .. })) {
        enqueue(session, &item.follow_ups)?;
    }
    Ok(settled)
}

fn ack(
    session: &mut Session<'_>,
    plain: &mut Plain<'_>,
    topic: i64,
    Settle { lease, deadline, .. }: &Settle,
    result: Option<&Payload>,
) -> Done<Answer<Settled>> {
    if deadline.is_none() && plain.ack(topic, lease)? {
        session.count(topic, Total::Succeeded);
        session.leaves_nothing(topic, lease.key.id.as_str());
        return Ok(Ok(Settled { repeated: false, state: State::Succeeded }));
    }
    let row = match leased(session, topic, lease)? {
        Ok(row) => row,
        Err(instead) => {
            return repeat_or(instead, codec::settled_code(AttemptOutcome::Succeeded, false));
        }
    };
    if deadline.is_some() && *deadline != row.alarm {
        return Ok(Err(Refused::Stale));
    }
    lifecycle::succeed(session, &row, result)?;
    session.count(topic, Total::Succeeded);
    let state = state_of(session, &row)?.unwrap_or(State::Succeeded);
    Ok(Ok(Settled { repeated: false, state }))
}

fn decided(
    session: &mut Session<'_>,
    topic: i64,
    lease: &LeaseRef,
    deadline: Option<Time>,
    end: &LeaseEnd,
    dead_retention: Duration,
) -> Done<Answer<Settled>> {
    let row = match leased(session, topic, lease)? {
        Ok(row) => row,
        Err(instead) => {
            return repeat_or(instead, codec::settled_code(end.outcome, end.dead_lettered));
        }
    };
    if deadline.is_some() && deadline != row.alarm {
        return Ok(Err(Refused::Stale));
    }
    let how = Ended {
        outcome: end.outcome,
        counted: end.counted,
        dead_lettered: end.dead_lettered,
        error: &end.error,
    };
    match end.step {
        Step::Wait(delay) => {
            let due = delay.map_or(row.due, |delay| session.now.plus(delay));
            lifecycle::wait(session, &row, &how, due)?;
        }
        Step::Die => {
            lifecycle::die(session, &row, how, session.now.plus(dead_retention))?;
            if !row.next {
                session.count(topic, Total::Dead);
            }
        }
    }
    // A job that expired while it ran and is not kept has no state any more.
    let state = state_of(session, &row)?.unwrap_or(State::Expired);
    Ok(Ok(Settled { repeated: false, state }))
}

/// The state that a settled job is in now.
fn state_of(session: &Session<'_>, row: &Row) -> Done<Option<State>> {
    let row = Row::find(&mut session.prepare(BY_KEY)?, params![row.key])?;
    Ok(row.and_then(|row| row.state(session.now)))
}

/// What is there instead of the lease.
enum Instead {
    Refused(Refused),
    /// The lease of this token ended like that, and the job is in this state now.
    Ended(u32, State),
}

/// The job that this token leases, or what is there instead: a deleted job is gone, any other goes on
/// without this lease.
fn leased(session: &mut Session<'_>, topic: i64, lease: &LeaseRef) -> Done<Result<Row, Instead>> {
    let mut by_id = session.prepare(BY_ID)?;
    let found = lifecycle::find(session, &mut by_id, topic, lease.key.id.as_str())?;
    let Some((row, state)) = found else { return Ok(Err(Instead::Refused(Refused::NotFound))) };
    if row.is_leased_by(lease.token) {
        return Ok(Ok(row));
    }
    if row.phase == Phase::Cancelled {
        return Ok(Err(Instead::Refused(Refused::NotFound)));
    }
    Ok(Err(match how_ended(session, &row, lease.token)? {
        Some(how) => Instead::Ended(how, state),
        None => Instead::Refused(Refused::Stale),
    }))
}

/// How the lease of this token ended, as far back as that is remembered.
fn how_ended(session: &Session<'_>, row: &Row, token: Token) -> Done<Option<u32>> {
    if row.token == Some(token) {
        return Ok(row.settled);
    }
    let mut past = session.prepare(PAST)?;
    let past: Option<String> = past.query_row(params![row.key], |found| found.get(0))?;
    Ok(past.and_then(|past| past_end(&past, token)))
}

/// A settle that was applied before is success; anything else is refused.
fn repeat_or(instead: Instead, code: u32) -> Done<Answer<Settled>> {
    Ok(match instead {
        Instead::Ended(how, state) if how == code => Ok(Settled { repeated: true, state }),
        Instead::Ended(..) => Err(Refused::Stale),
        Instead::Refused(refused) => Err(refused),
    })
}

/// [`Store::extend`](crate::store::Store::extend).
pub(super) fn extend(session: &mut Session<'_>, items: &Vec<Extend>) -> Done<Vec<Answer<Time>>> {
    items.iter().map(|item| extend_one(session, item)).collect::<Done<_>>()
}

fn extend_one(session: &mut Session<'_>, item: &Extend) -> Done<Answer<Time>> {
    let key = &item.lease.key;
    let Some(topic) = session.topic(&key.topic)? else { return Ok(Err(Refused::NotFound)) };
    let mut lease = session.prepare(LEASE)?;
    let arguments = params![topic, key.id.as_str(), signed(item.lease.token.0)];
    let found = lease.query_row(arguments, |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)));
    match found.optional()? {
        Some((row, lease)) => {
            let duration = item.duration.unwrap_or_else(|| row::duration(lease));
            let deadline = session.now.plus(duration);
            let mut extend = session.prepare(EXTEND)?;
            extend.execute(params![row, deadline.0, session.now.0, item.progress])?;
            session.reap_at(deadline);
            Ok(Ok(deadline))
        }
        None => Ok(Err(match leased(session, topic, &item.lease)? {
            Err(Instead::Refused(refused)) => refused,
            _ => Refused::Stale,
        })),
    }
}

/// The verb: reads running leases.
pub(super) fn leases(session: &mut Session<'_>, refs: &Vec<LeaseRef>) -> Done<Vec<Answer<Lease>>> {
    let mut found = Vec::with_capacity(refs.len());
    for lease in refs {
        let Some(topic) = session.topic(&lease.key.topic)? else {
            found.push(Err(Refused::NotFound));
            continue;
        };
        found.push(match leased(session, topic, lease)? {
            Ok(row) => Ok(lease_of(session, row)?),
            Err(Instead::Refused(refused)) => Err(refused),
            Err(Instead::Ended(..)) => Err(Refused::Stale),
        });
    }
    Ok(found)
}

/// The verb: leases that outlive their stream.
pub(super) fn detach(session: &mut Session<'_>, refs: &Vec<LeaseRef>) -> Done<u64> {
    let mut detach = session.prepare(DETACH)?;
    let mut detached = 0;
    for lease in refs {
        let Some(topic) = session.topic(&lease.key.topic)? else { continue };
        let key = params![topic, lease.key.id.as_str(), signed(lease.token.0)];
        detached += detach.execute(key)? as u64;
    }
    Ok(detached)
}
