//! What people change about jobs that are there.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::engine::{self, Command};
use crate::domain::{Job, JobId, JobKey, State, Time, TopicName, When};

use super::JobRequest;

/// Deletes one job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDeletion {
    /// The job.
    pub key: JobKey,
    /// Only if it finished then: a later generation under its id is left alone.
    pub finished: Option<Time>,
    /// Until when its caller waits: from then on it is not done any more. `None`: there is no such time.
    pub deadline: Option<Instant>,
}

// === impl Delete ===

impl From<JobKey> for JobDeletion {
    /// Whatever state it is in.
    fn from(key: JobKey) -> JobDeletion {
        JobDeletion { key, finished: None, deadline: None }
    }
}

/// Moves one job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobReschedule {
    /// The job.
    pub key: JobKey,
    /// The new due time; absent keeps it.
    pub due: Option<When>,
    /// The new priority; absent keeps it.
    pub priority: Option<u8>,
    /// Until when its caller waits: from then on it is not done any more. `None`: there is no such time.
    pub deadline: Option<Instant>,
}

/// What a reschedule answers: the job, nothing when there is none, or the state that refuses it.
pub type RescheduleResult = std::result::Result<Option<Job>, State>;

/// Puts jobs back.
#[derive(Clone, Debug, PartialEq)]
pub struct RedriveBatch {
    /// Their topic.
    pub topic: TopicName,
    /// Which.
    pub ids: Vec<JobId>,
    /// Only those in one of these states, which are terminal; a tombstone, which has no payload, is left.
    pub states: Vec<State>,
    /// Time between the due times of two jobs; zero: all at once.
    pub spacing: Duration,
    /// Due time of the first, from now.
    pub delay: Duration,
    /// Move them to this topic, on this shard.
    pub target: Option<TopicName>,
    /// How long after its new due time a job expires whose expire time is not after that; none: it is left.
    pub ttl: Option<Duration>,
    /// Only count.
    pub dry_run: bool,
    /// Until when its caller waits: from then on it is not done any more. `None`: there is no such time.
    pub deadline: Option<Instant>,
}

/// What a redrive did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedriveResult {
    /// Put back.
    pub redriven: u64,
    /// Left: no such job, in another state, a tombstone, past its expire time, or its id is taken in the target.
    pub skipped: u64,
}

// === impl Delete, Reschedule, Redrive ===

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
    /// What is asked of each of the jobs. One that is named again is left.
    #[must_use]
    pub fn requests(&self) -> Vec<JobRequest> {
        let mut met = HashSet::new();
        let ids = self.ids.iter().filter(|id| met.insert(*id));
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
