//! Policies of topics: stored by version, with their effect on claims.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::{PolicyEffect, Time, TopicName, TopicPattern};
use crate::store::{PoliciesPage, PolicyWrite, PolicyWriteResult, StoredPolicy};

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
    let found = found.unwrap_or(0);
    if found != policy.expected {
        return Ok(PolicyWriteResult { is_written: false, version: found });
    }
    let last: u64 = session.prepare(LAST_SEQUENCE)?.query_row([], |row| row.get(0))?;
    let is_live = policy.effect != PolicyEffect::Forget;
    session.prepare(WRITE)?.execute(params![
        name,
        policy.version,
        last + 1,
        is_live,
        &policy.body[..]
    ])?;
    if let TopicPattern::Exact(topic) = &policy.name {
        group_settings::configure(session, topic, &policy.groups)?;
        apply_effect(session, topic, policy.effect)?;
    }
    session.mark_policies_changed();
    Ok(PolicyWriteResult { is_written: true, version: policy.version })
}

fn apply_effect(
    session: &mut WriteTransaction<'_>,
    topic: &TopicName,
    effect: PolicyEffect,
) -> SqliteResult<()> {
    let paused = match effect {
        PolicyEffect::Pause { until } => Some(until.unwrap_or(Time::MAX)),
        PolicyEffect::Deliver | PolicyEffect::Forget => None,
    };
    let key = match effect {
        PolicyEffect::Forget => match session.topic(topic)? {
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
        if !has_jobs {
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
    let last_sequence =
        connection.prepare_cached(LAST_SEQUENCE)?.query_row([], |row| row.get(0))?;
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
        if let Ok(name) = TopicPattern::parse(&name) {
            policies.push(StoredPolicy { name, version, sequence, body: body.into() });
        }
    }
    Ok(PoliciesPage { policies, last_sequence })
}
