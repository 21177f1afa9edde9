//! The embedded store: one SQLite file is one shard.
//!
//! One thread writes; whatever all verbs have waiting goes into one transaction and one fsync
//! (`writer.rs`). Reads run beside it on connections of their own (`reader.rs`). Statements live in
//! `.sql` files beside the code that runs them. The schema is in `migrations/`.
//!
//! What is due is decided by the process's clock; see [`crate::clock::Clock`].

#![expect(clippy::ptr_arg, reason = "the writer hands a verb a reference to its input, as it is")]

mod beat;
mod claim;
mod delete;
mod enqueue;
mod fault;
mod finish;
mod generation;
mod info;
mod lifecycle;
mod prune;
mod query;
mod reader;
mod reap;
mod recall;
mod reserve;
mod row;
mod schema;
mod session;
mod settle;
mod sql;
mod writer;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::broadcast;

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{Durability, Job, JobKey, ShardName, Time, TopicName, limit};
use crate::store::{
    About, Beat, Census, Claim, Claims, Delete, Deleted, Enqueue, Event, Events, Extend, Ids, Info,
    Lease, LeaseRef, List, NewJob, Page, Pruned, Reach, Reaped, Redrive, Redriven, Refused, Reply,
    Reschedule, Rescheduled, Settle, Settled, Stats, Store, Topic, Unclaim,
};

use reader::Readers;
use reserve::Reserve;
use session::State;
use settle::Prepare;
use writer::{Sync, Writer};

/// Which database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// A file, made if it is not there. Beside it lie the log (`-wal`), its index (`-shm`), a
    /// lock (`.lock`) and 20 MiB kept free for settles (`.reserve`).
    File(PathBuf),
    /// Memory: gone with the process. Durability is MEMORY.
    Memory,
}

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shard's name; a file that carries another one is refused.
    pub name: ShardName,
    /// Which database.
    pub database: Database,
    /// Decides what is due.
    pub clock: Clock,
}

/// Why a store could not be opened. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process serves this file.
    #[error("{0} is in use by another server; stop that one or choose another file")]
    Locked(PathBuf),
    /// The folder or file cannot be made, read or written.
    #[error("{path} cannot be opened: {error}; check that the directory exists and is writable")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file belongs to another shard.
    #[error(
        "the file is shard {found}, not {asked}; a shard keeps its name for ever: \
         configure it as {found} or choose another file"
    )]
    OtherName {
        /// The name in the file.
        found: String,
        /// The configured one.
        asked: String,
    },
    /// The file was written by a newer version.
    #[error("the schema is version {found}, this build knows {known}; use a newer build")]
    Newer {
        /// In the file.
        found: usize,
        /// Known here.
        known: usize,
    },
    /// The file is the database of something else.
    #[error("the file is a database, but not of ringq, and was left as it is; choose another file")]
    Foreign,
    /// SQLite refuses the file.
    #[error("the database cannot be opened: {0}; {hint}", hint = hint(.0))]
    Sqlite(#[from] rusqlite::Error),
}

/// What to do about a file that SQLite refuses.
fn hint(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            "stop the process that holds it or choose another file"
        }
        _ => "restore it from a backup or choose another file",
    }
}

/// A SQLite shard.
pub struct SqliteStore {
    name: ShardName,
    database: Database,
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
    /// Opens or makes the database and starts its writer.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is changed then.
    pub fn open(config: Config) -> Result<SqliteStore, OpenError> {
        let Config { name, database, clock } = config;
        let lock = match &database {
            Database::File(path) => Some(lock(path)?),
            Database::Memory => None,
        };
        let path = match &database {
            Database::File(path) => path.as_path(),
            Database::Memory => Path::new(":memory:"),
        };
        let mut connection = schema::open_writer(path)?;
        schema::prepare(&mut connection, &name, clock.now())?;
        let readers = match &database {
            Database::File(path) => {
                sync_folder(path)?;
                Some(Readers::new(path.clone(), name.clone(), clock.clone()))
            }
            Database::Memory => None,
        };
        let events = Events::new();
        let prune_at = Arc::new(AtomicI64::new(i64::MIN));
        let state = State::new(name.clone(), events.clone(), Arc::clone(&prune_at), clock.now());
        let reserve = match &database {
            Database::File(path) => Reserve::new(path),
            Database::Memory => None,
        };
        let (writer, _thread) = Writer::spawn(connection, clock.clone(), state, reserve)
            .map_err(|error| OpenError::Io { path: path.to_owned(), error })?;
        Ok(SqliteStore {
            name,
            database,
            clock,
            writer,
            readers,
            events,
            prune_at,
            lock: Mutex::new(lock),
        })
    }

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
                    read(&query::Reader { connection, now, shard: &shard }, input)
                })
            }
        }
    }

    /// Like [`SqliteStore::read`], after everything that is past its time was pruned.
    fn read_pruned<I: Send + 'static, O: Send + 'static>(
        &self,
        input: I,
        read: reader::Read<I, O>,
    ) -> Reply<'_, O> {
        Box::pin(async move {
            while self.prune_at.load(Ordering::Acquire) <= self.clock.now().0 {
                self.prune(limit::CALL_JOBS_MAX).await?;
            }
            self.read(input, read).await
        })
    }
}

