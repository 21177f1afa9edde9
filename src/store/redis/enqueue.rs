//! Enqueue: write jobs whose ids are free; what has the id of another one is left to the engine.
//!
//! A new job travels as a blob. The usual one (due at once, kept by what is there, its payload with it) is
//! its record from the flags on. Any other has in front: a byte of mode (128, and 1 due in so long, 2 due
//! at a time, 4 expires in so long, 8 expires at a time), due 7, expire 7 and the length of the record 4; and a payload
//! that lies apart comes behind the record.

use bytes::BufMut as _;
use deadpool_redis::redis::Value;
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use tokio::time::Instant;

use crate::domain::engine::{Answer, Command};
use crate::domain::{
    Durability, EnqueueOutcome, JobId, JobKey, Keep, State, Time, TopicName, When, limit,
};
use crate::store::{Enqueue, Error, NewJob, Prior, Result, Unwritten, codec};

use super::apply::{Request, any_written};
use super::durability::Wait;
use super::entry::{INLINE_BYTES_MAX, clamped, micros, put_extension, put_fixed, put_message};
use super::layout::{UNUSUAL, apart, inside};
use super::link::Connection;
use super::reply::{Reply, unexpected};
use super::script::{Call, Verb};
use super::{Lane, RedisStore, fault, version};

/// What a job takes in a call beside what it brings: its id and the fixed part of its record.
const JOB_BYTES: usize = 128;
/// The answer for a job whose caller stopped waiting before it was written.
const NOT_WRITTEN: Enqueue = Enqueue {
    outcome: None,
    state: State::Ready,
    due: Time(0),
    durability: Durability::Memory,
    unwritten: Some(Unwritten::Forgotten),
};

/// The job as it travels.
fn blob(job: &NewJob) -> Vec<u8> {
    let spec = codec::encode_spec(&job.spec);
    let payload = job.spec.payload.as_ref().map(codec::encode_payload);
    let large = payload.as_ref().is_some_and(|payload| payload.len() > INLINE_BYTES_MAX);
    let (mode, due, expire) = schedule(job);
    let is_extended = job.expire.is_some() || job.request.is_some() || job.spec.lease.is_some();
    let flag = |flag, on| if on { flag } else { 0 };
    let mut record = Vec::with_capacity(96 + payload.as_ref().map_or(0, Vec::len));
    let flags = [
        flag(apart::KEPT, job.keep != Keep::Nothing) | flag(apart::PAYLOAD, large),
        flag(inside::BODY, payload.is_some())
            | flag(inside::SPEC, spec.is_some())
            | flag(inside::EXTENSION, is_extended),
    ];
    let version = version::draw();
    let bytes = job.spec.bytes() as u64;
    put_fixed(&mut record, flags, version, bytes, [0, job.priority.unwrap_or(0)], job.keep);
    if is_extended {
        record.put_uint(0, 7);
        put_extension(&mut record, job.request, job.spec.lease);
    }
    put_message(&mut record, spec.as_deref());
    let payload = payload.unwrap_or_default();
    if mode == 0 && !large {
        record.extend(payload);
        return record;
    }
    let inline = if large { 0 } else { payload.len() };
    let mut blob = Vec::with_capacity(19 + record.len() + payload.len());
    blob.put_u8(mode | UNUSUAL);
    blob.put_uint(due, 7);
    blob.put_uint(expire, 7);
    blob.put_u32(u32::try_from(record.len() + inline).unwrap_or(u32::MAX));
    blob.extend(record);
    blob.extend(payload);
    blob
}

/// Mode, due and expire time as they travel.
fn schedule(job: &NewJob) -> (u8, u64, u64) {
    let mut mode = 0;
    let mut when = |when: When, after: u8, at: u8| match when {
        When::Now => 0,
        When::After(delay) => {
            mode |= after;
            micros(delay).unsigned_abs()
        }
        When::At(time) => {
            mode |= at;
            clamped(time).unsigned_abs()
        }
    };
    let due = when(job.due, 1, 2);
    let expire = job.expire.map_or(0, |expire| when(expire, 4, 8));
    (mode, due, expire)
}

impl RedisStore {
    /// [`Store::enqueue`](crate::store::Store::enqueue).
    pub(super) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueue>> {
        let asked = jobs.iter().filter_map(|job| job.durability).max();
        match asked.and_then(|asked| self.shard.durability.wait_for(asked)) {
            None => self.put_by(None, jobs).await,
            Some(wait) => self.put_and_wait(jobs, wait).await,
        }
    }

