//! Feeds: contents and time of the claims of a shard, one claim per shard at a time.
//!
//! - `shard_feed`: the task of a shard that claims jobs and grants them to streams
//! - `claim_planner`, `claim_request`: which topics to claim from for which streams, and the request for that
//! - `topic_polls`, `periodic_timer`: when to look for topics that no event has named
//! - `lost_claims`: claims whose responses were lost

pub(super) mod claim_planner;
pub(super) mod claim_request;
pub(super) mod lost_claims;
pub(super) mod periodic_timer;
pub(super) mod shard_feed;
pub(super) mod topic_polls;
