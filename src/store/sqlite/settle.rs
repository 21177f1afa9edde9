//! The fast path of an ack that leaves nothing.

use rusqlite::params;

use crate::domain::engine::{self, Answer, Command, End, Settled};
use crate::domain::{JobKey, State};

use super::decide::apply;
use super::fault::Done;
use super::record::signed;
use super::session::{Reused, Session, Total};
use super::sql::statement;

pub(super) const PLAIN: &str = statement(include_str!("settle.sql"), "plain");

/// Removes a job of which nothing is kept, if this is its lease; what is answered then. Proved equal to the engine by
/// `tests/it/model`.
pub(super) fn ack<'c>(
    session: &mut Session<'c>,
    plain: &mut Reused<'c>,
    key: &JobKey,
    settle: &engine::Settle,
) -> Done<Option<Answer>> {
    let engine::Settle { token, deadline: None, end: End::Ack { follow_ups, .. } } = settle else {
        return Ok(None);
    };
    let Some(topic) = session.topic(&key.topic)? else { return Ok(None) };
    let removed = params![topic, key.id.as_str(), signed(token.0)];
    if plain.get(session)?.execute(removed)? == 0 {
        return Ok(None);
    }
    session.count(topic, Total::Succeeded, 1);
    session.leaves_nothing(topic, key.id.as_str(), State::Succeeded);
    for (key, follow_up) in follow_ups {
        apply(session, key, &Command::Enqueue(Box::new(follow_up.clone())))?;
    }
    Ok(Some(Answer::Settled(Ok(Settled { repeated: false, state: State::Succeeded }))))
}
