//! Enqueue: write jobs, or do to those that have their ids what [`conflict::resolve`] says.
//!
//! A new job travels as a blob. The usual one (due at once, kept by what is there, its payload with it) is
//! its record from the flags on. Any other has in front: a byte of mode (128, and 1 due in so long, 2 due
//! at a time, 4 expires in so long, 8 expires at a time, 16 and 32 the policy, 64 with a priority), due 7,
//! expire 7 and the length of the record 4; and a payload that lies apart comes behind the record.

use std::collections::{HashMap, HashSet};

use bytes::BufMut as _;

use crate::domain::conflict::{self, Action, Found};
use crate::domain::{OnConflict, Outcome, State, TopicName, When, limit};
use crate::store::{Enqueue, NewJob, Result, codec};

use super::durability::Wait;
use super::link::Connection;
use super::record::{INLINE_BYTES_MAX, clamped, flag, keep_code, micros, put_duration};
use super::reply::{Reply, unexpected};
use super::script::{Call, Verb};
use super::{Lane, RedisStore};

/// The order in which policies are numbered.
const POLICIES: [OnConflict; 4] =
    [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject];
/// What no usual blob begins with: its first byte holds six flags.
const UNUSUAL: u8 = 128;
/// The job names its priority.
const RANKED: u8 = 64;

/// The table of [`conflict::resolve`] as scripts read it: for the first request and for a repeated one,
/// for each policy, for each thing found, a letter.
pub(super) fn actions() -> String {
    let found = State::ALL.map(Found::Job).into_iter().chain([Found::RunningWithNext]);
    let found: Vec<_> = found.collect();
    let mut table = String::new();
    for same_request in [false, true] {
        for policy in POLICIES {
            for &found in &found {
                table.push(letter(conflict::resolve(policy, found, same_request)));
            }
        }
    }
    table
}

fn letter(action: Action) -> char {
    match action {
        Action::Leave => 'L',
        Action::Refuse => 'R',
        Action::Write(Outcome::Replaced) => 'P',
        Action::Write(_) => 'C',
        Action::Move => 'M',
        Action::Revive => 'V',
        Action::Defer => 'D',
        Action::DeferSame => 'S',
        Action::MoveNext => 'N',
    }
}

fn outcome(letter: u8) -> Result<Option<Outcome>> {
    Ok(match letter {
        b'L' => Some(Outcome::Unchanged),
        b'R' => None,
        b'P' => Some(Outcome::Replaced),
        b'C' => Some(Outcome::Created),
        b'M' | b'V' => Some(Outcome::Rescheduled),
        b'D' | b'S' | b'N' => Some(Outcome::Deferred),
        _ => return Err(unexpected("an action")),
    })
}

