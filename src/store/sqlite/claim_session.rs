//! Parts of a claim: its budget, its streams, the jobs that it takes from the orders of a topic, and their leases.

use std::collections::VecDeque;

use bytes::Bytes;
use rand::Rng as _;
use rusqlite::params;

use crate::domain::engine::Command;
use crate::domain::{JobId, JobKey, Payload, Spec, Time, Token, TopicName, limit};
use crate::store::{Claim, LeasedJob, StreamDemand, TopicRemainder, codec};

use super::error_mapping::SqliteResult;
use super::job_row::{self, BY_KEY, JobRow, micros, payload_key, priority_of, signed};
use super::lanes::TopicRef;
use super::run_engine::apply_to;
use super::statement::statement;
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("claim.sql");
const TAKE: &str = statement(FILE, "take");
const JOB: &str = statement(FILE, "job");
const LEASE: &str = statement(FILE, "lease");

/// Remaining budget of one call.
#[derive(Clone, Copy)]
pub(super) struct ClaimBudget {
    pub(super) jobs: usize,
    pub(super) bytes: u64,
    /// Number of expired jobs that the call may still remove.
    pub(super) expiries: usize,
}

/// A call that leases jobs.
pub(super) struct ClaimSession<'s, 'c> {
    pub(super) session: &'s mut WriteTransaction<'c>,
    pub(super) budget: ClaimBudget,
    owner: u32,
    tokens: Box<dyn Iterator<Item = Token>>,
    /// Start of the leases; `None`: there is none yet.
    started: Option<Time>,
}

/// Streams that can still take jobs, in turn.
pub(super) struct StreamRotation<'a> {
    pub(super) streams: &'a [StreamDemand],
    budgets: Vec<StreamBudget>,
    order: VecDeque<usize>,
}

struct StreamBudget {
    jobs: u32,
    bytes: u64,
    oversize: bool,
}

/// A job that was taken but is not leased yet.
pub(super) struct TakenJob {
    pub(super) key: i64,
    pub(super) stream: usize,
    pub(super) job: LeasedJob,
}

/// A waiting job, without its body.
struct WaitingRow {
    key: i64,
    due: Time,
    expire: Option<Time>,
    bytes: u64,
}

/// End of the search through one rank.
enum RankEnd {
    /// The rank has no more jobs.
    Empty,
    /// The next job is due at that time.
    Until(Time),
    /// No stream can take the next job, or the call is full.
    Full,
    /// Expired jobs used up the budget of the call.
    ExpiryLimit,
}

/// Takes jobs rank by rank until no stream can take more.
pub(super) fn take_by_rank(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    round: &mut StreamRotation<'_>,
    budget: &mut ClaimBudget,
    taken: &mut Vec<TakenJob>,
) -> SqliteResult<TopicRemainder> {
    let mut rest = TopicRemainder::Empty;
    let ranks = session.ranks(topic.name);
    for rank in (0..=limit::PRIORITY_MAX).filter(|rank| ranks & 1 << rank != 0) {
        match take_rank(session, topic, rank, round, budget, taken)? {
            RankEnd::Empty => {}
            RankEnd::Full => return Ok(TopicRemainder::Ready),
            RankEnd::ExpiryLimit => return Ok(TopicRemainder::Unknown),
            RankEnd::Until(due) => {
                rest = match rest {
                    TopicRemainder::ReadyAt(earlier) if earlier <= due => rest,
                    _ => TopicRemainder::ReadyAt(due),
                };
            }
        }
    }
    Ok(rest)
}

