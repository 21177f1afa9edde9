//! Documents: stored by version, with their effect on claims.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::domain::{DocumentName, PolicyEffect, Time, limit};
use crate::store::{
    DocumentHorizon, DocumentRemoval, DocumentWrite, DocumentWriteResult, DocumentsPage,
    StoredDocument, TopicEffect,
};

use super::error_mapping::SqliteResult;
use super::reader::SqliteReader;
use super::statement::statement;
use super::transaction::WriteTransaction;
use super::{group_settings, lanes};

const FILE: &str = include_str!("documents.sql");
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

/// [`Store::write_documents`](crate::store::Store::write_documents).
pub(super) fn write_documents(
    session: &mut WriteTransaction<'_>,
    documents: &Vec<DocumentWrite>,
) -> SqliteResult<Vec<DocumentWriteResult>> {
    documents.iter().map(|document| write_document(session, document)).collect()
}

fn write_document(
    session: &mut WriteTransaction<'_>,
    document: &DocumentWrite,
) -> SqliteResult<DocumentWriteResult> {
    let DocumentWrite { name, expected, version, is_live, body, effect } = document;
    let name = name.to_string();
    let found: Option<u64> =
        session.prepare(VERSION)?.query_row([&name], |row| row.get(0)).optional()?;
    let (last, horizon) = read_horizon(session.connection)?;
    let is_stored = *version > 0;
    // What the shard lacks up to its horizon was removed, which the caller has not read yet.
    let is_gone = found.is_none() && is_stored && *version <= horizon.version;
    let found = found.unwrap_or(0);
    if found != *expected || is_gone {
        return Ok(DocumentWriteResult { is_written: false, version: found });
    }
    if is_stored {
        let row = params![name, version, last + 1, is_live, &body[..]];
        session.prepare(WRITE)?.execute(row)?;
        session.mark_documents_changed();
    }
    if let Some(effect) = effect {
        apply_effect(session, effect)?;
    }
    let version = if is_stored { *version } else { found };
    Ok(DocumentWriteResult { is_written: true, version })
}

/// Returns the number of the last change, and the horizon.
fn read_horizon(connection: &Connection) -> SqliteResult<(u64, DocumentHorizon)> {
    let read = |row: &Row<'_>| {
        Ok((row.get(0)?, DocumentHorizon { version: row.get(1)?, sequence: row.get(2)? }))
    };
    Ok(connection.prepare_cached(LAST_SEQUENCE)?.query_row([], read)?)
}

/// [`Store::forget_documents`](crate::store::Store::forget_documents).
pub(super) fn forget_documents(
    session: &mut WriteTransaction<'_>,
    removal: &DocumentRemoval,
) -> SqliteResult<bool> {
    let (last, horizon) = read_horizon(session.connection)?;
    if last != removal.last_sequence || horizon.version != removal.expected {
        return Ok(false);
    }
    for (name, version) in &removal.documents {
        session.prepare(REMOVE)?.execute(params![name.to_string(), version])?;
    }
    session.prepare(SET_HORIZON)?.execute(params![removal.horizon, last])?;
    Ok(true)
}

fn apply_effect(session: &mut WriteTransaction<'_>, effect: &TopicEffect) -> SqliteResult<()> {
    let TopicEffect { topic, policy, groups, limits_bytes: _ } = effect;
    group_settings::configure(session, topic, groups)?;
    let paused = match policy {
        PolicyEffect::Pause { until } => Some(until.unwrap_or(Time::MAX)),
        PolicyEffect::Deliver | PolicyEffect::Release | PolicyEffect::Forget => None,
    };
    let key = match policy {
        PolicyEffect::Release | PolicyEffect::Forget => match session.topic(topic)? {
            Some(key) => key,
            None => return Ok(()),
        },
        PolicyEffect::Pause { .. } | PolicyEffect::Deliver => session.topic_or_create(topic)?,
    };
    session.prepare(SET_PAUSED)?.execute(params![key, paused.map(|until| until.0)])?;
    session.set_paused(topic, paused);
    if *policy == PolicyEffect::Forget {
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

/// Query of [`Store::documents`](crate::store::Store::documents).
pub(super) struct DocumentsQuery {
    pub(super) after: u64,
    pub(super) limit: usize,
}

/// [`Store::documents`](crate::store::Store::documents).
pub(super) fn documents(
    reader: &SqliteReader<'_>,
    query: &DocumentsQuery,
) -> SqliteResult<DocumentsPage> {
    let connection = reader.connection;
    let (last_sequence, horizon) = read_horizon(connection)?;
    let mut after = connection.prepare_cached(AFTER)?;
    let mut rows = after.query(params![query.after, query.limit])?;
    let (mut documents, mut has_unknown) = (Vec::new(), false);
    let (mut read_to, mut bytes) = (None, 0);
    while let Some(row) = rows.next()?.filter(|_| bytes <= limit::CALL_BYTES_MAX) {
        let (name, version, body): (String, _, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(3)?);
        read_to = Some(row.get(2)?);
        bytes += body.len();
        match DocumentName::stored(&name) {
            Some(name) => documents.push(StoredDocument { name, version, body: body.into() }),
            None => has_unknown = true,
        }
    }
    let read_to = read_to.unwrap_or(last_sequence);
    Ok(DocumentsPage { documents, has_unknown, read_to, last_sequence, horizon })
}
