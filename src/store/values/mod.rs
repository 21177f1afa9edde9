//! Values of the [`Store`](super::Store) trait, a file for each group of verbs.

mod claim;
mod enqueue;
mod explain;
mod groups;
mod heartbeat;
mod job_request;
mod lease;
mod lease_query;
mod list_and_stats;
mod manage;
mod policy;
mod shard_status;

pub use claim::{
    Claim, ClaimResult, LeasedJob, LostClaim, StreamDemand, TopicDemand, TopicLeases,
    TopicRemainder, Unclaim, UnclaimResult,
};
pub use enqueue::{JobSum, LeavingJobs, NewJob, RoomQuery, WriteResult};
pub use explain::ExplainedJob;
pub use groups::{GroupSetting, GroupsQuery, ShardGroupStats};
pub use heartbeat::{DataLoss, Heartbeat, ReplicaHeartbeat, SharedState};
pub use job_request::{JobRequest, RequestResult};
pub use lease::{
    AdoptBatch, AdoptItem, LeaseExtension, LeaseRef, LeaseSettlement, RunningLease, StreamLeaseRef,
};
pub use lease_query::{LeaseQuery, LeaseQueryResult, PruneResult, PruneTopicsResult};
pub use list_and_stats::{
    IdsPage, ListCursor, ListEntry, ListPage, ListQuery, ShardTopicStats, StatsOptions, TopicInfo,
};
pub use manage::{
    JobDeletion, JobReschedule, PurgeBatch, RedriveBatch, RedriveResult, RescheduleResult,
};
pub use policy::{
    PoliciesPage, PolicyHorizon, PolicyRemoval, PolicyWrite, PolicyWriteResult, StoredPolicy,
};
pub use shard_status::{
    RecordCounts, ShardIdentity, ShardProblem, ShardStatus, StoreInfo, StoreUsage, WriteDurability,
};
