//! Select: running leases by what they are, and the claims that are given up.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::domain::engine;
use crate::domain::{Away, JobId, JobKey, StreamId, Time, TopicName, limit};
use crate::store::{Lease, LeaseRef, Result, Select, Selected};

use super::entry::{Entry, read_lease, split};
use super::member::{arrival_of, due_of};
use super::reply::{Reply, unexpected};
use super::script::Verb;
use super::{Lane, RedisStore};

/// The cursor at which a look at everything that runs begins and ends.
pub(super) const FIRST: &str = "0";

/// A part of what runs of a topic.
pub(super) struct Part {
    /// The store's time.
    pub(super) now: Time,
    pub(super) runs: Vec<Run>,
    /// The cursor of the next part, if there is one.
    pub(super) next: Option<Bytes>,
}
/// A running job among all.
pub(super) struct Run {
    pub(super) key: JobKey,
    pub(super) lease: engine::Lease,
    pub(super) due: Time,
    pub(super) sequence: i64,
}

impl RedisStore {
    /// [`Store::select`](crate::store::Store::select).
    pub(super) async fn select(&self, what: Select) -> Result<Selected> {
        match what {
            Select::Overdue { limit } => self.overdue(limit).await,
            Select::Orphans { living } => {
                let is_orphan =
                    |lease: &engine::Lease| !living.contains(&lease.owner) && lease.grace.is_some();
                self.leases_where(is_orphan).await
            }
            Select::OfStreams(streams) => {
                let stream =
                    |lease: &engine::Lease| StreamId { owner: lease.owner, stream: lease.stream };
                self.leases_where(|lease| streams.contains(&stream(lease))).await
            }
            Select::Named(refs) => self.named(refs).await,
            Select::OfClaim { nonce, topics, from } => self.of_claim(nonce, &topics, &from).await,
        }
    }

    /// [`Select::Overdue`].
    async fn overdue(&self, limit: usize) -> Result<Selected> {
        let look = self.hints.reap.begin();
        let mut call = self.call(Verb::Reap);
        call.arg(limit.min(limit::CALL_JOBS_MAX));
        let mut reply = self.run(Lane::Read, &call).await?;
        let (now, next) = (reply.time()?, reply.maybe_time()?);
        let (since, until) = (reply.maybe_time()?, reply.maybe_time()?);
        let away = since.zip(until).map(|(since, until)| Away { since, until });
        let mut leases = Vec::new();
        while !reply.is_empty() {
            let job = job(&mut reply)?;
            leases.extend(job.and_then(|(key, entry)| entry.lease_of(key, now)));
        }
        self.hints.looked(&self.hints.reap, look, next);
        Ok(Selected { now, leases, next, away, ..Selected::default() })
    }

    /// [`Select::OfClaim`]: the leases of one part, of one topic.
    async fn of_claim(&self, nonce: u32, topics: &[TopicName], from: &str) -> Result<Selected> {
        let at =
            from.split_once(' ').and_then(|(index, cursor)| Some((index.parse().ok()?, cursor)));
        let (index, cursor): (usize, &str) = at.unwrap_or((0, FIRST));
        let Some(topic) = topics.get(index) else { return Ok(Selected::default()) };
        let part = self.running_part(topic, cursor.as_bytes()).await?;
        let mine = part.runs.into_iter().filter(|run| run.lease.token.nonce() == nonce);
        let refs = mine.map(|run| LeaseRef { key: run.key, token: run.lease.token }).collect();
        let rest = match part.next {
            Some(cursor) => Some(place(index, &String::from_utf8_lossy(&cursor))),
            None => (index + 1 < topics.len()).then(|| place(index + 1, FIRST)),
        };
        // One that has ended meanwhile is none any more.
        let leases = self.named(refs).await?.leases;
        Ok(Selected { now: part.now, leases, rest, ..Selected::default() })
    }

