//! Order in which a claim takes jobs without a group: rank by rank, or with ageing the due jobs of all ranks merged. Each
//! step of the merge reads the next job of one rank by the index, so a claim costs as much behind a million waiting jobs
//! as behind ten.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::{PriorityAgeing, Time, limit};
use crate::store::TopicRemainder;

use super::claim_session::{
    ClaimBudget, StreamRotation, TakenJob, expire_all, read_unexpired, take_by_rank,
};
use super::error_mapping::SqliteResult;
use super::job_row::priority_of;
use super::lanes::TopicRef;
use super::statement::statement;
use super::transaction::WriteTransaction;

const NEXT: &str = statement(include_str!("claim.sql"), "next");

/// Next waiting job of a rank.
#[derive(Clone, Copy)]
struct RankHead {
    rank: u8,
    due: Time,
    key: i64,
}

/// Takes jobs until no stream can take more.
pub(super) fn take_jobs(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    ageing: Option<PriorityAgeing>,
    round: &mut StreamRotation<'_>,
    budget: &mut ClaimBudget,
    taken: &mut Vec<TakenJob>,
) -> SqliteResult<TopicRemainder> {
    match ageing {
        None => take_by_rank(session, topic, round, budget, taken),
        Some(ageing) => take_aged(session, topic, ageing, round, budget, taken),
    }
}

fn take_aged(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    ageing: PriorityAgeing,
    round: &mut StreamRotation<'_>,
    budget: &mut ClaimBudget,
    taken: &mut Vec<TakenJob>,
) -> SqliteResult<TopicRemainder> {
    let mut heads = heads(session, topic)?;
    let mut expired = Vec::new();
    let rest = loop {
        let due = heads.iter().enumerate().filter(|(_, head)| head.due <= session.now);
        // Of equals the one with the higher priority, whose rank is less, comes first.
        let first = due.min_by_key(|(_, head)| (ageing.aged(head.due, head.priority()), head.rank));
        let Some((index, &head)) = first else {
            let next = heads.iter().map(|head| head.due).min();
            break next.map_or(TopicRemainder::Empty, TopicRemainder::ReadyAt);
        };
        if budget.expiries == 0 {
            break TopicRemainder::Unknown;
        }
        if let Some((job, bytes)) = read_unexpired(session, topic.name, head.key, head.rank)? {
            let fits = budget.fits(bytes);
            let Some(stream) = round.next_stream(bytes).filter(|_| fits) else {
                break TopicRemainder::Ready;
            };
            round.charge(stream, bytes);
            budget.take(bytes);
            taken.push(TakenJob { stream, ..job });
        } else {
            expired.push(head.key);
            budget.expiries -= 1;
        }
        // Taken jobs still wait in the table.
        match next(session, topic, head)? {
            Some(next) => heads[index] = next,
            None => drop(heads.remove(index)),
        }
    };
    expire_all(session, topic.name, &expired)?;
    Ok(rest)
}

/// Returns the first job of each rank that has one.
fn heads(session: &mut WriteTransaction<'_>, topic: TopicRef<'_>) -> SqliteResult<Vec<RankHead>> {
    let ranks = session.ranks(topic.name);
    let mut heads = Vec::new();
    for rank in (0..=limit::PRIORITY_MAX).filter(|rank| ranks & 1 << rank != 0) {
        let before = RankHead { rank, due: Time(i64::MIN), key: i64::MIN };
        match next(session, topic, before)? {
            Some(head) => heads.push(head),
            None => session.mark_rank_empty(topic.name, rank),
        }
    }
    Ok(heads)
}

/// Returns the next job of the same rank.
fn next(
    session: &WriteTransaction<'_>,
    topic: TopicRef<'_>,
    after: RankHead,
) -> SqliteResult<Option<RankHead>> {
    let RankHead { rank, due, key } = after;
    let read =
        |row: &rusqlite::Row<'_>| Ok(RankHead { rank, due: Time(row.get(0)?), key: row.get(1)? });
    let mut select = session.prepare(NEXT)?;
    Ok(select.query_row(params![topic.key, rank, due.0, key], read).optional()?)
}

// === impl RankHead ===

impl RankHead {
    fn priority(self) -> u8 {
        priority_of(self.rank)
    }
}
