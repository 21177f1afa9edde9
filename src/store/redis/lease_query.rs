//! Queries running leases by their properties, and cancels claims.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::domain::engine;
use crate::domain::{JobId, JobKey, ShardOutage, StreamId, Time, TopicName, limit};
use crate::store::{LeaseQuery, LeaseQueryResult, LeaseRef, Result, RunningLease};

use super::entry::{JobEntry, read_lease, split};
use super::order_member::{arrival_of, due_of};
use super::reply::{ScriptReply, unexpected};
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

/// Cursor at which a scan of all running jobs begins and ends.
pub(super) const FIRST_CURSOR: &str = "0";

/// A page of the running jobs of a topic.
pub(super) struct RunningPage {
    /// Time of the store.
    pub(super) now: Time,
    pub(super) jobs: Vec<RunningJob>,
    /// Cursor of the next page, if there is one.
    pub(super) next: Option<Bytes>,
}
/// A running job of a page.
pub(super) struct RunningJob {
    pub(super) key: JobKey,
    pub(super) lease: engine::Lease,
    pub(super) due: Time,
    pub(super) sequence: i64,
}

impl RedisStore {
    /// Implements [`Store::query_leases`](crate::store::Store::query_leases).
    pub(super) async fn query_leases(&self, what: LeaseQuery) -> Result<LeaseQueryResult> {
        match what {
            LeaseQuery::Overdue { limit } => self.overdue(limit).await,
            LeaseQuery::Orphaned { live_owners: living } => {
                let is_orphan =
                    |lease: &engine::Lease| !living.contains(&lease.owner) && lease.grace.is_some();
                self.running_leases_where(is_orphan).await
            }
            LeaseQuery::OfStreams(streams) => {
                let stream =
                    |lease: &engine::Lease| StreamId { owner: lease.owner, stream: lease.stream };
                self.running_leases_where(|lease| streams.contains(&stream(lease))).await
            }
            LeaseQuery::ByRef(refs) => self.leases_by_ref(refs).await,
            LeaseQuery::OfLostClaim { nonce, topics, cursor: from } => {
                self.of_claim(nonce, &topics, &from).await
            }
        }
    }

    /// Answers [`LeaseQuery::Overdue`].
    async fn overdue(&self, limit: usize) -> Result<LeaseQueryResult> {
        let check = self.events.reap.begin_check();
        let mut call = self.call(Verb::Reap);
        call.arg(limit.min(limit::CALL_JOBS_MAX));
        let mut reply = self.run(ConnectionLane::Read, &call).await?;
        let (now, next) = (reply.time()?, reply.maybe_time()?);
        let (since, until) = (reply.maybe_time()?, reply.maybe_time()?);
        let away = since.zip(until).map(|(since, until)| ShardOutage { since, until });
        let mut leases = Vec::new();
        while !reply.is_empty() {
            let job = read_job(&mut reply)?;
            leases.extend(job.and_then(|(key, entry)| entry.lease_of(key, now)));
        }
        self.events.finish_check(&self.events.reap, check, next);
        Ok(LeaseQueryResult {
            now,
            leases,
            next_deadline: next,
            outage: away,
            ..LeaseQueryResult::default()
        })
    }

    /// Answers [`LeaseQuery::OfClaim`]: the leases of one page, of one topic.
    async fn of_claim(
        &self,
        nonce: u32,
        topics: &[TopicName],
        from: &str,
    ) -> Result<LeaseQueryResult> {
        let at =
            from.split_once(' ').and_then(|(index, cursor)| Some((index.parse().ok()?, cursor)));
        let (index, cursor): (usize, &str) = at.unwrap_or((0, FIRST_CURSOR));
        let Some(topic) = topics.get(index) else { return Ok(LeaseQueryResult::default()) };
        let part = self.running_part(topic, cursor.as_bytes()).await?;
        let mine = part.jobs.into_iter().filter(|run| run.lease.token.nonce() == nonce);
        let refs = mine.map(|run| LeaseRef { key: run.key, token: run.lease.token }).collect();
        let rest = match part.next {
            Some(cursor) => Some(format_cursor(index, &String::from_utf8_lossy(&cursor))),
            None => (index + 1 < topics.len()).then(|| format_cursor(index + 1, FIRST_CURSOR)),
        };
        // A lease that has ended meanwhile is left out.
        let leases = self.leases_by_ref(refs).await?.leases;
        Ok(LeaseQueryResult { now: part.now, leases, cursor: rest, ..LeaseQueryResult::default() })
    }