    /// Writes and waits until that is as safe as was asked, or for as long as it may take.
    async fn put_and_wait(&self, jobs: Vec<NewJob>, wait: Wait) -> Result<Vec<Enqueue>> {
        let _permit = self.permit().await?;
        let mut connection = self.shard.own_connection().await?;
        // Another process may answer there than the one whose settings `wait` was made for.
        let still = jobs.iter().filter_map(|job| job.durability).max();
        if still.and_then(|asked| self.shard.durability.wait_for(asked)) != Some(wait) {
            let text = "redis was replaced or set anew, what a write reaches is looked at";
            return Err(Error::Unavailable(text.to_owned()));
        }
        let confirmed = async {
            let written = self.put_by(Some(&mut connection), jobs).await?;
            // A repeat may find what another connection has written a moment ago, and write nothing.
            let reached = match self.shard.mark(&mut connection).await {
                Ok(()) => wait.confirm(&mut connection).await.map_err(|error| fault::text(&error)),
                Err(error) => Err(error.to_string()),
            };
            Ok((written, reached))
        };
        match confirmed.await {
            Ok((mut written, Ok(reached))) => {
                if let Some(reached) = reached {
                    written.iter_mut().for_each(|answer| answer.durability = reached);
                }
                Ok(written)
            }
            Ok((written, Err(error))) => {
                tracing::warn!(shard = %self.name, error, "what was written cannot be confirmed");
                drop(deadpool_redis::Connection::take(connection));
                Ok(written)
            }
            Err(error) => {
                drop(deadpool_redis::Connection::take(connection));
                Err(error)
            }
        }
    }

