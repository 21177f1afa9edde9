//! Enqueues jobs: writes jobs whose ids are free; the engine handles jobs with an id that is in use.
//!
//! A new job is sent as a blob. The usual blob (due at once, default retention, payload inside) is the record from
//! its flags on. Any other blob has in front: a mode byte (128, plus 1 due after a delay, 2 due at a time, 4 expires
//! after a delay, 8 expires at a time, 16 it has a group, 32 its bytes are counted), due time (7 bytes), expire time (7)
//! and length of the record (4); a payload that is stored apart follows the record.

use bytes::BufMut as _;
use deadpool_redis::redis::Value;
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use crate::domain::engine::{self, Command, CommandReply, RecordTime};
use crate::domain::{
    Durability, EnqueueOutcome, JobId, JobKey, RetentionRule, State, Time, TopicName, When,
};
use crate::store::{Error, JobRequest, RequestResult, Result, codec};

use super::connections::RedisConnection;
use super::entry::{
    INLINE_BYTES_MAX, clamped, limit_arg, micros, put_extension, put_fixed, put_group, put_message,
};
use super::layout::{EXTENDED_BLOB, parts_inside, separate_parts};
use super::optimistic_commit::errors_per_request;
use super::reply::{ScriptReply, unexpected};
use super::script::{ScriptCall, Verb};
use super::{ConnectionLane, RedisStore, record_version};

/// Size of a job in a call beside its own data: its id and the fixed part of its record.
const JOB_BYTES: usize = 128;

/// A requested job.
struct JobToCreate<'a> {
    key: &'a JobKey,
    new: &'a engine::Enqueue,
}

/// Encodes a new job for the script.
fn encode_new_job(job: &engine::Enqueue) -> Vec<u8> {
    let spec = codec::encode_spec_without_group(&job.spec);
    let group = job.spec.group.as_ref();
    let payload = job.spec.payload.as_ref().map(codec::encode_payload);
    let large = payload.as_ref().is_some_and(|payload| payload.len() > INLINE_BYTES_MAX);
    let (mode, due, expire) = encode_schedule(job);
    let is_extended = job.expire.is_some()
        || job.request_code.is_some()
        || job.spec.lease.is_some()
        || group.is_some();
    let flag = |flag, on| if on { flag } else { 0 };
    let mut record = Vec::with_capacity(96 + payload.as_ref().map_or(0, Vec::len));
    let flags = [
        flag(separate_parts::KEPT, job.retention != RetentionRule::Nothing)
            | flag(separate_parts::PAYLOAD, large)
            | flag(separate_parts::COUNTED, job.max_bytes.is_some()),
        flag(parts_inside::BODY, payload.is_some())
            | flag(parts_inside::SPEC, spec.is_some())
            | flag(parts_inside::EXTENSION, is_extended)
            | flag(parts_inside::GROUP, group.is_some()),
    ];
    let version = record_version::next_version();
    let bytes = job.spec.bytes() as u64;
    put_fixed(&mut record, flags, version, bytes, [0, job.priority.unwrap_or(0)], job.retention);
    if is_extended {
        record.put_uint(0, 7);
        put_extension(&mut record, job.request_code, job.spec.lease);
    }
    put_group(&mut record, group);
    put_message(&mut record, spec.as_deref());
    let payload = payload.unwrap_or_default();
    if mode == 0 && !large {
        record.extend(payload);
        return record;
    }
    let inline = if large { 0 } else { payload.len() };
    let mut blob = Vec::with_capacity(19 + record.len() + payload.len());
    blob.put_u8(mode | EXTENDED_BLOB);
    blob.put_uint(due, 7);
    blob.put_uint(expire, 7);
    blob.put_u32(u32::try_from(record.len() + inline).unwrap_or(u32::MAX));
    blob.extend(record);
    blob.extend(payload);
    blob
}

/// Returns mode, due time and expire time in the form in which they are sent.
fn encode_schedule(job: &engine::Enqueue) -> (u8, u64, u64) {
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
    if job.spec.group.is_some() {
        mode |= 16;
    }
    if job.max_bytes.is_some() {
        mode |= 32;
    }
    (mode, due, expire)
}

