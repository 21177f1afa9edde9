//! Settle: end leases as decided. The token alone decides whether a settle counts; see [`leased`] for what the
//! others hear.

use std::time::Duration;

use rusqlite::{CachedStatement, params};

use crate::domain::lifecycle::{LeaseEnd, Step};
use crate::domain::{AttemptOutcome, Payload, State, Time};
use crate::store::{End, LeaseRef, Refused, Settle, Settled, codec};

use super::enqueue::{Prepared, enqueue};
use super::fault::Done;
use super::finish::Ended;
use super::leases::{Instead, leased};
use super::lifecycle;
use super::phase::Phase;
use super::row::{BY_KEY, Row, signed};
use super::session::{Session, Total};
use super::sql::statement;

const PLAIN: &str = statement(include_str!("settle.sql"), "plain");

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
        session.leaves_nothing(topic, lease.key.id.as_str(), Phase::Succeeded);
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

/// A settle that was applied before is success; anything else is refused.
fn repeat_or(instead: Instead, code: u32) -> Done<Answer<Settled>> {
    Ok(match instead {
        Instead::Ended(how, state) if how == code => Ok(Settled { repeated: true, state }),
        Instead::Ended(..) => Err(Refused::Stale),
        Instead::Refused(refused) => Err(refused),
    })
}