    /// Writes by a connection of one's own, or else with all others.
    async fn put_by(
        &self,
        mut connection: Option<&mut Connection>,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Enqueue>> {
        let mut written = Vec::with_capacity(jobs.len());
        let mut jobs = jobs.into_iter().peekable();
        while jobs.peek().is_some() {
            let mut part = part_of(&mut jobs, true);
            let answers = if part.is_empty() {
                part = part_of(&mut jobs, false);
                self.put_awaited(connection.as_deref_mut(), part).await
            } else {
                self.put_decided(part).await
            };
            // What came before is written, and whoever repeats the call finds it so.
            written.extend(answers.map_err(|error| super::after(error, !written.is_empty()))?);
        }
        Ok(written)
    }

    /// Writes a part of a call. The caller that waits least decides until when Redis may execute it; if that was too
    /// short, those who still wait are served without it.
    async fn put_awaited(
        &self,
        mut connection: Option<&mut Connection>,
        mut part: Vec<NewJob>,
    ) -> Result<Vec<Enqueue>> {
        let mut places: Vec<usize> = Vec::new();
        let all = part.len();
        loop {
            let answers = self.put_part(connection.as_deref_mut(), &part).await;
            let now = Instant::now();
            let waits = |job: &NewJob| job.until.is_none_or(|until| until > now);
            let left = part.iter().filter(|job| waits(job)).count();
            match answers {
                Err(Error::Unavailable(_)) if 0 < left && left < part.len() => {
                    if places.is_empty() {
                        places = (0..all).collect();
                    }
                    let pairs = places.into_iter().zip(part).filter(|(_, job)| waits(job));
                    (places, part) = pairs.unzip();
                }
                Ok(answers) if !places.is_empty() => {
                    let mut spread = vec![NOT_WRITTEN; all];
                    places.into_iter().zip(answers).for_each(|(at, answer)| spread[at] = answer);
                    return Ok(spread);
                }
                answers => return answers,
            }
        }
    }

    /// Writes jobs whose ids may be taken, or that may have been written before, as the engine decides.
    async fn put_decided(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueue>> {
        let request = |job: NewJob| {
            let until = job.until;
            let (key, new) = job.into_command();
            Request { key, command: Command::Enqueue(Box::new(new)), until }
        };
        let requests: Vec<_> = jobs.into_iter().map(request).collect();
        let durability = self.shard.durability.reach().plain;
        let (mut answers, mut late) = (Vec::new(), None);
        let outcomes = self.apply(&requests).await;
        let is_written = any_written(&outcomes);
        let now = Instant::now();
        for (request, outcome) in requests.iter().zip(outcomes) {
            let is_late = request.until.is_some_and(|until| until <= now);
            answers.push(match outcome {
                Ok(outcome) => {
                    let Answer::Enqueued(answer) = outcome.answer else {
                        return Err(unexpected("an enqueue"));
                    };
                    Enqueue::of(answer, outcome.time(answer.due), durability)
                }
                // Its caller waits no longer; the others of the call do.
                Err(error @ Error::Unavailable(_)) if is_late => {
                    late = Some(error);
                    NOT_WRITTEN
                }
                Err(error) => return Err(super::after(error, is_written)),
            });
        }
        match late {
            Some(error) if !is_written => Err(error),
            _ => Ok(answers),
        }
    }

    async fn run_by(&self, connection: Option<&mut Connection>, call: &Call) -> Result<Value> {
        match connection {
            None => self.run_raw(Lane::Write, call).await,
            Some(connection) => self.shard.run_on(connection, call).await,
        }
    }

    async fn put_part(
        &self,
        connection: Option<&mut Connection>,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueue>> {
        let bytes: usize = jobs.iter().map(|job| JOB_BYTES + job.spec.bytes()).sum();
        let args = 2 * jobs.len() + 2;
        let call = self.shard.large_write_call(Verb::Enqueue, until(jobs), args, bytes);
        let mut call = call.await?;
        add_jobs(&mut call, jobs);
        let told = async {
            if let Some(job) = jobs.iter().find(|job| job.due == When::Now) {
                self.hints.sent(&job.key.topic);
            }
        };
        // The call is on its way before that is told: the first is polled first.
        let (answer, ()) = futures::join!(self.run_by(connection, &call), told);
        let mut reply = match answer? {
            now @ Value::Int(_) => Reply::new(Value::Array(vec![now, Value::Int(0)]))?,
            list => Reply::new(list)?,
        };
        let now = reply.time()?;
        self.hints.prune_at(reply.maybe_time()?);
        let durability = self.shard.durability.reach().plain;
        let created = |job: &NewJob| {
            let due = job.due.due(now);
            let (outcome, unwritten) = (Some(EnqueueOutcome::Created), None);
            Enqueue { outcome, state: State::waiting(due, 0, now), due, durability, unwritten }
        };
        let mut answers: Vec<_> = jobs.iter().map(created).collect();
        let mut places = Vec::new();
        while !reply.is_empty() {
            places.push(reply.length()?);
        }
        if places.is_empty() {
            return Ok(answers);
        }
        // In the order of the call, as the same id may come twice.
        places.sort_unstable();
        let taken: Option<Vec<_>> = places.iter().map(|&place| jobs.get(place).cloned()).collect();
        let taken = taken.ok_or_else(|| unexpected("the place of a job"))?;
        let all = places.len() == jobs.len();
        let decided = self.put_decided(taken).await;
        let decided = decided.map_err(|error| super::after(error, !all))?;
        places.into_iter().zip(decided).for_each(|(place, answer)| answers[place] = answer);
        Ok(answers)
    }
}

/// Until when the first of their callers stops waiting.
fn until(jobs: &[NewJob]) -> Option<Instant> {
    jobs.iter().filter_map(|job| job.until).min()
}

/// Whether all of it is left to the engine: it may have been written before, or has a checkpoint.
fn is_decided(job: &NewJob) -> bool {
    job.prior == Prior::Itself || job.checkpoint.is_some()
}

/// As many jobs as one call may carry: those next ones that are left to the engine, or those that are not.
fn part_of(
    jobs: &mut std::iter::Peekable<std::vec::IntoIter<NewJob>>,
    is_left: bool,
) -> Vec<NewJob> {
    let most = limit::CALL_JOBS_MAX;
    let (mut part, mut bytes) = (Vec::with_capacity(jobs.len().min(most)), 0);
    while let Some(job) = jobs.next_if(|job| {
        if is_decided(job) != is_left {
            return false;
        }
        let fits = bytes + job.spec.bytes() <= limit::CALL_BYTES_MAX;
        part.is_empty() || fits && part.len() < most
    }) {
        bytes += job.spec.bytes();
        part.push(job);
    }
    part
}

/// Jobs of one topic, by their places in the call; no id comes twice.
struct Section<'a> {
    topic: &'a TopicName,
    ids: HashSet<&'a JobId>,
    places: Vec<usize>,
}

impl<'a> Section<'a> {
    /// An empty section, with room for so many.
    fn new(topic: &'a TopicName, most: usize) -> Section<'a> {
        let (ids, places) = (HashSet::with_capacity(most), Vec::with_capacity(most));
        Section { topic, ids, places }
    }

    fn push(&mut self, place: usize, job: &'a NewJob) {
        self.ids.insert(&job.key.id);
        self.places.push(place);
    }
}

/// The jobs by topic; those that meet another one of the call come right behind it.
fn sections(jobs: &[NewJob]) -> Vec<Section<'_>> {
    let mut topics: Vec<Vec<Section<'_>>> = Vec::new();
    let mut known: HashMap<&TopicName, usize> = HashMap::new();
    for (place, job) in jobs.iter().enumerate() {
        let JobKey { topic, id } = &job.key;
        let at = *known.entry(topic).or_insert_with(|| {
            topics.push(Vec::new());
            topics.len() - 1
        });
        let sections = &mut topics[at];
        let free = sections.iter().position(|section| !section.ids.contains(id));
        let free = free.unwrap_or_else(|| {
            sections.push(Section::new(topic, jobs.len() - place));
            sections.len() - 1
        });
        sections[free].push(place, job);
    }
    topics.into_iter().flatten().collect()
}

fn add_jobs(call: &mut Call, jobs: &[NewJob]) {
    if let [job] = jobs {
        call.arg(job.key.topic.as_str()).arg(job.key.id.as_str()).arg(blob(job));
        return;
    }
    let sections = sections(jobs);
    for Section { topic, places, .. } in &sections {
        call.arg(topic.as_str()).arg(places.len());
        for &place in places {
            call.arg(jobs[place].key.id.as_str());
        }
        for &place in places {
            call.arg(blob(&jobs[place]));
        }
    }
    if sections.len() > 1 {
        let places = sections.iter().flat_map(|section| &section.places);
        let places = places.flat_map(|&place| u16::try_from(place).unwrap_or(0).to_be_bytes());
        call.arg(places.collect::<Vec<u8>>());
    }
}
