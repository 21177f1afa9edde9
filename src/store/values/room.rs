//! Room in full topics: the new jobs that need it, and the jobs that leave for them.

use crate::domain::JobId;

/// Number of some jobs, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobSum {
    /// Number of jobs.
    pub jobs: u64,
    /// Their bytes, as [`Enqueue::max_bytes`](crate::domain::engine::Enqueue::max_bytes) counts them.
    pub bytes: u64,
}

/// New jobs for which the oldest waiting jobs of their topic leave a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomQuery {
    /// The new jobs, at most half of [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX), which fit into an empty topic.
    pub new: JobSum,
    /// Number of waiting jobs that the topic may have. `None`: no limit.
    pub max_waiting: Option<u64>,
    /// Number of bytes that the stored jobs of the topic may have. `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Jobs of other callers, for which room is made as well where the topic comes down to its limits.
    pub others: JobSum,
}

/// Waiting jobs that leave a topic for new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeavingJobs {
    /// Their ids.
    pub ids: Vec<JobId>,
    /// True if the topic is over its limits without them, too: the new jobs take their places.
    pub is_over: bool,
}

// === impl JobSum ===

impl JobSum {
    /// Adds other jobs.
    #[must_use]
    pub fn plus(self, other: JobSum) -> JobSum {
        JobSum { jobs: self.jobs + other.jobs, bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// Takes away some of the jobs.
    #[must_use]
    pub fn minus(self, other: JobSum) -> JobSum {
        JobSum { jobs: self.jobs - other.jobs, bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

// === impl RoomQuery ===

impl RoomQuery {
    /// Returns what has to leave at least, and what leaves if it is there, of a topic that would be over its limits by
    /// `excess` with the new jobs. A topic that comes down to its limits by that has room for the jobs of others, too. One
    /// that does not loses twice as much as comes, so that it comes down step by step; where it has less, as much as
    /// comes will do.
    #[must_use]
    pub fn goals(&self, excess: JobSum) -> [JobSum; 2] {
        let goals = |excess: u64, new: u64, others: u64| match excess {
            0 => [0, 0],
            _ if excess > new.saturating_mul(2) => [new, new.saturating_mul(2)],
            _ => [excess.min(new), excess.saturating_add(others)],
        };
        let jobs = goals(excess.jobs, self.new.jobs, self.others.jobs);
        let bytes = goals(excess.bytes, self.new.bytes, self.others.bytes);
        [0, 1].map(|goal| JobSum { jobs: jobs[goal], bytes: bytes[goal] })
    }
}
