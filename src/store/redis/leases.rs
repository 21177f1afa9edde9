//! Running leases by name: read them, move their deadlines, let them outlive their stream or tie them to another.

use crate::domain::engine::{self, Command};
use crate::domain::{Time, limit};
use crate::store::{Adopt, Adoptee, Extend, Lease, LeaseRef, Refused, Result, Tied};

use super::apply::{Request, repeated};
use super::entry::{Entry, clamped, micros};
use super::reply::unexpected;
use super::script::{Call, Verb};
use super::{Lane, RedisStore};

type Answer<T> = std::result::Result<T, Refused>;

impl RedisStore {
    /// [`Store::leases`](crate::store::Store::leases).
    pub(super) async fn leases(&self, refs: Vec<LeaseRef>) -> Result<Vec<Answer<Lease>>> {
        let keys: Vec<_> = refs.iter().map(|lease| lease.key.clone()).collect();
        let found = self.stored(&keys, false).await?;
        let lease = |(lease, (now, stored)): (LeaseRef, (Time, Option<(Entry, _)>))| {
            let entry = stored.as_ref().map(|(entry, _)| entry);
            let held = entry.filter(|entry| entry.record.lease_of(lease.token).is_some());
            let held = held.and_then(|entry| entry.lease_of(lease.key, now));
            held.ok_or_else(|| Refused::of(entry.map(|entry| &entry.record), now))
        };
        Ok(refs.into_iter().zip(found).map(lease).collect())
    }

    /// [`Store::extend`](crate::store::Store::extend).
    pub(super) async fn extend(&self, items: Vec<Extend>) -> Result<Vec<Answer<Time>>> {
        let mut extended = Vec::with_capacity(items.len());
        for part in items.chunks(limit::CALL_JOBS_MAX) {
            let answers = self.extend_part(part).await;
            extended.extend(answers.map_err(|error| super::after(error, !extended.is_empty()))?);
        }
        Ok(extended)
    }

    /// Where nothing but the lease changes there is nothing to decide; a note, a checkpoint, and why there is no such lease, are left to
    /// the engine.
    async fn extend_part(&self, items: &[Extend]) -> Result<Vec<Answer<Time>>> {
        let mut answers = vec![Err(Refused::NotFound); items.len()];
        let repeated = repeated(items.iter().map(|item| &item.lease.key));
        let is_bare = |item: &Extend| item.progress.is_none() && item.checkpoint.is_none();
        let goes = |item: &Extend| is_bare(item) && !repeated.contains(&item.lease.key);
        let (patches, mut others): (Vec<usize>, Vec<usize>) =
            (0..items.len()).partition(|&index| goes(&items[index]));
        if !patches.is_empty() {
            let deadlines = self.patch(patches.iter().map(|&index| &items[index])).await?;
            for (index, deadline) in patches.into_iter().zip(deadlines) {
                match deadline {
                    Some(deadline) => answers[index] = Ok(deadline),
                    None => others.push(index),
                }
            }
        }
        others.sort_unstable();
        let request = |&index: &usize| {
            let Extend { lease, until, .. } = &items[index];
            let command = Command::Extend(items[index].command());
            Request { key: lease.key.clone(), command, until: *until }
        };
        let requests: Vec<_> = others.iter().map(request).collect();
        let outcomes = self.apply_all(&requests).await;
        let outcomes = outcomes.map_err(|error| super::after(error, others.len() < items.len()))?;
        for (index, outcome) in others.into_iter().zip(outcomes) {
            answers[index] = match outcome.answer {
                engine::Answer::Extended(extended) => {
                    let deadline = extended.map(|deadline| outcome.time(deadline));
                    self.hints.reap_at(deadline.ok());
                    deadline
                }
                _ => return Err(unexpected("an extend")),
            };
        }
        Ok(answers)
    }

    /// Moves deadlines; of each lease the new one, if it is there.
    async fn patch<'a>(
        &self,
        items: impl Iterator<Item = &'a Extend> + Clone,
    ) -> Result<Vec<Option<Time>>> {
        let until = items.clone().filter_map(|item| item.until).min();
        let mut call = self.shard.write_call(Verb::Extend, until).await?;
        for Extend { lease, duration, progress: _, checkpoint: _, lapsed, until: _ } in
            items.clone()
        {
            add_lease(&mut call, lease);
            call.arg(duration.map(micros).map_or(String::new(), |micros| micros.to_string()));
            let (deadline, served) = lapsed.map(|l| (l.deadline.0, l.served.0)).unzip();
            call.arg(deadline.map_or(String::new(), |time| time.to_string()));
            call.arg(served.map_or(String::new(), |time| time.to_string()));
        }
        let mut reply = self.run(Lane::Write, &call).await?;
        reply.time()?;
        self.hints.reap_at(reply.maybe_time()?);
        items.map(|_| reply.maybe_time()).collect()
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
