//! Upkeep by time: jobs that expire or whose retention ends, and topics that are empty.

use crate::domain::{TopicName, limit};
use crate::store::{PruneResult, PruneTopicsResult, Result};

use super::entry::micros;
use super::lease_query::read_job;
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

/// Maximum number of topics in one check for empty ones: each costs a few commands, and a deleted one up to thirty.
const TOPICS_MAX: usize = 128;

impl RedisStore {
    /// Implements [`Store::prune`](crate::store::Store::prune).
    pub(super) async fn prune(&self, limit: usize) -> Result<PruneResult> {
        let check = self.events.prune.begin_check();
        let mut call = self.call(Verb::Prune);
        call.arg(limit.min(limit::CALL_JOBS_MAX));
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let (now, next) = (reply.time()?, reply.maybe_time()?);
        let mut found = Vec::new();
        while !reply.is_empty() {
            found.extend(read_job(&mut reply)?);
        }
        let pruned = found.len() as u64;
        // An expired job that is kept is deleted later.
        let again = self.prune_entries(now, found).await?;
        let next = next.into_iter().chain(again).min();
        self.events.finish_check(&self.events.prune, check, next);
        Ok(PruneResult { now, pruned, next_due: next })
    }

    /// Implements [`Store::prune_topics`](crate::store::Store::prune_topics).
    pub(super) async fn prune_topics(
        &self,
        after: Option<TopicName>,
        limit: usize,
    ) -> Result<PruneTopicsResult> {
        let place = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let mut call = self.call(Verb::PruneTopics);
        call.arg(place).arg(limit.min(TOPICS_MAX)).arg(micros(limit::EMPTY_TOPIC_MAX));
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let (last, more) = (TopicName::stored(&reply.text()?), reply.number()? == 1);
        let mut forgotten = Vec::new();
        while !reply.is_empty() {
            forgotten.push(TopicName::stored(&reply.text()?));
        }
        Ok(PruneTopicsResult { forgotten, last_topic: more.then_some(last) })
    }
}
