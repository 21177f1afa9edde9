//! The rules of the product, pure: no IO, no clock, no randomness of its own, nothing of the other
//! modules. Everything here is a value or a function of its arguments.
//!
//! - [`job`]: what a job is; [`name`] and [`id`]: how it is named; [`receipt`]: how a lease is proved
//! - [`engine`]: what becomes of a job, decided once for all stores
//! - [`lifecycle`]: the table of state transitions, and what follows when a lease ends: [`lifecycle::Cause`] is where a new
//!   way of settling begins
//! - [`away`]: what becomes of a lease that ran out while no server served its shard
//! - [`conflict`]: what an enqueue does when the id is taken
//! - [`retry`]: how long to wait and when to give up
//! - [`ring`]: which shard owns an id that its client chose; [`rings`]: while that changes
//! - [`credit`]: how much a stream may hold, and how that is counted
//! - [`limit`]: every bound of the system, with its reason
//! - [`stream_id`]: how streams are named
//! - [`time`]: instants in microseconds

pub mod conflict;
pub mod credit;
pub mod engine;
pub mod id;
pub mod job;
pub mod lifecycle;
pub mod limit;
pub mod name;
pub mod open_rings;
pub mod outage;
pub mod receipt;
pub mod retry;
pub mod ring;
pub mod stream_id;
pub mod time;

pub use conflict::{EnqueueOutcome, OnConflict};
pub use id::{JobId, JobKey};
pub use job::{Attempt, AttemptOutcome, Durability, Job, Payload, RetentionRule, Spec, State};
pub use name::{ShardName, TopicName};
pub use outage::ShardOutage;
pub use receipt::{Receipt, Token};
pub use retry::{InvalidRetry, RetryOverrides, RetryPolicy};
pub use ring::Ring;
pub use stream_id::StreamId;
pub use time::{Time, When};
