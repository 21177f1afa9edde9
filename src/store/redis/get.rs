//! Reads by name: jobs, and leases for those who decide about them.

use bytes::Bytes;

use crate::domain::lifecycle::Standing;
use crate::domain::{Job, JobKey, State, Time};
use crate::store::{Lease, LeaseRef, Refused, Result};

use super::record::{Held, Record};
use super::reply::Reply;
use super::script::Verb;
use super::stored::Stored;
use super::{Lane, RedisStore};
use crate::domain::limit;
use deadpool_redis::redis::Value;

impl RedisStore {
    /// [`Store::get`](crate::store::Store::get).
    pub(super) async fn get(&self, keys: Vec<JobKey>, full: bool) -> Result<Vec<Option<Job>>> {
        let found = self.stored(&keys, full).await?;
        let jobs = keys.into_iter().zip(found).map(|(key, (now, stored))| {
            let Some(stored) = stored else { return Ok(None) };
            let Some(state) = stored.state(now) else { return Ok(None) };
            stored.job(key, state, &self.name, full).map(Some)
        });
        jobs.collect()
    }

    /// [`Store::leases`](crate::store::Store::leases).
    pub(super) async fn leases(
        &self,
        refs: Vec<LeaseRef>,
    ) -> Result<Vec<std::result::Result<Lease, Refused>>> {
        let keys: Vec<_> = refs.iter().map(|lease| lease.key.clone()).collect();
        let found = self.stored(&keys, false).await?;
        let leases = refs.into_iter().zip(found).map(|(lease, (now, stored))| {
            let Some(stored) = stored else { return Ok(Err(Refused::NotFound)) };
            match stored.lease {
                Some(held) if held.token == lease.token => {
                    Ok(Ok(lease_of(lease.key, held, &stored.record, now)?))
                }
                _ => Ok(Err(match stored.state(now) {
                    None | Some(State::Cancelled) => Refused::NotFound,
                    Some(_) => Refused::Stale,
                })),
            }
        });
        leases.collect()
    }

    /// What lies under these names, and when it did.
    async fn stored(&self, keys: &[JobKey], full: bool) -> Result<Vec<(Time, Option<Stored>)>> {
        let mut found = Vec::with_capacity(keys.len());
        while found.len() < keys.len() {
            let rest = &keys[found.len()..];
            let mut call = self.call(Verb::Get);
            call.arg(u8::from(full));
            for key in &rest[..rest.len().min(limit::CALL_JOBS_MAX)] {
                call.arg(key.topic.as_str()).arg(key.id.as_str());
            }
            // It answers at least one, and fewer than asked for once the answer has become large.
            let mut reply = self.run(Lane::Read, &call).await?;
            let now = reply.time()?;
            found.push((now, stored(reply.value()?)?));
            while !reply.is_empty() {
                found.push((now, stored(reply.value()?)?));
            }
        }
        Ok(found)
    }
}

fn stored(value: Value) -> Result<Option<Stored>> {
    if value == Value::Nil {
        return Ok(None);
    }
    let mut reply = Reply::new(value)?;
    let mut parts: [Option<Bytes>; 5] = Default::default();
    for part in &mut parts {
        *part = reply.maybe_bytes()?;
    }
    Stored::read(parts).map(Some)
}

/// A running job's lease.
pub(super) fn lease_of(key: JobKey, held: Held, record: &Record, now: Time) -> Result<Lease> {
    Ok(Lease {
        key,
        token: held.token,
        deadline: held.deadline,
        extend_time: held.extended,
        owner: held.owner,
        stream: held.stream,
        grace: held.grace,
        standing: Standing {
            failures: record.failures,
            deliveries: record.deliveries,
            first_start: held.first_start,
            retry: record.spec(None, false)?.retry,
        },
        now,
    })
}
