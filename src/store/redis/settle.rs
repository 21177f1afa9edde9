//! Settles leases as decided.

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_redis::redis::Value;

use crate::domain::engine::{self, Command, CommandReply, SettleAction, SettleCommandReply};
use crate::domain::id::{SECOND_CHARS, second_prefix};
use crate::domain::{JobKey, State, Time, Token, TopicName, limit};
use crate::store::{Error, JobRequest, RequestResult, Result};

use super::optimistic_commit::repeated_keys;
use super::reply::ScriptReply;
use super::script::{ScriptCall, Verb};
use super::{ConnectionLane, RedisStore};

/// Reply to a plain ack that counted.
const ACKNOWLEDGED: CommandReply =
    CommandReply::Settled(Ok(SettleCommandReply { repeated: false, state: State::Succeeded }));
/// Number of characters at the end of a server-made id that distinguish it from all others of its second: see
/// `lib/ended_ids.lua`.
const RECALLED_CHARS: usize = 13;
/// Tolerance for the clocks of other processes. A plain ack does not read the time of Redis, so the clock of this
/// process decides whether an id is too old to be retried, and a process whose clock is ahead of all others by this
/// much is allowed for.
const RECALL_SLACK: Duration = Duration::from_secs(3_600);
/// Size of a plain ack in a call: an id, and the member of its lease, which contains the id again.
const SETTLE_BYTES: usize = 128;

/// Plain acks of one topic, by their positions in the call; whether their leases are the caller's.
struct TopicAcks<'a> {
    topic: &'a TopicName,
    is_own: bool,
    acks: Vec<usize>,
}

/// Server-made ids that are recorded for retries once their jobs have left nothing.
struct AckRecall {
    /// First second whose ids are recorded.
    first_second: [u8; SECOND_CHARS],
}

/// A plain ack.
struct PlainAck<'a> {
    key: &'a JobKey,
    token: Token,
    /// Nonce of the replica whose stream has the lease.
    owner: u32,
}

