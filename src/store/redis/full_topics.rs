//! Finds the jobs that have to leave a full topic.

use crate::domain::{JobId, TopicName};
use crate::store::{LeavingJobs, Result, RoomQuery};

use super::entry::limit_arg;
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Implements [`Store::oldest_waiting`](crate::store::Store::oldest_waiting).
    pub(super) async fn oldest_waiting(
        &self,
        topic: TopicName,
        room: RoomQuery,
    ) -> Result<Option<LeavingJobs>> {
        let mut call = self.call(Verb::OldestWaiting);
        call.arg(topic.as_str()).arg(room.new.jobs).arg(limit_arg(room.max_waiting));
        call.arg(room.new.bytes).arg(limit_arg(room.max_bytes));
        call.arg(room.others.jobs).arg(room.others.bytes);
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let is_over = match reply.number()? {
            0 => return Ok(None),
            found => found == 2,
        };
        let mut ids = Vec::new();
        while !reply.is_empty() {
            ids.push(JobId::stored(&reply.text()?));
        }
        Ok(Some(LeavingJobs { ids, is_over }))
    }
}
