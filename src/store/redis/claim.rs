//! Claims ready jobs: leases them to the streams that request them.

use bytes::{BufMut as _, Bytes};
use deadpool_redis::redis::Value;
use rand::Rng as _;

use crate::domain::{JobId, JobKey, PriorityAgeing, Time, Token, TopicName, limit};
use crate::store::{
    Claim, ClaimResult, LeasedJob, Result, StreamDemand, TopicDemand, TopicLeases, TopicRemainder,
};

use super::entry::{FieldReader, JobEntry, micros, payload, put_duration};
use super::order_member::id_of;
use super::reply::{ScriptReply, unexpected};
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

/// Number that scripts treat as no limit of bytes.
const BYTES_MAX: u64 = 1 << 52;

/// Stored parts of a job outside of its record that are sent with its lease.
#[derive(Clone, Default)]
struct ExtraParts {
    payload: Option<Bytes>,
    checkpoint: Option<Bytes>,
}

/// Times of a claim.
#[derive(Clone, Copy)]
struct ClaimTimes {
    /// Time of the store at the claim.
    now: Time,
    /// Start of its leases.
    lease_start: Time,
}

impl RedisStore {
    /// [`Store::claim`](crate::store::Store::claim).
    pub(super) async fn claim(&self, claim: Claim) -> Result<ClaimResult> {
        let tokens = fresh_tokens(&claim);
        let mut call = self.call(Verb::Claim);
        call.arg(encode_tokens(&tokens));
        for ask in &claim.topics {
            call.arg(ask.topic.as_str());
            for taker in &ask.streams {
                call.arg(encode_stream(claim.owner, taker));
            }
            ask.ageing.map(|ageing| call.arg(encode_ageing(ageing)));
        }
        let alone = if let [ask] = &claim.topics[..] { Some(demands(ask)) } else { None };
        if alone == Some(0) {
            // The additional argument distinguishes this call from one ask of one demand.
            call.arg("");
        }
        if alone != Some(1) {
            call.arg(demand_counts(&claim));
        }
        let claims = match self.shard.run(ConnectionLane::Claim, &call).await? {
            Value::BulkString(alone) => {
                read_single_lease(Bytes::from(alone), &claim.topics, &tokens)?
            }
            list => read_claim_reply(ScriptReply::new(list)?, &claim.topics, tokens)?,
        };
        let leased = claims.topics.iter().flat_map(|topic| topic.by_stream.iter().flatten());
        self.events.set_reap_at(leased.map(|leased| leased.deadline).min());
        Ok(claims)
    }
}

fn jobs_at_most(claim: &Claim) -> usize {
    let takers = claim.topics.iter().flat_map(|ask| &ask.streams);
    let jobs: u64 = takers.map(|taker| u64::from(taker.jobs)).sum();
    usize::try_from(jobs).unwrap_or(usize::MAX).min(limit::CALL_JOBS_MAX)
}

fn fresh_tokens(claim: &Claim) -> Vec<Token> {
    Token::of_claim(claim.nonce, rand::rng().random_iter()).take(jobs_at_most(claim)).collect()
}

/// Number of demands that are sent for a topic: of its streams, and one for its ageing.
fn demands(ask: &TopicDemand) -> usize {
    ask.streams.len() + usize::from(ask.ageing.is_some())
}

/// Numbers of demands of all asks.
fn demand_counts(claim: &Claim) -> Vec<u8> {
    let counts = claim.topics.iter().map(|ask| u16::try_from(demands(ask)).unwrap_or(u16::MAX));
    counts.flat_map(u16::to_be_bytes).collect()
}

/// Encodes the tokens for the script: the id under which the claim is cancelled comes first.
fn encode_tokens(tokens: &[Token]) -> Vec<u8> {
    let mut written = Vec::with_capacity(1 + 8 * tokens.len());
    written.put_u8(0);
    tokens.iter().for_each(|token| written.put_u64(token.0));
    written
}

/// Encodes the demand of a stream for the script.
fn encode_stream(owner: u32, taker: &StreamDemand) -> Vec<u8> {
    let mut demand = Vec::with_capacity(48 + taker.worker_id.len());
    let lease = micros(taker.lease).unsigned_abs();
    demand.put_u32(taker.jobs);
    demand.put_uint(taker.bytes.min(BYTES_MAX), 7);
    demand.put_uint(lease, 7);
    demand.put_u8(u8::from(taker.oversize));
    // Lease after its times; it was not extended yet.
    demand.put_uint(0, 7);
    demand.put_u32(owner);
    demand.put_u32(taker.stream);
    put_duration(&mut demand, taker.grace);
    demand.put_uint(lease, 7);
    demand.extend(taker.worker_id.as_bytes());
    demand
}

/// Encodes the ageing of a topic for the script: a demand of no jobs, without a lease. Claims that need no order of
/// priorities skip it like a stream that takes nothing.
fn encode_ageing(ageing: PriorityAgeing) -> Vec<u8> {
    let mut demand = Vec::with_capacity(19);
    demand.put_u32(0);
    demand.put_uint(ageing.micros().unsigned_abs(), 7);
    demand.put_uint(0, 7);
    demand.put_u8(0);
    demand
}

