//! Disk space kept free for settles. When jobs have filled the disk, a file beside the database is released, so that
//! acks, which free space, can still be written: a full queue drains instead of blocking. Until the space is back,
//! calls that need more of it are rejected.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rustix::fs::{FallocateFlags, fallocate};

use crate::domain::Time;

/// Size of the reserve: more than the log grows to before it is copied back (16 MiB), so that the copying can always
/// end, after which the log is used again from its beginning.
const RESERVE_BYTES: u64 = 20 << 20;
/// Interval at which the reserve is allocated again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The file that keeps the space.
pub(super) struct DiskReserve {
    path: PathBuf,
    held: bool,
    retry_at: Time,
}

// === impl DiskReserve ===

impl DiskReserve {
    /// Allocates the reserve beside `database`; `None` where the file system cannot reserve space. On a full disk the
    /// allocation is retried later.
    pub(super) fn new(database: &Path) -> Option<DiskReserve> {
        let mut path = database.as_os_str().to_owned();
        path.push(".reserve");
        let mut reserve = DiskReserve { path: path.into(), held: false, retry_at: Time(0) };
        match reserve.allocate() {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => {
                tracing::warn!(%error, "no disk reserve: settles may fail on a full disk");
                None
            }
            Err(error) => {
                tracing::warn!(
                    file = %reserve.path.display(), %error, bytes = RESERVE_BYTES,
                    "the disk is full; jobs are rejected until space is free"
                );
                Some(reserve)
            }
            Ok(()) => Some(reserve),
        }
    }

    /// Releases the reserve; returns whether there was one. It is not allocated again at once, from its own space.
    pub(super) fn release(&mut self, now: Time) -> bool {
        if !self.held {
            return false;
        }
        self.held = false;
        self.retry_at = now.plus(RETRY_INTERVAL);
        tracing::warn!(
            file = %self.path.display(),
            "the disk is full; new jobs are rejected until space is free"
        );
        fs::remove_file(&self.path).is_ok()
    }

    /// Returns whether calls that need more space are accepted: the reserve exists, can be allocated again, or the
    /// file has as much free inside.
    pub(super) fn allows_growth(&mut self, connection: &Connection, now: Time) -> bool {
        if self.held {
            return true;
        }
        if now < self.retry_at {
            return false;
        }
        if free_inside(connection) >= RESERVE_BYTES {
            return true;
        }
        self.retry_at = now.plus(RETRY_INTERVAL);
        let held = self.allocate().is_ok();
        if held {
            tracing::info!(
                file = %self.path.display(),
                "the disk has space again; new jobs are accepted"
            );
        }
        held
    }

    /// Allocates the file: a sparse one would reserve nothing.
    fn allocate(&mut self) -> io::Result<()> {
        let allocated = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.path)
            .and_then(|file| Ok(fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES)?));
        if allocated.is_err() {
            // A partial reserve wastes space that the queue could use.
            let _ = fs::remove_file(&self.path);
        }
        self.held = allocated.is_ok();
        allocated
    }
}

/// Returns the bytes that are free within the database file.
fn free_inside(connection: &Connection) -> u64 {
    let one = |pragma| connection.query_row(pragma, [], |row| row.get::<_, u64>(0)).unwrap_or(0);
    one("PRAGMA freelist_count") * one("PRAGMA page_size")
}
