//! Unclaim: undo leases that no worker received.

use std::collections::HashSet;

use rusqlite::params;

use crate::domain::limit;
use crate::store::{LeaseRef, LostClaim, Unclaim, Undone};

use super::fault::Done;
use super::lifecycle;
use super::row::{BY_ID, BY_KEY, Row};
use super::session::Session;
use super::sql::statement;

const PART: &str = statement(include_str!("unclaim.sql"), "part");

/// Where a lease stands among those that run: its end, its topic and its job.
type Place = (i64, i64, i64);

/// [`Store::unclaim`](crate::store::Store::unclaim).
pub(super) fn unclaim(session: &mut Session<'_>, what: &Unclaim) -> Done<Undone> {
    let (rows, next) = match what {
        Unclaim::Leases(refs) => (held(session, refs)?, None),
        Unclaim::Claim(lost) => part(session, lost)?,
    };
    for row in &rows {
        lifecycle::unclaim(session, row)?;
    }
    Ok(Undone { leases: rows.len() as u64, next })
}

/// Those of the leases that hold.
fn held(session: &mut Session<'_>, refs: &[LeaseRef]) -> Done<Vec<Row>> {
    let mut rows = Vec::with_capacity(refs.len());
    let mut met = HashSet::new();
    for lease in refs {
        let Some(topic) = session.topic(&lease.key.topic)? else { continue };
        let mut by_id = session.prepare(BY_ID)?;
        let row = Row::find(&mut by_id, params![topic, lease.key.id.as_str()])?;
        let held = row.filter(|row| row.is_leased_by(lease.token));
        rows.extend(held.filter(|row| met.insert(row.key)));
    }
    Ok(rows)
}

/// The leases of a lost claim in the next part of those that run, and where the part after it begins. The claim
/// itself is over: it came before this call.
fn part(session: &mut Session<'_>, lost: &LostClaim) -> Done<(Vec<Row>, Option<String>)> {
    let from = lost.from.as_deref().and_then(place).unwrap_or((i64::MIN, 0, 0));
    let mut part = session.prepare(PART)?;
    let read = |row: &rusqlite::Row<'_>| {
        let place: Place = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((place, row.get::<_, i64>(3)?.cast_unsigned()))
    };
    let found = part.query_map(params![from.0, from.1, from.2, limit::CALL_JOBS_MAX], read)?;
    let found = found.collect::<rusqlite::Result<Vec<(Place, u64)>>>()?;
    let mut rows = Vec::new();
    for ((_, _, key), _) in found.iter().filter(|(_, token)| token >> 32 == u64::from(lost.nonce)) {
        rows.extend(Row::find(&mut session.prepare(BY_KEY)?, params![key])?);
    }
    let is_full = found.len() == limit::CALL_JOBS_MAX;
    let next = found
        .last()
        .filter(|_| is_full)
        .map(|((alarm, topic, key), _)| format!("{alarm} {topic} {key}"));
    Ok((rows, next))
}

fn place(text: &str) -> Option<Place> {
    let mut numbers = text.split(' ').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}
