//! What an enqueue does to what it finds, as scripts and their replies say it.

use crate::domain::conflict::{self, Action, Found, Repeat};
use crate::domain::{EnqueueOutcome, OnConflict, State};
use crate::store::{Result, Unwritten};

use super::reply::unexpected;

/// The order in which policies are numbered.
pub(super) const POLICIES: [OnConflict; 4] =
    [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject];
/// The table of [`conflict::resolve`] as scripts read it: for each kind of [`Repeat`], for each policy, for each thing
/// found, a letter.
pub(super) fn table() -> String {
    let found = State::ALL.map(Found::Job).into_iter().chain([Found::RunningWithNext]);
    let found: Vec<_> = found.collect();
    let mut table = String::new();
    for repeat in Repeat::ALL {
        for policy in POLICIES {
            for &found in &found {
                table.push(letter(conflict::resolve(policy, found, repeat)));
            }
        }
    }
    table
}

fn letter(action: Action) -> char {
    match action {
        Action::Leave => 'L',
        Action::Refuse => 'R',
        Action::Write(EnqueueOutcome::Replaced) => 'P',
        Action::Write(_) => 'C',
        Action::Move => 'M',
        Action::Revive => 'V',
        Action::Defer => 'D',
        Action::DeferSame => 'S',
        Action::MoveNext => 'N',
    }
}

/// What the letter of a reply says.
pub(super) fn outcome(letter: u8) -> Result<Option<EnqueueOutcome>> {
    Ok(match letter {
        b'L' => Some(EnqueueOutcome::Unchanged),
        b'R' => None,
        b'P' => Some(EnqueueOutcome::Replaced),
        b'C' => Some(EnqueueOutcome::Created),
        b'M' | b'V' => Some(EnqueueOutcome::Rescheduled),
        b'D' | b'S' | b'N' => Some(EnqueueOutcome::Deferred),
        _ => return Err(unexpected("an action")),
    })
}

/// Why a job was not written, as the letter of a reply of `again.lua` says it.
pub(super) fn unwritten(letter: u8) -> Option<Unwritten> {
    match letter {
        b'O' => Some(Unwritten::TooOld),
        b'A' => Some(Unwritten::Ahead),
        b'F' => Some(Unwritten::Forgotten),
        b'X' => Some(Unwritten::Draining),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts look an action up by `36 * repeat + 9 * policy + found`.
    #[test]
    fn the_table_of_actions() {
        let table = table();
        let rows: Vec<_> =
            table.as_bytes().chunks(9).map(|row| String::from_utf8_lossy(row)).collect();
        assert_eq!(rows[..4], ["LLLLLLCLL", "PPDPCPCCD", "MMSMCVCCN", "RRRRRRCRR"]);
        assert!(rows[4..8].iter().all(|row| row == "LLLLLLLLL"), "{rows:?}");
        assert!(rows[8..].iter().all(|row| row == "RRRRRRRRR"), "{rows:?}");
    }
}