    /// [`Store::void`](crate::store::Store::void): Redis may read what an old connection has sent after what came by a new
    /// one.
    pub(super) async fn void(&self, nonce: u32) -> Result<()> {
        let mut call = self.call(Verb::Void);
        call.arg(void(nonce).as_slice());
        self.run_raw(Lane::Write, &call).await.map(drop)
    }

    /// The running leases that `is_wanted`. Long, and seldom: all leases are read, in portions.
    async fn leases_where(&self, is_wanted: impl Fn(&engine::Lease) -> bool) -> Result<Selected> {
        let topics = {
            let _permit = self.permit().await?;
            self.shard.all_topics().await?
        };
        let mut wanted = BTreeMap::new();
        for topic in topics {
            let visit = |run: Run| {
                if is_wanted(&run.lease) {
                    wanted.insert(run.key, run.lease.token);
                }
            };
            self.visit_running(&topic, visit).await?;
        }
        let refs: Vec<_> = wanted.into_iter().map(|(key, token)| LeaseRef { key, token }).collect();
        let mut leases: Vec<Lease> = Vec::with_capacity(refs.len());
        for part in refs.chunks(limit::PART_MAX) {
            // One that has ended meanwhile is none any more.
            leases.extend(self.named(part.to_vec()).await?.leases);
        }
        let now = leases.iter().map(|lease| lease.now).max().unwrap_or_default();
        Ok(Selected { now, leases, ..Selected::default() })
    }

    /// Shows everything that runs of a topic, some of it twice; answers the store's time before that.
    pub(super) async fn visit_running(
        &self,
        topic: &TopicName,
        mut visit: impl FnMut(Run),
    ) -> Result<Time> {
        let (mut began, mut cursor) = (None, Bytes::from_static(FIRST.as_bytes()));
        loop {
            let part = self.running_part(topic, &cursor).await?;
            let began = *began.get_or_insert(part.now);
            part.runs.into_iter().for_each(&mut visit);
            match part.next {
                Some(next) => cursor = next,
                None => return Ok(began),
            }
        }
    }

    /// The part of what runs of a topic that begins at `cursor`.
    pub(super) async fn running_part(&self, topic: &TopicName, cursor: &[u8]) -> Result<Part> {
        let mut call = self.call(Verb::Running);
        call.arg(topic.as_str()).arg(cursor).arg(limit::PART_MAX);
        let mut reply = self.run(Lane::Read, &call).await?;
        let now = reply.time()?;
        let next = Some(reply.bytes()?).filter(|cursor| &cursor[..] != FIRST.as_bytes());
        let mut runs = Vec::new();
        while !reply.is_empty() {
            let id = JobId::stored(&reply.text()?);
            let (lease, head) = split(reply.bytes()?)?;
            let lease = read_lease(lease.ok_or_else(|| unexpected("a lease"))?)?;
            let (due, sequence) = (due_of(&head), arrival_of(&head));
            let key = JobKey { topic: topic.clone(), id };
            runs.push(Run { key, lease, due, sequence });
        }
        Ok(Part { now, runs, next })
    }
}

/// A job with its entry, as scripts answer it: topic, id, entry. One that cannot be read is left out: it must not keep
/// the others from what is due.
pub(super) fn job(reply: &mut Reply) -> Result<Option<(JobKey, Entry)>> {
    let (topic, id) = (TopicName::stored(&reply.text()?), JobId::stored(&reply.text()?));
    let key = JobKey { topic, id };
    match Entry::read(reply.bytes()?) {
        Ok(entry) => Ok(Some((key, entry))),
        Err(error) => {
            tracing::error!(job = %key, %error, "a job is damaged and left out");
            Ok(None)
        }
    }
}

/// Where the search is: in the topic of that index, at that cursor.
fn place(index: usize, cursor: &str) -> String {
    format!("{index} {cursor}")
}

/// The name of a claim that was given up; nothing else in its place begins with 0.
fn void(nonce: u32) -> [u8; 5] {
    let [a, b, c, d] = nonce.to_be_bytes();
    [0, a, b, c, d]
}
