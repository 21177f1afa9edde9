//! Placement of a record: the index in which it is claimed, listed and scanned, and the time at which something happens
//! to it by itself.

use crate::domain::{GroupName, State, Time};

use super::record::{Phase, Record};

/// Placement of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement<'r> {
    /// Index that contains the record.
    pub index: JobIndex<'r>,
    /// Time at which the job expires, its lease ends, or its record is removed.
    pub alarm: Option<Time>,
}

/// Index of a topic. Each index is ordered by due time, then by arrival.
///
/// A lane is the part of a topic that one group has: its waiting jobs, which have indexes of their own, and its running
/// jobs, whose number decides about the next turn. Jobs without a group have a lane, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobIndex<'r> {
    /// Waiting jobs: an index for each lane and priority, and apart for jobs that failed and jobs that never did.
    Waiting {
        /// Priority, 0 to 9.
        priority: u8,
        /// True if the job failed before: until it is due it is in BACKOFF, otherwise SCHEDULED.
        failed: bool,
        /// Group of the lane.
        group: Option<&'r GroupName>,
    },
    /// Running jobs.
    Running {
        /// Group of the lane that counts the job.
        group: Option<&'r GroupName>,
    },
    /// Jobs that ended in this state.
    Finished(State),
}

/// Returns the placement of a record.
#[must_use]
pub fn placement(record: &Record) -> Placement<'_> {
    let group = record.spec.group.as_ref();
    let (place, alarm) = match &record.phase {
        Phase::Waiting => {
            let (priority, failed) = (record.priority, record.history.failures > 0);
            (JobIndex::Waiting { priority, failed, group }, record.expire)
        }
        Phase::Running(lease) => (JobIndex::Running { group }, Some(lease.deadline)),
        Phase::Finished(finish) => (JobIndex::Finished(finish.state), Some(finish.until)),
    };
    Placement { index: place, alarm: alarm.map(|moment| moment.at) }
}

// === impl JobIndex ===

impl<'r> JobIndex<'r> {
    /// Returns the group of the lane in which the record stands, if it has one.
    #[must_use]
    pub fn group(&self) -> Option<&'r GroupName> {
        match self {
            JobIndex::Waiting { group, .. } | JobIndex::Running { group } => *group,
            JobIndex::Finished(_) => None,
        }
    }
}
