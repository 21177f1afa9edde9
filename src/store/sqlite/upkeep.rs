//! What happens by itself: jobs that expire or were kept long enough, and topics that are empty.

use rusqlite::params;

use crate::domain::engine::Command;
use crate::domain::{State, Time, TopicName, limit};
use crate::store::{Pruned, Tidied};

use super::decide::apply_to;
use super::fault::Done;
use super::record::{Row, WAITING, phase_of, topic_name};
use super::session::Session;
use super::sql::statement;

const FILE: &str = include_str!("upkeep.sql");
const PASSED: &str = statement(FILE, "passed");
const NEXT_ALARM: &str = statement(FILE, "next_alarm");

const TOPICS: &str = include_str!("topics.sql");
const TOPICS_BEHIND: &str = statement(TOPICS, "behind");
const FORGET_TOPIC: &str = statement(TOPICS, "forget");

/// The phases of all but running jobs, whose alarms are deadlines.
fn phases() -> impl Iterator<Item = i64> {
    let finished = State::ALL.into_iter().filter(|state| state.is_terminal());
    [WAITING].into_iter().chain(finished.map(phase_of))
}

/// [`Store::prune`](crate::store::Store::prune).
pub(super) fn prune(session: &mut Session<'_>, limit: &usize) -> Done<Pruned> {
    let mut pruned = 0;
    for phase in phases() {
        for row in passed(session, phase, limit - pruned)? {
            let key = row.job_key(topic_name(session.connection, row.topic)?);
            apply_to(session, &key, Some(&row), &Command::Prune)?;
            pruned += 1;
        }
    }
    let next = next_alarm(session)?;
    session.pruned_until(next);
    Ok(Pruned { now: session.now, pruned: pruned as u64, next })
}

fn passed(session: &Session<'_>, phase: i64, limit: usize) -> Done<Vec<Row>> {
    Row::select(session.connection, PASSED, params![phase, session.now.0, limit])
}

fn next_alarm(session: &Session<'_>) -> rusqlite::Result<Option<Time>> {
    let mut next = session.prepare(NEXT_ALARM)?;
    let mut earliest: Option<i64> = None;
    for phase in phases() {
        let alarm: Option<i64> = next.query_row(params![phase], |row| row.get(0))?;
        earliest = earliest.into_iter().chain(alarm).min();
    }
    Ok(earliest.map(Time))
}

/// What [`Store::tidy`](crate::store::Store::tidy) asks for.
pub(super) struct Tidy {
    pub(super) after: Option<TopicName>,
    pub(super) limit: usize,
}

/// A topic as it is looked at.
struct Seen {
    key: i64,
    name: TopicName,
    enqueued: i64,
    has_jobs: bool,
}

/// [`Store::tidy`](crate::store::Store::tidy).
pub(super) fn tidy(session: &mut Session<'_>, tidy: &Tidy) -> Done<Tidied> {
    let mut seen = topics_behind(session, tidy)?;
    let next = seen.last().filter(|_| seen.len() == tidy.limit).map(|topic| topic.name.clone());
    seen.retain(|topic| {
        let empty = (!topic.has_jobs).then_some(topic.enqueued);
        session
            .empty_since(topic.key, empty)
            .is_some_and(|since| session.now.since(since) >= limit::EMPTY_TOPIC_MAX)
    });
    for topic in &seen {
        session.prepare(FORGET_TOPIC)?.execute(params![topic.key])?;
        session.forget_topic(topic.key, &topic.name);
    }
    Ok(Tidied { forgotten: seen.into_iter().map(|topic| topic.name).collect(), next })
}

fn topics_behind(session: &Session<'_>, tidy: &Tidy) -> Done<Vec<Seen>> {
    let after = tidy.after.as_ref().map_or("", TopicName::as_str);
    let mut behind = session.prepare(TOPICS_BEHIND)?;
    let seen = behind.query_map(params![after, tidy.limit], |row| {
        let name = TopicName::stored(row.get_ref(1)?.as_str()?);
        Ok(Seen { key: row.get(0)?, name, enqueued: row.get(2)?, has_jobs: row.get(3)? })
    })?;
    Ok(seen.collect::<rusqlite::Result<_>>()?)
}
