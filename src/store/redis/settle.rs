//! Settle and extend: end leases, or move their deadlines.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::domain::lifecycle::{LeaseEnd, Step};
use crate::domain::{AttemptOutcome, JobKey, Time, TopicName, limit};
use crate::store::{End, Extend, NewJob, Refused, Result, Settle, Settled, codec};

use super::claim::add_lease;
use super::record::micros;
use super::reply::{Reply, number, unexpected};
use super::script::{Call, Verb};
use super::{Lane, RedisStore};
use deadpool_redis::redis::Value;

type Answer<T> = std::result::Result<T, Refused>;

/// Added to the code of an outcome when the worker asked for a dead letter.
const DEAD_LETTERED: u32 = 8;

/// What recognizes a repeat of the settle that brought this end.
fn code(outcome: AttemptOutcome, dead_lettered: bool) -> u32 {
    codec::outcome_code(outcome) + if dead_lettered { DEAD_LETTERED } else { 0 }
}

impl RedisStore {
    /// The verb.
    pub(super) async fn end(&self, items: Vec<Settle>) -> Result<Vec<Answer<Settled>>> {
        let mut settled = Vec::with_capacity(items.len());
        let mut rest = &items[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(part_of(rest));
            rest = behind;
            let answers = self.end_part(part).await;
            settled.extend(answers.map_err(|error| super::after(error, !settled.is_empty()))?);
        }
        Ok(settled)
    }

    async fn end_part(&self, items: &[Settle]) -> Result<Vec<Answer<Settled>>> {
        let mut call = self.call(Verb::Settle);
        let order = add_settles(&mut call, items);
        let about = self.about_now().await;
        let mut reply = match self.run_raw(Lane::Write, &call).await? {
            began @ Value::Int(_) => return Ok(vec![answer(began, about)?]),
            list => Reply::new(list)?,
        };
        let now = reply.maybe_time()?.unwrap_or(about);
        self.hints.prune_at(reply.maybe_time()?);
        let mut answers = vec![Err(Refused::NotFound); items.len()];
        for index in order {
            answers[index] = answer(reply.value()?, now)?;
        }
        Ok(answers)
    }

    /// About what the store's clock says: plain acks do not ask it, because nothing in the store depends
    /// on when they come.
    async fn about_now(&self) -> Time {
        match &self.shard.clock {
            Clock::Manual(clock) => clock.now(),
            Clock::System(_) => match self.seen.now() {
                Some(now) => now,
                None => self.look_at_clock().await.unwrap_or(Time(0)),
            },
        }
    }

    /// Reads nothing but the clock.
    async fn look_at_clock(&self) -> Result<Time> {
        let mut call = self.call(Verb::Get);
        call.arg(0);
        let now = self.run(Lane::Read, &call).await?.time()?;
        self.seen.note(now);
        Ok(now)
    }

