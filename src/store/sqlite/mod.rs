//! The embedded store: one SQLite file is one shard.
//!
//! One thread writes; whatever all verbs have waiting goes into one transaction and one fsync
//! (`writer.rs`). Reads run beside it on connections of their own (`reader.rs`). Statements live in
//! `.sql` files beside the code that runs them. The schema is in `migrations/`.
//!
//! What is due is decided by the process's clock; see [`crate::clock::Clock`].

#![expect(clippy::ptr_arg, reason = "the writer hands a verb a reference to its input, as it is")]

mod apply;
mod beat;
mod claim;
mod decide;
mod enqueue;
mod fault;
mod get;
mod heal;
mod info;
mod leases;
mod open;
mod query;
mod reader;
mod recall;
mod record;
mod reserve;
mod schema;
mod select;
mod session;
mod settle;
mod sql;
mod upkeep;
mod write;
mod writer;

use std::fs::File;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, TopicName, limit};
use crate::store::{
    self, About, Applied, Beat, Census, Claim, Claims, Condition, Event, Events, Identity, Ids,
    Info, List, Page, Pruned, Reply, Request, Select, Selected, Stats, Store, Tidied, Topic,
};

use reader::Readers;
use writer::{Sync, Writer};

pub use open::{Config, Database, OpenError};

/// A SQLite shard.
pub struct SqliteStore {
    identity: Identity,
    /// Never changes.
    condition: watch::Sender<Condition>,
    clock: Clock,
    writer: Writer,
    readers: Option<Readers>,
    events: Events,
    /// When something is to be pruned: past it, what is counted would be wrong.
    prune_at: Arc<AtomicI64>,
    /// Held as long as the store: a second server on the same file must not start.
    lock: Mutex<Option<File>>,
}

// === impl SqliteStore ===

impl SqliteStore {
    /// Runs a read: beside the writer, or on it where there is no file to read beside.
    fn read<I: Send + 'static, O: Send + 'static>(
        &self,
        input: I,
        read: reader::Read<I, O>,
    ) -> Reply<'_, O> {
        match &self.readers {
            Some(readers) => Box::pin(readers.call(input, read)),
            None => {
                let input = (input, read);
                self.writer.call(Sync::Lazy, 1, input, |session, (input, read)| {
                    let shard = session.shard().clone();
                    let (connection, now) = (session.connection, session.now);
                    read(&reader::Reader { connection, now, shard: &shard }, input)
                })
            }
        }
    }

    /// Like [`SqliteStore::read`], after what is past its time was pruned. Where more of it comes all the time, or very
    /// much is left, the read does not wait for that.
    fn read_pruned<I: Send + 'static, O: Send + 'static>(
        &self,
        input: I,
        read: reader::Read<I, O>,
    ) -> Reply<'_, O> {
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
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn condition(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    fn apply(&self, requests: Vec<Request>) -> BoxFuture<'_, Vec<store::Result<Applied>>> {
        let durability = self.condition.borrow().reach().plain;
        Box::pin(apply::apply_all(&self.writer, requests, durability))
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Claims> {
        let claims = self.writer.call(Sync::Lazy, limit::CALL_JOBS_MAX, claim, claim::claim);
        Box::pin(async move { Ok(claim::decode(claims.await?)) })
    }

    fn void(&self, _nonce: u32) -> Reply<'_, ()> {
        // A claim comes before every call that was made after it.
        self.writer.call(Sync::Lazy, 1, (), beat::touch)
    }

    fn select(&self, what: Select) -> Reply<'_, Selected> {
        match what {
            Select::Overdue { limit } => {
                self.writer.call(Sync::Lazy, limit, limit, select::overdue)
            }
            Select::Named(refs) => self.writer.call(Sync::Lazy, refs.len(), refs, leases::named),
            Select::Orphans { living } => self.read(living, select::orphans),
            Select::OfStreams(streams) => self.read(streams, select::of_streams),
            Select::OfClaim { nonce, topics: _, from } => {
                let part = select::OfClaim { nonce, from };
                self.writer.call(Sync::Lazy, 1, part, select::of_claim)
            }
        }
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>> {
        self.read(get::Get { keys, full }, get::get)
    }

    fn prune(&self, limit: usize) -> Reply<'_, Pruned> {
        self.writer.call(Sync::Lazy, limit, limit, upkeep::prune)
    }

    fn tidy(&self, after: Option<TopicName>, limit: usize) -> Reply<'_, Tidied> {
        self.writer.call(Sync::Lazy, limit, upkeep::Tidy { after, limit }, upkeep::tidy)
    }

    fn list(&self, list: List) -> Reply<'_, Page> {
        self.read_pruned(list, query::list)
    }

    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> Reply<'_, Vec<Topic>> {
        self.read(query::Topics { prefix, after, limit }, query::topics)
    }

    fn ids(&self, topic: TopicName, from: Option<String>, limit: usize) -> Reply<'_, Ids> {
        self.read(query::PartOfIds { topic, from, limit }, query::ids)
    }

    fn stats(&self, topics: Vec<TopicName>) -> Reply<'_, Vec<Option<Stats>>> {
        self.read_pruned(topics, query::stats)
    }

    fn info(&self) -> Reply<'_, Info> {
        Box::pin(async move {
            let info::Found { state, content, bytes } = self.read((), info::info).await?;
            let jobs = content.jobs();
            Ok(Info { kind: "sqlite", state, jobs, content, bytes })
        })
    }

    fn events(&self, about: About) -> broadcast::Receiver<Event> {
        self.events.about(about)
    }

    fn beat(&self, beat: Beat) -> Reply<'_, Census> {
        self.writer.call(Sync::Full, 1, beat, beat::beat)
    }

    fn set_state(&self, state: ShardState, until: Option<Instant>) -> Reply<'_, ()> {
        self.writer.call_until(until, Sync::Full, 1, state, beat::set_state)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(readers) = &self.readers {
                readers.close();
            }
            self.writer.close().await;
            self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        })
    }
}