/// Reads the results of all asks.
fn read_claim_reply(
    mut reply: ScriptReply,
    asks: &[TopicDemand],
    tokens: Vec<Token>,
) -> Result<ClaimResult> {
    let (now, started) = (reply.time()?, reply.time()?);
    let mut tokens = tokens.into_iter();
    let at = ClaimTimes { now, lease_start: started };
    let topics = asks.iter().map(|ask| read_topic_leases(&mut reply, ask, at, &mut tokens));
    Ok(ClaimResult { now, topics: topics.collect::<Result<_>>()? })
}

/// Reads one job for the one stream of one ask.
fn read_single_lease(answer: Bytes, asks: &[TopicDemand], tokens: &[Token]) -> Result<ClaimResult> {
    let mut fields = FieldReader(answer);
    let (now, started) = (fields.time()?, fields.time()?);
    let remainder = match fields.time()? {
        Time(0) => TopicRemainder::Empty,
        Time(1) => TopicRemainder::Ready,
        due => TopicRemainder::ReadyAt(due),
    };
    let id = JobId::stored(&fields.text(1)?);
    let ([ask], [token]) = (asks, tokens) else { return Err(unexpected("a list of claims")) };
    let taker = ask.streams.first().ok_or_else(|| unexpected("no job without a stream"))?;
    let key = JobKey { topic: ask.topic.clone(), id };
    let leased = drop_damaged(
        lease(
            key,
            taker,
            *token,
            fields.0,
            ExtraParts::default(),
            ClaimTimes { now, lease_start: started },
        ),
        &ask.topic,
    );
    Ok(ClaimResult {
        now,
        topics: vec![TopicLeases { by_stream: vec![leased.into_iter().collect()], remainder }],
    })
}

/// Returns the job, unless it is damaged: a damaged job stays leased until it has no deliveries left and becomes a
/// dead letter; other jobs are delivered.
fn drop_damaged(leased: Result<LeasedJob>, topic: &TopicName) -> Option<LeasedJob> {
    let damaged = |error| {
        tracing::error!(%topic, %error, "a leased job cannot be read and is not delivered");
    };
    leased.map_err(damaged).ok()
}

/// Reads the result of one ask; `tokens` are used in the order of the reply.
fn read_topic_leases(
    reply: &mut ScriptReply,
    ask: &TopicDemand,
    at: ClaimTimes,
    tokens: &mut impl Iterator<Item = Token>,
) -> Result<TopicLeases> {
    let rest = match reply.number()? {
        -1 => TopicRemainder::Ready,
        -2 => TopicRemainder::Unknown,
        0 => TopicRemainder::Empty,
        due => TopicRemainder::ReadyAt(Time(due)),
    };
    let (jobs, listed, extras) = (reply.length()?, reply.length()? > 0, reply.length()?);
    let members = reply.some_bytes(jobs)?;
    let records = reply.some_bytes(jobs)?;
    let mut takers = vec![0; jobs];
    if listed {
        for taker in &mut takers {
            *taker = reply.length()?;
        }
    }
    let mut extras = read_extras(reply, extras, jobs)?.into_iter();
    // Jobs are distributed in turn, so that all streams get about the same number.
    let each = jobs.div_ceil(ask.streams.len().max(1));
    let mut leased: Vec<Vec<LeasedJob>> =
        ask.streams.iter().map(|_| Vec::with_capacity(each)).collect();
    for ((member, record), index) in members.into_iter().zip(records).zip(takers) {
        let taker = ask.streams.get(index).ok_or_else(|| unexpected("a taker"))?;
        let token = tokens.next().ok_or_else(|| unexpected("fewer jobs"))?;
        let key = JobKey { topic: ask.topic.clone(), id: id_of(&member)? };
        let extra = extras.next().unwrap_or_default();
        leased[index].extend(drop_damaged(lease(key, taker, token, record, extra, at), &ask.topic));
    }
    Ok(TopicLeases { by_stream: leased, remainder: rest })
}

fn lease(
    key: JobKey,
    taker: &StreamDemand,
    token: Token,
    record: Bytes,
    extra: ExtraParts,
    at: ClaimTimes,
) -> Result<LeasedJob> {
    let JobEntry { mut record, payload: inline, .. } = JobEntry::from_record(record)?;
    record.spec.payload = payload(inline.or(extra.payload))?;
    let checkpoint = payload(extra.checkpoint)?;
    Ok(LeasedJob {
        key,
        token,
        fence: at.lease_start,
        deadline: at.now.plus(record.spec.lease.unwrap_or(taker.lease)),
        priority: record.priority,
        failures: record.history.failures,
        deliveries: record.history.deliveries,
        crashes: record.history.crashes,
        due: record.due.at,
        create_time: record.created.at,
        last_error: record.history.last_error,
        spec: record.spec,
        checkpoint,
    })
}

/// Reads the parts that are stored apart, which few jobs have, by the number of the job.
fn read_extras(reply: &mut ScriptReply, count: usize, jobs: usize) -> Result<Vec<ExtraParts>> {
    let mut extras: Vec<ExtraParts> = Vec::new();
    if count > 0 {
        extras.resize(jobs, ExtraParts::default());
    }
    for _ in 0..count {
        let index = reply.length()?;
        let extra = ExtraParts { payload: reply.maybe_bytes()?, checkpoint: reply.maybe_bytes()? };
        *extras.get_mut(index).ok_or_else(|| unexpected("the number of a job"))? = extra;
    }
    Ok(extras)
}
