//! The public view of a record: the [`Job`] that callers read.

use crate::domain::{Attempt, Job, JobKey, Payload, RetentionRule, ShardName, State, Time};

use super::record::{Finish, Phase, Record};

/// Parts of a job, which are stored apart from its record, as far as they were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobParts {
    /// Payload.
    pub payload: Option<Payload>,
    /// Result.
    pub result: Option<Payload>,
    /// Attempts that are kept, newest first.
    pub attempts: Vec<Attempt>,
    /// Checkpoint.
    pub checkpoint: Option<Payload>,
}

impl Record {
    /// Returns the job as it reads at `now`; `None`: its record is no longer kept.
    #[must_use]
    pub fn job(
        mut self,
        key: JobKey,
        shard: ShardName,
        now: Time,
        mut bodies: JobParts,
    ) -> Option<Job> {
        let state = self.state(now)?;
        let expired = state == State::Expired && self.phase == Phase::Waiting;
        // An expired job reads as the tombstone that a prune will make of it.
        if expired && matches!(self.retention, RetentionRule::Tombstone(_)) {
            bodies = JobParts::default();
            self.spec = self.spec.of_tombstone();
            self.history.last_error.clear();
            self.history.progress.clear();
        }
        let expire_time = self.expire.map(|expire| expire.at);
        let (lease, finish) = match self.phase {
            Phase::Running(lease) => (Some(lease), None),
            Phase::Finished(Finish { at, .. }) => (None, Some(at.at)),
            Phase::Waiting => (None, expire_time.filter(|_| expired)),
        };
        let (mut spec, life) = (self.spec, self.history);
        spec.payload = bodies.payload;
        Some(Job {
            key,
            spec,
            priority: self.priority,
            expire_time,
            state,
            failures: life.failures,
            deliveries: life.deliveries + u32::from(lease.is_some()),
            crashes: life.crashes,
            generation: life.generation,
            create_time: self.created.at,
            due_time: self.due.at,
            lease_expire_time: lease.as_ref().map(|lease| lease.deadline.at),
            worker_id: lease.map_or(life.worker, |lease| lease.worker),
            finish_time: finish,
            result: bodies.result,
            last_error: life.last_error,
            attempts: bodies.attempts,
            progress: life.progress,
            checkpoint: bodies.checkpoint,
            shard,
        })
    }
}
