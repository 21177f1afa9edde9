//! Running leases by name: read them, move their deadlines, let them outlive their stream or tie them to another.

use crate::domain::engine::{self, Answer, Command, Moment};
use crate::domain::{JobKey, Time, Token, limit};
use crate::store::{
    Adopt, Adoptee, Applied, Error, Lease, LeaseRef, Refused, Request, Result, Tied,
};

use super::entry::{Entry, clamped, micros};
use super::rounds::{blame, repeated};
use super::script::{Call, Verb};
use super::{Lane, RedisStore};

type Leases = Vec<std::result::Result<Lease, Refused>>;

impl RedisStore {
    /// [`Store::leases`](crate::store::Store::leases).
    pub(super) async fn leases(&self, refs: Vec<LeaseRef>) -> Result<Leases> {
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

    /// Moves deadlines. Where nothing but the lease changes there is nothing to decide; a note, a checkpoint, and why there
    /// is no such lease, are left to the engine.
    pub(super) async fn extend(&self, requests: &[&Request]) -> Vec<Result<Applied>> {
        let repeated = repeated(requests.iter().map(|request| &request.key));
        let is_bare = |request: &Request| match &request.command {
            Command::Extend(extend) => extend.progress.is_none() && extend.checkpoint.is_none(),
            _ => false,
        };
        let goes = |request: &Request| is_bare(request) && !repeated.contains(&request.key);
        let (patches, mut others): (Vec<usize>, Vec<usize>) =
            (0..requests.len()).partition(|&index| goes(requests[index]));
        let mut answers: Vec<Option<Result<Applied>>> = requests.iter().map(|_| None).collect();
        if !patches.is_empty() {
            let part: Vec<&Request> = patches.iter().map(|&index| requests[index]).collect();
            match self.patch(&part).await {
                Ok(patched) => {
                    for (index, applied) in patches.into_iter().zip(patched) {
                        match applied {
                            Some(applied) => answers[index] = Some(Ok(applied)),
                            None => others.push(index),
                        }
                    }
                }
                // Which of them it was is not said.
                Err(Error::Corrupt(_)) if patches.len() > 1 => others.extend(&patches),
                Err(error) => {
                    for (&index, error) in patches.iter().zip(blame(error, part.iter().copied())) {
                        match error {
                            Some(error) => answers[index] = Some(Err(error)),
                            None => others.push(index),
                        }
                    }
                }
            }
        }
        others.sort_unstable();
        let left: Vec<&Request> = others.iter().map(|&index| requests[index]).collect();
        let decided = self.decide(&left).await;
        others.into_iter().zip(decided).for_each(|(at, answer)| answers[at] = Some(answer));
        answers.into_iter().flatten().collect()
    }

    /// Moves deadlines; of each lease what became of it, if it is there.
    async fn patch(&self, requests: &[&Request]) -> Result<Vec<Option<Applied>>> {
        let until = requests.iter().filter_map(|request| request.until).min();
        let mut call = self.shard.write_call(Verb::Extend, until).await?;
        for request in requests {
            let Command::Extend(extend) = &request.command else { continue };
            let engine::Extend { token, duration, lapsed, .. } = extend;
            add_lease(&mut call, &request.key, *token);
            call.arg(duration.map(micros).map_or(String::new(), |micros| micros.to_string()));
            let (deadline, served) = lapsed.map(|l| (l.deadline.0, l.served.0)).unzip();
            call.arg(deadline.map_or(String::new(), |time| time.to_string()));
            call.arg(served.map_or(String::new(), |time| time.to_string()));
        }
        let mut reply = self.run(Lane::Write, &call).await?;
        let now = reply.time()?;
        self.hints.reap_at(reply.maybe_time()?);
        let durability = self.shard.durability.reach().plain;
        let applied = |deadline: Time| {
            let answer = Answer::Extended(Ok(Moment::fixed(deadline)));
            Applied { answer, record: None, now, durability }
        };
        requests.iter().map(|_| Ok(reply.maybe_time()?.map(applied))).collect()
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
fn add_tied(call: &mut Call, Tied { lease, stream }: &Tied) {
    add_lease(call, &lease.key, lease.token);
    call.arg(stream.owner).arg(stream.stream);
}

/// Names one lease: topic, id, token.
fn add_lease(call: &mut Call, key: &JobKey, token: Token) {
    call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(&token.0.to_be_bytes());
}