    /// The verb.
    pub(super) async fn prolong(&self, items: Vec<Extend>) -> Result<Vec<Answer<Time>>> {
        let mut extended = Vec::with_capacity(items.len());
        for part in items.chunks(limit::CALL_JOBS_MAX) {
            let mut call = self.call(Verb::Extend);
            for Extend { lease, duration, progress } in part {
                add_lease(&mut call, lease);
                call.arg(duration.map(micros).map_or(String::new(), |micros| micros.to_string()));
                call.arg(progress.as_ref().map_or(String::new(), |note| format!("+{note}")));
            }
            let mut reply = self.run(Lane::Write, &call).await?;
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
}

/// How many settles one call may carry; at least one. A follow-up counts like a settle.
fn part_of(items: &[Settle]) -> usize {
    let (mut jobs, mut bytes) = (0, 0);
    let fits = |item: &&Settle| {
        let (more, size) = weight(item);
        let first = jobs == 0;
        (jobs, bytes) = (jobs + more, bytes + size);
        first || jobs <= limit::CALL_JOBS_MAX && bytes <= limit::CALL_BYTES_MAX
    };
    items.iter().take_while(fits).count()
}

/// Jobs and bytes that a settle writes.
fn weight(item: &Settle) -> (usize, usize) {
    match &item.end {
        End::Ack { result, follow_ups } => {
            let bodies: usize = follow_ups.iter().map(|job| job.spec.bytes()).sum();
            let result = result.as_ref().map_or(0, |result| result.body.len());
            (1 + follow_ups.len(), result + bodies)
        }
        End::Decided { .. } => (1, 0),
    }
}

/// Plain acks by topic, then everything else; the order in which they are answered. A plain ack alone needs
/// no more than its lease.
fn add_settles(call: &mut Call, items: &[Settle]) -> Vec<usize> {
    if let [item] = items
        && is_plain(item)
    {
        add_lease(call, &item.lease);
        return vec![0];
    }
    let mut times: HashMap<&JobKey, u32> = HashMap::new();
    items.iter().for_each(|item| *times.entry(&item.lease.key).or_default() += 1);
    let plain = |item: &Settle| is_plain(item) && times.get(&item.lease.key) == Some(&1);
    let mut topics: Vec<(&TopicName, Vec<usize>)> = Vec::new();
    let mut others = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let topic = &item.lease.key.topic;
        if !plain(item) {
            others.push(index);
        } else if let Some((_, acks)) = topics.iter_mut().find(|(known, _)| *known == topic) {
            acks.push(index);
        } else {
            topics.push((topic, vec![index]));
        }
    }
    call.arg(topics.len());
    let mut order = Vec::with_capacity(items.len());
    for (topic, acks) in topics {
        call.arg(topic.as_str()).arg(acks.len());
        acks.iter().for_each(|&ack| add(call, items[ack].lease.key.id.as_str().as_bytes()));
        acks.iter().for_each(|&ack| add(call, &items[ack].lease.token.0.to_be_bytes()));
        order.extend(acks);
    }
    others.iter().for_each(|&index| add_settle(call, &items[index]));
    order.extend(others);
    order
}

fn add(call: &mut Call, bytes: &[u8]) {
    call.arg(bytes);
}

/// An ack that brings nothing along.
fn is_plain(item: &Settle) -> bool {
    matches!(&item.end, End::Ack { result: None, follow_ups } if follow_ups.is_empty())
        && item.deadline.is_none()
}

fn add_settle(call: &mut Call, item: &Settle) {
    add_lease(call, &item.lease);
    let guard = item.deadline.map_or(String::new(), |deadline| deadline.0.to_string());
    match &item.end {
        End::Ack { result, follow_ups } => {
            let done = AttemptOutcome::Succeeded;
            call.arg("a").arg(guard).arg(codec::outcome_code(done)).arg(code(done, false));
            call.arg(0).arg("").arg("").arg(0);
            let result =
                result.as_ref().map(|result| [b"+", &codec::encode_payload(result)[..]].concat());
            call.arg(result.unwrap_or_default()).arg(follow_ups.len());
            follow_ups.iter().for_each(|job| add_follow_up(call, job));
        }
        End::Decided { end, dead_retention } => add_decided(call, &guard, end, *dead_retention),
    }
}

fn add_decided(call: &mut Call, guard: &str, end: &LeaseEnd, dead_retention: Duration) {
    let (step, delay) = match end.step {
        Step::Wait(delay) => ("w", delay.map(micros)),
        Step::Die => ("d", None),
    };
    call.arg(step).arg(guard).arg(codec::outcome_code(end.outcome));
    call.arg(code(end.outcome, end.dead_lettered)).arg(u8::from(end.counted)).arg(&end.error);
    call.arg(delay.map_or(String::new(), |micros| micros.to_string())).arg(micros(dead_retention));
    call.arg("").arg(0);
}

fn add_follow_up(call: &mut Call, job: &NewJob) {
    call.arg(job.key.topic.as_str()).arg(job.key.id.as_str()).arg(super::enqueue::blob(job));
}

fn answer(value: Value, now: Time) -> Result<Answer<Settled>> {
    let settled = |began, state| Settled { repeated: false, ran: now.since(Time(began)), state };
    if matches!(value, Value::Int(_)) {
        return Ok(Ok(settled(number(&value)?, crate::domain::State::Succeeded)));
    }
    let mut reply = Reply::new(value)?;
    let (code, began, state) = (reply.number()?, reply.number()?, super::state(reply.number()?)?);
    Ok(match code {
        0 => Ok(settled(began, state)),
        1 => Ok(Settled { repeated: true, ran: Duration::ZERO, state }),
        2 => Err(Refused::NotFound),
        3 => Err(Refused::Stale),
        _ => return Err(unexpected("the code of a settle")),
    })
}
