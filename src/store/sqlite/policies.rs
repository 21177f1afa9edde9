//! Policies of topics: stored by version, with their effect on claims.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::domain::{PolicyEffect, Time, TopicName, TopicPattern};
use crate::store::{
    PoliciesPage, PolicyHorizon, PolicyRemoval, PolicyWrite, PolicyWriteResult, StoredPolicy,
};

use super::error_mapping::SqliteResult;
use super::reader::SqliteReader;
use super::statement::statement;
use super::transaction::WriteTransaction;
use super::{group_settings, lanes};

const FILE: &str = include_str!("policies.sql");
const VERSION: &str = statement(FILE, "version");
const LAST_SEQUENCE: &str = statement(FILE, "last_sequence");
const WRITE: &str = statement(FILE, "write");
const AFTER: &str = statement(FILE, "after");
const REMOVE: &str = statement(FILE, "remove");
const SET_HORIZON: &str = statement(FILE, "set_horizon");
const SET_DELETED: &str = statement(FILE, "set_deleted");
const SET_PAUSED: &str = statement(FILE, "set_paused");
const HAS_JOBS: &str = statement(FILE, "has_jobs");
const FORGET_TOPIC: &str = statement(include_str!("topics.sql"), "forget");

/// [`Store::write_policies`](crate::store::Store::write_policies).
pub(super) fn write_policies(
    session: &mut WriteTransaction<'_>,
    policies: &Vec<PolicyWrite>,
) -> SqliteResult<Vec<PolicyWriteResult>> {
    policies.iter().map(|policy| write_policy(session, policy)).collect()
}

fn write_policy(
    session: &mut WriteTransaction<'_>,
    policy: &PolicyWrite,
) -> SqliteResult<PolicyWriteResult> {
    let name = policy.name.to_string();
    let found: Option<u64> =
        session.prepare(VERSION)?.query_row([&name], |row| row.get(0)).optional()?;
    let (last, horizon) = read_horizon(session.connection)?;
    let is_stored = policy.version > 0;
    // What the shard lacks up to its horizon was removed, which the caller has not read yet.
    let is_gone = found.is_none() && is_stored && policy.version <= horizon.version;
    let found = found.unwrap_or(0);
    if found != policy.expected || is_gone {
        return Ok(PolicyWriteResult { is_written: false, version: found });
    }
    if is_stored {
        let is_live = !matches!(policy.effect, PolicyEffect::Release | PolicyEffect::Forget);
        session.prepare(WRITE)?.execute(params![
            name,
            policy.version,
            last + 1,
            is_live,
            &policy.body[..]
        ])?;
        session.mark_policies_changed();
    }
    if let TopicPattern::Exact(topic) = &policy.name {
        group_settings::configure(session, topic, &policy.groups)?;
        apply_effect(session, topic, policy.effect)?;
    }
    let version = if is_stored { policy.version } else { found };
    Ok(PolicyWriteResult { is_written: true, version })
}

/// Returns the number of the last change, and the horizon.
fn read_horizon(connection: &Connection) -> SqliteResult<(u64, PolicyHorizon)> {
    let read = |row: &Row<'_>| {
        Ok((row.get(0)?, PolicyHorizon { version: row.get(1)?, sequence: row.get(2)? }))
    };
    Ok(connection.prepare_cached(LAST_SEQUENCE)?.query_row([], read)?)
}

/// [`Store::forget_policies`](crate::store::Store::forget_policies).
pub(super) fn forget_policies(
    session: &mut WriteTransaction<'_>,
    removal: &PolicyRemoval,
) -> SqliteResult<bool> {
    let (last, horizon) = read_horizon(session.connection)?;
    if last != removal.last_sequence || horizon.version != removal.expected {
        return Ok(false);
    }
    for (name, version) in &removal.policies {
        session.prepare(REMOVE)?.execute(params![name.to_string(), version])?;
    }
    session.prepare(SET_HORIZON)?.execute(params![removal.horizon, last])?;
    Ok(true)
}

fn apply_effect(
    session: &mut WriteTransaction<'_>,
    topic: &TopicName,
    effect: PolicyEffect,
) -> SqliteResult<()> {
    let paused = match effect {
        PolicyEffect::Pause { until } => Some(until.unwrap_or(Time::MAX)),
        PolicyEffect::Deliver | PolicyEffect::Release | PolicyEffect::Forget => None,
    };
    let key = match effect {
        PolicyEffect::Release | PolicyEffect::Forget => match session.topic(topic)? {
            Some(key) => key,
            None => return Ok(()),
        },
        PolicyEffect::Pause { .. } | PolicyEffect::Deliver => session.topic_or_create(topic)?,
    };
    session.prepare(SET_PAUSED)?.execute(params![key, paused.map(|until| until.0)])?;
    session.set_paused(topic, paused);
    if effect == PolicyEffect::Forget {
        let has_jobs: bool =
            session.prepare(HAS_JOBS)?.query_row(params![key], |row| row.get(0))?;
        if has_jobs {
            session.flush()?;
            session.prepare(SET_DELETED)?.execute(params![key])?;
        } else {
            session.prepare(FORGET_TOPIC)?.execute(params![key])?;
            lanes::forget(session, key)?;
            session.forget_topic(key, topic);
        }
    }
    Ok(())
}

/// Query of [`Store::policies`](crate::store::Store::policies).
pub(super) struct PoliciesQuery {
    pub(super) after: u64,
    pub(super) limit: usize,
}

/// [`Store::policies`](crate::store::Store::policies).
pub(super) fn policies(
    reader: &SqliteReader<'_>,
    query: &PoliciesQuery,
) -> SqliteResult<PoliciesPage> {
    let connection = reader.connection;
    let (last_sequence, horizon) = read_horizon(connection)?;
    let mut after = connection.prepare_cached(AFTER)?;
    let rows = after.query_map(params![query.after, query.limit], |row| {
        let name: String = row.get(0)?;
        let (version, sequence, body) = (row.get(1)?, row.get(2)?, row.get::<_, Vec<u8>>(3)?);
        Ok((name, version, sequence, body))
    })?;
    let mut policies = Vec::new();
    for row in rows {
        let (name, version, sequence, body) = row?;
        // A name that another version of ringq wrote is skipped.
        if let Ok(name) = TopicPattern::stored(&name) {
            policies.push(StoredPolicy { name, version, sequence, body: body.into() });
        }
    }
    Ok(PoliciesPage { policies, last_sequence, horizon })
}
