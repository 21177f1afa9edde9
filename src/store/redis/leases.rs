//! Running leases by name: reads them, moves their deadlines, detaches them from their stream or ties them to
//! another.

use crate::domain::engine::{self, Command, CommandReply, RecordTime};
use crate::domain::{JobKey, StreamId, Time, Token};
use crate::store::{Error, JobRequest, LeaseQueryResult, LeaseRef, RequestResult, Result};

use super::entry::{clamped, micros};
use super::optimistic_commit::{errors_per_request, repeated_keys};
use super::script::{ScriptCall, Verb};
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Answers [`LeaseQuery::ByRef`](crate::store::LeaseQuery::ByRef).
    pub(super) async fn leases_by_ref(&self, refs: Vec<LeaseRef>) -> Result<LeaseQueryResult> {
        let keys: Vec<_> = refs.iter().map(|lease| lease.key.clone()).collect();
        let mut selected = LeaseQueryResult::default();
        for (lease, (now, stored)) in refs.iter().zip(self.stored(&keys, false).await?) {
            selected.now = now;
            match stored {
                Ok(stored) => {
                    selected.add_by_ref(lease, stored.as_ref().map(|(entry, _)| &entry.record))
                }
                // One damaged job must not stop a search for the leases of others.
                Err(error) => {
                    tracing::error!(job = %lease.key, %error, "a stored job cannot be read and is skipped")
                }
            }
        }
        Ok(selected)
    }

    /// Moves deadlines. Where nothing but the lease changes no decision is needed; the engine handles a note, a
    /// checkpoint, and the reason for a missing lease.
    pub(super) async fn extend(&self, requests: &[&JobRequest]) -> Vec<Result<RequestResult>> {
        let repeated = repeated_keys(requests.iter().map(|request| &request.key));
        let is_bare = |request: &JobRequest| match &request.command {
            Command::Extend(extend) => extend.progress.is_none() && extend.checkpoint.is_none(),
            _ => false,
        };
        let goes = |request: &JobRequest| is_bare(request) && !repeated.contains(&request.key);
        let (patches, mut others): (Vec<usize>, Vec<usize>) =
            (0..requests.len()).partition(|&index| goes(requests[index]));
        let mut answers: Vec<Option<Result<RequestResult>>> =
            requests.iter().map(|_| None).collect();
        if !patches.is_empty() {
            let part: Vec<&JobRequest> = patches.iter().map(|&index| requests[index]).collect();
            match self.extend_deadlines(&part).await {
                Ok(patched) => {
                    for (index, applied) in patches.into_iter().zip(patched) {
                        match applied {
                            Some(applied) => answers[index] = Some(Ok(applied)),
                            None => others.push(index),
                        }
                    }
                }
                // The reply does not name the damaged job.
                Err(Error::Corrupt(_)) if patches.len() > 1 => others.extend(&patches),
                Err(error) => {
                    for (&index, error) in
                        patches.iter().zip(errors_per_request(error, part.iter().copied()))
                    {
                        match error {
                            Some(error) => answers[index] = Some(Err(error)),
                            None => others.push(index),
                        }
                    }
                }
            }
        }
        others.sort_unstable();
        let left: Vec<&JobRequest> = others.iter().map(|&index| requests[index]).collect();
        let decided = self.decide(&left).await;
        others.into_iter().zip(decided).for_each(|(at, answer)| answers[at] = Some(answer));
        answers.into_iter().flatten().collect()
    }

    /// Moves deadlines; returns the result for each lease, if it exists.
    async fn extend_deadlines(
        &self,
        requests: &[&JobRequest],
    ) -> Result<Vec<Option<RequestResult>>> {
        let until = requests.iter().filter_map(|request| request.deadline).min();
        let mut call = self.shard.write_call(Verb::Extend, until).await?;
        for request in requests {
            let Command::Extend(extend) = &request.command else { continue };
            let engine::Extend { token, duration, outage_expiry: lapsed, .. } = extend;
            add_lease(&mut call, &request.key, *token);
            call.arg(duration.map(micros).map_or(String::new(), |micros| micros.to_string()));
            let (deadline, served) = lapsed.map(|l| (l.deadline.0, l.served_since.0)).unzip();
            call.arg(deadline.map_or(String::new(), |time| time.to_string()));
            call.arg(served.map_or(String::new(), |time| time.to_string()));
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let now = reply.time()?;
        self.events.set_reap_at(reply.maybe_time()?);
        let durability = self.shard.status.write_durability().by_default;
        let applied = |deadline: Time| {
            let answer = CommandReply::Extended(Ok(RecordTime::fixed(deadline)));
            RequestResult { reply: answer, record: None, now, durability }
        };
        requests.iter().map(|_| Ok(reply.maybe_time()?.map(applied))).collect()
    }

    /// Detaches leases and ties them to other streams: patches of leases, which need no decision.
    pub(super) async fn change_lease_streams(
        &self,
        requests: &[&JobRequest],
    ) -> Result<Vec<RequestResult>> {
        let mut call = self.call(Verb::ChangeStream);
        for request in requests {
            match &request.command {
                Command::Detach { token, stream } => {
                    add_stream_lease_ref(&mut call, &request.key, *token, *stream);
                    call.arg("").arg("").arg("").arg("").arg("");
                }
                Command::Adopt(adopt) => {
                    add_stream_lease_ref(&mut call, &request.key, adopt.token, adopt.from);
                    // In the stored form: plus one.
                    call.arg(adopt.to.owner).arg(adopt.to.stream).arg(micros(adopt.grace) + 1);
                    call.arg(clamped(adopt.extended_min(false)));
                    call.arg(clamped(adopt.extended_min(true)));
                }
                _ => {}
            }
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let now = reply.time()?;
        let durability = self.shard.status.write_durability().by_default;
        let applied = |is_done| RequestResult {
            reply: CommandReply::Applied(is_done),
            record: None,
            now,
            durability,
        };
        requests.iter().map(|_| Ok(applied(reply.number()? == 1))).collect()
    }
}

/// Adds a lease and its stream to a call: topic, id, token, owner, stream.
fn add_stream_lease_ref(call: &mut ScriptCall, key: &JobKey, token: Token, stream: StreamId) {
    add_lease(call, key, token);
    call.arg(stream.owner).arg(stream.stream);
}

/// Adds a lease to a call: topic, id, token.
fn add_lease(call: &mut ScriptCall, key: &JobKey, token: Token) {
    call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(&token.0.to_be_bytes());
}
