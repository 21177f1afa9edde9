//! Running leases by name: read them, move their deadlines, let them outlive their stream or tie them to another.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::engine::{self, Answer, Moment};
use crate::domain::{JobKey, StreamId, Time};
use crate::store::{Adopt, Adoptee, Lease, LeaseRef, Refused, Tied};

use super::decide::find;
use super::fault::Done;
use super::record::{micros, signed};
use super::session::{Reused, Session};
use super::sql::statement;

const FILE: &str = include_str!("leases.sql");
pub(super) const EXTEND: &str = statement(FILE, "extend");
const DETACH: &str = statement(FILE, "detach");
const ADOPT: &str = statement(FILE, "adopt");

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

/// [`Store::leases`](crate::store::Store::leases).
pub(super) fn leases(
    session: &mut Session<'_>,
    refs: &Vec<LeaseRef>,
) -> Done<Vec<Result<Lease, Refused>>> {
    let mut found = Vec::with_capacity(refs.len());
    for LeaseRef { key, token } in refs {
        let row = find(session, key)?;
        let record = row.as_ref().map(|row| &row.record);
        found.push(match record.filter(|record| record.lease_of(*token).is_some()) {
            Some(record) => Lease::of(key.clone(), record, session.now).ok_or(Refused::Stale),
            None => Err(Refused::of(record, session.now)),
        });
    }
    Ok(found)
}

/// [`Store::detach`](crate::store::Store::detach).
pub(super) fn detach(session: &mut Session<'_>, leases: &Vec<Tied>) -> Done<u64> {
    let mut detach = session.prepare(DETACH)?;
    let mut detached = 0;
    for Tied { lease, stream: StreamId { owner, stream } } in leases {
        let Some(topic) = session.topic(&lease.key.topic)? else { continue };
        let (id, token) = (lease.key.id.as_str(), signed(lease.token.0));
        detached += detach.execute(params![topic, id, token, owner, stream])? as u64;
    }
    Ok(detached)
}

/// [`Store::adopt`](crate::store::Store::adopt).
pub(super) fn adopt(session: &mut Session<'_>, adopt: &Adopt) -> Done<Vec<bool>> {
    let Adopt { to, grace, items } = adopt;
    let mut statement = session.prepare(ADOPT)?;
    let mut adopted = Vec::with_capacity(items.len());
    for Adoptee { tied: Tied { lease, stream: from }, since } in items {
        let Some(topic) = session.topic(&lease.key.topic)? else {
            adopted.push(false);
            continue;
        };
        let changed = statement.execute(params![
            topic,
            lease.key.id.as_str(),
            signed(lease.token.0),
            from.owner,
            from.stream,
            since.map(|since| since.0),
            to.owner,
            to.stream,
            micros(*grace),
        ])?;
        adopted.push(changed > 0);
    }
    Ok(adopted)
}
