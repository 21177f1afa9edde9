//! Verbs of operators: lists, statistics, bulk changes, and the settings of topics and shards.
//!
//! - `list`, `groups`, `explain`: jobs, groups, and the facts that explain why a job does not run
//! - `admin`: topics with their statistics, and shards
//! - `purge`, `redrive`: bulk changes of jobs
//! - `topic_changes`: settings and pauses of topics

mod admin;
mod explain;
mod groups;
mod list;
mod purge;
mod redrive;
mod topic_changes;

use std::ops::Deref;

use super::Core;

pub use admin::{SetShardStateError, ShardInfo, TopicRow};
pub use explain::{FoundJob, JobExplanation};
pub use groups::GroupRows;
pub use list::{JobsPage, ListJobs, ListPosition, ListedJob, ShardPosition};
pub use purge::{PurgeTopic, PurgedJobs};
pub use redrive::{RedriveJobs, RedrivenJobs};
pub use topic_changes::{TopicChange, TopicChangeError, TopicRefusal, etag};

/// Verbs of operators. Cheap to clone.
#[derive(Clone)]
pub struct Operator(pub(super) Core);

impl Deref for Operator {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}
