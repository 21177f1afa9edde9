//! Unclaim: undo leases that reached nobody.

use std::collections::HashSet;

use rusqlite::params;

use crate::store::Unclaim;

use super::fault::Done;
use super::lifecycle;
use super::row::{BY_ID, Row};
use super::session::Session;
use super::sql::statement;

const OF_NONCE: &str = statement(include_str!("unclaim.sql"), "of_nonce");

/// [`Store::unclaim`](crate::store::Store::unclaim).
pub(super) fn unclaim(session: &mut Session<'_>, what: &Unclaim) -> Done<u64> {
    let rows = match what {
        Unclaim::Nonce(nonce) => Row::select(session, OF_NONCE, params![nonce])?,
        Unclaim::Leases(refs) => {
            let mut rows = Vec::with_capacity(refs.len());
            let mut met = HashSet::new();
            for lease in refs {
                let Some(topic) = session.topic(&lease.key.topic)? else { continue };
                let mut by_id = session.prepare(BY_ID)?;
                let row = Row::find(&mut by_id, params![topic, lease.key.id.as_str()])?;
                let held = row.filter(|row| row.is_leased_by(lease.token));
                rows.extend(held.filter(|row| met.insert(row.key)));
            }
            rows
        }
    };
    for row in &rows {
        lifecycle::unclaim(session, row)?;
    }
    Ok(rows.len() as u64)
}
