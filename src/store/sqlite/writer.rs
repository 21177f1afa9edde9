//! The only writer: a thread that takes the waiting calls of all verbs into one transaction and one fsync. While it
//! commits, the next group collects in its queue.

use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::limit;
use crate::store::{Error, Result, StoreFuture};

use super::disk_reserve::DiskReserve;
use super::error_mapping::{self, SqliteResult};
use super::transaction::{WriteTransaction, WriterState};

/// Capacity of the writer's queue; further calls wait in their callers.
const CALLS_MAX: usize = 4_096;
/// Maximum number of jobs in one transaction: enough that the fsync costs little per job, few enough that the last
/// one does not wait long.
const GROUP_JOBS_MAX: usize = 4_096;

/// A verb, run within a transaction. It may run twice, when the first group was rolled back, so it takes its input by
/// reference.
pub(super) type WriteFn<I, O> = fn(&mut WriteTransaction<'_>, &I) -> SqliteResult<O>;

/// Handle to the writer thread.
pub(super) struct SqliteWriter {
    queue: mpsc::Sender<WriterMessage>,
}

enum WriterMessage {
    Call(Box<dyn WriterCall>),
    /// The server is alive, see [`WriterState::heartbeat`].
    Heartbeat,
    Close(oneshot::Sender<()>),
}

/// Durability that a call needs before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncLevel {
    /// Answered only when it is on the disk. It takes space there: rejected first when there is none.
    FullGrowing,
    /// Answered only when it is on the disk.
    Full,
    /// May be lost in a power cut: a lost claim leaves its job ready, which at-least-once delivery allows, so no job
    /// waits for the disk on its way to a worker.
    Lazy,
}

/// A call of any verb (private: it only erases the types of [`PendingWrite`]).
trait WriterCall: Send {
    /// Returns whether the deadline has passed, see [`SqliteWriter::call_until`].
    fn is_late(&self) -> bool;
    fn run(&mut self, session: &mut WriteTransaction<'_>) -> SqliteResult<()>;
    fn weight(&self) -> usize;
    fn sync(&self) -> SyncLevel;
    fn answer(self: Box<Self>, committed: Result<()>);
}

struct PendingWrite<I, O> {
    until: Option<Instant>,
    input: I,
    weight: usize,
    sync: SyncLevel,
    verb: WriteFn<I, O>,
    output: Option<O>,
    reply: oneshot::Sender<Result<O>>,
}

// === impl SqliteWriter ===

impl SqliteWriter {
    /// Starts the thread on `connection`.
    pub(super) fn spawn(
        connection: Connection,
        clock: Clock,
        state: WriterState,
        reserve: Option<DiskReserve>,
    ) -> std::io::Result<(SqliteWriter, JoinHandle<()>)> {
        let (queue, calls) = mpsc::channel(CALLS_MAX);
        let is_system_clock = matches!(clock, Clock::System(_));
        let mut thread = WriterThread {
            connection,
            clock,
            state,
            reserve,
            synced: SyncLevel::Full,
            sync_failed: false,
        };
        let handle = std::thread::Builder::new()
            .name("ringq-sqlite".into())
            .spawn(move || thread.run(calls))?;
        // Whatever moves a manual clock also sends the heartbeats: one from here would end, at a moment of its own, the
        // silence that it makes.
        if is_system_clock {
            tokio::spawn(send_heartbeats(queue.downgrade()));
        }
        Ok((SqliteWriter { queue }, handle))
    }

    /// Runs `verb` on `input`, which is `weight` jobs. Once queued it is run, also if the caller has stopped waiting.
    pub(super) fn call<I: Send + 'static, O: Send + 'static>(
        &self,
        sync: SyncLevel,
        weight: usize,
        input: I,
        verb: WriteFn<I, O>,
    ) -> StoreFuture<'_, O> {
        self.call_until(None, sync, weight, input, verb)
    }

