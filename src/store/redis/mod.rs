//! A plain Redis as a shard: the same verbs as everywhere, each one script or a few.
//!
//! Rust decides, the scripts move: what is asked of jobs that are there is decided by [`crate::domain::engine`] on what
//! `load` has read, and `commit` writes it if they are still what they were (`rounds.rs`). Three fast paths do the same
//! by themselves: the enqueue of a job whose id is free, the claim, and the ack that leaves nothing or a tombstone. The
//! keys are described in `keys.rs`, what lies under them in `entry.rs`, where each field is in `layout.rs`.
//!
//! What is due is decided by the clock of Redis, which scripts read themselves.
//!
//! | file | what of the store | scripts that it calls |
//! |---|---|---|
//! | `apply.rs` | `apply`: which way each command goes | none of its own |
//! | `enqueue.rs` | none: the way of new jobs | `enqueue` |
//! | `settle.rs` | none: the way of acks | `settle` |
//! | `rounds.rs` | none: the way of all others, as the engine decides | `load`, `commit`, `put` for what needs memory |
//! | `beat.rs` | `beat`, `set_state` | `beat`, `set_state` |
//! | `claim.rs` | `claim` | `claim` |
//! | `get.rs` | `get` | `get` |
//! | `info.rs` | `info` | `info`, `kept` |
//! | `leases.rs` | none: leases by name, and the way of lease patches | `extend`, `tie`; leases are read as jobs are |
//! | `query.rs` | `list`, `topics`, `ids`, `stats` | `list`, `ids`, `stats` |
//! | `select.rs` | `select`, `void` | `reap`, `running`, `void` |
//! | `shard.rs` | none: what opens a shard | `open`, `heal`, `topics` |
//! | `upkeep.rs` | `prune`, `tidy` | `prune`, `tidy` |
//!
//! | script of `lib/` | what others include it for |
//! |---|---|
//! | `clock` | the time, first of all |
//! | `line`, `record` | a job in its order and its entry, read and written |
//! | `place` | where a list or heal goes on in an order |
//! | `away` | when no server served the shard |
//! | `recall`, `memory` | an ended job whose id a server made: noted, and recalled |
//! | `commit` | `commit` and `put` are the same but for memory |
//! | `tell` | other replicas hear what became of their leases |
//! | `claim_general` | a claim that is not the commonest one |

mod address;
mod apply;
mod beat;
mod book;
mod check;
mod claim;
mod commit;
mod condition;
mod enqueue;
mod entry;
mod facts;
mod fault;
mod get;
mod hints;
mod info;
mod keys;
mod layout;
mod leases;
mod link;
mod member;
mod observe;
mod open;
mod query;
mod reply;
mod rounds;
mod route;
mod script;
mod select;
mod sentinel;
mod settle;
mod shard;
mod subscription;
#[cfg(test)]
mod tests;
mod turns;
mod upkeep;
mod url;
mod version;
mod wait;
mod wake_ups;
mod window;

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::Value;
use futures::future::BoxFuture;
use tokio::sync::{Semaphore, SemaphorePermit, broadcast, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::ring::ShardState;
use crate::domain::{Job, JobKey, TopicName};
use crate::store::{
    About, Applied, Beat, Census, Claim, Claims, Condition, Error, Event, Identity, Ids, Info,
    List, Page, Pruned, Reply, Request, Result, Select, Selected, Stats, Store, Tidied, Topic,
    codec,
};

use hints::Hints;
use link::Lane;
use script::{Call, Verb};
use shard::Shard;
use turns::Turns;

pub use address::{Address, Tls};
pub use open::{Config, OpenError};
pub use url::InvalidAddress;

/// Calls under way at once; more wait in their callers.
const CALLS_MAX: u32 = 4_096;
/// How long [`Store::close`] waits for calls under way: longer than an answer may take, and less than its caller
/// waits.
const CLOSE_MAX: Duration = Duration::from_secs(4);

/// A Redis shard.
pub struct RedisStore {
    identity: Identity,
    /// Nonce of this replica.
    owner: u32,
    shard: Arc<Shard>,
    hints: Arc<Hints>,
    /// Commands on one job take turns.
    turns: Turns,
    /// One permit per call under way; closed with the store.
    calls: Semaphore,
    tasks: std::sync::Mutex<Vec<AbortOnDropHandle<()>>>,
}

// === impl RedisStore ===

impl RedisStore {
    fn call(&self, verb: Verb) -> Call {
        self.shard.call(verb)
    }

    /// Runs a call that is answered with a list.
    async fn run(&self, lane: Lane, call: &Call) -> Result<reply::Reply> {
        reply::Reply::new(self.run_raw(lane, call).await?)
    }

    async fn run_raw(&self, lane: Lane, call: &Call) -> Result<Value> {
        let _permit = self.permit().await?;
        self.shard.run(lane, call).await
    }

    /// Counts a call under way; refused once the store is closed.
    async fn permit(&self) -> Result<SemaphorePermit<'_>> {
        self.calls.acquire().await.map_err(|_| Error::Unavailable("the store is closed".into()))
    }

    fn with_tasks(&self, change: impl FnOnce(&mut Vec<AbortOnDropHandle<()>>)) {
        change(&mut self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

fn damaged(error: codec::Undecodable) -> Error {
    Error::Corrupt(error.to_string())
}

impl Store for RedisStore {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn condition(&self) -> watch::Receiver<Condition> {
        self.shard.condition.subscribe()
    }

    fn apply(&self, requests: Vec<Request>) -> BoxFuture<'_, Vec<Result<Applied>>> {
        Box::pin(self.apply(requests))
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Claims> {
        Box::pin(self.claim(claim))
    }

    fn void(&self, nonce: u32) -> Reply<'_, ()> {
        Box::pin(self.void(nonce))
    }

    fn select(&self, what: Select) -> Reply<'_, Selected> {
        Box::pin(self.select(what))
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>> {
        Box::pin(self.get(keys, full))
    }

    fn prune(&self, limit: usize) -> Reply<'_, Pruned> {
        Box::pin(self.prune(limit))
    }

    fn tidy(&self, after: Option<TopicName>, limit: usize) -> Reply<'_, Tidied> {
        Box::pin(self.tidy(after, limit))
    }

    fn list(&self, list: List) -> Reply<'_, Page> {
        Box::pin(self.list(list))
    }

    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> Reply<'_, Vec<Topic>> {
        Box::pin(self.topics(prefix, after, limit))
    }

    fn ids(&self, topic: TopicName, from: Option<String>, limit: usize) -> Reply<'_, Ids> {
        Box::pin(self.ids(topic, from, limit))
    }

    fn stats(&self, topics: Vec<TopicName>) -> Reply<'_, Vec<Option<Stats>>> {
        Box::pin(self.stats(topics))
    }

    fn info(&self) -> Reply<'_, Info> {
        Box::pin(self.info())
    }

    fn events(&self, about: About) -> broadcast::Receiver<Event> {
        self.hints.about(about)
    }

    fn beat(&self, beat: Beat) -> Reply<'_, Census> {
        Box::pin(self.beat(beat))
    }

    fn set_state(&self, state: ShardState, until: Option<Instant>) -> Reply<'_, ()> {
        Box::pin(self.set_state(state, until))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let all = self.calls.acquire_many(CALLS_MAX);
            if tokio::time::timeout(CLOSE_MAX, all).await.is_err() {
                tracing::warn!(shard = %self.identity.name, "calls were under way when the store was closed");
            }
            self.calls.close();
            self.with_tasks(Vec::clear);
            self.shard.link.disconnect();
        })
    }
}
