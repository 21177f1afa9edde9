//! The seam: one trait, [`Store`], and the values that cross it. A store is one shard. It knows
//! nothing of rings, other shards, streams or policies: what follows from a command is decided by
//! [`crate::domain::engine`], which a store runs on its records.
//!
//! # Invariants that every store holds
//! - Only the store's clock decides what is due, expired or to be forgotten. What is past its time
//!   reads as such at once, whether or not [`Store::prune`] has come by.
//! - A command with all that follows from it is atomic: another caller sees all of it or nothing. A call is a list of
//!   commands, applied in order and each by itself: what is wrong with one job is not answered to its neighbours. New jobs
//!   of one call that need no decision come together, if they are [`CALL_JOBS_MAX`] and [`CALL_BYTES_MAX`] at most.
//! - Per topic there is one order: priority (9 first), then due time, then arrival.
//! - A job has one live lease at most; a settle with another token changes nothing.
//! - Results have the order and length of the items asked for.
//! - A write that no lease token guards is not executed once its caller has stopped waiting (`until`) or was answered that the
//!   outcome is unknown: by then it is written or never will be.
//!
//! [`CALL_JOBS_MAX`]: crate::domain::limit::CALL_JOBS_MAX
//! [`CALL_BYTES_MAX`]: crate::domain::limit::CALL_BYTES_MAX

pub mod codec;
mod error;
#[cfg(test)]
pub(crate) mod faulty_store;
mod lease_event;
pub mod redis;
mod shard_events;
pub mod sqlite;
mod typed_calls;
mod values;

use futures::future::BoxFuture;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, TopicName};

pub use crate::domain::engine::{
    Deleted, LeaseRefusal, NotWrittenReason, OutageExpiry, SettleAction, SettleCommandReply,
    WritePrecondition,
};
pub use error::Error;
pub use lease_event::{LeaseEvent, RevokeReason};
pub use shard_events::{EventKind, ShardEvent, ShardEvents};
pub use typed_calls::all_or_worst_error;
pub(crate) use typed_calls::worst_error;
pub use values::{
    AdoptBatch, AdoptItem, Claim, ClaimResult, Heartbeat, IdsPage, JobDeletion, JobRequest,
    JobReschedule, LeaseExtension, LeaseQuery, LeaseQueryResult, LeaseRef, LeaseSettlement,
    LeasedJob, ListCursor, ListEntry, ListPage, ListQuery, LostClaim, NewJob, PruneResult,
    PruneTopicsResult, RecordCounts, RedriveBatch, RedriveResult, ReplicaHeartbeat, RequestResult,
    RescheduleResult, RunningLease, ShardIdentity, ShardProblem, ShardStatus, ShardTopicStats,
    SharedState, StoreInfo, StreamDemand, StreamLeaseRef, TopicDemand, TopicInfo, TopicLeases,
    TopicRemainder, Unclaim, UnclaimResult, WriteDurability, WriteResult,
};

/// What a call answers.
pub type Result<T> = std::result::Result<T, Error>;
/// A call under way. Dropping it does not undo it: the outcome is then unknown.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T>>;

/// One shard. How a store is opened is its own: it takes a name, writes it on the shard at first contact and refuses
/// another one ever after, and makes jobs that were enqueued without a delay due if the clock went back meanwhile.
///
/// A new store is in the tests once `tests/it/conformance` has a `conformance!` for it, and `tests/it/model` a module.
pub trait Store: Send + Sync {
    /// What the shard is. Known also while it does not answer.
    fn identity(&self) -> &ShardIdentity;

    /// What the store knows of the state of its shard without asking it, now and whenever that changes.
    fn status(&self) -> watch::Receiver<ShardStatus>;

    /// Applies commands in their order, each with all that follows from it or not at all, and answers each. What becomes
    /// of a job is decided by [`engine::apply`](crate::domain::engine::apply), or by a fast path that is proved equal.
    /// Repeating a settle that was applied is success while the record lives, whatever became of the job: it may have
    /// been claimed again or a later generation may have taken its place, but at most
    /// [`ATTEMPTS_KEPT`](crate::domain::limit::ATTEMPTS_KEPT) leases ago.
    fn apply(&self, requests: Vec<JobRequest>) -> BoxFuture<'_, Vec<Result<RequestResult>>>;

    /// Leases ready jobs to those who ask, in the order of each topic.
    fn claim(&self, claim: Claim) -> StoreFuture<'_, ClaimResult>;

    /// A claim whose answer was lost takes nothing from now on, if it arrives only later. Where a claim can arrive late this
    /// writes in any case: it is how a shard on a network is asked whether it takes writes.
    fn cancel_lost_claim(&self, nonce: u32) -> StoreFuture<'_, ()>;

    /// Reads running leases. What has changed by the time at which something follows from it is noticed then.
    fn query_leases(&self, what: LeaseQuery) -> StoreFuture<'_, LeaseQueryResult>;

    /// Reads jobs; with `full`, payload, result and attempts too.
    fn get(&self, keys: Vec<JobKey>, full: bool) -> StoreFuture<'_, Vec<Option<Job>>>;

    /// Turns what has passed its expire time EXPIRED and forgets what was kept long enough, at most
    /// `limit` jobs, and says when there is more to do.
    fn prune(&self, limit: usize) -> StoreFuture<'_, PruneResult>;

    /// Looks at the topics behind `after`, at most `limit`, and forgets those that have been empty for
    /// [`EMPTY_TOPIC_MAX`](crate::domain::limit::EMPTY_TOPIC_MAX): a topic is noted as empty by the first look that
    /// finds it so, and forgotten by one that finds it so that much later, if no job has come meanwhile. Its totals go
    /// with it. Those who serve it hear [`Event::Forgotten`].
    fn prune_topics(
        &self,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, PruneTopicsResult>;

    /// Jobs of a topic in one state, by due time.
    fn list(&self, list: ListQuery) -> StoreFuture<'_, ListPage>;

    /// Topics whose names begin with `prefix` and sort after `after`, in order. One of them is read in no time: it is
    /// how a shard is asked whether it answers.
    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<TopicInfo>>;

    /// A part of the ids of a topic: from where the last part ended, at least `limit` of them looked at. One
    /// that is there all the time is in some part, or in several.
    fn ids(&self, topic: TopicName, from: Option<String>, limit: usize)
    -> StoreFuture<'_, IdsPage>;

    /// Numbers of topics; `None` where there is no such topic.
    fn stats(&self, topics: Vec<TopicName>) -> StoreFuture<'_, Vec<Option<ShardTopicStats>>>;

    /// The shard about itself.
    fn info(&self) -> StoreFuture<'_, StoreInfo>;

    /// Hints about what happens on the shard. A receiver that lags must act as after [`Event::EventsMissed`].
    fn subscribe(&self, about: EventKind) -> broadcast::Receiver<ShardEvent>;

    /// Shows that a replica lives, and reads what all replicas of the shard share.
    fn heartbeat(&self, beat: Heartbeat) -> StoreFuture<'_, SharedState>;

    /// Sets for all replicas whether the shard takes new jobs; those that are there receive
    /// [`Event::StateSet`]. `until`: how long the caller waits.
    fn set_state(&self, state: ShardState, until: Option<Instant>) -> StoreFuture<'_, ()>;

    /// Finishes what was accepted and lets go of the shard. Calls after it are refused.
    fn close(&self) -> BoxFuture<'_, ()>;
}
