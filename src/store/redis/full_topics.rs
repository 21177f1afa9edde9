//! Finds the jobs that have to leave a full topic.

use crate::domain::{JobId, TopicName};
use crate::store::Result;

use super::script::Verb;
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Implements [`Store::oldest_waiting`](crate::store::Store::oldest_waiting).
    pub(super) async fn oldest_waiting(
        &self,
        topic: TopicName,
        jobs: usize,
        max_waiting: u64,
    ) -> Result<Vec<JobId>> {
        let mut call = self.call(Verb::OldestWaiting);
        call.arg(topic.as_str()).arg(jobs).arg(max_waiting);
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let mut ids = Vec::new();
        while !reply.is_empty() {
            ids.push(JobId::stored(&reply.text()?));
        }
        Ok(ids)
    }
}
