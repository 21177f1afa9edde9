//! Where a record stands: in which order jobs are claimed, listed and looked through, and when something happens to it
//! by itself.

use crate::domain::{State, Time};

use super::record::{Phase, Record};

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The order that it is in.
    pub index: JobIndex,
    /// When it expires, its lease ends, or it is forgotten.
    pub alarm: Option<Time>,
}

/// The orders of a topic. In each of them jobs stand by due time and then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobIndex {
    /// Those that wait, an order for each priority; those that failed are told from those that never did.
    Waiting {
        /// 0 to 9.
        priority: u8,
        /// Whether it failed before: until it is due it is in BACKOFF, and otherwise SCHEDULED.
        failed: bool,
    },
    /// Those that run.
    Running,
    /// Those that ended in this state.
    Finished(State),
}

/// Where this record stands.
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
