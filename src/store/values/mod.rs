//! Values of the [`Store`](super::Store) trait, a file for each group of verbs.

mod claim;
mod document;
mod explain;
mod groups;
mod heartbeat;
mod job_request;
mod lease;
mod lease_query;
mod list_and_stats;
mod room;
mod shard_status;

pub use claim::{
    Claim, ClaimResult, LeasedJob, StreamDemand, TopicDemand, TopicLeases, TopicRemainder,
};
pub use document::{
    DocumentHorizon, DocumentRemoval, DocumentWrite, DocumentWriteResult, DocumentsPage,
    StoredDocument, TopicEffect,
};
pub use explain::ExplainedJob;
pub use groups::{GroupSetting, GroupsQuery, ShardGroupStats};
pub use heartbeat::{DataLoss, Heartbeat, ReplicaHeartbeat, SharedState};
pub use job_request::{JobRequest, RequestResult};
pub use lease::{LeaseRef, RunningLease};
pub use lease_query::{LeaseQuery, LeaseQueryResult, PruneResult, PruneTopicsResult};
pub use list_and_stats::{
    IdsPage, ListCursor, ListEntry, ListPage, ListQuery, ShardTopicStats, StatsOptions, TopicInfo,
};
pub use room::{JobSum, LeavingJobs, RoomQuery};
pub use shard_status::{
    RecordCounts, ShardIdentity, ShardProblem, ShardStatus, StoreInfo, StoreUsage, WriteDurability,
};
