//! Reads jobs by id.

use deadpool_redis::redis::Value;

use crate::domain::{Job, JobKey, Time, limit};
use crate::store::Result;

use super::entry::{JobEntry, StoredParts};
use super::reply::ScriptReply;
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Implements [`Store::get`](crate::store::Store::get).
    pub(super) async fn get(&self, keys: Vec<JobKey>, full: bool) -> Result<Vec<Option<Job>>> {
        let found = self.stored(&keys, full).await?;
        let jobs = keys.into_iter().zip(found).map(|(key, (now, stored))| {
            let Some((entry, parts)) = stored? else { return Ok(None) };
            entry.job(key, &self.identity.name, now, full.then_some(parts))
        });
        jobs.collect()
    }

    /// Reads the records under these names, each with the time of its read. A damaged record fails alone.
    pub(super) async fn stored(
        &self,
        keys: &[JobKey],
        full: bool,
    ) -> Result<Vec<(Time, Result<Option<(JobEntry, StoredParts)>>)>> {
        let mut found = Vec::with_capacity(keys.len());
        while found.len() < keys.len() {
            let rest = &keys[found.len()..];
            let mut call = self.call(Verb::Get);
            call.arg(u8::from(full));
            for key in &rest[..rest.len().min(limit::CALL_JOBS_MAX)] {
                call.arg(key.topic.as_str()).arg(key.id.as_str());
            }
            // The script returns at least one job, and fewer than requested once the reply has become large.
            let mut reply = self.run(ConnectionLane::Read, &call).await?;
            let now = reply.time()?;
            found.push((now, stored(reply.value()?)));
            while !reply.is_empty() {
                found.push((now, stored(reply.value()?)));
            }
        }
        Ok(found)
    }
}

fn stored(value: Value) -> Result<Option<(JobEntry, StoredParts)>> {
    if value == Value::Nil {
        return Ok(None);
    }
    let mut reply = ScriptReply::new(value)?;
    let entry = JobEntry::read(reply.bytes()?)?;
    let (attempts, result) = (reply.maybe_bytes()?, reply.maybe_bytes()?);
    let (payload, checkpoint) = (reply.maybe_bytes()?, reply.maybe_bytes()?);
    Ok(Some((entry, StoredParts { attempts, result, payload, checkpoint })))
}