    /// Runs a verb as [`SqliteWriter::call`] does, but not after `until`: by then its caller may have received
    /// OUTCOME_UNKNOWN.
    pub(super) fn call_until<I: Send + 'static, O: Send + 'static>(
        &self,
        until: Option<Instant>,
        sync: SyncLevel,
        weight: usize,
        input: I,
        verb: WriteFn<I, O>,
    ) -> StoreFuture<'_, O> {
        let (reply, result) = oneshot::channel();
        let call = Box::new(PendingWrite { until, input, weight, sync, verb, output: None, reply });
        Box::pin(async move {
            self.queue.send(WriterMessage::Call(call)).await.map_err(|_| closed_error())?;
            result.await.map_err(|_| Error::OutcomeUnknown("the store stopped".into()))?
        })
    }

    /// Finishes the queued calls, checkpoints and stops the thread.
    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(WriterMessage::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

fn closed_error() -> Error {
    Error::Unavailable("the store is closed".into())
}

/// Sends heartbeats of the server to the thread while a caller of the writer exists.
async fn send_heartbeats(queue: mpsc::WeakSender<WriterMessage>) {
    while let Some(queue) = queue.upgrade()
        && queue.send(WriterMessage::Heartbeat).await.is_ok()
    {
        drop(queue);
        tokio::time::sleep(limit::REPLICA_HEARTBEAT).await;
    }
}

// === impl PendingWrite ===

impl<I: Send, O: Send> WriterCall for PendingWrite<I, O> {
    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    fn run(&mut self, session: &mut WriteTransaction<'_>) -> SqliteResult<()> {
        self.output = Some((self.verb)(session, &self.input)?);
        Ok(())
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn sync(&self) -> SyncLevel {
        self.sync
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let output = self.output.ok_or_else(closed_error);
        // The caller may have gone.
        let _ = self.reply.send(committed.and(output));
    }
}

/// Rejects the calls whose deadline has passed, and removes them from the group.
fn reject_late(group: &mut Vec<Box<dyn WriterCall>>) {
    for call in group.extract_if(.., |call| call.is_late()) {
        call.answer(Err(late_error()));
    }
}

fn late_error() -> Error {
    Error::DeadlineExceeded("the call waited until its deadline; nothing was written".into())
}

/// Rejects the calls that need disk space, and removes them from the group.
fn reject_growing(group: &mut Vec<Box<dyn WriterCall>>) {
    let full = || Error::Full("the disk is full; free some space".into());
    for call in group.extract_if(.., |call| call.sync() == SyncLevel::FullGrowing) {
        call.answer(Err(full()));
    }
}

// === the thread ===

/// Error of a transaction that was not committed.
enum TransactionError {
    /// The transaction could not begin, so none of its calls was run.
    Begin(Error),
    Run(Error),
}

struct WriterThread {
    connection: Connection,
    clock: Clock,
    state: WriterState,
    reserve: Option<DiskReserve>,
    synced: SyncLevel,
    /// Set after a failed sync: the system may have dropped unwritten data, also of earlier lazy commits, so no later
    /// sync proves anything. Only opening the file again shows its content.
    sync_failed: bool,
}

impl TransactionError {
    fn error(self) -> Error {
        let (TransactionError::Begin(error) | TransactionError::Run(error)) = self;
        error
    }
}

impl WriterThread {
    fn run(&mut self, mut queue: mpsc::Receiver<WriterMessage>) {
        let mut messages = Vec::new();
        let mut group: Vec<Box<dyn WriterCall>> = Vec::new();
        while queue.blocking_recv_many(&mut messages, CALLS_MAX) > 0 {
            let mut weight = 0;
            for message in messages.drain(..) {
                match message {
                    WriterMessage::Call(call) => {
                        weight += call.weight();
                        group.push(call);
                        if weight >= GROUP_JOBS_MAX {
                            self.commit(&mut group);
                            weight = 0;
                        }
                    }
                    WriterMessage::Heartbeat => self.state.heartbeat(self.clock.now()),
                    WriterMessage::Close(done) => {
                        self.commit(&mut group);
                        self.checkpoint();
                        queue.close();
                        let _ = done.send(());
                    }
                }
            }
            self.commit(&mut group);
        }
    }

    /// Runs one transaction for the whole group. If a call fails, each call gets a transaction of its own, so that
    /// one failure (or a call too large for the free disk space) does not fail the others. If the transaction cannot
    /// begin, because another process has locked the file, all calls fail: each would wait as long for the lock, one
    /// after the other.
    fn commit(&mut self, group: &mut Vec<Box<dyn WriterCall>>) {
        reject_late(group);
        if !self.may_grow() {
            reject_growing(group);
        }
        if group.is_empty() {
            return;
        }
        let mut committed = self.transact(group);
        if matches!(committed, Err(TransactionError::Run(Error::Full(_)))) && self.give_up_reserve()
        {
            reject_growing(group);
            committed = self.transact(group);
        }
        match committed {
            Err(TransactionError::Run(error)) if group.len() > 1 && !error.outcome_unknown() => {
                tracing::debug!(%error, calls = group.len(), "group failed, calls run one by one");
                for mut call in group.drain(..) {
                    let committed = self.transact(std::slice::from_mut(&mut call));
                    call.answer(committed.map_err(TransactionError::error));
                }
            }
            committed => {
                let committed = committed.map_err(TransactionError::error);
                group.drain(..).for_each(|call| call.answer(committed.clone()));
            }
        }
    }

    fn may_grow(&mut self) -> bool {
        let now = self.clock.now();
        self.reserve.as_mut().is_none_or(|reserve| reserve.allows_growth(&self.connection, now))
    }

    fn give_up_reserve(&mut self) -> bool {
        let now = self.clock.now();
        self.reserve.as_mut().is_some_and(|reserve| reserve.release(now))
    }

    fn transact(
        &mut self,
        group: &mut [Box<dyn WriterCall>],
    ) -> std::result::Result<(), TransactionError> {
        self.begin(group).map_err(TransactionError::Begin)?;
        let result = self.try_transact(group);
        if result.is_err() {
            if !self.connection.is_autocommit()
                && let Err(error) = self.connection.execute_batch("ROLLBACK")
            {
                tracing::error!(%error, "rollback of a failed transaction failed");
            }
            self.state.discard_uncommitted();
        }
        self.state.publish(result.is_ok());
        result.map_err(TransactionError::Run)
    }

    fn begin(&mut self, group: &[Box<dyn WriterCall>]) -> Result<()> {
        if self.sync_failed {
            return Err(error_mapping::sync_failed_error());
        }
        let lazy = group.iter().all(|call| call.sync() == SyncLevel::Lazy);
        self.set_sync(if lazy { SyncLevel::Lazy } else { SyncLevel::Full })?;
        self.statement("BEGIN IMMEDIATE")
            .map_err(|e| Error::from(error_mapping::SqliteError::from(e)))
    }

    fn try_transact(&mut self, group: &mut [Box<dyn WriterCall>]) -> Result<()> {
        // The wait for the lock may have been long.
        if group.iter().any(|call| call.is_late()) {
            return Err(late_error());
        }
        let mut session =
            WriteTransaction::new(&self.connection, self.clock.now(), &mut self.state);
        for call in group.iter_mut() {
            call.run(&mut session)?;
        }
        session.flush()?;
        self.statement("COMMIT").map_err(|error| {
            self.sync_failed = error_mapping::is_failed_sync(&error);
            error_mapping::commit_error(error)
        })
    }

    /// Sets what the next commit waits for: in WAL mode FULL syncs the log at each commit, NORMAL leaves that to the
    /// next FULL commit.
    fn set_sync(&mut self, sync: SyncLevel) -> Result<()> {
        if self.synced != sync {
            let pragma = match sync {
                SyncLevel::FullGrowing | SyncLevel::Full => "PRAGMA synchronous = FULL",
                SyncLevel::Lazy => "PRAGMA synchronous = NORMAL",
            };
            self.connection.execute_batch(pragma).map_err(error_mapping::SqliteError::from)?;
            self.synced = sync;
        }
        Ok(())
    }

    fn statement(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn checkpoint(&self) {
        let done = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = done {
            tracing::warn!(%error, "checkpointing the write-ahead log at close failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;
    use tempfile::TempDir;

    use super::super::{Config, Database, SqliteStore};
    use super::*;
    use crate::domain::ShardName;
    use crate::domain::ring::ShardState;
    use crate::store::Store as _;

    fn store(dir: &TempDir) -> SqliteStore {
        let database = Database::File(dir.path().join("s0.db"));
        let name = ShardName::try_new("s0").unwrap();
        SqliteStore::open(Config { name, database, clock: Clock::system() }).unwrap()
    }

    /// A call is not executed after its deadline: its caller may have received OUTCOME_UNKNOWN.
    #[tokio::test]
    async fn a_call_that_waits_until_its_deadline_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let late = store.set_state(ShardState::Draining, Some(Instant::now())).await;
        assert!(matches!(late, Err(Error::DeadlineExceeded(_))), "{late:?}");
        let in_time = Instant::now() + Duration::from_secs(60);
        store.set_state(ShardState::Draining, Some(in_time)).await.unwrap();
    }

    /// Calls beside a late one are not late.
    #[tokio::test]
    async fn a_call_whose_deadline_passes_while_the_file_is_locked_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let holder = Connection::open(dir.path().join("s0.db")).unwrap();
        holder.execute_batch("BEGIN IMMEDIATE").unwrap();
        let until = Instant::now() + Duration::from_millis(300);
        let unlock = async {
            tokio::time::sleep_until(until).await;
            holder.execute_batch("ROLLBACK").unwrap();
        };
        let drain = store.set_state(ShardState::Draining, Some(until));
        let prune = store.prune(1);
        let (late, beside, ()) = futures::join!(drain, prune, unlock);
        assert!(matches!(late, Err(Error::DeadlineExceeded(_))), "{late:?}");
        beside.unwrap();
        assert_eq!(store.info().await.unwrap().state, None);
    }

    /// Calls do not wait for the lock one after the other.
    #[tokio::test]
    async fn calls_that_cannot_begin_fail_together() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let holder = Connection::open(dir.path().join("s0.db")).unwrap();
        holder.execute_batch("BEGIN IMMEDIATE").unwrap();
        let set = || store.set_state(ShardState::Draining, None);
        // The first call waits for a second alone, then the others that came meanwhile: not one after the other.
        let all = join_all((0..200).map(|_| set()));
        let results = tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        assert!(results.iter().all(|result| matches!(result, Err(Error::Unavailable(_)))));
        holder.execute_batch("ROLLBACK").unwrap();
        set().await.unwrap();
    }
}
