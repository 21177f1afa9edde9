//! Lanes: the waiting jobs of each group of a topic, and the number of its running ones. A lane exists while it has
//! either. Every write of a job with a group moves it in its lanes, too, in the same transaction.

use rusqlite::{OptionalExtension as _, Row, params};

use crate::domain::engine::{JobIndex, Record, placement};
use crate::domain::{GroupName, PriorityAgeing, Time, TopicName, turns};

use super::error_mapping::SqliteResult;
use super::job_row::{JobRow, RANKS, priority_of, stored_rank};
use super::lane_setting::LaneSetting;
use super::statement::statement;
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("lanes.sql");
const FIND: &str = statement(FILE, "find");
const INSERT: &str = statement(FILE, "insert");
const UPDATE: &str = statement(FILE, "update");
const DELETE: &str = statement(FILE, "delete");
const ANY: &str = statement(FILE, "any");
const ADD_JOB: &str = statement(FILE, "add_job");
const DROP_JOB: &str = statement(FILE, "drop_job");
const HEAD: &str = statement(FILE, "head");
const TOTALS: &str = statement(FILE, "totals");
const SET_TOTALS: &str = statement(FILE, "set_totals");
const DROP_TOTALS: &str = statement(FILE, "drop_totals");
const FORGET: [&str; 3] = [
    statement(FILE, "forget_totals"),
    statement(FILE, "forget_lanes"),
    statement(FILE, "forget_jobs"),
];

/// A topic, by its key and its name.
#[derive(Clone, Copy)]
pub(super) struct TopicRef<'a> {
    pub(super) key: i64,
    pub(super) name: &'a TopicName,
}

/// A lane of a topic.
pub(super) struct Lane {
    pub(super) running: i64,
    pub(super) setting: LaneSetting,
    served: i64,
    first: i64,
    /// True if its first job was due when it was last looked at.
    is_ready: bool,
    due: Option<Time>,
}

/// Position of a job in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LanePosition {
    pub(super) rank: u8,
    pub(super) due: Time,
    pub(super) key: i64,
}

/// Place of a job with a group: its lane, and its position there unless it runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LanePlace {
    topic: i64,
    group: GroupName,
    key: i64,
    waiting: Option<LanePosition>,
}

/// Next job of a lane.
pub(super) enum LaneHead {
    /// No job waits.
    Empty,
    /// None is due before that time.
    Later(Time),
    /// The first of the jobs that are due.
    Due(LanePosition),
}

/// Totals of all lanes of a topic.
#[derive(Clone, Copy, Default)]
pub(super) struct LaneTotals {
    /// Turns so far.
    picks: i64,
    /// As in [`Lane`], for the jobs without a group.
    pub(super) served: i64,
    /// Running jobs of all lanes.
    pub(super) running: i64,
}

// === impl LanePlace ===

impl LanePlace {
    /// Returns the place of the job of this row; `None`: it has no group, or has ended.
    pub(super) fn of(row: &JobRow) -> Option<LanePlace> {
        LanePlace::of_record(row.topic, row.key, &row.record)
    }

    /// Returns the place of the job with this key.
    pub(super) fn of_record(topic: i64, key: i64, record: &Record) -> Option<LanePlace> {
        let index = placement(record).index;
        let group = index.group()?;
        let (rank, due) = (stored_rank(record.priority, Some(group)), record.due.at);
        let waits = matches!(index, JobIndex::Waiting { .. });
        let waiting = waits.then_some(LanePosition { rank, due, key });
        Some(LanePlace { topic, group: group.clone(), key, waiting })
    }
}

/// Moves a job from a place to another one; each may be absent. The new place comes first, so that a lane that has no
/// other job goes on.
pub(super) fn move_job(
    session: &mut WriteTransaction<'_>,
    from: Option<(&TopicName, LanePlace)>,
    to: Option<(&TopicName, LanePlace)>,
) -> SqliteResult<()> {
    if from.as_ref().map(|(_, place)| place) == to.as_ref().map(|(_, place)| place) {
        return Ok(());
    }
    if let Some((name, place)) = to {
        let topic = TopicRef { key: place.topic, name };
        match place.waiting {
            Some(at) => join(session, topic, &place.group, at)?,
            // Only a claim begins a lease; here a running job has changed its key.
            None => count_lease(session, topic, &place.group, place.key, 1)?,
        }
    }
    if let Some((name, place)) = from {
        let topic = TopicRef { key: place.topic, name };
        match place.waiting {
            Some(at) => leave(session, topic, &place.group, at)?,
            None => count_lease(session, topic, &place.group, place.key, -1)?,
        }
    }
    Ok(())
}

