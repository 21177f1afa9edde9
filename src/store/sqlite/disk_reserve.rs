//! Room kept free for settles. When the jobs themselves have filled the disk, a file beside the
//! database is given up, so that acks, which free room, can still be written: a full queue drains
//! instead of standing still. Until the room is back, nothing is taken that needs more of it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rustix::fs::{FallocateFlags, fallocate};

use crate::domain::Time;

/// Bytes kept: more than the log grows to before it is copied back (16 MiB), so that the copying can
/// always end, after which the log is used again from its beginning.
const RESERVE_BYTES: u64 = 20 << 20;
/// How often it is tried to take the room back.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The file that keeps the room.
pub(super) struct DiskReserve {
    path: PathBuf,
    held: bool,
    retry_at: Time,
}

// === impl Reserve ===

impl DiskReserve {
    /// Keeps room beside `database`; none where the file system cannot reserve any. On a disk that is
    /// full already it is tried again later.
    pub(super) fn new(database: &Path) -> Option<DiskReserve> {
        let mut path = database.as_os_str().to_owned();
        path.push(".reserve");
        let mut reserve = DiskReserve { path: path.into(), held: false, retry_at: Time(0) };
        match reserve.allocate() {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => {
                tracing::warn!(%error, "no room can be kept for settles on a full disk");
                None
            }
            Err(error) => {
                tracing::warn!(%error, bytes = RESERVE_BYTES, "the disk is full; jobs are refused");
                Some(reserve)
            }
            Ok(()) => Some(reserve),
        }
    }

    /// Gives the room up; whether there was any.
    pub(super) fn release(&mut self) -> bool {
        if !self.held {
            return false;
        }
        self.held = false;
        tracing::warn!("the disk is full; jobs are refused until there is room again");
        fs::remove_file(&self.path).is_ok()
    }

    /// Whether calls that need more room may be taken: the reserve is there, can be taken back, or
    /// the file has as much free inside.
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
            tracing::info!("there is room again; jobs are accepted");
        }
        held
    }

    /// Allocates the file: one of holes would keep nothing.
    fn allocate(&mut self) -> io::Result<()> {
        let allocated = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.path)
            .and_then(|file| Ok(fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES)?));
        if allocated.is_err() {
            // Half a reserve is room that the queue could use.
            let _ = fs::remove_file(&self.path);
        }
        self.held = allocated.is_ok();
        allocated
    }
}

/// Bytes that are free within the database file.
fn free_inside(connection: &Connection) -> u64 {
    let one = |pragma| connection.query_row(pragma, [], |row| row.get::<_, u64>(0)).unwrap_or(0);
    one("PRAGMA freelist_count") * one("PRAGMA page_size")
}
