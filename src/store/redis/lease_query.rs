//! Select: running leases by what they are, and the claims that are given up.

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

/// The cursor at which a look at everything that runs begins and ends.
pub(super) const FIRST_CURSOR: &str = "0";

/// A part of what runs of a topic.
pub(super) struct RunningPage {
    /// The store's time.
    pub(super) now: Time,
    pub(super) jobs: Vec<RunningJob>,
    /// The cursor of the next part, if there is one.
    pub(super) next: Option<Bytes>,
}
/// A running job among all.
pub(super) struct RunningJob {
    pub(super) key: JobKey,
    pub(super) lease: engine::Lease,
    pub(super) due: Time,
    pub(super) sequence: i64,
}

impl RedisStore {
    /// [`Store::select`](crate::store::Store::select).
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

    /// [`LeaseQuery::Overdue`].
    async fn overdue(&self, limit: usize) -> Result<LeaseQueryResult> {
        let look = self.events.reap.begin_check();
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
        self.events.finish_check(&self.events.reap, look, next);
        Ok(LeaseQueryResult {
            now,
            leases,
            next_deadline: next,
            outage: away,
            ..LeaseQueryResult::default()
        })
    }

    /// [`LeaseQuery::OfClaim`]: the leases of one part, of one topic.
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
        // One that has ended meanwhile is none any more.
        let leases = self.leases_by_ref(refs).await?.leases;
        Ok(LeaseQueryResult { now: part.now, leases, cursor: rest, ..LeaseQueryResult::default() })
    }

    /// [`Store::void`](crate::store::Store::void): Redis may read what an old connection has sent after what came by a new
    /// one.
    pub(super) async fn cancelled_claim_member(&self, nonce: u32) -> Result<()> {
        let mut call = self.call(Verb::Void);
        call.arg(cancel_lost_claim(nonce).as_slice());
        self.run_raw(ConnectionLane::Write, &call).await.map(drop)
    }

    /// The running leases that `is_wanted`. Long, and seldom: all leases are read, in portions.
    async fn running_leases_where(
        &self,
        is_wanted: impl Fn(&engine::Lease) -> bool,
    ) -> Result<LeaseQueryResult> {
        let topics = {
            let _permit = self.permit().await?;
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
        for part in refs.chunks(limit::PART_MAX) {
            // One that has ended meanwhile is none any more.
            leases.extend(self.leases_by_ref(part.to_vec()).await?.leases);
        }
        let now = leases.iter().map(|lease| lease.now).max().unwrap_or_default();
        Ok(LeaseQueryResult { now, leases, ..LeaseQueryResult::default() })
    }

    /// Shows everything that runs of a topic, some of it twice; answers the store's time before that.
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

    /// The part of what runs of a topic that begins at `cursor`.
    pub(super) async fn running_part(
        &self,
        topic: &TopicName,
        cursor: &[u8],
    ) -> Result<RunningPage> {
        let mut call = self.call(Verb::Running);
        call.arg(topic.as_str()).arg(cursor).arg(limit::PART_MAX);
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

/// A job with its entry, as scripts answer it: topic, id, entry. One that cannot be read is left out: it must not keep
/// the others from what is due.
pub(super) fn read_job(reply: &mut ScriptReply) -> Result<Option<(JobKey, JobEntry)>> {
    let (topic, id) = (TopicName::stored(&reply.text()?), JobId::stored(&reply.text()?));
    let key = JobKey { topic, id };
    match JobEntry::read(reply.bytes()?) {
        Ok(entry) => Ok(Some((key, entry))),
        Err(error) => {
            tracing::error!(job = %key, %error, "a job is damaged and left out");
            Ok(None)
        }
    }
}

/// Where the search is: in the topic of that index, at that cursor.
fn format_cursor(index: usize, cursor: &str) -> String {
    format!("{index} {cursor}")
}

/// The name of a claim that was given up; nothing else in its place begins with 0.
fn cancel_lost_claim(nonce: u32) -> [u8; 5] {
    let [a, b, c, d] = nonce.to_be_bytes();
    [0, a, b, c, d]
}
