//! Full topics: the numbers of their waiting jobs and of their bytes, and the jobs that have to leave.

use rusqlite::params;

use crate::domain::engine::Enqueue;
use crate::domain::{JobId, TopicName, limit};
use crate::store::RoomQuery;

use super::error_mapping::SqliteResult;
use super::job_row::{RANKS, rank_of};
use super::statement::statement;
use super::topic_counts::{TopicCounts, TopicNumbers};
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("full_topics.sql");
const COUNT: &str = statement(FILE, "count");
const BYTES: &str = statement(FILE, "bytes");
const OLDEST: &str = statement(FILE, "oldest");

/// The topic, and the room that it is to have.
pub(super) struct EvictQuery {
    pub(super) topic: TopicName,
    pub(super) room: RoomQuery,
}

/// A waiting job that may have to leave: due time, key, id and bytes.
type Candidate = (i64, i64, String, u64);

/// Number of jobs that are read first: their bytes are room enough for most.
const FEW: usize = 16;

/// [`Store::oldest_waiting`](crate::store::Store::oldest_waiting). The writer runs it, because it has the counts.
pub(super) fn oldest_waiting(
    session: &mut WriteTransaction<'_>,
    EvictQuery { topic, room }: &EvictQuery,
) -> SqliteResult<Option<Vec<JobId>>> {
    let (mut jobs, mut bytes) = (0, 0);
    if let Some(max) = room.max_waiting {
        let excess = (session.waiting_count(topic)? + room.jobs as u64).saturating_sub(max);
        jobs = usize::try_from(excess).unwrap_or(usize::MAX).min(room.jobs);
    }
    if let Some(max) = room.max_bytes {
        bytes = session.byte_count(topic)?.saturating_add(room.bytes).saturating_sub(max);
    }
    let Some(topic) = session.topic(topic)? else { return Ok(Some(Vec::new())) };
    if bytes == 0 {
        let found = oldest(session, topic, jobs)?;
        return Ok(Some(found.iter().map(|(.., id, _)| JobId::stored(id)).collect()));
    }
    for wanted in [FEW.max(jobs), limit::CALL_JOBS_MAX] {
        let found = oldest(session, topic, wanted)?;
        let leaving = choose(&found, jobs, bytes);
        if leaving.is_some() || found.len() < wanted {
            return Ok(leaving);
        }
    }
    Ok(None)
}

/// Returns those that have to leave of the first waiting jobs; `None`: they have fewer bytes.
fn choose(found: &[Candidate], jobs: usize, mut bytes: u64) -> Option<Vec<JobId>> {
    let mut leaving = Vec::new();
    for (.., id, its_bytes) in found {
        // A job without bytes leaves only to make one job fewer.
        if jobs > leaving.len() || bytes > 0 && *its_bytes > 0 {
            leaving.push(JobId::stored(id));
            bytes = bytes.saturating_sub(*its_bytes);
        }
    }
    (bytes == 0).then_some(leaving)
}

/// Returns the first waiting jobs in the order in which they leave.
fn oldest(
    session: &WriteTransaction<'_>,
    topic: i64,
    wanted: usize,
) -> SqliteResult<Vec<Candidate>> {
    let mut found = Vec::new();
    for priority in 0..=limit::PRIORITY_MAX {
        found.extend(oldest_of(session, topic, priority, wanted - found.len())?);
        if found.len() == wanted {
            break;
        }
    }
    Ok(found)
}

/// Returns the first waiting jobs of one priority.
fn oldest_of(
    session: &WriteTransaction<'_>,
    topic: i64,
    priority: u8,
    most: usize,
) -> SqliteResult<Vec<Candidate>> {
    let (mut oldest, mut level) = (session.prepare(OLDEST)?, Vec::new());
    let rank = rank_of(priority);
    for rank in [rank, rank + RANKS] {
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, i64>(3)?.cast_unsigned()))
        };
        let rows = oldest.query_map(params![topic, rank, most], read)?;
        level.extend(rows.collect::<rusqlite::Result<Vec<Candidate>>>()?);
    }
    level.sort_unstable();
    level.truncate(most);
    Ok(level)
}

// === impl WriteTransaction ===

impl WriteTransaction<'_> {
    /// Returns whether a topic has room for this number of waiting jobs more, and these bytes, below the limits of a new
    /// job.
    pub(super) fn has_room(
        &mut self,
        topic: &TopicName,
        new: &Enqueue,
        jobs: u64,
        bytes: u64,
    ) -> SqliteResult<bool> {
        if let Some(max) = new.max_waiting
            && jobs > 0
            && self.waiting_count(topic)? + jobs > max
        {
            return Ok(false);
        }
        Ok(match new.max_bytes.filter(|&max| max < u64::MAX && bytes > 0) {
            Some(max) => self.byte_count(topic)?.saturating_add(bytes) <= max,
            None => true,
        })
    }

    /// Returns the number of waiting jobs of a topic; jobs that have expired count until they are pruned.
    fn waiting_count(&mut self, name: &TopicName) -> SqliteResult<u64> {
        self.number(name, COUNT, |counts| &mut counts.waiting)
    }

    /// Returns the bytes of the stored jobs of a topic.
    fn byte_count(&mut self, name: &TopicName) -> SqliteResult<u64> {
        self.number(name, BYTES, |counts| &mut counts.bytes)
    }

    /// Returns a number of a topic, which is counted by `sql` at first.
    fn number(
        &mut self,
        name: &TopicName,
        sql: &'static str,
        numbers: fn(&mut TopicCounts) -> &mut TopicNumbers,
    ) -> SqliteResult<u64> {
        let known = numbers(self.topic_counts()).get(name);
        let number = match (known, self.topic(name)?) {
            (Some(number), _) => number,
            (None, None) => return Ok(0),
            (None, Some(topic)) => {
                let number = self.prepare(sql)?.query_one(params![topic], |row| row.get(0))?;
                numbers(self.topic_counts()).keep(name, number);
                number
            }
        };
        Ok(u64::try_from(number).unwrap_or(0))
    }
}
