//! Claim: lease ready jobs to those who ask.

use bytes::{BufMut as _, Bytes};
use deadpool_redis::redis::Value;
use rand::Rng as _;

use crate::domain::{JobId, JobKey, Time, Token, TopicName, limit};
use crate::store::{Ask, Claim, Claimed, Claims, Leased, Rest, Result, Taker};

use super::entry::{Entry, Fields, micros, payload, put_duration};
use super::member::id_of;
use super::reply::{Reply, unexpected};
use super::script::Verb;
use super::{Lane, RedisStore};

/// What scripts take for "as many bytes as you like".
const BYTES_MAX: u64 = 1 << 52;

/// The parts of a job that lie apart and come with its lease, as they are stored.
#[derive(Clone, Default)]
struct Extra {
    payload: Option<Bytes>,
    checkpoint: Option<Bytes>,
}

/// The times of a claim.
#[derive(Clone, Copy)]
struct Began {
    /// The store's time of it.
    now: Time,
    /// The start of its leases.
    started: Time,
}

impl RedisStore {
    /// [`Store::claim`](crate::store::Store::claim).
    pub(super) async fn claim(&self, claim: Claim) -> Result<Claims> {
        let tokens = fresh_tokens(&claim);
        let mut call = self.call(Verb::Claim);
        call.arg(written(&tokens));
        for ask in &claim.asks {
            call.arg(ask.topic.as_str());
            for taker in &ask.takers {
                call.arg(seat(claim.owner, taker));
            }
        }
        let alone = if let [ask] = &claim.asks[..] { Some(ask.takers.len()) } else { None };
        if alone == Some(0) {
            // Else it would look like one ask of one taker.
            call.arg("");
        }
        if alone != Some(1) {
            call.arg(counts(&claim));
        }
        let claims = match self.run_raw(Lane::Claim, &call).await? {
            Value::BulkString(alone) => one_claimed(Bytes::from(alone), &claim.asks, &tokens)?,
            list => all_claimed(Reply::new(list)?, &claim.asks, tokens)?,
        };
        let leased = claims.topics.iter().flat_map(|topic| topic.leased.iter().flatten());
        self.hints.reap_at(leased.map(|leased| leased.deadline).min());
        Ok(claims)
    }
}

fn jobs_at_most(claim: &Claim) -> usize {
    let takers = claim.asks.iter().flat_map(|ask| &ask.takers);
    let jobs: u64 = takers.map(|taker| u64::from(taker.jobs)).sum();
    usize::try_from(jobs).unwrap_or(usize::MAX).min(limit::CALL_JOBS_MAX)
}

fn fresh_tokens(claim: &Claim) -> Vec<Token> {
    Token::of_claim(claim.nonce, rand::rng().random_iter()).take(jobs_at_most(claim)).collect()
}

/// How many takers each ask has.
fn counts(claim: &Claim) -> Vec<u8> {
    let takers = claim.asks.iter().map(|ask| u16::try_from(ask.takers.len()).unwrap_or(u16::MAX));
    takers.flat_map(u16::to_be_bytes).collect()
}

/// Tokens as the script reads them: what its claim is called when it is given up comes first.
fn written(tokens: &[Token]) -> Vec<u8> {
    let mut written = Vec::with_capacity(1 + 8 * tokens.len());
    written.put_u8(0);
    tokens.iter().for_each(|token| written.put_u64(token.0));
    written
}

/// A taker as the script reads it.
fn seat(owner: u32, taker: &Taker) -> Vec<u8> {
    let mut seat = Vec::with_capacity(48 + taker.worker_id.len());
    let lease = micros(taker.lease).unsigned_abs();
    seat.put_u32(taker.jobs);
    seat.put_uint(taker.bytes.min(BYTES_MAX), 7);
    seat.put_uint(lease, 7);
    seat.put_u8(u8::from(taker.oversize));
    // A lease behind its times, which was not extended yet.
    seat.put_uint(0, 7);
    seat.put_u32(owner);
    seat.put_u32(taker.stream);
    put_duration(&mut seat, taker.grace);
    seat.put_uint(lease, 7);
    seat.extend(taker.worker_id.as_bytes());
    seat
}