fn take_rank(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    rank: u8,
    round: &mut StreamRotation<'_>,
    budget: &mut ClaimBudget,
    taken: &mut Vec<TakenJob>,
) -> SqliteResult<RankEnd> {
    let TopicRef { key: topic, name } = topic;
    let mut select = session.prepare(TAKE)?;
    let before = taken.len();
    loop {
        let limit = round.jobs_left().min(budget.jobs) + 1;
        // Taken jobs still wait in the table, at the front.
        let mut rows = select.query(params![topic, rank, limit, taken.len() - before])?;
        let mut expired = Vec::new();
        let mut seen = 0;
        let mut end = None;
        while let Some(found) = rows.next()? {
            seen += 1;
            let waiting = WaitingRow::read(found)?;
            if waiting.expire.is_some_and(|expire| expire <= session.now) {
                expired.push(waiting.key);
                continue;
            }
            if waiting.due > session.now {
                end = Some(RankEnd::Until(waiting.due));
                break;
            }
            let fits = budget.fits(waiting.bytes);
            let Some(taker) = round.next_stream(waiting.bytes).filter(|_| fits) else {
                end = Some(RankEnd::Full);
                break;
            };
            round.charge(taker, waiting.bytes);
            budget.take(waiting.bytes);
            let spec = spec(session, found, waiting.key)?;
            taken.push(TakenJob::read(session, found, &waiting, spec, taker, name, rank)?);
        }
        drop(rows);
        if seen == 0 && taken.len() == before {
            session.mark_rank_empty(name, rank);
        }
        expire_all(session, name, &expired)?;
        budget.expiries = budget.expiries.saturating_sub(expired.len());
        match end {
            Some(end) => return Ok(end),
            None if seen < limit => return Ok(RankEnd::Empty),
            None if budget.expiries == 0 => return Ok(RankEnd::ExpiryLimit),
            // Some jobs of the page had expired, so there may be more for the streams.
            None => {}
        }
    }
}

/// Ends jobs that have expired.
pub(super) fn expire_all(
    session: &mut WriteTransaction<'_>,
    topic: &TopicName,
    keys: &[i64],
) -> SqliteResult<()> {
    for key in keys {
        let row = JobRow::find(&mut session.prepare(BY_KEY)?, params![key])?;
        if let Some(row) = row {
            let key = row.job_key(topic.clone());
            apply_to(session, &key, Some(&row), &Command::Prune)?;
        }
    }
    Ok(())
}

// === impl ClaimSession ===

impl<'s, 'c> ClaimSession<'s, 'c> {
    pub(super) fn new(session: &'s mut WriteTransaction<'c>, claim: &Claim) -> Self {
        let budget = ClaimBudget {
            jobs: limit::CALL_JOBS_MAX,
            bytes: limit::CALL_BYTES_MAX as u64,
            expiries: limit::CALL_JOBS_MAX,
        };
        let tokens = Box::new(Token::of_claim(claim.nonce, rand::rng().random_iter()));
        ClaimSession { session, budget, owner: claim.owner, tokens, started: None }
    }

    /// Writes the leases of the taken jobs.
    pub(super) fn lease(
        &mut self,
        taken: Vec<TakenJob>,
        takers: &[StreamDemand],
        leased: &mut [Vec<LeasedJob>],
    ) -> SqliteResult<()> {
        if taken.is_empty() {
            return Ok(());
        }
        let started = match self.started {
            Some(started) => started,
            None => *self.started.insert(self.session.begin_leases()?),
        };
        let ClaimSession { session, owner, tokens, .. } = self;
        let mut statement = session.prepare(LEASE)?;
        for (TakenJob { key, stream: index, mut job }, token) in taken.into_iter().zip(tokens) {
            let taker = &takers[index];
            let duration = job.spec.lease.unwrap_or(taker.lease);
            (job.token, job.fence) = (token, started);
            job.deadline = session.now.plus(duration);
            statement.execute(params![
                key,
                signed(job.token.0),
                job.deadline.0,
                *owner,
                taker.stream,
                taker.grace.map(micros),
                micros(duration),
                started.0,
                &*taker.worker_id,
            ])?;
            session.set_reap_at(job.deadline);
            session.topic_counts().waiting.add(&job.key.topic, -1);
            session.topic_counts().running.add(&job.key.topic, 1);
            leased[index].push(job);
        }
        Ok(())
    }
}

// === impl ClaimBudget ===

impl ClaimBudget {
    /// Returns whether a job fits; the first one always does.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.jobs > 0 && (bytes <= self.bytes || self.bytes == limit::CALL_BYTES_MAX as u64)
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.jobs -= 1;
        self.bytes = self.bytes.saturating_sub(bytes.max(1));
    }
}

// === impl StreamRotation ===

