//! The embedded store: one SQLite file is one shard.
//!
//! A single thread writes; the waiting calls of all verbs go into one transaction and one fsync (`writer.rs`). Reads
//! run beside it on connections of their own (`reader.rs`). Statements are in `.sql` files beside the code that runs
//! them. The schema is in `migrations/`.
//!
//! The clock of the process decides what is due; see [`crate::clock::Clock`].

#![expect(clippy::ptr_arg, reason = "the writer passes a verb a reference to its input, as it is")]

mod apply;
mod claim;
mod claim_lanes;
mod claim_order;
mod claim_session;
mod clock_rollback;
mod disk_reserve;
mod documents;
mod ended_ids;
mod enqueue;
mod error_mapping;
mod explain;
mod file_watch;
mod full_topics;
mod get;
mod group_settings;
mod heartbeat;
mod info;
mod job_row;
mod lane_setting;
mod lanes;
mod lease_query;
mod leases;
mod open;
mod prune;
mod query;
mod reader;
mod run_engine;
mod schema;
mod settle;
mod statement;
mod topic_counts;
mod transaction;
mod write_job;
mod writer;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, PriorityAgeing, ReceiptKey, TopicName, limit};
use crate::store::{
    self, Claim, ClaimResult, DocumentRemoval, DocumentWrite, DocumentWriteResult, DocumentsPage,
    EventKind, ExplainedJob, GroupsQuery, Heartbeat, IdsPage, JobRequest, LeaseQuery,
    LeaseQueryResult, LeavingJobs, ListPage, ListQuery, PruneResult, PruneTopicsResult,
    RequestResult, RoomQuery, ShardEvent, ShardEvents, ShardGroupStats, ShardIdentity, ShardStatus,
    ShardTopicStats, SharedState, StatsOptions, Store, StoreFuture, StoreInfo, StoreUsage,
    TopicInfo,
};

use reader::SqliteReaders;
use writer::{SqliteWriter, SyncLevel};

pub use open::{Config, Database, SqliteOpenError};

/// A SQLite shard.
pub struct SqliteStore {
    identity: ShardIdentity,
    receipt_key: ReceiptKey,
    /// Status of the shard; changes when its file is moved.
    status: watch::Sender<ShardStatus>,
    _file_watch: Option<AbortOnDropHandle<()>>,
    clock: Clock,
    writer: SqliteWriter,
    readers: Option<SqliteReaders>,
    events: ShardEvents,
    /// Time of the next prune: after it, counts would be wrong before one.
    prune_at: Arc<AtomicI64>,
    /// Lock of the file, held as long as the store: a second server on the same file must not start.
    lock: Mutex<Option<File>>,
}

// === impl SqliteStore ===

impl SqliteStore {
    /// Runs a read: beside the writer, or on the writer if the database is in memory.
    fn read<I: Send + 'static, O: Send + 'static>(
        &self,
        input: I,
        read: reader::ReadFn<I, O>,
    ) -> StoreFuture<'_, O> {
        match &self.readers {
            Some(readers) => Box::pin(readers.call(input, read)),
            None => {
                let input = (input, read);
                self.writer.call(SyncLevel::Lazy, 1, input, |session, (input, read)| {
                    let shard = session.shard().clone();
                    let (connection, now) = (session.connection, session.now);
                    read(&reader::SqliteReader { connection, now, shard: &shard }, input)
                })
            }
        }
    }

    /// Returns the bytes that a topic takes. Read in parts, so that no part holds a reader, or the state that it sees
    /// and with it the log of the database, for long.
    async fn stored_bytes(&self, topic: TopicName) -> store::Result<u64> {
        let (mut bytes, mut after_id) = (0, None);
        loop {
            let part = query::StoredQuery { topic: topic.clone(), after_id };
            let part = self.read(part, query::stored).await?;
            bytes += part.bytes;
            match part.last_id {
                Some(last) => after_id = Some(last),
                None => return Ok(bytes),
            }
        }
    }

    /// Runs a read as [`SqliteStore::read`] does, after pruning. The number of prunes is limited: the read does not
    /// wait for all of a large backlog.
    fn read_pruned<I: Send + 'static, O: Send + 'static>(
        &self,
        input: I,
        read: reader::ReadFn<I, O>,
    ) -> StoreFuture<'_, O> {
        Box::pin(async move {
            for _ in 0..limit::PRUNES_MAX {
                if self.prune_at.load(Ordering::Acquire) > self.clock.now().0 {
                    break;
                }
                self.prune(limit::CALL_JOBS_MAX).await?;
            }
            self.read(input, read).await
        })
    }
}

impl Store for SqliteStore {
    fn identity(&self) -> &ShardIdentity {
        &self.identity
    }

    fn receipt_key(&self) -> Option<ReceiptKey> {
        Some(self.receipt_key)
    }

    fn status(&self) -> watch::Receiver<ShardStatus> {
        self.status.subscribe()
    }

    fn apply(&self, requests: Vec<JobRequest>) -> BoxFuture<'_, Vec<store::Result<RequestResult>>> {
        let durability = self.status.borrow().write_durability().by_default;
        Box::pin(apply::apply_all(&self.writer, requests, durability))
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, ClaimResult> {
        let claims = self.writer.call(SyncLevel::Lazy, limit::CALL_JOBS_MAX, claim, claim::claim);
        Box::pin(async move { Ok(claim::decode_payloads(claims.await?)) })
    }