impl RedisStore {
    /// Settles leases: plain acks take the fast path; the engine handles all others, and acks that the fast path
    /// leaves.
    pub(super) async fn settle(&self, requests: &[&JobRequest]) -> Vec<Result<RequestResult>> {
        let (plain, mut others) = split_plain_acks(requests);
        let durability = self.shard.status.write_durability().by_default;
        // A plain ack does not read the time of Redis.
        let now = self.shard.clock.now();
        let acknowledged = RequestResult { reply: ACKNOWLEDGED, record: None, now, durability };
        let mut answers: Vec<Result<RequestResult>> =
            requests.iter().map(|_| Ok(acknowledged.clone())).collect();
        if !plain.is_empty() {
            let acks: Vec<PlainAck<'_>> =
                plain.iter().filter_map(|&i| PlainAck::from_request(requests[i])).collect();
            let args = 2 * acks.len() + 4;
            let mut call = self.shard.large_call(Verb::Settle, args, acks.len() * SETTLE_BYTES);
            let order = add_acks(&mut call, &acks, self.owner, &AckRecall::at(now));
            let settled = self.shard.run_on(None, ConnectionLane::Write, &call).await;
            match settled.and_then(|answer| self.read_settled(answer, order)) {
                Ok(left) => others.extend(left.into_iter().map(|nth| plain[nth])),
                // The reply does not name the damaged job.
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
        let left: Vec<&JobRequest> = others.iter().map(|&index| requests[index]).collect();
        let decided = self.decide(&left).await;
        others.into_iter().zip(decided).for_each(|(index, answer)| answers[index] = answer);
        answers
    }

    /// Reads the reply of the fast path to acks in this order, and returns the positions of those that it leaves.
    fn read_settled(&self, answer: Value, order: Vec<usize>) -> Result<Vec<usize>> {
        let mut reply = match answer {
            Value::Int(_) => return Ok(Vec::new()),
            list => ScriptReply::new(list)?,
        };
        self.events.set_prune_at(reply.maybe_time()?);
        let mut left = Vec::new();
        for nth in order {
            if reply.number()? == 0 {
                left.push(nth);
            }
        }
        Ok(left)
    }
}

/// Splits the settles into those that the fast path may end, and all others.
fn split_plain_acks(requests: &[&JobRequest]) -> (Vec<usize>, Vec<usize>) {
    let repeated = repeated_keys(requests.iter().map(|request| &request.key));
    let goes = |request: &JobRequest| {
        PlainAck::from_request(request).is_some() && !repeated.contains(&request.key)
    };
    (0..requests.len()).partition(|&index| goes(requests[index]))
}

// === impl PlainAck ===

impl<'a> PlainAck<'a> {
    /// Returns the plain ack of the request, if it has nothing beside the lease.
    fn from_request(request: &'a JobRequest) -> Option<PlainAck<'a>> {
        let JobRequest { key, command: Command::Settle(settle), owner, .. } = request else {
            return None;
        };
        let engine::Settle {
            token,
            deadline: None,
            action: SettleAction::Ack { result: None, follow_ups },
        } = settle
        else {
            return None;
        };
        follow_ups.is_empty().then_some(PlainAck { key, token: *token, owner: *owner })
    }

    /// Returns the member of `ends` of its lease, if nothing but its job depends on the lease.
    fn end_member(&self) -> Vec<u8> {
        [&self.token.0.to_be_bytes(), self.key.id.as_str().as_bytes()].concat()
    }
}

/// Adds plain acks by topic; returns the order in which they are answered.
fn add_acks(
    call: &mut ScriptCall,
    acks: &[PlainAck<'_>],
    caller: u32,
    recall: &AckRecall,
) -> Vec<usize> {
    if let [alone] = acks
        && alone.owner == caller
    {
        add_single_ack(call, alone, recall);
        return vec![0];
    }
    let mut sections: Vec<TopicAcks> = Vec::new();
    for (nth, ack) in acks.iter().enumerate() {
        let (topic, ours) = (&ack.key.topic, ack.owner == caller);
        match sections.iter_mut().find(|known| known.topic == topic && known.is_own == ours) {
            Some(section) => section.acks.push(nth),
            None => sections.push(TopicAcks { topic, is_own: ours, acks: vec![nth] }),
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

/// Adds one plain ack of a lease of the caller's.
fn add_single_ack(call: &mut ScriptCall, ack: &PlainAck<'_>, recall: &AckRecall) {
    call.arg(ack.key.topic.as_str()).arg(ack.key.id.as_str()).arg(ack.end_member());
    if let Some((second, line)) = recall.recall_line(ack.key) {
        call.arg(second).arg(line);
    }
}

// === impl AckRecall ===

impl AckRecall {
    /// Returns the ids that are recorded at `now` by the clock of this process.
    fn at(now: Time) -> AckRecall {
        AckRecall { first_second: second_prefix(now.minus(limit::REPEAT_MAX + RECALL_SLACK)) }
    }

    /// Returns the second and the line under which a succeeded job is recorded, in the form of `lib/ended_ids.lua`.
    fn recall_line<'a>(&self, key: &'a JobKey) -> Option<(&'a str, Vec<u8>)> {
        let (id, second) = (key.id.as_str().as_bytes(), key.id.created_second()?);
        let tail = &id[id.len().checked_sub(RECALLED_CHARS)?..];
        let is_young = second.as_bytes() >= &self.first_second[..];
        is_young.then(|| (second, [tail, key.topic.as_str().as_bytes(), b"\n"].concat()))
    }
}

// === impl TopicAcks ===

impl TopicAcks<'_> {
    fn add(&self, call: &mut ScriptCall, acks: &[PlainAck<'_>], recall: &AckRecall) {
        let own = || self.acks.iter().map(|&nth| &acks[nth]);
        call.arg(self.topic.as_str()).arg(self.acks.len()).arg(u8::from(self.is_own));
        for ack in own() {
            call.arg(ack.key.id.as_str());
        }
        for ack in own() {
            call.arg(ack.end_member());
        }
        let mut seconds: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for (second, line) in own().filter_map(|ack| recall.recall_line(ack.key)) {
            seconds.entry(second).or_default().extend(line);
        }
        call.arg(seconds.len());
        for (second, lines) in seconds {
            call.arg(second).arg(lines);
        }
    }
}
