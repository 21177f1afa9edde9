//! Configuration and opening of a store: the file is locked and prepared, and its threads are started.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::{Durability, ShardName};
use crate::store::{ShardEvents, ShardIdentity, ShardStatus, WriteDurability};

use super::disk_reserve::DiskReserve;
use super::reader::SqliteReaders;
use super::transaction::WriterState;
use super::writer::SqliteWriter;
use super::{SqliteStore, file_watch, schema};

/// Location of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// A file, created if it does not exist. Beside it are the log (`-wal`), its index (`-shm`), a lock (`.lock`) and
    /// 20 MiB kept free for settles (`.reserve`).
    File(PathBuf),
    /// Memory: gone with the process. Durability is MEMORY.
    Memory,
}

/// Configuration of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the shard; a file with another name is rejected.
    pub name: ShardName,
    /// Location of the database.
    pub database: Database,
    /// The clock that decides what is due.
    pub clock: Clock,
}

/// Error of opening a store. Each text contains the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SqliteOpenError {
    /// Another process serves this file.
    #[error("{0} is in use by another server; stop that one or choose another file")]
    Locked(PathBuf),
    /// The folder or file cannot be made, read or written.
    #[error("{path} cannot be opened: {error}; check that the directory exists and is writable")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The file belongs to another shard.
    #[error(
        "the file is shard {found}, not {asked}; a shard keeps its name for ever: \
         configure it as {found} or choose another file"
    )]
    WrongShardName {
        /// The name in the file.
        found: String,
        /// The configured one.
        asked: String,
    },
    /// The file was written by a newer version.
    #[error("the schema is version {found}, this build supports up to {known}; use a newer build")]
    Newer {
        /// Version of the file.
        found: usize,
        /// Newest version that this build supports.
        known: usize,
    },
    /// The file is the database of another program.
    #[error("the file is a database, but not of ringq; it is unchanged; choose another file")]
    NotRingq,
    /// SQLite refuses the file.
    #[error("the database cannot be opened: {0}; {hint}", hint = advice(.0))]
    Sqlite(#[from] rusqlite::Error),
}

/// Returns the remedy for a file that SQLite refuses.
fn advice(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            "stop the process that holds it or choose another file"
        }
        _ => "restore it from a backup or choose another file",
    }
}

// === impl SqliteStore ===

impl SqliteStore {
    /// Opens or creates the database and starts its writer.
    ///
    /// # Errors
    /// Fails with [`SqliteOpenError`]; the file is then unchanged.
    pub fn open(config: Config) -> Result<SqliteStore, SqliteOpenError> {
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
        let receipt_key = schema::prepare(&mut connection, &name, clock.now())?;
        let readers = match &database {
            Database::File(path) => {
                sync_folder(path)?;
                Some(SqliteReaders::open(path.clone(), name.clone(), clock.clone())?)
            }
            Database::Memory => None,
        };
        let events = ShardEvents::new();
        let prune_at = Arc::new(AtomicI64::new(i64::MIN));
        let state =
            WriterState::new(name.clone(), events.clone(), Arc::clone(&prune_at), clock.now());
        let reserve = match &database {
            Database::File(path) => DiskReserve::new(path),
            Database::Memory => None,
        };
        let (writer, _thread) = SqliteWriter::spawn(connection, clock.clone(), state, reserve)
            .map_err(|error| SqliteOpenError::Io { path: path.to_owned(), error })?;
        let (address, plain) = match &database {
            Database::File(path) => (format!("sqlite:{}", path.display()), Durability::Fsynced),
            Database::Memory => ("sqlite::memory:".to_owned(), Durability::Memory),
        };
        let status = watch::Sender::new(ShardStatus::healthy(WriteDurability {
            by_default: plain,
            max: plain,
        }));
        let file_watch = match database {
            Database::File(path) => file_watch::start(path.clone(), status.clone())
                .map_err(|error| SqliteOpenError::Io { path, error })?,
            Database::Memory => None,
        };
        Ok(SqliteStore {
            identity: ShardIdentity { name, address, is_shared: false },
            receipt_key,
            status,
            _file_watch: file_watch,
            clock,
            writer,
            readers,
            events,
            prune_at,
            lock: Mutex::new(lock),
        })
    }
}

/// Takes the file's lock, which the system releases with the process however it ends.
fn lock(path: &Path) -> Result<File, SqliteOpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let io = |error| SqliteOpenError::Io { path: path.to_owned(), error };
    if let Some(folder) = folder(path) {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(name).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SqliteOpenError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

/// Syncs the folder: the file's name must survive a power cut, not only its content.
fn sync_folder(path: &Path) -> Result<(), SqliteOpenError> {
    let folder = folder(path).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| SqliteOpenError::Io { path: path.to_owned(), error })
}

fn folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|folder| !folder.as_os_str().is_empty())
}