impl RedisStore {
    /// Writes jobs, by a dedicated connection or else by the shared ones; the engine handles those whose ids are in use.
    /// The request with the earliest deadline decides until when Redis may execute the call; if that was too short, the
    /// call is repeated without it for requests whose callers still wait.
    pub(super) async fn enqueue(
        &self,
        mut connection: Option<&mut RedisConnection>,
        requests: &[&JobRequest],
    ) -> Vec<Result<RequestResult>> {
        let mut answers: Vec<Option<Result<RequestResult>>> =
            requests.iter().map(|_| None).collect();
        // Jobs that the script leaves to the engine.
        let mut left = Vec::new();
        let mut rest: Vec<usize> = (0..requests.len()).collect();
        while !rest.is_empty() {
            let part: Vec<&JobRequest> = rest.iter().map(|&place| requests[place]).collect();
            let jobs: Vec<JobToCreate<'_>> =
                part.iter().filter_map(|request| JobToCreate::of(request)).collect();
            let written = match self.enqueue_call(&part, &jobs).await {
                Ok(call) => {
                    let early_event = async { self.send_early_event(&jobs) };
                    let dedicated = connection.as_deref_mut();
                    let run = self.shard.run_on(dedicated, ConnectionLane::Write, &call);
                    // The call is on its way before the event is sent: the first is polled first.
                    let (answer, ()) = futures::join!(run, early_event);
                    answer.and_then(|answer| self.read_enqueued(answer, &jobs))
                }
                Err(error) => Err(error),
            };
            match written {
                Ok(written) => {
                    for (place, answer) in rest.drain(..).zip(written) {
                        match answer {
                            Some(answer) => answers[place] = Some(Ok(answer)),
                            None => left.push(place),
                        }
                    }
                }
                // The reply does not name the damaged job.
                Err(Error::Corrupt(_)) if part.len() > 1 => left.append(&mut rest),
                Err(error) => {
                    let errors = errors_per_request(error, part.iter().copied());
                    rest.iter()
                        .zip(errors)
                        .for_each(|(&place, error)| answers[place] = error.map(Err));
                    rest.retain(|&place| answers[place].is_none());
                }
            }
        }
        if !left.is_empty() {
            let taken: Vec<&JobRequest> = left.iter().map(|&place| requests[place]).collect();
            let decided = self.decide(&taken).await;
            left.into_iter().zip(decided).for_each(|(place, answer)| answers[place] = Some(answer));
        }
        answers.into_iter().flatten().collect()
    }

