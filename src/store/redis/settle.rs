//! Settle: end leases as decided.

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_redis::redis::Value;

use crate::domain::engine::{self, Answer, Command, End, Settled};
use crate::domain::id::{SECOND_CHARS, second_of};
use crate::domain::{JobKey, State, Time, Token, TopicName, limit};
use crate::store::{Applied, Error, Request, Result};

use super::reply::Reply;
use super::rounds::repeated;
use super::script::{Call, Verb};
use super::{Lane, RedisStore};

/// What became of a plain ack that counted.
const ACKNOWLEDGED: Answer =
    Answer::Settled(Ok(Settled { repeated: false, state: State::Succeeded }));
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

/// A plain ack.
struct Ack<'a> {
    key: &'a JobKey,
    token: Token,
    /// Nonce of the replica whose stream has the lease.
    owner: u32,
}

impl RedisStore {
    /// Ends leases: plain acks go the fast path; all else is left to the engine, and what that path leaves.
    pub(super) async fn settle(&self, requests: &[&Request]) -> Vec<Result<Applied>> {
        let (plain, mut others) = split(requests);
        let durability = self.shard.condition.reach().plain;
        // A plain ack does not ask for the time of Redis.
        let now = self.shard.clock.now();
        let acknowledged = Applied { answer: ACKNOWLEDGED, record: None, now, durability };
        let mut answers: Vec<Result<Applied>> =
            requests.iter().map(|_| Ok(acknowledged.clone())).collect();
        if !plain.is_empty() {
            let acks: Vec<Ack<'_>> = plain.iter().filter_map(|&i| Ack::of(requests[i])).collect();
            match self.ack(&acks).await {
                Ok(left) => others.extend(left.into_iter().map(|nth| plain[nth])),
                // Which of them it was is not said.
                Err(Error::Corrupt(_)) if plain.len() > 1 => others.extend(&plain),
                Err(error) => {
                    plain.iter().for_each(|&index| answers[index] = Err(error.clone()));
                }
            }
        }
        if others.is_empty() {
            return answers;
        }
        // In the order of the call, as one lease may come twice.
        others.sort_unstable();
        let left: Vec<&Request> = others.iter().map(|&index| requests[index]).collect();
        let decided = self.decide(&left).await;
        others.into_iter().zip(decided).for_each(|(index, answer)| answers[index] = answer);
        answers
    }

    /// Acknowledges by the fast path, and answers which ones it leaves.
    async fn ack(&self, acks: &[Ack<'_>]) -> Result<Vec<usize>> {
        let (args, bytes) = (2 * acks.len() + 4, acks.len() * SETTLE_BYTES);
        let mut call = self.shard.large_call(Verb::Settle, args, bytes);
        let recall = Recall::by(self.shard.clock.now());
        let order = add_acks(&mut call, acks, self.owner, &recall);
        let mut reply = match self.run_raw(Lane::Write, &call).await? {
            Value::Int(_) => return Ok(Vec::new()),
            list => Reply::new(list)?,
        };
        self.hints.prune_at(reply.maybe_time()?);
        let mut left = Vec::new();
        for nth in order {
            if reply.number()? == 0 {
                left.push(nth);
            }
        }
        Ok(left)
    }
}

/// Which of the settles the fast path may end, and all others.
fn split(requests: &[&Request]) -> (Vec<usize>, Vec<usize>) {
    let repeated = repeated(requests.iter().map(|request| &request.key));
    let goes = |request: &Request| Ack::of(request).is_some() && !repeated.contains(&request.key);
    (0..requests.len()).partition(|&index| goes(requests[index]))
}

// === impl Ack ===

impl<'a> Ack<'a> {
    /// An ack that brings nothing along.
    fn of(request: &'a Request) -> Option<Ack<'a>> {
        let Request { key, command: Command::Settle(settle), owner, .. } = request else {
            return None;
        };
        let engine::Settle { token, deadline: None, end: End::Ack { result: None, follow_ups } } =
            settle
        else {
            return None;
        };
        follow_ups.is_empty().then_some(Ack { key, token: *token, owner: *owner })
    }

    /// What the end of its lease is called of which nothing but its job hangs.
    fn end(&self) -> Vec<u8> {
        [&self.token.0.to_be_bytes(), self.key.id.as_str().as_bytes()].concat()
    }
}

/// Plain acks by topic; the order in which they are answered.
fn add_acks(call: &mut Call, acks: &[Ack<'_>], caller: u32, recall: &Recall) -> Vec<usize> {
    if let [alone] = acks
        && alone.owner == caller
    {
        add_alone(call, alone, recall);
        return vec![0];
    }
    let mut sections: Vec<Section> = Vec::new();
    for (nth, ack) in acks.iter().enumerate() {
        let (topic, ours) = (&ack.key.topic, ack.owner == caller);
        match sections.iter_mut().find(|known| known.topic == topic && known.ours == ours) {
            Some(section) => section.acks.push(nth),
            None => sections.push(Section { topic, ours, acks: vec![nth] }),
        }
    }
    call.arg(sections.len());
    let mut order = Vec::with_capacity(acks.len());
    for section in sections {
        section.add(call, acks, recall);
        order.extend(section.acks);
    }
    order
}

/// One plain ack of a lease of the caller's.
fn add_alone(call: &mut Call, ack: &Ack<'_>, recall: &Recall) {
    call.arg(ack.key.topic.as_str()).arg(ack.key.id.as_str()).arg(ack.end());
    if let Some((second, line)) = recall.line(ack.key) {
        call.arg(second).arg(line);
    }
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
    fn add(&self, call: &mut Call, acks: &[Ack<'_>], recall: &Recall) {
        let own = || self.acks.iter().map(|&nth| &acks[nth]);
        call.arg(self.topic.as_str()).arg(self.acks.len()).arg(u8::from(self.ours));
        for ack in own() {
            call.arg(ack.key.id.as_str());
        }
        for ack in own() {
            call.arg(ack.end());
        }
        let mut seconds: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for (second, line) in own().filter_map(|ack| recall.line(ack.key)) {
            seconds.entry(second).or_default().extend(line);
        }
        call.arg(seconds.len());
        for (second, lines) in seconds {
            call.arg(second).arg(lines);
        }
    }
}
