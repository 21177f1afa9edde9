//! Settle: end leases as decided.

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_redis::redis::Value;

use crate::domain::engine::{self, Command};
use crate::domain::id::{SECOND_CHARS, second_of};
use crate::domain::{JobKey, State, Time, TopicName, limit};
use crate::store::{End, LeaseRef, Refused, Result, Settle, Settled};

use super::apply::{Request, repeated};
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

    /// Plain acks go the fast path; all else is left to the engine, and what that path leaves.
    async fn end_part(&self, items: &[Settle]) -> Result<Vec<Answer<Settled>>> {
        let (plain, mut others) = split(items);
        if !plain.is_empty() {
            others.extend(self.ack(items, &plain).await?);
        }
        let mut answers = vec![Ok(ACKNOWLEDGED); items.len()];
        if others.is_empty() {
            return Ok(answers);
        }
        // In the order of the call, as one lease may come twice.
        others.sort_unstable();
        let request = |&index: &usize| {
            let (key, settle) = items[index].clone().into_command();
            Request { key, command: Command::Settle(settle), until: None }
        };
        let requests: Vec<_> = others.iter().map(request).collect();
        let outcomes = self.apply_all(&requests).await;
        let outcomes = outcomes.map_err(|error| super::after(error, others.len() < items.len()))?;
        for (index, outcome) in others.into_iter().zip(outcomes) {
            answers[index] = match outcome.answer {
                engine::Answer::Settled(settled) => settled,
                _ => return Err(unexpected("a settle")),
            };
        }
        Ok(answers)
    }

    /// Acknowledges by the fast path, and answers which ones it leaves.
    async fn ack(&self, items: &[Settle], plain: &[usize]) -> Result<Vec<usize>> {
        let (args, bytes) = (2 * plain.len() + 4, plain.len() * SETTLE_BYTES);
        let mut call = self.shard.large_call(Verb::Settle, args, bytes);
        let recall = Recall::by(self.shard.clock.now());
        let order = add_acks(&mut call, items, plain, self.owner, &recall);
        let mut reply = match self.run_raw(Lane::Write, &call).await? {
            Value::Int(_) => return Ok(Vec::new()),
            list => Reply::new(list)?,
        };
        self.hints.prune_at(reply.maybe_time()?);
        let mut left = Vec::new();
        for index in order {
            if reply.number()? == 0 {
                left.push(index);
            }
        }
        Ok(left)
    }
}

/// Which of the settles the fast path may end, and all others.
fn split(items: &[Settle]) -> (Vec<usize>, Vec<usize>) {
    let repeated = repeated(items.iter().map(|item| &item.lease.key));
    let goes = |item: &Settle| is_plain(item) && !repeated.contains(&item.lease.key);
    (0..items.len()).partition(|&index| goes(&items[index]))
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

/// Plain acks by topic; the order in which they are answered.
fn add_acks(
    call: &mut Call,
    items: &[Settle],
    plain: &[usize],
    caller: u32,
    recall: &Recall,
) -> Vec<usize> {
    if let [alone] = plain
        && items[*alone].owner == caller
    {
        add_alone(call, &items[*alone].lease, recall);
        return vec![*alone];
    }
    let mut sections: Vec<Section> = Vec::new();
    for &index in plain {
        let item = &items[index];
        let (topic, ours) = (&item.lease.key.topic, item.owner == caller);
        match sections.iter_mut().find(|known| known.topic == topic && known.ours == ours) {
            Some(section) => section.acks.push(index),
            None => sections.push(Section { topic, ours, acks: vec![index] }),
        }
    }
    call.arg(sections.len());
    let mut order = Vec::with_capacity(plain.len());
    for section in sections {
        section.add(call, items, recall);
        order.extend(section.acks);
    }
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