    /// Builds the call that writes jobs whose ids are free.
    async fn enqueue_call(
        &self,
        requests: &[&JobRequest],
        jobs: &[JobToCreate<'_>],
    ) -> Result<ScriptCall> {
        let bytes: usize = jobs.iter().map(|job| JOB_BYTES + job.new.spec.bytes()).sum();
        let args = 2 * jobs.len() + 2;
        let until = requests.iter().filter_map(|request| request.deadline).min();
        let mut call = self.shard.large_write_call(Verb::Enqueue, until, args, bytes).await?;
        add_jobs(&mut call, jobs);
        Ok(call)
    }

    /// Announces the first job that is due, without waiting for its write.
    fn send_early_event(&self, jobs: &[JobToCreate<'_>]) {
        if let Some(job) = jobs.iter().find(|job| job.new.due == When::Now) {
            self.events.send_claimable_if_idle(&job.key.topic);
        }
    }

    /// Reads the reply of the script: a result for each job; `None`: its id is in use.
    fn read_enqueued(
        &self,
        answer: Value,
        jobs: &[JobToCreate<'_>],
    ) -> Result<Vec<Option<RequestResult>>> {
        let mut reply = match answer {
            now @ Value::Int(_) => ScriptReply::new(Value::Array(vec![now, Value::Int(0)]))?,
            list => ScriptReply::new(list)?,
        };
        let now = reply.time()?;
        self.events.set_prune_at(reply.maybe_time()?);
        let durability = self.shard.status.write_durability().by_default;
        let mut answers: Vec<_> =
            jobs.iter().map(|job| Some(create_reply(job.new, now, durability))).collect();
        while !reply.is_empty() {
            let place = reply.number()?;
            let (place, is_full) = if place < 0 { (-1 - place, true) } else { (place, false) };
            let place = usize::try_from(place).ok().and_then(|place| answers.get_mut(place));
            let full = || RequestResult {
                reply: CommandReply::Enqueued(engine::EnqueueCommandReply::topic_full(now)),
                record: None,
                now,
                durability,
            };
            *place.ok_or_else(|| unexpected("the place of a job"))? = is_full.then(full);
        }
        Ok(answers)
    }
}

/// Returns the reply for a job whose id was free.
fn create_reply(new: &engine::Enqueue, now: Time, durability: Durability) -> RequestResult {
    let due = new.due.due(now);
    let answer = CommandReply::Enqueued(engine::EnqueueCommandReply {
        outcome: Some(EnqueueOutcome::Created),
        state: State::waiting(due, 0, now),
        due: RecordTime::fixed(due),
        not_written: None,
    });
    RequestResult { reply: answer, record: None, now, durability }
}

// === impl JobToCreate ===

impl<'a> JobToCreate<'a> {
    fn of(request: &'a JobRequest) -> Option<JobToCreate<'a>> {
        match &request.command {
            Command::Enqueue(new) => Some(JobToCreate { key: &request.key, new }),
            _ => None,
        }
    }
}

/// Jobs of one topic with the same limits, by their positions in the call; no id comes twice.
struct TopicJobs<'a> {
    topic: &'a TopicName,
    /// Numbers of waiting jobs and of bytes that the topic may have.
    limits: [Option<u64>; 2],
    ids: HashSet<&'a JobId>,
    places: Vec<usize>,
}

impl<'a> TopicJobs<'a> {
    /// Returns an empty section, with a capacity for this number of jobs.
    fn new(topic: &'a TopicName, limits: [Option<u64>; 2], most: usize) -> TopicJobs<'a> {
        let (ids, places) = (HashSet::with_capacity(most), Vec::with_capacity(most));
        TopicJobs { topic, limits, ids, places }
    }

    fn push(&mut self, place: usize, job: &JobToCreate<'a>) {
        self.ids.insert(&job.key.id);
        self.places.push(place);
    }
}

/// Groups the jobs by topic. A job that repeats the id of another one in the call, or has other limits, gets a section
/// right after it.
fn group_by_topic<'a>(jobs: &[JobToCreate<'a>]) -> Vec<TopicJobs<'a>> {
    let mut topics: Vec<Vec<TopicJobs<'a>>> = Vec::new();
    let mut known: HashMap<&TopicName, usize> = HashMap::new();
    for (place, job) in jobs.iter().enumerate() {
        let JobKey { topic, id } = &job.key;
        let at = *known.entry(topic).or_insert_with(|| {
            topics.push(Vec::new());
            topics.len() - 1
        });
        let sections = &mut topics[at];
        let limits = [job.new.max_waiting, job.new.max_bytes];
        // Behind a job with other limits: jobs arrive, and count, in their order.
        let other = sections.iter().rposition(|section| section.limits != limits);
        let first = other.map_or(0, |other| other + 1);
        let free = sections[first..].iter().position(|section| !section.ids.contains(id));
        let free = free.map_or(sections.len(), |free| first + free);
        if free == sections.len() {
            sections.push(TopicJobs::new(topic, limits, jobs.len() - place));
        }
        sections[free].push(place, job);
    }
    topics.into_iter().flatten().collect()
}

fn add_jobs(call: &mut ScriptCall, jobs: &[JobToCreate<'_>]) {
    let is_limited = jobs.iter().any(|job| job.new.is_limited());
    if let [job] = jobs
        && !is_limited
    {
        call.arg(job.key.topic.as_str()).arg(job.key.id.as_str()).arg(encode_new_job(job.new));
        return;
    }
    let sections = group_by_topic(jobs);
    if is_limited {
        let mut limits = Vec::with_capacity(14 * sections.len());
        for max in sections.iter().flat_map(|section| section.limits) {
            limits.put_uint(limit_arg(max), 7);
        }
        call.arg("").arg(limits);
    }
    for TopicJobs { topic, places, .. } in &sections {
        call.arg(topic.as_str()).arg(places.len());
        for &place in places {
            call.arg(jobs[place].key.id.as_str());
        }
        for &place in places {
            call.arg(encode_new_job(jobs[place].new));
        }
    }
    if sections.len() > 1 {
        let places = sections.iter().flat_map(|section| &section.places);
        let places = places.flat_map(|&place| u16::try_from(place).unwrap_or(0).to_be_bytes());
        call.arg(places.collect::<Vec<u8>>());
    }
}