/// What all asks got.
fn all_claimed(mut reply: Reply, asks: &[Ask], tokens: Vec<Token>) -> Result<Claims> {
    let (now, started) = (reply.time()?, reply.time()?);
    let mut tokens = tokens.into_iter();
    let at = Began { now, started };
    let topics = asks.iter().map(|ask| claimed(&mut reply, ask, at, &mut tokens));
    Ok(Claims { now, topics: topics.collect::<Result<_>>()? })
}

/// One job for the one taker of one ask.
fn one_claimed(answer: Bytes, asks: &[Ask], tokens: &[Token]) -> Result<Claims> {
    let mut fields = Fields(answer);
    let (now, started) = (fields.time()?, fields.time()?);
    let rest = match fields.time()? {
        Time(0) => Rest::Nothing,
        Time(1) => Rest::More,
        due => Rest::Until(due),
    };
    let id = JobId::stored(&fields.text(1)?);
    let ([ask], [token]) = (asks, tokens) else { return Err(unexpected("a list of claims")) };
    let taker = ask.takers.first().ok_or_else(|| unexpected("nothing for nobody"))?;
    let key = JobKey { topic: ask.topic.clone(), id };
    let leased = whole(
        lease(key, taker, *token, fields.0, Extra::default(), Began { now, started }),
        &ask.topic,
    );
    Ok(Claims { now, topics: vec![Claimed { leased: vec![leased.into_iter().collect()], rest }] })
}

/// The job, unless it is damaged: then it is left to run out of leases and become a dead letter; the others go
/// on.
fn whole(leased: Result<Leased>, topic: &TopicName) -> Option<Leased> {
    let damaged = |error| tracing::error!(%topic, %error, "a job is damaged and not handed out");
    leased.map_err(damaged).ok()
}

/// What one ask got; `tokens` are given out in the order of the answer.
fn claimed(
    reply: &mut Reply,
    ask: &Ask,
    at: Began,
    tokens: &mut impl Iterator<Item = Token>,
) -> Result<Claimed> {
    let rest = match reply.number()? {
        -1 => Rest::More,
        -2 => Rest::Again,
        0 => Rest::Nothing,
        due => Rest::Until(Time(due)),
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
    // Jobs go round, so that each gets about as many.
    let each = jobs.div_ceil(ask.takers.len().max(1));
    let mut leased: Vec<Vec<Leased>> =
        ask.takers.iter().map(|_| Vec::with_capacity(each)).collect();
    for ((member, record), index) in members.into_iter().zip(records).zip(takers) {
        let taker = ask.takers.get(index).ok_or_else(|| unexpected("a taker"))?;
        let token = tokens.next().ok_or_else(|| unexpected("fewer jobs"))?;
        let key = JobKey { topic: ask.topic.clone(), id: id_of(&member)? };
        let extra = extras.next().unwrap_or_default();
        leased[index].extend(whole(lease(key, taker, token, record, extra, at), &ask.topic));
    }
    Ok(Claimed { leased, rest })
}

fn lease(
    key: JobKey,
    taker: &Taker,
    token: Token,
    record: Bytes,
    extra: Extra,
    at: Began,
) -> Result<Leased> {
    let Entry { mut record, payload: inline, .. } = Entry::of_record(record)?;
    record.spec.payload = payload(inline.or(extra.payload))?;
    let checkpoint = payload(extra.checkpoint)?;
    Ok(Leased {
        key,
        token,
        fence: at.started,
        deadline: at.now.plus(record.spec.lease.unwrap_or(taker.lease)),
        priority: record.priority,
        failures: record.life.failures,
        deliveries: record.life.deliveries,
        due: record.due.at,
        create_time: record.created.at,
        last_error: record.life.last_error,
        spec: record.spec,
        checkpoint,
    })
}

/// Parts that lie apart, which few jobs have, by the number of the job.
fn read_extras(reply: &mut Reply, count: usize, jobs: usize) -> Result<Vec<Extra>> {
    let mut extras: Vec<Extra> = Vec::new();
    if count > 0 {
        extras.resize(jobs, Extra::default());
    }
    for _ in 0..count {
        let index = reply.length()?;
        let extra = Extra { payload: reply.maybe_bytes()?, checkpoint: reply.maybe_bytes()? };
        *extras.get_mut(index).ok_or_else(|| unexpected("the number of a job"))? = extra;
    }
    Ok(extras)
}
