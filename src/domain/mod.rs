//! The rules of the product, as pure code: no IO, no clock, no random numbers, no imports from other modules.
//! Everything here is a value or a function of its arguments.
//!
//! - [`job`]: the job; [`name`] and [`id`]: names and ids; [`receipt`]: proof of a lease; [`pattern`]:
//!   topics by name or prefix
//! - [`engine`]: the result of each command on a job, decided once for all stores
//! - [`lifecycle`]: the end of a lease and its consequences by the retry policy; a new way of settling begins at
//!   [`lifecycle::LeaseEndCause`]
//! - [`ageing`]: the order of due jobs in which waiting counts as much as priority
//! - [`outage`]: leases that expired while no server served their shard
//! - [`conflict`]: the result of an enqueue when the id is taken
//! - [`retry`]: retry policy: waits and limits
//! - [`ring`]: the owner shard of a client-chosen id; [`open_rings`]: several rings while the owner changes
//! - [`credit`]: the credit of a stream and its accounting
//! - [`explain`]: the reasons why a job does not run
//! - [`limit`]: every bound of the system, with its reason
//! - [`stream_id`]: names of streams
//! - [`time`]: instants in microseconds
//! - [`document`]: small values that all shards store; [`topic_policy`]: what operators set for topics, one kind of them
//! - [`turns`]: the order in which groups take turns

pub mod ageing;
pub mod conflict;
pub mod credit;
pub mod document;
pub mod engine;
pub mod explain;
pub mod id;
pub mod job;
pub mod lifecycle;
pub mod limit;
pub mod name;
pub mod open_rings;
pub mod outage;
pub mod pattern;
pub mod receipt;
pub mod retry;
pub mod ring;
pub mod stream_id;
pub mod time;
pub mod topic_policy;
pub mod turns;

pub use ageing::PriorityAgeing;
pub use conflict::{EnqueueOutcome, OnConflict};
pub use document::{Document, DocumentContent, DocumentName, FileRecord};
pub use id::{JobId, JobKey};
pub use job::{Attempt, AttemptOutcome, Durability, Job, Payload, RetentionRule, Spec, State};
pub use name::{GroupName, ShardName, TopicName};
pub use outage::ShardOutage;
pub use pattern::{PrefixMap, TopicPattern};
pub use receipt::{Receipt, ReceiptKey, ReceiptProof, Token};
pub use retry::{CrashTopic, RetryOverrides, RetryPolicy};
pub use ring::Ring;
pub use stream_id::StreamId;
pub use time::{Time, When};
pub use topic_policy::{
    OverflowPolicy, PolicyEffect, PolicySource, TopicPause, TopicPolicy, TopicSettings,
};