    fn cancel_lost_claim(&self, _nonce: u32) -> StoreFuture<'_, ()> {
        // A claim runs before every call that was made after it.
        self.writer.call(SyncLevel::Lazy, 1, (), heartbeat::touch)
    }

    fn query_leases(&self, what: LeaseQuery) -> StoreFuture<'_, LeaseQueryResult> {
        match what {
            LeaseQuery::Overdue { limit } => {
                self.writer.call(SyncLevel::Lazy, limit, limit, lease_query::overdue)
            }
            LeaseQuery::ByRef(refs) => {
                self.writer.call(SyncLevel::Lazy, refs.len(), refs, leases::leases_by_ref)
            }
            LeaseQuery::Orphaned { live_owners: living } => self.read(living, lease_query::orphans),
            LeaseQuery::OfStreams(streams) => self.read(streams, lease_query::of_streams),
            LeaseQuery::OfLostClaim { nonce, topics: _, cursor: from } => {
                let part = lease_query::LostClaimQuery { nonce, from };
                self.writer.call(SyncLevel::Lazy, 1, part, lease_query::of_claim)
            }
        }
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> StoreFuture<'_, Vec<Option<Job>>> {
        self.read(get::GetJobs { keys, full }, get::get)
    }

    fn explain(
        &self,
        key: JobKey,
        ageing: Option<PriorityAgeing>,
        limit: u64,
    ) -> StoreFuture<'_, Option<ExplainedJob>> {
        self.read_pruned(explain::ExplainQuery { key, ageing, limit }, explain::explain)
    }

    fn prune(&self, limit: usize) -> StoreFuture<'_, PruneResult> {
        self.writer.call(SyncLevel::Lazy, limit, limit, prune::prune)
    }

    fn prune_topics(
        &self,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, PruneTopicsResult> {
        self.writer.call(
            SyncLevel::Lazy,
            limit,
            prune::PruneTopics { after, limit },
            prune::prune_topics,
        )
    }

    fn list(&self, list: ListQuery) -> StoreFuture<'_, ListPage> {
        self.read_pruned(list, query::list)
    }

    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<TopicInfo>> {
        self.read(query::TopicsQuery { prefix, after, limit }, query::topics)
    }

    fn ids(
        &self,
        topic: TopicName,
        from: Option<String>,
        limit: usize,
    ) -> StoreFuture<'_, IdsPage> {
        self.read(query::IdsQuery { topic, after_id: from, limit }, query::ids)
    }

    fn stats(
        &self,
        topics: Vec<TopicName>,
        options: StatsOptions,
    ) -> StoreFuture<'_, Vec<Option<ShardTopicStats>>> {
        Box::pin(async move {
            let mut stats = self.read_pruned((topics.clone(), options), query::stats).await?;
            if options.stored_bytes {
                for (topic, stats) in topics.into_iter().zip(stats.iter_mut()) {
                    if let Some(stats) = stats {
                        stats.stored_bytes = Some(self.stored_bytes(topic).await?);
                    }
                }
            }
            Ok(stats)
        })
    }

    fn oldest_waiting(
        &self,
        topic: TopicName,
        room: RoomQuery,
    ) -> StoreFuture<'_, Option<LeavingJobs>> {
        let query = full_topics::EvictQuery { topic, room };
        self.writer.call(SyncLevel::Lazy, 1, query, full_topics::oldest_waiting)
    }

    fn groups(&self, query: GroupsQuery) -> StoreFuture<'_, Vec<ShardGroupStats>> {
        self.read_pruned(query, group_settings::groups)
    }

    fn info(&self) -> StoreFuture<'_, StoreInfo> {
        Box::pin(async move {
            let info::FileInfo { state, content, bytes } = self.read((), info::info).await?;
            let jobs = content.total();
            Ok(StoreInfo { kind: "sqlite", state, jobs, counts: content, bytes })
        })
    }

    fn usage(&self) -> StoreFuture<'_, StoreUsage> {
        let path = self.readers.as_ref().map(|readers| readers.path().to_owned());
        self.read(path, info::usage)
    }

    fn subscribe(&self, about: EventKind) -> broadcast::Receiver<ShardEvent> {
        self.events.subscribe(about)
    }

    fn heartbeat(&self, beat: Heartbeat) -> StoreFuture<'_, SharedState> {
        self.writer.call(SyncLevel::Full, 1, beat, heartbeat::beat)
    }

    fn set_state(&self, state: ShardState, until: Option<Instant>) -> StoreFuture<'_, ()> {
        self.writer.call_until(until, SyncLevel::Full, 1, state, heartbeat::set_state)
    }

    fn write_documents(
        &self,
        documents: Vec<DocumentWrite>,
        until: Option<Instant>,
    ) -> StoreFuture<'_, Vec<DocumentWriteResult>> {
        let count = documents.len();
        self.writer.call_until(until, SyncLevel::Full, count, documents, documents::write_documents)
    }

    fn documents(&self, after: u64, limit: usize) -> StoreFuture<'_, DocumentsPage> {
        self.read(documents::DocumentsQuery { after, limit }, documents::documents)
    }

    fn forget_documents(
        &self,
        removal: DocumentRemoval,
        until: Option<Instant>,
    ) -> StoreFuture<'_, bool> {
        let count = removal.documents.len().max(1);
        self.writer.call_until(until, SyncLevel::Full, count, removal, documents::forget_documents)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(readers) = &self.readers {
                readers.close();
            }
            self.writer.close().await;
            self.lock.lock().take();
        })
    }
}
