//! Redis store of a shard: the verbs of all stores, each carried out by one script or a few.
//!
//! Rust decides and the scripts write: [`crate::domain::engine`] decides commands on existing jobs, from the records
//! that `load` has read, and `commit` writes the results if the records are unchanged (`optimistic_commit.rs`). Three
//! fast paths write without that: the enqueue of a job whose id is free, the claim, and the ack that leaves nothing
//! or a tombstone. The keys are described in `keys.rs`, the values in `entry.rs`, the position of each field in
//! `layout.rs`.
//!
//! The clock of Redis decides which jobs are due; scripts read it themselves.
//!
//! | file | what of the store | scripts that it calls |
//! |---|---|---|
//! | `apply.rs` | `apply`: the path of each command | none of its own |
//! | `enqueue.rs` | none: the path of new jobs | `enqueue` |
//! | `settle.rs` | none: the path of acks | `settle` |
//! | `optimistic_commit.rs` | none: the path of all others, as the engine decides | `load`, `commit`, `commit_growing` for what needs memory |
//! | `heartbeat.rs` | `heartbeat`, `set_state` | `heartbeat`, `set_state` |
//! | `claim.rs` | `claim` | `claim` |
//! | `full_topics.rs` | `oldest_waiting` | `oldest_waiting` |
//! | `explain.rs` | `explain` | `explain` |
//! | `get.rs` | `get` | `get` |
//! | `groups.rs` | `groups` | `groups` |
//! | `info.rs` | `info`, `usage` | `info`, `last_kept_until` |
//! | `leases.rs` | none: leases by name, and the path of lease patches | `extend`, `change_stream`; leases are read as jobs are |
//! | `query.rs` | `list`, `topics`, `ids`, `stats` | `list`, `ids`, `stats` |
//! | `lease_query.rs` | `query_leases`, `cancel_lost_claim` | `reap`, `running`, `cancel_claim` |
//! | `shard.rs` | none: what opens a shard | `open`, `make_undelayed_due`, `topics` |
//! | `documents.rs` | `documents`, `write_documents`, `forget_documents` | `documents`, `write_documents`, `forget_documents` |
//! | `prune.rs` | `prune`, `prune_topics` | `prune`, `prune_topics` |
//!
//! | script of `lib/` | purpose |
//! |---|---|
//! | `clock` | the time, first of all |
//! | `ready_list`, `record` | a job in its order and its entry, read and written |
//! | `list_cursor` | position in an order from which a list continues |
//! | `outage` | times when no server served the shard |
//! | `ended_ids`, `id_history` | ended jobs with server-made ids: recorded, and looked up |
//! | `commit` | body of `commit` and `commit_growing`, which differ only in their need of memory |
//! | `topic_end` | the end of a topic |
//! | `lease_events` | notifies other replicas of changes to their leases |
//! | `claim_general` | claims outside of the common case |
//! | `lanes`, `claim_lanes` | waiting jobs and leases of groups, and claims from topics with groups |
//! | `lease_end` | a member of the index of leases |
//! | `order_of_mark` | the key of an order |
//! | `waiting_count` | the number of waiting jobs |
//! | `count_stored` | counts the bytes of jobs from before a limit of them |
//! | `document_horizon` | the number of the last change of documents, and what was removed |

mod address;
mod apply;
mod check;
mod claim;
mod commit;
mod connections;
mod documents;
mod durability_info;
mod durability_monitor;
mod durability_wait;
mod enqueue;
mod entry;
mod error_mapping;
mod event_sender;
mod explain;
mod full_topics;
mod get;
mod groups;
mod heartbeat;
mod info;
mod job_locks;
mod keys;
mod layout;
mod lease_query;
mod leases;
mod loaded_jobs;
mod notifications;
mod open;
mod optimistic_commit;
mod order_member;
mod prune;
mod query;
mod receipt_key;
mod record_version;
mod reply;
mod route;
mod script;
mod sentinel;
mod settle;
mod shard;
mod status;
mod subscription;
#[cfg(test)]
mod tests;
mod url;
mod write_window;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, PriorityAgeing, ReceiptKey, TopicName};
use crate::store::{
    Claim, ClaimResult, DocumentRemoval, DocumentWrite, DocumentWriteResult, DocumentsPage, Error,
    EventKind, ExplainedJob, GroupsQuery, Heartbeat, IdsPage, JobRequest, LeaseQuery,
    LeaseQueryResult, LeavingJobs, ListPage, ListQuery, PruneResult, PruneTopicsResult,
    RequestResult, Result, RoomQuery, ShardEvent, ShardGroupStats, ShardIdentity, ShardStatus,
    ShardTopicStats, SharedState, StatsOptions, Store, StoreFuture, StoreInfo, StoreUsage,
    TopicInfo, codec,
};

use connections::ConnectionLane;
use event_sender::RedisEventSender;
use job_locks::JobLocks;
use script::{ScriptCall, Verb};
use shard::RedisShard;

pub use address::{RedisAddress, RedisTlsFiles};
pub use open::{Config, RedisOpenError};
pub use url::InvalidAddress;

/// Time for which [`Store::close`] waits for calls under way: longer than the response timeout, and less than its
/// caller waits.
const CLOSE_MAX: Duration = Duration::from_secs(4);