    /// Implements [`Store::cancel_lost_claim`](crate::store::Store::cancel_lost_claim): Redis may read a claim from
    /// an old connection after a command from a new one.
    pub(super) async fn cancelled_claim_member(&self, nonce: u32) -> Result<()> {
        let mut call = self.call(Verb::CancelClaim);
        call.arg(cancel_lost_claim(nonce).as_slice());
        self.shard.run(ConnectionLane::Write, &call).await.map(drop)
    }

    /// Returns the running leases that satisfy `is_wanted`. Slow, and rare: all leases are read, in pages.
    async fn running_leases_where(
        &self,
        is_wanted: impl Fn(&engine::Lease) -> bool,
    ) -> Result<LeaseQueryResult> {
        let topics = {
            let _permit = self.shard.permit().await?;
            self.shard.all_topics().await?
        };
        let mut wanted = BTreeMap::new();
        for topic in topics {
            let visit = |run: RunningJob| {
                if is_wanted(&run.lease) {
                    wanted.insert(run.key, run.lease.token);
                }
            };
            self.visit_running(&topic, visit).await?;
        }
        let refs: Vec<_> = wanted.into_iter().map(|(key, token)| LeaseRef { key, token }).collect();
        let mut leases: Vec<RunningLease> = Vec::with_capacity(refs.len());
        for part in refs.chunks(limit::SCAN_PART_MAX) {
            // A lease that has ended meanwhile is left out.
            leases.extend(self.leases_by_ref(part.to_vec()).await?.leases);
        }
        let now = leases.iter().map(|lease| lease.now).max().unwrap_or_default();
        Ok(LeaseQueryResult { now, leases, ..LeaseQueryResult::default() })
    }

    /// Calls `visit` for all running jobs of a topic, for some of them twice; returns the store's time before that.
    pub(super) async fn visit_running(
        &self,
        topic: &TopicName,
        mut visit: impl FnMut(RunningJob),
    ) -> Result<Time> {
        let (mut began, mut cursor) = (None, Bytes::from_static(FIRST_CURSOR.as_bytes()));
        loop {
            let part = self.running_part(topic, &cursor).await?;
            let began = *began.get_or_insert(part.now);
            part.jobs.into_iter().for_each(&mut visit);
            match part.next {
                Some(next) => cursor = next,
                None => return Ok(began),
            }
        }
    }

    /// Reads the page of the running jobs of a topic that begins at `cursor`.
    pub(super) async fn running_part(
        &self,
        topic: &TopicName,
        cursor: &[u8],
    ) -> Result<RunningPage> {
        let mut call = self.call(Verb::Running);
        call.arg(topic.as_str()).arg(cursor).arg(limit::SCAN_PART_MAX);
        let mut reply = self.run(ConnectionLane::Read, &call).await?;
        let now = reply.time()?;
        let next = Some(reply.bytes()?).filter(|cursor| &cursor[..] != FIRST_CURSOR.as_bytes());
        let mut runs = Vec::new();
        while !reply.is_empty() {
            let id = JobId::stored(&reply.text()?);
            let (lease, head) = split(reply.bytes()?)?;
            let lease = read_lease(lease.ok_or_else(|| unexpected("a lease"))?)?;
            let (due, sequence) = (due_of(&head), arrival_of(&head));
            let key = JobKey { topic: topic.clone(), id };
            runs.push(RunningJob { key, lease, due, sequence });
        }
        Ok(RunningPage { now, jobs: runs, next })
    }
}

/// Reads a job and its entry from a reply of a script: topic, id, entry. A job that cannot be read is left out: it
/// must not block others that are due.
pub(super) fn read_job(reply: &mut ScriptReply) -> Result<Option<(JobKey, JobEntry)>> {
    let (topic, id) = (TopicName::stored(&reply.text()?), JobId::stored(&reply.text()?));
    let key = JobKey { topic, id };
    match JobEntry::read(reply.bytes()?) {
        Ok(entry) => Ok(Some((key, entry))),
        Err(error) => {
            tracing::error!(job = %key, %error, "a stored job cannot be read and is skipped");
            Ok(None)
        }
    }
}

/// Formats the position of a search: the index of the topic, and the cursor in it.
fn format_cursor(index: usize, cursor: &str) -> String {
    format!("{index} {cursor}")
}

/// Name of a cancelled claim; no other field of the hash begins with 0.
fn cancel_lost_claim(nonce: u32) -> [u8; 5] {
    let [a, b, c, d] = nonce.to_be_bytes();
    [0, a, b, c, d]
}
