//! Everything of one job, and how it reads to the world; the layouts are described in [`super::record`].

use bytes::Bytes;

use crate::domain::{Attempt, AttemptOutcome, Job, JobKey, ShardName, State, Time, limit};
use crate::store::Result;

use super::record::{Fields, Record, StoredLease, payload, read_entry, text};
use super::reply::unexpected;

/// What became of a job so far.
#[derive(Clone, Debug, Default)]
struct Story {
    finished: Option<Time>,
    forgotten: Option<Time>,
    worker: String,
    error: String,
    progress: String,
}

/// Everything of one job, as `get.lua` answers it.
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) lease: Option<StoredLease>,
    story: Story,
    history: Option<Bytes>,
    result: Option<Bytes>,
}

// === impl Story ===

impl Story {
    fn read(blob: Bytes) -> Result<Story> {
        let mut fields = Fields(blob);
        fields.take(7)?;
        Ok(Story {
            finished: fields.maybe_time()?,
            forgotten: fields.maybe_time()?,
            worker: fields.text(1)?,
            error: fields.text(4)?,
            progress: fields.text(4)?,
        })
    }
}

// === impl Stored ===

impl Stored {
    /// `parts`: what lies under the id, story, history, result and payload; all but the first may be absent.
    pub(super) fn read(parts: [Option<Bytes>; 5]) -> Result<Stored> {
        let [entry, story, history, result, apart] = parts;
        let (lease, record) = read_entry(entry.ok_or_else(|| unexpected("a record"))?)?;
        let mut record = Record::read(record)?;
        record.payload = record.payload.or(apart);
        Ok(Stored {
            record,
            lease,
            story: story.map(Story::read).transpose()?.unwrap_or_default(),
            history,
            result,
        })
    }

    /// The state that the world sees, time-outs included; `None`: the record is gone.
    pub(super) fn state(&self, now: Time) -> Option<State> {
        let record = &self.record;
        if self.lease.is_some() {
            return Some(State::Running);
        }
        if record.phase == 0 {
            return match record.expire.filter(|&expire| expire <= now) {
                None => Some(State::waiting(record.due, record.failures, now)),
                Some(expire) => {
                    record.kept_until(expire).filter(|&until| until > now).map(|_| State::Expired)
                }
            };
        }
        let forgotten = self.story.forgotten.is_none_or(|forgotten| forgotten <= now);
        (!forgotten).then_some(match record.phase {
            2 => State::Succeeded,
            3 => State::Dead,
            4 => State::Cancelled,
            _ => State::Expired,
        })
    }

    /// The job as it reads in `state`.
    pub(super) fn job(
        mut self,
        key: JobKey,
        state: State,
        shard: &ShardName,
        full: bool,
    ) -> Result<Job> {
        let expired = state == State::Expired && self.record.phase == 0;
        // An expired job reads as the tombstone that prune will make of it.
        if expired && self.record.keep < 0 {
            (self.record.terms, self.record.payload) = (None, None);
            (self.history, self.result) = (None, None);
            self.story.error.clear();
            self.story.progress.clear();
        }
        let (record, story) = (self.record, self.story);
        let lease = self.lease;
        Ok(Job {
            key,
            spec: record.spec(None, full)?,
            priority: record.priority,
            expire_time: record.expire,
            state,
            failures: record.failures,
            deliveries: record.deliveries + u32::from(lease.is_some()),
            generation: record.generation,
            create_time: record.created,
            due_time: record.due,
            lease_expire_time: lease.as_ref().map(|lease| lease.deadline),
            worker_id: lease.map_or(story.worker, |lease| lease.worker),
            finish_time: if expired { record.expire } else { story.finished },
            result: if full { payload(self.result)? } else { None },
            last_error: story.error,
            attempts: if full { history(self.history)? } else { Vec::new() },
            progress: story.progress,
            shard: shard.clone(),
        })
    }
}

fn history(blob: Option<Bytes>) -> Result<Vec<Attempt>> {
    let mut fields = Fields(blob.unwrap_or_default());
    let mut attempts = Vec::new();
    while !fields.0.is_empty() && attempts.len() < limit::ATTEMPTS_KEPT {
        let length = usize::try_from(fields.word()?).unwrap_or(usize::MAX);
        let mut attempt = Fields(fields.take(length)?);
        attempts.push(Attempt {
            number: attempt.word()?,
            start_time: attempt.time()?,
            finish_time: attempt.time()?,
            outcome: AttemptOutcome::of(attempt.small()?),
            worker_id: attempt.text(1)?,
            error: text(&attempt.0),
        });
    }
    Ok(attempts)
}