/// Adds a waiting job to its lane.
pub(super) fn join(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
    at: LanePosition,
) -> SqliteResult<()> {
    let place = params![topic.key, group.as_str(), at.rank, at.due.0, at.key];
    session.prepare(ADD_JOB)?.execute(place)?;
    let mut lane = find_or_create(session, topic, group, at.key)?;
    if lane.setting.paused {
        return Ok(());
    }
    session.set_lane_claimable(topic.name, at.due);
    if lane.is_ready || lane.due.is_some_and(|due| due <= at.due) {
        return Ok(());
    }
    let head = if at.due <= session.now { LaneHead::Due(at) } else { LaneHead::Later(at.due) };
    lane.stand(&head);
    lane.write(session, topic, group)
}

/// Removes a waiting job from its lane.
fn leave(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
    at: LanePosition,
) -> SqliteResult<()> {
    drop_job(session, topic, group, at)?;
    let Some(mut lane) = find(session, topic, group)? else { return Ok(()) };
    let head = head(session, topic, group)?;
    lane.stand(&head);
    lane.write_or_delete(session, topic, group, &head)
}

/// Removes a job from the order of its lane.
pub(super) fn drop_job(
    session: &WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
    at: LanePosition,
) -> SqliteResult<()> {
    let place = params![topic.key, group.as_str(), at.rank, at.due.0, at.key];
    session.prepare(DROP_JOB)?.execute(place)?;
    Ok(())
}

/// Adds to the running jobs of a lane.
fn count_lease(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
    key: i64,
    more: i64,
) -> SqliteResult<()> {
    let mut lane = match find(session, topic, group)? {
        Some(lane) => lane,
        None if more > 0 => find_or_create(session, topic, group, key)?,
        None => return Ok(()),
    };
    lane.running = (lane.running + more).max(0);
    let mut totals = totals(session, topic)?;
    totals.running = (totals.running + more).max(0);
    totals.write(session, topic)?;
    let head = head(session, topic, group)?;
    lane.write_or_delete(session, topic, group, &head)
}

/// Returns whether a lane has a job that is due, and the first of those with the highest priority.
pub(super) fn head(
    session: &WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
) -> SqliteResult<LaneHead> {
    next_job(session, topic, group, None)
}

/// Returns the next job of a lane, in the order of its ageing.
pub(super) fn next_job(
    session: &WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
    ageing: Option<PriorityAgeing>,
) -> SqliteResult<LaneHead> {
    let mut select = session.prepare(HEAD)?;
    let (mut rank, mut earliest, mut first) = (RANKS, None::<Time>, None::<(Time, LanePosition)>);
    loop {
        let found =
            select.query_row(params![topic.key, group.as_str(), rank], position).optional()?;
        let Some(at) = found else {
            let later = earliest.map_or(LaneHead::Empty, LaneHead::Later);
            return Ok(first.map_or(later, |(_, at)| LaneHead::Due(at)));
        };
        match ageing {
            _ if at.due > session.now => earliest = earliest.into_iter().chain([at.due]).min(),
            None => return Ok(LaneHead::Due(at)),
            Some(ageing) => {
                let aged = ageing.aged(at.due, priority_of(at.rank));
                // Of equals the one with the higher priority, which was read before, comes first.
                first = first.filter(|(least, _)| *least <= aged).or(Some((aged, at)));
            }
        }
        rank = at.rank + 1;
    }
}

fn position(row: &Row<'_>) -> rusqlite::Result<LanePosition> {
    Ok(LanePosition { rank: row.get(0)?, due: Time(row.get(1)?), key: row.get(2)? })
}

/// Returns the lane of a group, if it exists.
pub(super) fn find(
    session: &WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
) -> SqliteResult<Option<Lane>> {
    let read = |row: &Row<'_>| {
        Ok(Lane {
            running: row.get(0)?,
            setting: LaneSetting { weight: row.get(1)?, paused: row.get(2)? },
            served: row.get(3)?,
            first: row.get(4)?,
            is_ready: row.get(5)?,
            due: row.get::<_, Option<i64>>(6)?.map(Time),
        })
    };
    let mut find = session.prepare(FIND)?;
    Ok(find.query_row(params![topic.key, group.as_str()], read).optional()?)
}

