//! Unclaim: undo leases that no worker received.

use rusqlite::params;

use crate::domain::engine::{Answer, Command};
use crate::domain::{Token, limit};
use crate::store::{LeaseRef, LostClaim, Unclaim, Undone};

use super::apply::{apply, apply_to};
use super::fault::Done;
use super::record::{BY_KEY, Row, topic_name};
use super::session::Session;
use super::sql::statement;

const PART: &str = statement(include_str!("unclaim.sql"), "part");

/// Where a lease stands among those that run: its end, its topic and its job.
type Place = (i64, i64, i64);

/// [`Store::unclaim`](crate::store::Store::unclaim).
pub(super) fn unclaim(session: &mut Session<'_>, what: &Unclaim) -> Done<Undone> {
    match what {
        Unclaim::Leases(refs) => {
            let mut leases = 0;
            for LeaseRef { key, token } in refs {
                leases += done(apply(session, key, &Command::Unclaim(*token))?);
            }
            Ok(Undone { leases, next: None })
        }
        Unclaim::Claim(lost) => search(session, lost),
    }
}

fn done(answer: Answer) -> u64 {
    u64::from(answer == Answer::Done(true))
}

/// Undoes the leases of a lost claim in the next part of those that run, and answers where the part after it begins.
/// The claim itself is over: it came before this call.
fn search(session: &mut Session<'_>, lost: &LostClaim) -> Done<Undone> {
    let from = lost.from.as_deref().and_then(place).unwrap_or((i64::MIN, 0, 0));
    let mut part = session.prepare(PART)?;
    let read = |row: &rusqlite::Row<'_>| {
        let place: Place = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((place, Token(row.get::<_, i64>(3)?.cast_unsigned())))
    };
    let found = part.query_map(params![from.0, from.1, from.2, limit::CALL_JOBS_MAX], read)?;
    let found = found.collect::<rusqlite::Result<Vec<(Place, Token)>>>()?;
    let mut leases = 0;
    for ((_, topic, key), token) in found.iter().filter(|(_, token)| token.nonce() == lost.nonce) {
        let row = Row::find(&mut session.prepare(BY_KEY)?, params![key])?;
        let Some(row) = row else { continue };
        let key = row.job_key(topic_name(session.connection, *topic)?);
        leases += done(apply_to(session, &key, Some(&row), &Command::Unclaim(*token))?);
    }
    let is_full = found.len() == limit::CALL_JOBS_MAX;
    let next = found
        .last()
        .filter(|_| is_full)
        .map(|((alarm, topic, key), _)| format!("{alarm} {topic} {key}"));
    Ok(Undone { leases, next })
}

fn place(text: &str) -> Option<Place> {
    let mut numbers = text.split(' ').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}
