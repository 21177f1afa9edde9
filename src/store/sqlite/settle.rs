//! Settle: end leases as decided.

use rusqlite::{CachedStatement, params};

use crate::domain::engine::{self, Answer, Command};
use crate::domain::{JobKey, State};
use crate::store::{End, Refused, Settle, Settled};

use super::apply::apply;
use super::fault::Done;
use super::record::signed;
use super::session::{Session, Total};
use super::sql::statement;

const PLAIN: &str = statement(include_str!("settle.sql"), "plain");

/// A settle as the engine takes it.
pub(super) struct Prepared {
    key: JobKey,
    settle: engine::Settle,
}

// === impl Prepared ===

impl Prepared {
    pub(super) fn new(settle: Settle) -> Prepared {
        let (key, settle) = settle.into_command();
        Prepared { key, settle }
    }

    /// Whether nothing has to be looked at but the row.
    fn is_plain(&self) -> bool {
        self.settle.deadline.is_none() && matches!(self.settle.end, End::Ack { .. })
    }
}

/// [`Store::settle`](crate::store::Store::settle).
pub(super) fn settle(
    session: &mut Session<'_>,
    items: &Vec<Prepared>,
) -> Done<Vec<Result<Settled, Refused>>> {
    let mut plain = session.prepare(PLAIN)?;
    items.iter().map(|item| settle_one(session, &mut plain, item)).collect()
}

fn settle_one(
    session: &mut Session<'_>,
    plain: &mut CachedStatement<'_>,
    item: &Prepared,
) -> Done<Result<Settled, Refused>> {
    if item.is_plain() && ack(session, plain, item)? {
        if let End::Ack { follow_ups, .. } = &item.settle.end {
            for (key, follow_up) in follow_ups {
                apply(session, key, &Command::Enqueue(Box::new(follow_up.clone())))?;
            }
        }
        return Ok(Ok(Settled { repeated: false, state: State::Succeeded }));
    }
    match apply(session, &item.key, &Command::Settle(item.settle.clone()))? {
        Answer::Settled(answer) => Ok(answer),
        _ => unreachable!("a settle is answered as one"),
    }
}

/// The fast path: removes a job of which nothing is kept, if this is its lease. Proved equal to the engine by
/// `tests/it/model`.
fn ack(
    session: &mut Session<'_>,
    plain: &mut CachedStatement<'_>,
    Prepared { key, settle }: &Prepared,
) -> Done<bool> {
    let Some(topic) = session.topic(&key.topic)? else { return Ok(false) };
    if plain.execute(params![topic, key.id.as_str(), signed(settle.token.0)])? == 0 {
        return Ok(false);
    }
    session.count(topic, Total::Succeeded, 1);
    session.leaves_nothing(topic, key.id.as_str(), State::Succeeded);
    Ok(true)
}