/// The job as it travels.
pub(super) fn blob(job: &NewJob) -> Vec<u8> {
    let terms = codec::encode_terms(&job.spec);
    let payload = job.spec.payload.as_ref().map(codec::encode_payload);
    let large = payload.as_ref().is_some_and(|payload| payload.len() > INLINE_BYTES_MAX);
    let (mode, due, expire) = schedule(job);
    let spec = &job.spec;
    let extended = job.expire.is_some()
        || job.request.is_some()
        || spec.lease.is_some()
        || spec.retention.is_some();
    let keep = keep_code(job.keep);
    let mut flags = 0;
    let mut set = |flag, on| flags |= if on { flag } else { 0 };
    set(flag::KEEP, keep != 0);
    set(flag::LARGE, large);
    set(flag::BODY, payload.is_some());
    set(flag::TERMS, terms.is_some());
    set(flag::EXTENDED, extended);

    let mut record = Vec::with_capacity(96 + payload.as_ref().map_or(0, Vec::len));
    record.put_u16(flags);
    record.put_u32(u32::try_from(spec.bytes()).unwrap_or(u32::MAX));
    record.put_u8(0);
    record.put_u8(job.priority.unwrap_or(0));
    record.put_u32(1);
    record.put_u64(0);
    record.put_i64(keep);
    if extended {
        record.put_uint(0, 7);
        record.put_u8(u8::from(job.request.is_some()));
        record.put_u64(job.request.unwrap_or(0));
        put_duration(&mut record, spec.lease);
        put_duration(&mut record, spec.retention);
    }
    if let Some(terms) = terms {
        record.put_u32(u32::try_from(terms.len()).unwrap_or(u32::MAX));
        record.extend(terms);
    }
    let payload = payload.unwrap_or_default();
    if mode | RANKED == RANKED && !large {
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
    let policy = POLICIES.iter().position(|&policy| policy == job.on_conflict).unwrap_or(0);
    let mut mode = u8::try_from(policy).unwrap_or(0) << 4;
    if job.priority.is_some() {
        mode |= RANKED;
    }
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
    /// The verb.
    pub(super) async fn put(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueue>> {
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
        let confirmed = async {
            let written = self.put_by(Some(&mut connection), jobs).await?;
            // A repeat may find what another connection has written a moment ago, and write nothing.
            let reached = match self.shard.mark(&mut connection).await {
                Ok(()) => wait.confirm(&mut connection).await.map_err(|error| error.to_string()),
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
            let part = part_of(&mut jobs);
            let answers = self.put_part(connection.as_deref_mut(), &part).await;
            // What came before is written, and whoever repeats the call finds it so.
            written.extend(answers.map_err(|error| super::after(error, !written.is_empty()))?);
        }
        Ok(written)
    }

    async fn put_part(
        &self,
        connection: Option<&mut Connection>,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueue>> {
        let mut call = self.call(Verb::Enqueue);
        call.arg(&self.actions).arg(u8::from(repeats_an_id(jobs)));
        add_jobs(&mut call, jobs);
        let mut reply = match connection {
            None => self.run(Lane::Write, &call).await?,
            Some(connection) => Reply::new(self.shard.run_on(connection, &call).await?)?,
        };
        let now = reply.time()?;
        self.hints.prune_at(reply.maybe_time()?);
        let durability = self.shard.durability.reach().plain;
        let created = |job: &NewJob| {
            let due = job.due.due(now);
            let state = State::waiting(due, 0, now);
            Enqueue { outcome: Some(Outcome::Created), state, due, durability }
        };
        let mut answers: Vec<_> = jobs.iter().map(created).collect();
        while !reply.is_empty() {
            let answer = usize::try_from(reply.number()?).ok().and_then(|i| answers.get_mut(i));
            let answer = answer.ok_or_else(|| unexpected("an index"))?;
            *answer = exception(&mut reply, *answer)?;
        }
        Ok(answers)
    }
}

fn exception(reply: &mut Reply, plain: Enqueue) -> Result<Enqueue> {
    let letter = *reply.bytes()?.first().ok_or_else(|| unexpected("an action"))?;
    let (state, due) = (super::state(reply.number()?)?, reply.time()?);
    Ok(Enqueue { outcome: outcome(letter)?, state, due, ..plain })
}

/// As many jobs as one call may carry; at least one.
fn part_of(jobs: &mut std::iter::Peekable<std::vec::IntoIter<NewJob>>) -> Vec<NewJob> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    while let Some(job) = jobs.next_if(|job| {
        let fits = bytes + job.spec.bytes() <= limit::CALL_BYTES_MAX;
        part.is_empty() || fits && part.len() < limit::CALL_JOBS_MAX
    }) {
        bytes += job.spec.bytes();
        part.push(job);
    }
    part
}

/// Whether a job meets another one of the same call.
fn repeats_an_id(jobs: &[NewJob]) -> bool {
    let mut met = HashSet::with_capacity(jobs.len());
    jobs.len() > 1 && !jobs.iter().all(|job| met.insert(&job.key))
}

/// The jobs by topic, each with its place in the call.
fn add_jobs(call: &mut Call, jobs: &[NewJob]) {
    let mut topics: Vec<(&TopicName, Vec<usize>)> = Vec::new();
    let mut known: HashMap<&TopicName, usize> = HashMap::new();
    for (index, job) in jobs.iter().enumerate() {
        let topic = &job.key.topic;
        let place = *known.entry(topic).or_insert_with(|| {
            topics.push((topic, Vec::new()));
            topics.len() - 1
        });
        topics[place].1.push(index);
    }
    call.arg(topics.len()).arg(jobs.len());
    let one = topics.len() == 1;
    for (topic, indexes) in topics {
        call.arg(topic.as_str()).arg(indexes.len());
        let places = indexes.iter().flat_map(|&i| u16::try_from(i).unwrap_or(0).to_be_bytes());
        let places: Vec<u8> = if one { Vec::new() } else { places.collect() };
        call.arg(places);
        for &index in &indexes {
            call.arg(jobs[index].key.id.as_str());
        }
        for &index in &indexes {
            call.arg(blob(&jobs[index]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts look an action up by `36 * same + 9 * policy + found`.
    #[test]
    fn the_table_of_actions() {
        let table = actions();
        let rows: Vec<_> =
            table.as_bytes().chunks(9).map(|row| String::from_utf8_lossy(row)).collect();
        assert_eq!(rows[..4], ["LLLLLLCLL", "PPDPCPCCD", "MMSMCVCCN", "RRRRRRCRR"]);
        assert!(rows[4..].iter().all(|row| row == "LLLLLLLLL"), "{rows:?}");
    }
}
