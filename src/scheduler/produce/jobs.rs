//! Get, delete and reschedule of one job, on the shard that has it.

use tokio::time::Instant;

use crate::domain::engine::Command;
use crate::domain::{Job, JobKey, State, When};
use crate::scheduler::Core;
use crate::shards::{self, Op, Shard};
use crate::store::{JobRequest, LeaseEvent, RequestResult, RevokeReason};

use super::Producer;

// === impl Producer ===

impl Producer {
    /// Reads one job.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn get(&self, key: JobKey, full: bool) -> shards::Result<Option<Job>> {
        let get = |shard: Shard, key| async move {
            shard.call(Op::Get, |store| store.get(vec![key], full)).await
        };
        Ok(self.call_on_owners(&key, get, |found| found).await?.map(|(_, job)| job))
    }

    /// Cancels or deletes one job. Returns the state it was in, or `None` if there is no such job. Nothing is done
    /// after `until`.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn delete(
        &self,
        key: JobKey,
        until: Option<Instant>,
    ) -> shards::Result<Option<State>> {
        let producer = self.clone();
        Core::run_to_completion(async move { producer.delete_one(key, until).await }).await
    }

    async fn delete_one(
        &self,
        key: JobKey,
        until: Option<Instant>,
    ) -> shards::Result<Option<State>> {
        let delete = |shard: Shard, key| async move {
            let request = JobRequest::new(key, Command::Delete { finished: None });
            shard.apply_all(vec![JobRequest { deadline: until, ..request }]).await
        };
        let deleted = self.call_on_owners(&key, delete, RequestResult::into_delete_result).await?;
        let Some((shard, deleted)) = deleted else { return Ok(None) };
        if let Some((owner, stream, token)) = deleted.revoked {
            let (tokens, reason) = (vec![token], RevokeReason::Deleted);
            self.notify_stream(&shard, owner, LeaseEvent::Revoked { stream, tokens, reason });
        }
        Ok(Some(deleted.previous))
    }

    /// Reschedules one waiting or dead job. Returns the job, `None` if it does not exist, or the state that forbids it.
    /// Nothing is done after `until`.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn reschedule(
        &self,
        key: JobKey,
        due: Option<When>,
        priority: Option<u8>,
        until: Option<Instant>,
    ) -> shards::Result<Result<Option<Job>, State>> {
        let reschedule = |shard: Shard, key| async move {
            let request = JobRequest::new(key, Command::Reschedule { due, priority });
            shard.apply_all(vec![JobRequest { deadline: until, ..request }]).await
        };
        let found = |moved: RequestResult| match moved.reschedule_result() {
            Ok(false) => None,
            Ok(true) => Some(Ok(moved)),
            Err(state) => Some(Err(state)),
        };
        let Some((shard, moved)) = self.call_on_owners(&key, reschedule, found).await? else {
            return Ok(Ok(None));
        };
        Ok(moved.map(|moved| moved.job(key, shard.name().clone())))
    }
}
