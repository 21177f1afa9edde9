//! Running leases by name: read them, move their deadlines, let them outlive their stream.

use crate::domain::lifecycle::Standing;
use crate::domain::{JobKey, State, Time, limit};
use crate::store::{Extend, Lease, LeaseRef, Refused, Result};

use super::record::{Record, StoredLease, micros};
use super::script::{Call, Verb};
use super::{Lane, RedisStore};

type Answer<T> = std::result::Result<T, Refused>;

impl RedisStore {
    /// [`Store::leases`](crate::store::Store::leases).
    pub(super) async fn leases(&self, refs: Vec<LeaseRef>) -> Result<Vec<Answer<Lease>>> {
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

    /// [`Store::extend`](crate::store::Store::extend).
    pub(super) async fn extend(&self, items: Vec<Extend>) -> Result<Vec<Answer<Time>>> {
        let mut extended = Vec::with_capacity(items.len());
        for part in items.chunks(limit::CALL_JOBS_MAX) {
            let mut call = self.call(Verb::Extend);
            for Extend { lease, duration, progress } in part {
                add_lease(&mut call, lease);
                call.arg(duration.map(micros).map_or(String::new(), |micros| micros.to_string()));
                call.arg(progress.as_ref().map_or(String::new(), |note| format!("+{note}")));
            }
            let answer = self.run(Lane::Write, &call).await;
            let mut reply = answer.map_err(|error| super::after(error, !extended.is_empty()))?;
            reply.time()?;
            self.hints.reap_at(reply.maybe_time()?);
            for _ in part {
                extended.push(match reply.number()? {
                    -2 => Err(Refused::NotFound),
                    -3 => Err(Refused::Stale),
                    deadline => Ok(Time(deadline)),
                });
            }
        }
        Ok(extended)
    }

    /// [`Store::detach`](crate::store::Store::detach).
    pub(super) async fn detach(&self, refs: Vec<LeaseRef>) -> Result<u64> {
        let mut found = 0;
        for part in refs.chunks(limit::CALL_JOBS_MAX) {
            let mut call = self.call(Verb::Detach);
            part.iter().for_each(|lease| add_lease(&mut call, lease));
            let answer = super::reply::number(&self.run_raw(Lane::Write, &call).await?)?;
            found += u64::try_from(answer).unwrap_or(0);
        }
        Ok(found)
    }
}

/// Names one lease: topic, id, token.
pub(super) fn add_lease(call: &mut Call, lease: &LeaseRef) {
    let LeaseRef { key, token } = lease;
    call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(&token.0.to_be_bytes());
}

/// A running job's lease.
pub(super) fn lease_of(
    key: JobKey,
    held: StoredLease,
    record: &Record,
    now: Time,
) -> Result<Lease> {
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
