//! Placement of a record: the index in which it is claimed, listed and scanned, and the time at which something happens
//! to it by itself.

use crate::domain::{State, Time};

use super::record::{Phase, Record};

/// Placement of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index that contains the record.
    pub index: JobIndex,
    /// Time at which the job expires, its lease ends, or its record is removed.
    pub alarm: Option<Time>,
}

/// Index of a topic. Each index is ordered by due time, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobIndex {
    /// Waiting jobs: an index for each priority, and apart for jobs that failed and jobs that never did.
    Waiting {
        /// Priority, 0 to 9.
        priority: u8,
        /// True if the job failed before: until it is due it is in BACKOFF, otherwise SCHEDULED.
        failed: bool,
    },
    /// Running jobs.
    Running,
    /// Jobs that ended in this state.
    Finished(State),
}

/// Returns the placement of a record.
#[must_use]
pub fn placement(record: &Record) -> Placement {
    let (place, alarm) = match &record.phase {
        Phase::Waiting => {
            let (priority, failed) = (record.priority, record.history.failures > 0);
            (JobIndex::Waiting { priority, failed }, record.expire)
        }
        Phase::Running(lease) => (JobIndex::Running, Some(lease.deadline)),
        Phase::Finished(finish) => (JobIndex::Finished(finish.state), Some(finish.until)),
    };
    Placement { index: place, alarm: alarm.map(|moment| moment.at) }
}
