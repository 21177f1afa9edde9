//! Finds the jobs that have to leave a full topic.

use crate::domain::{JobId, TopicName};
use crate::store::{Result, RoomQuery};

use super::layout::TIME_MAX;
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Implements [`Store::oldest_waiting`](crate::store::Store::oldest_waiting).
    pub(super) async fn oldest_waiting(
        &self,
        topic: TopicName,
        room: RoomQuery,
    ) -> Result<Vec<JobId>> {
        let max = |max: Option<u64>| max.unwrap_or(u64::MAX).min(TIME_MAX.unsigned_abs());
        let mut call = self.call(Verb::OldestWaiting);
        call.arg(topic.as_str()).arg(room.jobs).arg(max(room.max_waiting));
        call.arg(room.bytes).arg(max(room.max_bytes));
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let mut ids = Vec::new();
        while !reply.is_empty() {
            ids.push(JobId::stored(&reply.text()?));
        }
        Ok(ids)
    }
}
