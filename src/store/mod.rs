//! The store interface: the trait [`Store`] and its values. A store is one shard. It has no knowledge of rings, other
//! shards, streams or policies: [`crate::domain::engine`] decides the effects of a command, and a store runs it on
//! its records.
//!
//! # Invariants that every store holds
//! - Only the store's clock decides which jobs are due, expired or past their retention. A read returns a job past
//!   its time as such at once, whether or not [`Store::prune`] has run.
//! - A command with all its effects is atomic: another caller sees all of it or nothing. A call is a list of
//!   commands, applied in order and each by itself: the failure of one job is not the result of its neighbours. New
//!   jobs of one call that need no decision are written together, up to [`CALL_JOBS_MAX`] and [`CALL_BYTES_MAX`].
//! - Per topic each group has a lane, and the jobs without a group have one. The next job is that of the lane with the
//!   lowest [score](crate::domain::turns): least running jobs by its weight, among equals the one that was served longest
//!   ago, and jobs that never end delay it for a bounded number of turns; a lane that has just got its first job comes
//!   right before the one that was served last. Lanes of paused groups are not read. Per lane there is
//!   one order: priority (9 first), then due time, then arrival.
//! - A job has at most one live lease; a settle with another token changes nothing.
//! - Results have the order and length of the requested items.
//! - A write without a lease token is not executed after its deadline, nor after its caller has received
//!   OutcomeUnknown: by then it is written or never will be.
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
mod values;

use futures::future::BoxFuture;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, PriorityAgeing, ReceiptKey, ShardName, TopicName};

pub use crate::domain::engine::{
    CarriedHistory, Deleted, LeaseRefusal, NotWrittenReason, OutageExpiry, Purge, SettleAction,
    SettleCommandReply, WritePrecondition,
};
pub use error::Error;
pub use lease_event::{LeaseEvent, RevokeReason};
pub use shard_events::{EventKind, ShardEvent, ShardEvents};
pub use values::{
    Claim, ClaimResult, DataLoss, DocumentHorizon, DocumentRemoval, DocumentWrite,
    DocumentWriteResult, DocumentsPage, ExplainedJob, GroupSetting, GroupsQuery, Heartbeat,
    IdsPage, JobRequest, JobSum, LeaseQuery, LeaseQueryResult, LeaseRef, LeasedJob, LeavingJobs,
    ListCursor, ListEntry, ListPage, ListQuery, PruneResult, PruneTopicsResult, RecordCounts,
    ReplicaHeartbeat, RequestResult, RoomQuery, RunningLease, ShardGroupStats, ShardIdentity,
    ShardProblem, ShardStatus, ShardTopicStats, SharedState, StatsOptions, StoreInfo, StoreUsage,
    StoredDocument, StreamDemand, TopicDemand, TopicEffect, TopicInfo, TopicLeases, TopicRemainder,
    WriteDurability,
};

/// Result of a store call.
pub type Result<T> = std::result::Result<T, Error>;
/// A store call in flight. Dropping it does not undo it: the outcome is then unknown.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T>>;

/// Interface of a shard. Each store has its own way of opening: it takes a name, writes it on the shard at first
/// contact and rejects every other name after that. If the clock went back meanwhile, it makes jobs that were
/// enqueued without a delay due.
///
/// A new store is tested once `tests/it/conformance` has a `conformance!` for it, and `tests/it/model` a module.
pub trait Store: Send + Sync {
    /// Returns the identity of the shard, also while the shard does not answer.
    fn identity(&self) -> &ShardIdentity;

    /// Returns the key of the shard's receipts, as it was stored when it was last reached; `None`: it was not reached yet.
    /// All servers of a shard have the same. A shard that was emptied gets the one that its servers have.
    fn receipt_key(&self) -> Option<ReceiptKey>;

    /// Returns the state of the shard as the store has it without a call, and notifies of changes.
    fn status(&self) -> watch::Receiver<ShardStatus>;

