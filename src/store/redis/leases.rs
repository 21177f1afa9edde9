//! Running leases by name: read them, move their deadlines, let them outlive their stream or tie them to another.

use crate::domain::lifecycle::Standing;
use crate::domain::{JobKey, State, Time, limit};
use crate::store::{Adopt, Adoptee, Extend, Lease, LeaseRef, Refused, Result, Tied};

use super::record::{Record, StoredLease, clamped, micros};
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
            let until = part.iter().filter_map(|item| item.until).min();
            let mut call = self.shard.write_call(Verb::Extend, until).await?;
            for Extend { lease, duration, progress, lapsed, until: _ } in part {
                add_lease(&mut call, lease);
                call.arg(duration.map(micros).map_or(String::new(), |micros| micros.to_string()));
                call.arg(progress.as_ref().map_or(String::new(), |note| format!("+{note}")));
                let (deadline, served) = lapsed.map(|l| (l.deadline.0, l.served.0)).unzip();
                call.arg(deadline.map_or(String::new(), |time| time.to_string()));
                call.arg(served.map_or(String::new(), |time| time.to_string()));
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
    pub(super) async fn detach(&self, leases: Vec<Tied>) -> Result<u64> {
        let mut found = 0;
        for part in leases.chunks(limit::CALL_JOBS_MAX) {
            let mut call = self.call(Verb::Detach);
            part.iter().for_each(|tied| add_tied(&mut call, tied));
            let answer = super::reply::number(&self.run_raw(Lane::Write, &call).await?)?;
            found += u64::try_from(answer).unwrap_or(0);
        }
        Ok(found)
    }

    /// [`Store::adopt`](crate::store::Store::adopt).
    pub(super) async fn adopt(&self, adopt: Adopt) -> Result<Vec<bool>> {
        let mut adopted = Vec::with_capacity(adopt.items.len());
        for part in adopt.items.chunks(limit::CALL_JOBS_MAX) {
            let mut call = self.call(Verb::Adopt);
            // As it is stored: one more than it is.
            call.arg(adopt.to.owner).arg(adopt.to.stream).arg(micros(adopt.grace) + 1);
            for Adoptee { tied, since } in part {
                add_tied(&mut call, tied);
                call.arg(since.map_or(String::new(), |since| clamped(since).to_string()));
            }
            let answer = self.run(Lane::Write, &call).await;
            let mut reply = answer.map_err(|error| super::after(error, !adopted.is_empty()))?;
            for _ in part {
                adopted.push(reply.number()? == 1);
            }
        }
        Ok(adopted)
    }
}

/// Names one lease and the stream that answers for it: topic, id, token, owner, stream.
fn add_tied(call: &mut Call, tied: &Tied) {
    add_lease(call, &tied.lease);
    call.arg(tied.stream.owner).arg(tied.stream.stream);
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
        start_time: held.started,
        extend_time: held.extended,
        worker: held.worker,
        owner: held.owner,
        stream: held.stream,
        grace: held.grace,
        bytes: record.bytes.into(),
        standing: Standing {
            failures: record.failures,
            deliveries: record.deliveries,
            first_start: held.first_start,
            retry: record.spec(None, false)?.retry,
        },
        now,
    })
}
