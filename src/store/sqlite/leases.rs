//! Running leases by name: read them, move their deadlines.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::engine::{self, Answer, Moment};
use crate::domain::{JobKey, Time};
use crate::store::{LeaseRef, Selected};

use super::decide::find;
use super::fault::{Done, skip_damaged};
use super::record::{micros, signed};
use super::session::{Reused, Session};
use super::sql::statement;

const FILE: &str = include_str!("leases.sql");
pub(super) const EXTEND: &str = statement(FILE, "extend");

/// The fast path of an extend: moves the deadline where nothing but the lease changes; what is answered then.
pub(super) fn patch<'c>(
    session: &mut Session<'c>,
    extend: &mut Reused<'c>,
    key: &JobKey,
    item: &engine::Extend,
) -> Done<Option<Answer>> {
    if item.progress.is_some() || item.checkpoint.is_some() || item.lapsed.is_some() {
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
    session.reap_at(deadline);
    Ok(Some(Answer::Extended(Ok(Moment::fixed(deadline)))))
}

/// [`Select::Named`](crate::store::Select::Named).
pub(super) fn named(session: &mut Session<'_>, refs: &Vec<LeaseRef>) -> Done<Selected> {
    let mut selected = Selected { now: session.now, ..Selected::default() };
    for lease in refs {
        let Some(row) = skip_damaged(find(session, &lease.key)).transpose()? else { continue };
        selected.add(lease, row.as_ref().map(|row| &row.record));
    }
    Ok(selected)
}
