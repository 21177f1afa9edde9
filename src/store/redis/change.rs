//! What people do to single jobs: delete, reschedule, redrive.

use bytes::Bytes;

use crate::domain::lifecycle::{Transition, next};
use crate::domain::{State, Time, When, limit};
use crate::store::{Delete, Deleted, Redrive, Redriven, Reschedule, Rescheduled, Result};

use super::record::{StoredLease, clamped, micros};
use super::reply::Reply;
use super::script::Verb;
use super::stored::Stored;
use super::{Lane, RedisStore};
use deadpool_redis::redis::Value;

/// States as scripts read them: a 0 or 1 for each.
fn states(are_meant: impl Fn(State) -> bool) -> String {
    State::ALL.iter().map(|&state| if are_meant(state) { '1' } else { '0' }).collect()
}

impl RedisStore {
    /// [`Store::delete`](crate::store::Store::delete).
    pub(super) async fn delete(&self, items: Vec<Delete>) -> Result<Vec<Option<Deleted>>> {
        let mut deleted = Vec::with_capacity(items.len());
        for part in items.chunks(limit::CALL_JOBS_MAX) {
            let until = part.iter().filter_map(|item| item.until).min();
            let mut call = self.shard.write_call(Verb::Delete, until).await?;
            for Delete { key, finished, until: _ } in part {
                call.arg(key.topic.as_str()).arg(key.id.as_str());
                call.arg(finished.map_or(String::new(), |at| at.0.to_string()));
            }
            let mut reply = self.run(Lane::Write, &call).await?;
            self.hints.prune_at(reply.maybe_time()?);
            for _ in part {
                let (state, lease) = (reply.number()?, reply.maybe_bytes()?);
                deleted.push(if state < 0 { None } else { Some(was(state, lease)?) });
            }
        }
        Ok(deleted)
    }

    /// [`Store::reschedule`](crate::store::Store::reschedule).
    pub(super) async fn reschedule(&self, items: Vec<Reschedule>) -> Result<Vec<Rescheduled>> {
        let mut moved = Vec::with_capacity(items.len());
        for part in items.chunks(limit::CALL_JOBS_MAX) {
            let until = part.iter().filter_map(|item| item.until).min();
            let mut call = self.shard.write_call(Verb::Reschedule, until).await?;
            call.arg(states(|state| next(state, Transition::Reschedule).is_ok()));
            for Reschedule { key, due, priority, until: _ } in part {
                call.arg(key.topic.as_str()).arg(key.id.as_str());
                call.arg(due.map_or(String::new(), when));
                call.arg(priority.map_or(String::new(), |priority| priority.to_string()));
            }
            let mut reply = self.run(Lane::Write, &call).await?;
            let now = reply.time()?;
            self.hints.prune_at(reply.maybe_time()?);
            for item in part {
                moved.push(self.moved(reply.value()?, item, now)?);
            }
        }
        Ok(moved)
    }

    fn moved(&self, value: Value, item: &Reschedule, now: Time) -> Result<Rescheduled> {
        if let Value::Int(code) = value {
            return Ok(if code < 0 { Ok(None) } else { Err(super::state(code)?) });
        }
        let mut reply = Reply::new(value)?;
        let (record, story) = (reply.maybe_bytes()?, reply.maybe_bytes()?);
        let stored = Stored::read([record, story, None, None, None])?;
        let Some(state) = stored.state(now) else { return Ok(Ok(None)) };
        Ok(Ok(Some(stored.job(item.key.clone(), state, &self.name, false)?)))
    }

    /// [`Store::redrive`](crate::store::Store::redrive).
    pub(super) async fn redrive(&self, redrive: Redrive) -> Result<Redriven> {
        let mut done = Redriven::default();
        let target = redrive.target.as_ref().unwrap_or(&redrive.topic);
        let takes = states(|state| {
            redrive.states.contains(&state) && next(state, Transition::Redrive).is_ok()
        });
        let mut left = &redrive.ids[..];
        while !left.is_empty() {
            let mut call = self.shard.write_call(Verb::Redrive, redrive.until).await?;
            call.arg(&takes).arg(redrive.topic.as_str()).arg(target.as_str());
            call.arg(micros(redrive.delay)).arg(micros(redrive.spacing));
            call.arg(u8::from(redrive.dry_run)).arg(done.redriven);
            call.arg(redrive.ttl.map_or(String::new(), |ttl| micros(ttl).to_string()));
            for id in left.iter().take(limit::CALL_JOBS_MAX) {
                call.arg(id.as_str());
            }
            let mut reply = self.run(Lane::Write, &call).await?;
            self.hints.prune_at(reply.maybe_time()?);
            let (redriven, skipped) = (reply.count()?, reply.count()?);
            (done.redriven, done.skipped) = (done.redriven + redriven, done.skipped + skipped);
            // Not all of them where much was moved, but one at least.
            let seen = usize::try_from(redriven + skipped).unwrap_or(usize::MAX);
            left = left.get(seen.max(1)..).unwrap_or_default();
        }
        Ok(done)
    }
}

fn was(state: i64, lease: Option<Bytes>) -> Result<Deleted> {
    let lease = lease.map(StoredLease::read).transpose()?;
    let revoked = lease.map(|held| (held.owner, held.stream, held.token));
    Ok(Deleted { previous: super::state(state)?, revoked })
}

fn when(when: When) -> String {
    match when {
        When::Now => "+0".to_owned(),
        When::After(delay) => format!("+{}", micros(delay)),
        When::At(time) => format!("@{}", clamped(time)),
    }
}