impl Store for SqliteStore {
    fn name(&self) -> &ShardName {
        &self.name
    }

    fn address(&self) -> String {
        match &self.database {
            Database::File(path) => format!("sqlite:{}", path.display()),
            Database::Memory => "sqlite::memory:".to_owned(),
        }
    }

    fn reach(&self) -> Reach {
        let plain = match self.database {
            Database::File(_) => Durability::Fsynced,
            Database::Memory => Durability::Memory,
        };
        Reach { plain, most: plain }
    }

    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<'_, Vec<Enqueue>> {
        let jobs: Vec<_> = jobs.into_iter().map(enqueue::Prepared::new).collect();
        let written = self.writer.call(Sync::Grow, jobs.len(), jobs, enqueue::enqueue);
        Box::pin(async move {
            let mut written = written.await?;
            for answer in &mut written {
                answer.durability = self.reach().plain;
            }
            Ok(written)
        })
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Claims> {
        let claims = self.writer.call(Sync::Lazy, limit::CALL_JOBS_MAX, claim, claim::claim);
        Box::pin(async move { Ok(claim::decode(claims.await?)) })
    }

    fn unclaim(&self, what: Unclaim) -> Reply<'_, u64> {
        self.writer.call(Sync::Lazy, 1, what, reap::unclaim)
    }

    fn leases(&self, refs: Vec<LeaseRef>) -> Reply<'_, Vec<Result<Lease, Refused>>> {
        self.writer.call(Sync::Lazy, refs.len(), refs, settle::leases)
    }

    fn settle(&self, items: Vec<Settle>) -> Reply<'_, Vec<Result<Settled, Refused>>> {
        let items: Vec<_> = items.into_iter().map(Prepare::new).collect();
        self.writer.call(Sync::Full, items.len(), items, settle::settle)
    }

    fn extend(&self, items: Vec<Extend>) -> Reply<'_, Vec<Result<Time, Refused>>> {
        self.writer.call(Sync::Full, items.len(), items, settle::extend)
    }

    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>> {
        self.read(query::Get { keys, full }, query::get)
    }

    fn delete(&self, items: Vec<Delete>) -> Reply<'_, Vec<Option<Deleted>>> {
        self.writer.call(Sync::Full, items.len(), items, delete::delete)
    }

    fn reschedule(&self, items: Vec<Reschedule>) -> Reply<'_, Vec<Rescheduled>> {
        self.writer.call(Sync::Full, items.len(), items, delete::reschedule)
    }

    fn redrive(&self, redrive: Redrive) -> Reply<'_, Redriven> {
        self.writer.call(Sync::Full, limit::CALL_JOBS_MAX, redrive, delete::redrive)
    }

    fn detach(&self, refs: Vec<LeaseRef>) -> Reply<'_, u64> {
        self.writer.call(Sync::Lazy, refs.len(), refs, settle::detach)
    }

    fn reap(&self, limit: usize) -> Reply<'_, Reaped> {
        self.writer.call(Sync::Lazy, limit, limit, reap::reap)
    }

    fn orphans(&self, living: Vec<u32>) -> Reply<'_, Vec<Lease>> {
        self.writer.call(Sync::Lazy, 1, living, reap::orphans)
    }

    fn prune(&self, limit: usize) -> Reply<'_, Pruned> {
        self.writer.call(Sync::Lazy, limit, limit, prune::prune)
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

    fn is_shared(&self) -> bool {
        false
    }

    fn beat(&self, beat: Beat) -> Reply<'_, Census> {
        self.writer.call(Sync::Full, 1, beat, beat::beat)
    }

    fn set_state(&self, state: ShardState) -> Reply<'_, ()> {
        self.writer.call(Sync::Full, 1, state, beat::set_state)
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

/// Takes the file's lock, which goes with the process however it ends.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let io = |error| OpenError::Io { path: path.to_owned(), error };
    if let Some(folder) = folder(path) {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(name).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

/// Makes sure that the file's name survives a power cut, not only what is in it.
fn sync_folder(path: &Path) -> Result<(), OpenError> {
    let folder = folder(path).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| OpenError::Io { path: path.to_owned(), error })
}

fn folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|folder| !folder.as_os_str().is_empty())
}
