//! Settle: end leases as decided.

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_redis::redis::Value;
use foldhash::{HashMap, HashMapExt as _};

use crate::domain::engine;
use crate::domain::id::{SECOND_CHARS, second_of};
use crate::domain::lifecycle::{LeaseEnd, Step};
use crate::domain::{AttemptOutcome, JobKey, State, Time, TopicName, limit};
use crate::store::{End, LeaseRef, NewJob, Refused, Result, Settle, Settled, codec};

use super::leases::add_lease;
use super::record::micros;
use super::reply::{Reply, unexpected};
use super::script::{Call, Verb};
use super::{Lane, RedisStore};

type Answer<T> = std::result::Result<T, Refused>;

/// What became of a plain ack that counted.
const ACKNOWLEDGED: Settled = Settled { repeated: false, state: State::Succeeded };
/// How many characters at the end of a server's own id tell it from all others of its second: see `lib/recall.lua`.
const RECALLED_CHARS: usize = 13;
/// A plain ack does not ask for the time of Redis, so it goes by the clock of this process whether an id is too old to be
/// repeated, and allows for a process whose clock is ahead of all others by so much.
const RECALL_SLACK: Duration = Duration::from_secs(3_600);
/// What a plain ack takes in a call: an id, and the name of the lease that has it again.
const SETTLE_BYTES: usize = 128;

/// Plain acks of one topic, by their places in the call; whether their leases are the caller's.
struct Section<'a> {
    topic: &'a TopicName,
    ours: bool,
    acks: Vec<usize>,
}

/// Which ids that servers made are recalled once their jobs have left nothing.
struct Recall {
    /// The first second of which they are.
    first: [u8; SECOND_CHARS],
}

impl RedisStore {
    /// [`Store::settle`](crate::store::Store::settle).
    pub(super) async fn settle(&self, items: Vec<Settle>) -> Result<Vec<Answer<Settled>>> {
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
        let mut call =
            self.shard.large_call(Verb::Settle, 2 * items.len() + 4, items.len() * SETTLE_BYTES);
        let recall = Recall::by(self.shard.clock.now());
        let order = add_settles(&mut call, items, self.owner, &recall);
        let mut reply = match self.run_raw(Lane::Write, &call).await? {
            Value::Int(_) => return Ok(vec![Ok(ACKNOWLEDGED); items.len()]),
            list => Reply::new(list)?,
        };
        self.hints.prune_at(reply.maybe_time()?);
        let mut answers = vec![Err(Refused::NotFound); items.len()];
        for index in order {
            answers[index] = answer(reply.value()?)?;
        }
        Ok(answers)
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
            let bodies: usize = follow_ups.iter().map(|(_, job)| job.spec.bytes()).sum();
            let result = result.as_ref().map_or(0, |result| result.body.len());
            (1 + follow_ups.len(), result + bodies)
        }
        End::Decided { .. } => (1, 0),
    }
}

/// Plain acks by topic, then everything else; the order in which they are answered.
fn add_settles(call: &mut Call, items: &[Settle], caller: u32, recall: &Recall) -> Vec<usize> {
    if let [item] = items
        && is_plain(item)
        && item.owner == caller
    {
        add_alone(call, &item.lease, recall);
        return vec![0];
    }
    let mut times: HashMap<&JobKey, u32> = HashMap::with_capacity(items.len());
    items.iter().for_each(|item| *times.entry(&item.lease.key).or_default() += 1);
    let plain = |item: &Settle| is_plain(item) && times.get(&item.lease.key) == Some(&1);
    let mut sections: Vec<Section> = Vec::new();
    let mut others = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let (topic, ours) = (&item.lease.key.topic, item.owner == caller);
        if !plain(item) {
            others.push(index);
            continue;
        }
        match sections.iter_mut().find(|known| known.topic == topic && known.ours == ours) {
            Some(section) => section.acks.push(index),
            None => sections.push(Section { topic, ours, acks: vec![index] }),
        }
    }
    call.arg(sections.len());
    let mut order = Vec::with_capacity(items.len());
    for section in sections {
        section.add(call, items, recall);
        order.extend(section.acks);
    }
    others.iter().for_each(|&index| add_settle(call, &items[index]));
    order.extend(others);
    order
}

