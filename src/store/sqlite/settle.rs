//! Fast path of an ack that leaves no record.

use rusqlite::params;

use crate::domain::engine::{
    self, Command, CommandReply, NewJob, SettleAction, SettleCommandReply,
};
use crate::domain::{JobKey, State};

use super::error_mapping::SqliteResult;
use super::job_row::signed;
use super::run_engine::apply;
use super::statement::statement;
use super::transaction::{ReusedStatement, TotalKind, WriteTransaction};

pub(super) const PLAIN: &str = statement(include_str!("settle.sql"), "plain");

/// Removes a job without retention, if this is its lease, and returns the reply; `None`: the engine has to decide.
/// Proved equal to the engine by `tests/it/model`.
pub(super) fn ack<'c>(
    session: &mut WriteTransaction<'c>,
    plain: &mut ReusedStatement<'c>,
    key: &JobKey,
    settle: &engine::Settle,
) -> SqliteResult<Option<CommandReply>> {
    let engine::Settle { token, deadline: None, action: SettleAction::Ack { follow_ups, .. } } =
        settle
    else {
        return Ok(None);
    };
    // The engine knows how many bytes leave the topic.
    if session.topic_counts().bytes.has(&key.topic) {
        return Ok(None);
    }
    let Some(topic) = session.topic(&key.topic)? else { return Ok(None) };
    let removed = params![topic, key.id.as_str(), signed(token.0)];
    if plain.get(session)?.execute(removed)? == 0 {
        return Ok(None);
    }
    session.topic_counts().running.add(&key.topic, -1);
    session.count(topic, TotalKind::Succeeded, 1);
    session.add_ended_id(topic, key.id.as_str(), State::Succeeded);
    for NewJob { key, enqueue } in follow_ups {
        apply(session, key, &Command::Enqueue(enqueue.clone()))?;
    }
    Ok(Some(CommandReply::Settled(Ok(SettleCommandReply {
        repeated: false,
        state: State::Succeeded,
    }))))
}