    /// Applies commands in their order, each with all its effects or not at all, and returns a result for each.
    /// [`engine::apply`](crate::domain::engine::apply) decides the effects, or a fast path that is proved equal.
    /// A job that would exceed [`Enqueue::max_waiting`](crate::domain::engine::Enqueue::max_waiting) is not written: the count and the write are one step.
    /// Repeating a settle that was applied succeeds while the record lives, also if the job was claimed again or
    /// replaced by a later generation since, but at most [`ATTEMPTS_KEPT`](crate::domain::limit::ATTEMPTS_KEPT)
    /// leases ago.
    fn apply(&self, requests: Vec<JobRequest>) -> BoxFuture<'_, Vec<Result<RequestResult>>>;

    /// Leases ready jobs to the streams of the claim, in the order of each topic.
    fn claim(&self, claim: Claim) -> StoreFuture<'_, ClaimResult>;

    /// Cancels a claim whose reply was lost: it takes nothing if it arrives later. Where a claim can arrive late,
    /// this always writes: it is the probe for writes of a shard on a network.
    fn cancel_lost_claim(&self, nonce: u32) -> StoreFuture<'_, ()>;

    /// Reads running leases. They may have changed by the time the caller acts; the command that follows checks that.
    fn query_leases(&self, what: LeaseQuery) -> StoreFuture<'_, LeaseQueryResult>;

    /// Reads jobs; with `full`, also payload, result and attempts.
    fn get(&self, keys: Vec<JobKey>, full: bool) -> StoreFuture<'_, Vec<Option<Job>>>;

    /// Reads a job with what explains why it does not run. Of the READY jobs that come before it in claims with this
    /// ageing, no more than `limit` are counted, and fewer where a longer read would block the shard.
    fn explain(
        &self,
        key: JobKey,
        ageing: Option<PriorityAgeing>,
        limit: u64,
    ) -> StoreFuture<'_, Option<ExplainedJob>>;

    /// Makes jobs past their expire time EXPIRED and deletes records past their retention, at most `limit` jobs, and
    /// returns when more is due.
    fn prune(&self, limit: usize) -> StoreFuture<'_, PruneResult>;