/// One plain ack of a lease of the caller's.
fn add_alone(call: &mut Call, lease: &LeaseRef, recall: &Recall) {
    let LeaseRef { key, .. } = lease;
    call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(end_of(lease));
    if let Some((second, line)) = recall.line(key) {
        call.arg(second).arg(line);
    }
}

/// What the end of a lease is called of which nothing but its job hangs.
fn end_of(lease: &LeaseRef) -> Vec<u8> {
    [&lease.token.0.to_be_bytes(), lease.key.id.as_str().as_bytes()].concat()
}

// === impl Recall ===

impl Recall {
    /// What is noted at `now` by the clock of this process.
    fn by(now: Time) -> Recall {
        Recall { first: second_of(now.minus(limit::REPEAT_MAX + RECALL_SLACK)) }
    }

    /// By which second and line a job is recalled that has succeeded, as `lib/recall.lua` says.
    fn line<'a>(&self, key: &'a JobKey) -> Option<(&'a str, Vec<u8>)> {
        let (id, second) = (key.id.as_str().as_bytes(), key.id.made_second()?);
        let tail = &id[id.len().checked_sub(RECALLED_CHARS)?..];
        let is_young = second.as_bytes() >= &self.first[..];
        is_young.then(|| (second, [tail, key.topic.as_str().as_bytes(), b"\n"].concat()))
    }
}

// === impl Section ===

impl Section<'_> {
    fn add(&self, call: &mut Call, items: &[Settle], recall: &Recall) {
        let leases = || self.acks.iter().map(|&ack| &items[ack].lease);
        call.arg(self.topic.as_str()).arg(self.acks.len()).arg(u8::from(self.ours));
        for lease in leases() {
            call.arg(lease.key.id.as_str());
        }
        for lease in leases() {
            call.arg(end_of(lease));
        }
        let mut seconds: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for (second, line) in leases().filter_map(|lease| recall.line(&lease.key)) {
            seconds.entry(second).or_default().extend(line);
        }
        call.arg(seconds.len());
        for (second, lines) in seconds {
            call.arg(second).arg(lines);
        }
    }
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
            call.arg("a").arg(guard).arg(done.code()).arg(engine::settled_code(done, false));
            call.arg(0).arg("").arg("").arg(0);
            let result =
                result.as_ref().map(|result| [b"+", &codec::encode_payload(result)[..]].concat());
            call.arg(result.unwrap_or_default()).arg(follow_ups.len());
            follow_ups.iter().for_each(|job| add_follow_up(call, &job.clone().into()));
        }
        End::Decided { end, dead_retention } => add_decided(call, &guard, end, *dead_retention),
    }
}

fn add_decided(call: &mut Call, guard: &str, end: &LeaseEnd, dead_retention: Duration) {
    let (step, delay) = match end.step {
        Step::Wait(delay) => ("w", delay.map(micros)),
        Step::Die => ("d", None),
    };
    call.arg(step).arg(guard).arg(end.outcome.code());
    call.arg(engine::settled_code(end.outcome, end.dead_lettered))
        .arg(u8::from(end.counted))
        .arg(&end.error);
    call.arg(delay.map_or(String::new(), |micros| micros.to_string())).arg(micros(dead_retention));
    call.arg("").arg(0);
}

fn add_follow_up(call: &mut Call, job: &NewJob) {
    call.arg(job.key.topic.as_str()).arg(job.key.id.as_str()).arg(super::enqueue::blob(job));
}

fn answer(value: Value) -> Result<Answer<Settled>> {
    if matches!(value, Value::Int(_)) {
        return Ok(Ok(ACKNOWLEDGED));
    }
    let mut reply = Reply::new(value)?;
    let (code, state) = (reply.number()?, super::state(reply.number()?)?);
    Ok(match code {
        0 => Ok(Settled { repeated: false, state }),
        1 => Ok(Settled { repeated: true, state }),
        2 => Err(Refused::NotFound),
        3 => Err(Refused::Stale),
        _ => return Err(unexpected("the code of a settle")),
    })
}
