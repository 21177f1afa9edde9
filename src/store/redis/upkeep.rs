//! What happens by itself: leases that ran out, jobs that expire or were kept long enough.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::domain::engine;
use crate::domain::{Away, JobId, JobKey, StreamId, Time, TopicName, limit};
use crate::store::{Lease, LeaseRef, Pruned, Reaped, Result, Tidied};

use super::entry::{Entry, micros, read_lease, split};
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
/// Topics that one look for empty ones takes: each costs a few commands, and one that is forgotten up to thirty.
const TOPICS_MAX: usize = 128;

/// A running job among all.
pub(super) struct Run {
    pub(super) key: JobKey,
    pub(super) lease: engine::Lease,
    pub(super) due: Time,
    pub(super) sequence: i64,
}

/// A job with its entry, as scripts answer it: topic, id, entry. One that cannot be read is left out: it must not keep
/// the others from what is due.
fn job(reply: &mut Reply) -> Result<Option<(JobKey, Entry)>> {
    let (topic, id) = (TopicName::stored(&reply.text()?), JobId::stored(&reply.text()?));
    let key = JobKey { topic, id };
    match Entry::read(reply.bytes()?) {
        Ok(entry) => Ok(Some((key, entry))),
        Err(error) => {
            tracing::error!(job = %key, %error, "a job is damaged");
            Ok(None)
        }
    }
}

impl RedisStore {
    /// [`Store::reap`](crate::store::Store::reap).
    pub(super) async fn reap(&self, limit: usize) -> Result<Reaped> {
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
        Ok(Reaped { now, leases, next, away })
    }

    /// [`Store::prune`](crate::store::Store::prune).
    pub(super) async fn prune(&self, limit: usize) -> Result<Pruned> {
        let look = self.hints.prune.begin();
        let mut call = self.call(Verb::Prune);
        call.arg(limit.min(limit::CALL_JOBS_MAX));
        let mut reply = self.run(Lane::Write, &call).await?;
        let (now, next) = (reply.time()?, reply.maybe_time()?);
        let mut found = Vec::new();
        while !reply.is_empty() {
            found.extend(job(&mut reply)?);
        }
        let pruned = found.len() as u64;
        // What has expired and is kept is to be forgotten later.
        let again = self.prune_found(now, found).await?;
        let next = next.into_iter().chain(again).min();
        self.hints.looked(&self.hints.prune, look, next);
        Ok(Pruned { now, pruned, next })
    }

    /// [`Store::tidy`](crate::store::Store::tidy).
    pub(super) async fn tidy(&self, after: Option<TopicName>, limit: usize) -> Result<Tidied> {
        let place = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let mut call = self.call(Verb::Tidy);
        call.arg(place).arg(limit.min(TOPICS_MAX)).arg(micros(limit::EMPTY_TOPIC_MAX));
        let mut reply = self.run(Lane::Write, &call).await?;
        let (last, more) = (TopicName::stored(&reply.text()?), reply.number()? == 1);
        let mut forgotten = Vec::new();
        while !reply.is_empty() {
            forgotten.push(TopicName::stored(&reply.text()?));
        }
        Ok(Tidied { forgotten, next: more.then_some(last) })
    }

    /// [`Store::orphans`](crate::store::Store::orphans).
    pub(super) async fn orphans(&self, living: Vec<u32>) -> Result<Vec<Lease>> {
        self.leases_where(|lease| !living.contains(&lease.owner) && lease.grace.is_some()).await
    }

    /// [`Store::leases_of`](crate::store::Store::leases_of).
    pub(super) async fn leases_of(&self, streams: Vec<StreamId>) -> Result<Vec<Lease>> {
        let id = |lease: &engine::Lease| StreamId { owner: lease.owner, stream: lease.stream };
        self.leases_where(|lease| streams.contains(&id(lease))).await
    }

    /// The running leases that `is_wanted`. Long, and seldom: all leases are read, in portions.
    async fn leases_where(&self, is_wanted: impl Fn(&engine::Lease) -> bool) -> Result<Vec<Lease>> {
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
        let mut leases = Vec::with_capacity(refs.len());
        for part in refs.chunks(limit::PART_MAX) {
            // One that has ended meanwhile is none any more.
            leases.extend(self.leases(part.to_vec()).await?.into_iter().flatten());
        }
        Ok(leases)
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
