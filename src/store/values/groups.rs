//! Values of the calls about groups.

use std::time::Duration;

use crate::domain::{GroupName, TopicName, limit};

/// Setting of one group of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSetting {
    /// The group; `None`: the jobs without one.
    pub group: Option<GroupName>,
    /// Share of its turns, 1 to [`GROUP_WEIGHT_MAX`](crate::domain::limit::GROUP_WEIGHT_MAX); 1 is the default.
    pub weight: u8,
    /// True if none of its jobs may be claimed.
    pub paused: bool,
}

// === impl GroupSetting ===

impl GroupSetting {
    /// Returns the weight within its bounds: stores divide by it.
    #[must_use]
    pub fn valid_weight(&self) -> u8 {
        self.weight.clamp(1, limit::GROUP_WEIGHT_MAX)
    }
}

/// The groups of a topic to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsQuery {
    /// The topic.
    pub topic: TopicName,
    /// Text of the last group of the page before; empty: the jobs without a group. `None`: begins with the first one.
    pub after: Option<String>,
    /// Most groups to return.
    pub limit: usize,
}

/// Statistics of a group of a topic on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardGroupStats {
    /// The group; `None`: the jobs without one.
    pub group: Option<GroupName>,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Jobs whose due time is ahead, those that failed included.
    pub scheduled: u64,
    /// Leased jobs.
    pub running: u64,
    /// Age of the job that has been ready longest.
    pub oldest_ready: Option<Duration>,
    /// Weight by the settings of the topic.
    pub weight: u8,
    /// True if none of its jobs may be claimed.
    pub paused: bool,
}
