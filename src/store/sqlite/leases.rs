//! Running leases by reference: reads them, moves their deadlines.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::engine::{self, CommandReply, RecordTime};
use crate::domain::{JobKey, Time};
use crate::store::{LeaseQueryResult, LeaseRef};

use super::error_mapping::{SqliteResult, skip_damaged};
use super::job_row::{micros, signed};
use super::run_engine::find;
use super::statement::statement;
use super::transaction::{ReusedStatement, WriteTransaction};

const FILE: &str = include_str!("leases.sql");
pub(super) const EXTEND: &str = statement(FILE, "extend");

/// Fast path of an extend: moves the deadline where nothing but the lease changes, and returns the reply; `None`: the
/// engine has to decide.
pub(super) fn extend_deadline<'c>(
    session: &mut WriteTransaction<'c>,
    extend: &mut ReusedStatement<'c>,
    key: &JobKey,
    item: &engine::Extend,
) -> SqliteResult<Option<CommandReply>> {
    if item.progress.is_some() || item.checkpoint.is_some() || item.outage_expiry.is_some() {
        return Ok(None);
    }
    let Some(topic) = session.topic(&key.topic)? else { return Ok(None) };
    let arguments = params![
        topic,
        key.id.as_str(),
        signed(item.token.0),
        session.now.0,
        item.duration.map(micros),
    ];
    let extend = extend.get(session)?;
    let deadline: Option<i64> = extend.query_row(arguments, |row| row.get(0)).optional()?;
    let Some(deadline) = deadline.map(Time) else { return Ok(None) };
    session.set_reap_at(deadline);
    Ok(Some(CommandReply::Extended(Ok(RecordTime::fixed(deadline)))))
}

/// [`LeaseQuery::ByRef`](crate::store::LeaseQuery::ByRef).
pub(super) fn leases_by_ref(
    session: &mut WriteTransaction<'_>,
    refs: &Vec<LeaseRef>,
) -> SqliteResult<LeaseQueryResult> {
    let mut selected = LeaseQueryResult { now: session.now, ..LeaseQueryResult::default() };
    for lease in refs {
        let Some(row) = skip_damaged(find(session, &lease.key)).transpose()? else { continue };
        selected.add_by_ref(lease, row.as_ref().map(|row| &row.record));
    }
    Ok(selected)
}
