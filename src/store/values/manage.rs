//! Requests by which operators change existing jobs.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::engine::{self, Command, Purge};
use crate::domain::{Job, JobId, JobKey, State, Time, TopicName, When};

use super::JobRequest;

/// Deletes one job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDeletion {
    /// The job.
    pub key: JobKey,
    /// Condition: the job finished at this time. A later generation under its id is not deleted.
    pub finished: Option<Time>,
    /// Deadline of the caller: after it the command is not executed any more. `None`: no deadline.
    pub deadline: Option<Instant>,
}

// === impl JobDeletion ===

impl From<JobKey> for JobDeletion {
    /// Deletes the job in any state.
    fn from(key: JobKey) -> JobDeletion {
        JobDeletion { key, finished: None, deadline: None }
    }
}

/// Deletes jobs of one topic that are in some states.
#[derive(Clone, Debug, PartialEq)]
pub struct PurgeBatch {
    /// Topic of the jobs.
    pub topic: TopicName,
    /// Ids of the jobs.
    pub ids: Vec<JobId>,
    /// States of the jobs to delete, and the time since which a job must exist.
    pub purge: Purge,
    /// Deadline of the caller: after it the command is not executed any more. `None`: no deadline.
    pub deadline: Option<Instant>,
}

// === impl PurgeBatch ===

impl PurgeBatch {
    /// Returns one request per job.
    #[must_use]
    pub fn requests(&self) -> Vec<JobRequest> {
        let request = |id: &JobId| JobRequest {
            deadline: self.deadline,
            ..JobRequest::new(
                JobKey { topic: self.topic.clone(), id: id.clone() },
                Command::Purge(self.purge.clone()),
            )
        };
        self.ids.iter().map(request).collect()
    }
}

/// Changes the due time or the priority of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobReschedule {
    /// The job.
    pub key: JobKey,
    /// The new due time; absent keeps it.
    pub due: Option<When>,
    /// The new priority; absent keeps it.
    pub priority: Option<u8>,
    /// Deadline of the caller: after it the command is not executed any more. `None`: no deadline.
    pub deadline: Option<Instant>,
}

/// Result of a reschedule: the job, `None` if it does not exist, or the state that forbids it.
pub type RescheduleResult = std::result::Result<Option<Job>, State>;

/// Puts jobs back to READY.
#[derive(Clone, Debug, PartialEq)]
pub struct RedriveBatch {
    /// Topic of the jobs.
    pub topic: TopicName,
    /// Ids of the jobs.
    pub ids: Vec<JobId>,
    /// Terminal states of the jobs to put back; others are skipped, and so are tombstones, which have no payload.
    pub states: Vec<State>,
    /// Time between the due times of two jobs; zero: all at once.
    pub spacing: Duration,
    /// Due time of the first job, from now.
    pub delay: Duration,
    /// Topic on the same shard to move the jobs to.
    pub target: Option<TopicName>,
    /// Time after its new due time at which a job expires whose expire time is not after its due time; `None`: such a
    /// job is skipped.
    pub ttl: Option<Duration>,
    /// Only counts the jobs.
    pub dry_run: bool,
    /// Deadline of the caller: after it the command is not executed any more. `None`: no deadline.
    pub deadline: Option<Instant>,
}

/// Result of a redrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedriveResult {
    /// Number of jobs put back.
    pub redriven: u64,
    /// Number of jobs skipped: no such job, in another state, a tombstone, past its expire time, or its id is taken
    /// in the target.
    pub skipped: u64,
}

// === impl JobDeletion, JobReschedule, RedriveBatch ===

impl From<JobDeletion> for JobRequest {
    fn from(JobDeletion { key, finished, deadline: until }: JobDeletion) -> JobRequest {
        JobRequest { deadline: until, ..JobRequest::new(key, Command::Delete { finished }) }
    }
}

impl From<JobReschedule> for JobRequest {
    fn from(JobReschedule { key, due, priority, deadline: until }: JobReschedule) -> JobRequest {
        JobRequest {
            deadline: until,
            ..JobRequest::new(key, Command::Reschedule { due, priority })
        }
    }
}

impl RedriveBatch {
    /// Returns one request per job. A repeated id is skipped.
    #[must_use]
    pub fn requests(&self) -> Vec<JobRequest> {
        let mut seen = HashSet::new();
        let ids = self.ids.iter().filter(|id| seen.insert(*id));
        let request = |id: &JobId| JobRequest {
            deadline: self.deadline,
            ..JobRequest::new(
                JobKey { topic: self.topic.clone(), id: id.clone() },
                Command::Redrive(self.command()),
            )
        };
        ids.map(request).collect()
    }

    fn command(&self) -> engine::Redrive {
        engine::Redrive {
            states: self.states.clone(),
            delay: self.delay,
            spacing: self.spacing,
            ttl: self.ttl,
            target: self.target.clone().filter(|target| *target != self.topic),
            dry_run: self.dry_run,
        }
    }
}