impl<'a> StreamRotation<'a> {
    pub(super) fn new(takers: &'a [StreamDemand]) -> StreamRotation<'a> {
        let left = takers
            .iter()
            .map(|t| StreamBudget { jobs: t.jobs, bytes: t.bytes, oversize: t.oversize })
            .collect();
        let turn = (0..takers.len()).filter(|&index| takers[index].jobs > 0).collect();
        StreamRotation { streams: takers, budgets: left, order: turn }
    }

    fn jobs_left(&self) -> usize {
        let jobs = self.order.iter().map(|&index| u64::from(self.budgets[index].jobs)).sum::<u64>();
        usize::try_from(jobs).unwrap_or(usize::MAX).min(limit::CALL_JOBS_MAX)
    }

    /// Returns the next stream in turn that can take `bytes`.
    pub(super) fn next_stream(&self, bytes: u64) -> Option<usize> {
        debug_assert_eq!(self.streams.len(), self.budgets.len());
        self.order.iter().copied().find(|&index| self.budgets[index].can_take(bytes))
    }

    pub(super) fn charge(&mut self, taker: usize, bytes: u64) {
        let left = &mut self.budgets[taker];
        left.jobs -= 1;
        left.bytes = left.bytes.saturating_sub(bytes);
        left.oversize = false;
        let exhausted = left.jobs == 0;
        if let Some(place) = self.order.iter().position(|&index| index == taker) {
            self.order.remove(place);
        }
        if !exhausted {
            self.order.push_back(taker);
        }
    }
}

// === impl StreamBudget ===

impl StreamBudget {
    fn can_take(&self, bytes: u64) -> bool {
        self.jobs > 0 && (bytes <= self.bytes || self.oversize)
    }
}

// === impl WaitingRow, TakenJob ===

impl WaitingRow {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<WaitingRow> {
        Ok(WaitingRow {
            key: row.get(0)?,
            due: Time(row.get(2)?),
            expire: row.get::<_, Option<i64>>(4)?.map(Time),
            bytes: row.get::<_, i64>(6)?.unsigned_abs(),
        })
    }
}

impl TakenJob {
    fn read(
        session: &WriteTransaction<'_>,
        row: &rusqlite::Row<'_>,
        waiting: &WaitingRow,
        spec: Spec,
        taker: usize,
        topic: &TopicName,
        rank: u8,
    ) -> SqliteResult<TakenJob> {
        let id = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        let id = JobId::stored(id);
        let life = row.get_ref(9)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
        let (life, _) = codec::decode_history(life);
        let checkpoint = match life.checkpoint {
            0 => None,
            _ => job_row::checkpoint(session.connection, waiting.key)?,
        };
        let job = LeasedJob {
            key: JobKey { topic: topic.clone(), id },
            token: Token(0),
            fence: Time(0),
            deadline: Time(0),
            spec,
            priority: priority_of(rank),
            failures: life.failures,
            deliveries: life.deliveries,
            crashes: life.crashes,
            due: waiting.due,
            create_time: Time(row.get(3)?),
            last_error: life.last_error,
            checkpoint: undecoded_payload(checkpoint),
        };
        Ok(TakenJob { key: waiting.key, stream: taker, job })
    }
}

/// Reads a waiting job, unless it has expired, and its size.
pub(super) fn read_unexpired(
    session: &WriteTransaction<'_>,
    topic: &TopicName,
    key: i64,
    rank: u8,
) -> SqliteResult<Option<(TakenJob, u64)>> {
    let mut select = session.prepare(JOB)?;
    let mut rows = select.query([key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let waiting = WaitingRow::read(row)?;
    if waiting.expire.is_some_and(|expire| expire <= session.now) {
        return Ok(None);
    }
    let spec = spec(session, row, waiting.key)?;
    let job = TakenJob::read(session, row, &waiting, spec, 0, topic, rank)?;
    Ok(Some((job, waiting.bytes)))
}

/// Reads the spec with its payload still encoded: decoding is not the writer's work, see
/// [`decode_payloads`](super::claim::decode_payloads).
fn spec(session: &WriteTransaction<'_>, row: &rusqlite::Row<'_>, key: i64) -> SqliteResult<Spec> {
    let large: bool = row.get(7)?;
    let blob: Option<Vec<u8>> =
        if large { job_row::body(session.connection, payload_key(key))? } else { row.get(10)? };
    let spec = row.get_ref(8)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
    Ok(Spec {
        payload: undecoded_payload(blob),
        lease: row.get::<_, Option<i64>>(5)?.map(job_row::duration),
        ..codec::decode_spec(spec)
    })
}

/// Wraps an encoded payload, to be decoded later.
fn undecoded_payload(blob: Option<Vec<u8>>) -> Option<Payload> {
    blob.map(|blob| Payload { body: Bytes::from(blob), ..Payload::default() })
}