    /// Checks at most `limit` topics behind `after`, and deletes those that have been empty for
    /// [`EMPTY_TOPIC_MAX`](crate::domain::limit::EMPTY_TOPIC_MAX): the first check that finds a topic empty marks it,
    /// and one that finds it so that much later deletes it, if no job has come meanwhile. Its totals are deleted too.
    /// Subscribers receive [`ShardEvent::TopicForgotten`].
    fn prune_topics(
        &self,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, PruneTopicsResult>;

    /// Lists jobs of a topic in one state, by due time.
    fn list(&self, list: ListQuery) -> StoreFuture<'_, ListPage>;

    /// Lists topics whose names begin with `prefix` and sort after `after`, in order. A read of one topic is cheap:
    /// it is the probe for reads of a shard.
    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<TopicInfo>>;

    /// Reads a part of the ids of a topic: from the end of the last part, at least `limit` of them checked. An id
    /// that exists the whole time is in at least one part, possibly in several.
    fn ids(&self, topic: TopicName, from: Option<String>, limit: usize)
    -> StoreFuture<'_, IdsPage>;

    /// Returns statistics of topics; `None` for a topic that does not exist.
    fn stats(
        &self,
        topics: Vec<TopicName>,
        options: StatsOptions,
    ) -> StoreFuture<'_, Vec<Option<ShardTopicStats>>>;

    /// Returns the waiting jobs that leave a topic for new ones, as [`RoomQuery::goals`] has it: those of the lowest
    /// priority, of them those with the earliest due time. Of the jobs with a group, the first few hundred by due time are
    /// compared where that takes the read of their records. `None`: there are not as many bytes as have to leave at least
    /// among the first [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) of them, so none leaves.
    fn oldest_waiting(
        &self,
        topic: TopicName,
        room: RoomQuery,
    ) -> StoreFuture<'_, Option<LeavingJobs>>;

    /// Lists the groups of a topic that have waiting or running jobs, in the order of their text.
    fn groups(&self, query: GroupsQuery) -> StoreFuture<'_, Vec<ShardGroupStats>>;

    /// Returns statistics of the shard.
    fn info(&self) -> StoreFuture<'_, StoreInfo>;

    /// Returns the space that the store uses and has; cheap, whatever it holds.
    fn usage(&self) -> StoreFuture<'_, StoreUsage>;

    /// Subscribes to hints about events on the shard. A receiver that lags must act as after
    /// [`ShardEvent::EventsMissed`].
    fn subscribe(&self, about: EventKind) -> broadcast::Receiver<ShardEvent>;

    /// Stores the heartbeat of a replica, and reads the state that all replicas of the shard share.
    fn heartbeat(&self, beat: Heartbeat) -> StoreFuture<'_, SharedState>;

    /// Sets for all replicas whether the shard takes new jobs; connected replicas receive [`ShardEvent::StateSet`].
    /// `until` is the deadline of the caller.
    fn set_state(&self, state: ShardState, until: Option<Instant>) -> StoreFuture<'_, ()>;

    /// Stores documents, each if the shard has the expected version, and applies their effects in the same write: a
    /// paused topic or group is not claimed from, and wakes its subscribers when it resumes; a topic that is delivered or
    /// paused by a policy exists, and stays without jobs, too, until another policy releases or forgets it. One that is
    /// forgotten with jobs goes as soon as it is empty, unless a new job came. Subscribers receive
    /// [`ShardEvent::DocumentsChanged`]. `until` is the deadline of the caller.
    fn write_documents(
        &self,
        documents: Vec<DocumentWrite>,
        until: Option<Instant>,
    ) -> StoreFuture<'_, Vec<DocumentWriteResult>>;

    /// Reads at most `limit` documents that were stored after the change with number `after`, in the order of their
    /// changes.
    fn documents(&self, after: u64, limit: usize) -> StoreFuture<'_, DocumentsPage>;

    /// Removes documents of which nothing is left, and raises the horizon, if the shard has the last change and the
    /// horizon that the caller has read; returns whether it has. `until` is the deadline of the caller.
    fn forget_documents(
        &self,
        removal: DocumentRemoval,
        until: Option<Instant>,
    ) -> StoreFuture<'_, bool>;

    /// Finishes the accepted calls and releases the shard. Later calls are rejected.
    fn close(&self) -> BoxFuture<'_, ()>;
}

impl dyn Store + '_ {
    /// Returns the name of the shard.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        &self.identity().name
    }

    /// Returns whether other servers may use the shard too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.identity().is_shared
    }

    /// Returns the durability of writes, as last observed.
    #[must_use]
    pub fn write_durability(&self) -> WriteDurability {
        self.status().borrow().write_durability()
    }
}

/// Combines the results of the commands of a call.
///
/// # Errors
/// Returns the error that matters most for the shard; other commands of the call may be applied then. If the shard
/// failed between them, the error is [`Error::OutcomeUnknown`].
pub fn all_or_worst_error<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let Some(error) = worst_error(&results).cloned() else {
        return Ok(results.into_iter().flatten().collect());
    };
    let is_applied = results.iter().any(Result::is_ok);
    Err(match error {
        Error::OutcomeUnknown(_) => error,
        error if is_applied && error.is_shard_failure() => {
            Error::OutcomeUnknown(format!("a part of the call was applied: {error}"))
        }
        error => error,
    })
}

/// Returns the number of commands that were applied. Errors of single jobs are logged, and these jobs stay unchanged.
///
/// # Errors
/// Fails when the shard failed, or when some commands failed and none was applied.
pub fn count_done(results: Vec<Result<RequestResult>>) -> Result<u64> {
    let done = results.iter().flatten().filter(|applied| applied.is_done()).count() as u64;
    match worst_error(&results) {
        Some(error) if done == 0 || error.is_shard_failure() => {
            all_or_worst_error(results).map(|_| done)
        }
        Some(error) => {
            tracing::warn!(%error, "a command failed for some jobs of a call; they are unchanged");
            Ok(done)
        }
        None => Ok(done),
    }
}

/// Returns the error that matters most for the shard: first an unknown outcome, then an unavailable shard, then any
/// other.
pub(crate) fn worst_error<T>(results: &[Result<T>]) -> Option<&Error> {
    let rank = |error: &&Error| (!error.outcome_unknown(), !error.is_shard_failure());
    results.iter().filter_map(|result| result.as_ref().err()).min_by_key(rank)
}