/// A Redis shard.
pub struct RedisStore {
    identity: ShardIdentity,
    /// Nonce of this replica.
    owner: u32,
    shard: Arc<RedisShard>,
    events: Arc<RedisEventSender>,
    /// Locks that serialize commands on one job.
    job_locks: JobLocks,
    tasks: parking_lot::Mutex<Vec<AbortOnDropHandle<()>>>,
    /// Redis refused to report the memory of keys when it was last asked.
    memory_usage_refused: AtomicBool,
}

// === impl RedisStore ===

impl RedisStore {
    fn call(&self, verb: Verb) -> ScriptCall {
        self.shard.call(verb)
    }

    /// Runs a call that is answered with a list.
    async fn run(&self, lane: ConnectionLane, call: &ScriptCall) -> Result<reply::ScriptReply> {
        reply::ScriptReply::new(self.shard.run(lane, call).await?)
    }

    fn with_tasks(&self, change: impl FnOnce(&mut Vec<AbortOnDropHandle<()>>)) {
        change(&mut self.tasks.lock());
    }
}

fn corrupt_error(error: codec::StoredDecodeError) -> Error {
    Error::Corrupt(error.to_string())
}

impl Store for RedisStore {
    fn identity(&self) -> &ShardIdentity {
        &self.identity
    }

    fn receipt_key(&self) -> Option<ReceiptKey> {
        self.shard.receipt_key.get()
    }

    fn status(&self) -> watch::Receiver<ShardStatus> {
        self.shard.status.subscribe()
    }

    fn apply(&self, requests: Vec<JobRequest>) -> BoxFuture<'_, Vec<Result<RequestResult>>> {
        Box::pin(self.apply(requests))
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, ClaimResult> {
        Box::pin(self.claim(claim))
    }

    fn cancel_lost_claim(&self, nonce: u32) -> StoreFuture<'_, ()> {
        Box::pin(self.cancelled_claim_member(nonce))
    }

    fn query_leases(&self, what: LeaseQuery) -> StoreFuture<'_, LeaseQueryResult> {
        Box::pin(self.query_leases(what))
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> StoreFuture<'_, Vec<Option<Job>>> {
        Box::pin(self.get(keys, full))
    }

    fn explain(
        &self,
        key: JobKey,
        ageing: Option<PriorityAgeing>,
        limit: u64,
    ) -> StoreFuture<'_, Option<ExplainedJob>> {
        Box::pin(self.explain(key, ageing, limit))
    }

    fn prune(&self, limit: usize) -> StoreFuture<'_, PruneResult> {
        Box::pin(self.prune(limit))
    }

    fn prune_topics(
        &self,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, PruneTopicsResult> {
        Box::pin(self.prune_topics(after, limit))
    }

    fn list(&self, list: ListQuery) -> StoreFuture<'_, ListPage> {
        Box::pin(self.list(list))
    }

    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<TopicInfo>> {
        Box::pin(self.topics(prefix, after, limit))
    }

    fn ids(
        &self,
        topic: TopicName,
        from: Option<String>,
        limit: usize,
    ) -> StoreFuture<'_, IdsPage> {
        Box::pin(self.ids(topic, from, limit))
    }

    fn stats(
        &self,
        topics: Vec<TopicName>,
        options: StatsOptions,
    ) -> StoreFuture<'_, Vec<Option<ShardTopicStats>>> {
        Box::pin(self.stats(topics, options))
    }

    fn oldest_waiting(
        &self,
        topic: TopicName,
        room: RoomQuery,
    ) -> StoreFuture<'_, Option<LeavingJobs>> {
        Box::pin(self.oldest_waiting(topic, room))
    }

    fn groups(&self, query: GroupsQuery) -> StoreFuture<'_, Vec<ShardGroupStats>> {
        Box::pin(self.groups(query))
    }

    fn info(&self) -> StoreFuture<'_, StoreInfo> {
        Box::pin(self.info())
    }

    fn usage(&self) -> StoreFuture<'_, StoreUsage> {
        Box::pin(self.usage())
    }

    fn subscribe(&self, about: EventKind) -> broadcast::Receiver<ShardEvent> {
        self.events.subscribe(about)
    }

    fn heartbeat(&self, beat: Heartbeat) -> StoreFuture<'_, SharedState> {
        Box::pin(self.heartbeat(beat))
    }

    fn set_state(&self, state: ShardState, until: Option<Instant>) -> StoreFuture<'_, ()> {
        Box::pin(self.set_state(state, until))
    }

    fn write_documents(
        &self,
        documents: Vec<DocumentWrite>,
        until: Option<Instant>,
    ) -> StoreFuture<'_, Vec<DocumentWriteResult>> {
        Box::pin(self.write_documents(documents, until))
    }

    fn documents(&self, after: u64, limit: usize) -> StoreFuture<'_, DocumentsPage> {
        Box::pin(self.documents(after, limit))
    }

    fn forget_documents(
        &self,
        removal: DocumentRemoval,
        until: Option<Instant>,
    ) -> StoreFuture<'_, bool> {
        Box::pin(self.forget_documents(removal, until))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if !self.shard.close(CLOSE_MAX).await {
                tracing::warn!(shard = %self.identity.name, "the store was closed while calls were under way");
            }
            self.with_tasks(Vec::clear);
            self.shard.connections.disconnect();
        })
    }
}
