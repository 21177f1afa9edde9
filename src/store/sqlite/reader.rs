//! Connections that read beside the writer. Each read sees one consistent state, that of its start.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::domain::{Job, ShardName, Time, TopicName};
use crate::store::Error;

use super::error_mapping::{SqliteError, SqliteResult};
use super::job_row::{JobRow, RowBlobs};
use super::schema;
use super::statement::statement;

const FIND_TOPIC: &str = statement(include_str!("topics.sql"), "find");

/// Any read of a table.
const FIRST_READ: &str = "SELECT count(*) FROM sqlite_master";

/// Maximum number of reads at once; more wait. Lists and counts may be long, and each takes a thread.
const READS_MAX: usize = 4;

/// A read of any kind.
pub(super) type ReadFn<I, O> = fn(&SqliteReader<'_>, &I) -> SqliteResult<O>;

/// A connection to read from, at one time of the store.
pub(super) struct SqliteReader<'c> {
    pub(super) connection: &'c Connection,
    pub(super) now: Time,
    pub(super) shard: &'c ShardName,
}

/// A pool of connections. All are opened with the store: later the process may have no file descriptors left for
/// them.
pub(super) struct SqliteReaders {
    inner: Arc<ReadersInner>,
}

struct ReadersInner {
    path: PathBuf,
    shard: ShardName,
    clock: Clock,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

// === impl SqliteReaders ===

impl SqliteReaders {
    pub(super) fn open(
        path: PathBuf,
        shard: ShardName,
        clock: Clock,
    ) -> rusqlite::Result<SqliteReaders> {
        let open = || {
            let connection = schema::open_reader(&path)?;
            // A connection opens its files at its first read.
            connection.query_row(FIRST_READ, [], |_| Ok(()))?;
            Ok(connection)
        };
        let idle = (0..READS_MAX).map(|_| open()).collect::<rusqlite::Result<Vec<_>>>()?;
        let (idle, permits) = (Mutex::new(idle), Arc::new(Semaphore::new(READS_MAX)));
        Ok(SqliteReaders { inner: Arc::new(ReadersInner { path, shard, clock, idle, permits }) })
    }

    /// Path of the database.
    pub(super) fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Rejects all later reads.
    pub(super) fn close(&self) {
        self.inner.permits.close();
    }

    /// Runs `read` on a thread for blocking work. If the future is dropped, the read goes on there, and counts toward
    /// [`READS_MAX`] until it ends.
    pub(super) async fn call<I: Send + 'static, O: Send + 'static>(
        &self,
        input: I,
        read: ReadFn<I, O>,
    ) -> Result<O, Error> {
        let stopped = || Error::Unavailable("the store is closed".into());
        let permits = Arc::clone(&self.inner.permits);
        let permit = permits.acquire_owned().await.map_err(|_| stopped())?;
        let inner = Arc::clone(&self.inner);
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            inner.read(&input, read)
        });
        Ok(task.await.map_err(|_| stopped())??)
    }
}

// === impl ReadersInner ===

impl ReadersInner {
    fn read<I, O>(&self, input: &I, read: ReadFn<I, O>) -> SqliteResult<O> {
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => schema::open_reader(&self.path).map_err(SqliteError::from)?,
        };
        let transaction = connection.unchecked_transaction()?;
        let reader =
            SqliteReader { connection: &transaction, now: self.clock.now(), shard: &self.shard };
        let output = read(&reader, input);
        transaction.finish()?;
        if output.is_ok() {
            self.idle.lock().push(connection);
        }
        output
    }
}

// === impl SqliteReader ===

impl SqliteReader<'_> {
    /// Returns the key of a topic.
    pub(super) fn topic(&self, name: &TopicName) -> SqliteResult<Option<i64>> {
        let mut find = self.connection.prepare_cached(FIND_TOPIC)?;
        Ok(find.query_row(params![name.as_str()], |row| row.get(0)).optional()?)
    }

    /// Returns the job of a row that was read with the same `full`, as it reads now; `None`: its record is not kept
    /// any more.
    pub(super) fn job(
        &self,
        row: JobRow,
        blobs: RowBlobs,
        topic: &TopicName,
        full: bool,
    ) -> SqliteResult<Option<Job>> {
        let bodies = if full { blobs.read(self.connection, &row)? } else { Default::default() };
        Ok(row.job(bodies, topic, self.shard, self.now))
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn reads_open_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let (path, shard) = (dir.path().join("s0.db"), ShardName::try_new("s0").unwrap());
        let mut writer = schema::open_writer(&path).unwrap();
        schema::prepare(&mut writer, &shard, Time(0)).unwrap();
        let readers = SqliteReaders::open(path.clone(), shard, Clock::system()).unwrap();
        // A removed file cannot be opened, as if the process had no file descriptors left.
        std::fs::remove_file(&path).unwrap();
        let reads = (0..2 * READS_MAX)
            .map(|_| readers.call(TopicName::stored("t"), |reader, name| reader.topic(name)));
        for read in join_all(reads).await {
            assert_eq!(read.unwrap(), None);
        }
    }
}