/// Returns the lane of a group. A new one comes right before the lane that was served last.
fn find_or_create(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
    first: i64,
) -> SqliteResult<Lane> {
    if let Some(lane) = find(session, topic, group)? {
        return Ok(lane);
    }
    let totals = totals(session, topic)?;
    if !session.set_lanes(topic.name, true) {
        totals.write(session, topic)?;
    }
    let setting = session.group_setting(topic.name, group.as_str())?;
    let served = turns::place_new(totals.picks);
    let LaneSetting { weight, paused } = setting;
    let values = params![topic.key, group.as_str(), weight, paused, served, first];
    session.prepare(INSERT)?.execute(values)?;
    Ok(Lane { running: 0, setting, served, first, is_ready: false, due: None })
}

/// Returns the totals of the lanes of a topic.
pub(super) fn totals(
    session: &WriteTransaction<'_>,
    topic: TopicRef<'_>,
) -> SqliteResult<LaneTotals> {
    let read = |row: &Row<'_>| {
        Ok(LaneTotals { picks: row.get(0)?, served: row.get(1)?, running: row.get(2)? })
    };
    let found = session.prepare(TOTALS)?.query_row([topic.key], read).optional()?;
    Ok(found.unwrap_or_default())
}

/// Removes all lanes of a topic that is deleted.
pub(super) fn forget(session: &WriteTransaction<'_>, topic: i64) -> SqliteResult<()> {
    for sql in FORGET {
        session.prepare(sql)?.execute([topic])?;
    }
    Ok(())
}

// === impl LaneTotals ===

impl LaneTotals {
    /// Counts a turn; returns the place of the lane that had it.
    pub(super) fn pick(&mut self) -> i64 {
        self.picks += 1;
        turns::place_served(self.picks)
    }

    pub(super) fn write(
        self,
        session: &WriteTransaction<'_>,
        topic: TopicRef<'_>,
    ) -> SqliteResult<()> {
        let values = params![topic.key, self.picks, self.served, self.running];
        session.prepare(SET_TOTALS)?.execute(values)?;
        Ok(())
    }
}

// === impl Lane ===

impl Lane {
    /// Returns the score: the lane with the lowest has the next turn.
    pub(super) fn score(&self) -> i64 {
        turns::score(self.served, self.running, self.setting.weight)
    }

    /// Records that the lane was served.
    pub(super) fn serve(&mut self, served: i64) {
        self.running += 1;
        self.served = served;
    }

    /// Puts the lane among the ready ones, or among those whose jobs are due later.
    pub(super) fn stand(&mut self, head: &LaneHead) {
        (self.is_ready, self.due) = match head {
            _ if self.setting.paused => (false, None),
            LaneHead::Empty => (false, None),
            LaneHead::Later(due) => (false, Some(*due)),
            LaneHead::Due(_) => (true, None),
        };
    }

    pub(super) fn write(
        &self,
        session: &WriteTransaction<'_>,
        topic: TopicRef<'_>,
        group: &GroupName,
    ) -> SqliteResult<()> {
        let LaneSetting { weight, paused } = self.setting;
        session.prepare(UPDATE)?.execute(params![
            topic.key,
            group.as_str(),
            self.running,
            weight,
            paused,
            self.served,
            self.first,
            self.is_ready.then(|| self.score()),
            self.due.map(|due| due.0),
        ])?;
        Ok(())
    }

    /// Writes the lane, or deletes it if it has neither waiting nor running jobs.
    pub(super) fn write_or_delete(
        &self,
        session: &mut WriteTransaction<'_>,
        topic: TopicRef<'_>,
        group: &GroupName,
        head: &LaneHead,
    ) -> SqliteResult<()> {
        if self.running > 0 || !matches!(head, LaneHead::Empty) {
            return self.write(session, topic, group);
        }
        session.prepare(DELETE)?.execute(params![topic.key, group.as_str()])?;
        let any: bool = session.prepare(ANY)?.query_one([topic.key], |row| row.get(0))?;
        if !any {
            session.prepare(DROP_TOTALS)?.execute([topic.key])?;
            session.set_lanes(topic.name, false);
        }
        Ok(())
    }
}
