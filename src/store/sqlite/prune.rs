//! Pruning: jobs past their expire time or retention, and empty topics.

use rusqlite::params;

use crate::domain::engine::Command;
use crate::domain::{State, Time, TopicName, limit};
use crate::store::{PruneResult, PruneTopicsResult};

use super::error_mapping::SqliteResult;
use super::job_row::{JobRow, WAITING, phase_of, topic_name};
use super::lanes;
use super::run_engine::apply_to;
use super::statement::statement;
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("prune.sql");
const PASSED: &str = statement(FILE, "passed");
const NEXT_ALARM: &str = statement(FILE, "next_alarm");

const TOPICS: &str = include_str!("topics.sql");
const TOPICS_BEHIND: &str = statement(TOPICS, "behind");
const FORGET_TOPIC: &str = statement(TOPICS, "forget");

/// Returns all phases but that of running jobs, whose alarms are deadlines.
fn phases() -> impl Iterator<Item = i64> {
    let finished = State::ALL.into_iter().filter(|state| state.is_terminal());
    [WAITING].into_iter().chain(finished.map(phase_of))
}

/// [`Store::prune`](crate::store::Store::prune).
pub(super) fn prune(
    session: &mut WriteTransaction<'_>,
    limit: &usize,
) -> SqliteResult<PruneResult> {
    let mut pruned = 0;
    for phase in phases() {
        for row in due_rows(session, phase, limit - pruned)? {
            let key = row.job_key(topic_name(session.connection, row.topic)?);
            apply_to(session, &key, Some(&row), &Command::Prune)?;
            pruned += 1;
        }
    }
    let next = next_alarm(session)?;
    session.set_next_prune(next);
    Ok(PruneResult { now: session.now, pruned: pruned as u64, next_due: next })
}

fn due_rows(session: &WriteTransaction<'_>, phase: i64, limit: usize) -> SqliteResult<Vec<JobRow>> {
    JobRow::select(session.connection, PASSED, params![phase, session.now.0, limit])
}

fn next_alarm(session: &WriteTransaction<'_>) -> rusqlite::Result<Option<Time>> {
    let mut next = session.prepare(NEXT_ALARM)?;
    let mut earliest: Option<i64> = None;
    for phase in phases() {
        let alarm: Option<i64> = next.query_row(params![phase], |row| row.get(0))?;
        earliest = earliest.into_iter().chain(alarm).min();
    }
    Ok(earliest.map(Time))
}

/// Query of [`Store::prune_topics`](crate::store::Store::prune_topics).
pub(super) struct PruneTopics {
    pub(super) after: Option<TopicName>,
    pub(super) limit: usize,
}

/// A topic to check.
struct CheckedTopic {
    key: i64,
    name: TopicName,
    enqueued: i64,
    has_jobs: bool,
    has_policy: bool,
    /// An operator has deleted it when it still had jobs, and none came since.
    is_deleted: bool,
}

/// [`Store::prune_topics`](crate::store::Store::prune_topics).
pub(super) fn prune_topics(
    session: &mut WriteTransaction<'_>,
    tidy: &PruneTopics,
) -> SqliteResult<PruneTopicsResult> {
    let mut seen = topics_after(session, tidy)?;
    let next = seen.last().filter(|_| seen.len() == tidy.limit).map(|topic| topic.name.clone());
    seen.retain(|topic| {
        let is_empty = !topic.has_jobs && !topic.has_policy;
        let empty = is_empty.then_some(topic.enqueued);
        let since = session.empty_since(topic.key, empty);
        let is_old = |since| session.now.since(since) >= limit::EMPTY_TOPIC_MAX;
        since.is_some_and(|since| is_old(since) || topic.is_deleted)
    });
    for topic in &seen {
        session.prepare(FORGET_TOPIC)?.execute(params![topic.key])?;
        lanes::forget(session, topic.key)?;
        session.forget_topic(topic.key, &topic.name);
    }
    Ok(PruneTopicsResult {
        forgotten: seen.into_iter().map(|topic| topic.name).collect(),
        last_topic: next,
    })
}

fn topics_after(
    session: &WriteTransaction<'_>,
    tidy: &PruneTopics,
) -> SqliteResult<Vec<CheckedTopic>> {
    let after = tidy.after.as_ref().map_or("", TopicName::as_str);
    let mut behind = session.prepare(TOPICS_BEHIND)?;
    let seen = behind.query_map(params![after, tidy.limit], |row| {
        let name = TopicName::stored(row.get_ref(1)?.as_str()?);
        let (key, enqueued, has_jobs) = (row.get(0)?, row.get(2)?, row.get(3)?);
        let (has_policy, is_deleted) = (row.get(4)?, row.get(5)?);
        Ok(CheckedTopic { key, name, enqueued, has_jobs, has_policy, is_deleted })
    })?;
    Ok(seen.collect::<rusqlite::Result<_>>()?)
}
