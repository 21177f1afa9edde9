//! Full topics: the numbers of their waiting jobs and of their bytes, and the jobs that have to leave.

use rusqlite::params;

use crate::domain::engine::Enqueue;
use crate::domain::{JobId, TopicName, limit};
use crate::store::{JobSum, LeavingJobs, RoomQuery};

use super::error_mapping::SqliteResult;
use super::job_row::{RANKS, rank_of};
use super::statement::statement;
use super::topic_counts::{TopicCounts, TopicNumbers};
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("full_topics.sql");
const COUNT: &str = statement(FILE, "count");
const BYTES: &str = statement(FILE, "bytes");
const OLDEST: &str = statement(FILE, "oldest");

/// The topic, and the new jobs.
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
) -> SqliteResult<Option<LeavingJobs>> {
    let mut excess = JobSum::default();
    if let Some(max) = room.max_waiting {
        excess.jobs = (session.waiting_count(topic)? + room.new.jobs).saturating_sub(max);
    }
    if let Some(max) = room.max_bytes {
        excess.bytes =
            session.byte_count(topic)?.saturating_add(room.new.bytes).saturating_sub(max);
    }
    let Some(topic) = session.topic(topic)? else { return Ok(Some(LeavingJobs::default())) };
    let [least, goal] = room.goals(excess);
    let jobs = usize::try_from(goal.jobs).unwrap_or(usize::MAX).min(limit::CALL_JOBS_MAX);
    // How many jobs have the bytes is known once they are read; few do for most.
    let counts = if goal.bytes == 0 { [jobs; 2] } else { [FEW.max(jobs), limit::CALL_JOBS_MAX] };
    let (mut ids, mut left) = (Vec::new(), JobSum::default());
    for wanted in counts {
        let found = oldest(session, topic, wanted)?;
        (ids, left) = choose(&found, goal);
        if left.bytes >= goal.bytes || found.len() < wanted {
            break;
        }
    }
    let is_over = left.jobs < excess.jobs || left.bytes < excess.bytes;
    let is_enough = left.bytes >= least.bytes;
    Ok(is_enough.then_some(LeavingJobs { ids, is_over: is_over && left.jobs >= least.jobs }))
}

/// Returns those that leave of the first waiting jobs, and their sum.
fn choose(found: &[Candidate], goal: JobSum) -> (Vec<JobId>, JobSum) {
    let (mut leaving, mut left) = (Vec::new(), JobSum::default());
    for (.., id, bytes) in found {
        // A job without bytes leaves only to make one job fewer.
        if left.jobs < goal.jobs || left.bytes < goal.bytes && *bytes > 0 {
            leaving.push(JobId::stored(id));
            left = JobSum { jobs: left.jobs + 1, bytes: left.bytes.saturating_add(*bytes) };
        }
    }
    (leaving, left)
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
