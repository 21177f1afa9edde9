//! Target of the audit log. Lines are written by a thread of their own: a slow disk delays no call.

use std::io::{self, Write as _};
use std::path::PathBuf;

use serde::Serialize;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{RollingFileAppender, Rotation};

/// Maximum number of lines that wait for the target; more are lost, and counted. A server must not stand still because
/// its log does.
const LINES_MAX: usize = 65_536;
/// Maximum number of files that are kept, one a day.
const FILES_MAX: usize = 90;
/// Name of a file around its date.
const FILE_NAME: (&str, &str) = ("ringq-audit", "jsonl");

/// Target of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditTarget {
    /// Standard output of the process.
    Stdout,
    /// A directory, in which each day has a file; the last 90 are kept.
    Directory(PathBuf),
}

/// Writer of lines.
pub struct AuditWriter {
    lines: NonBlocking,
    lost: ErrorCounter,
    /// Writes what waits when it is dropped.
    _guard: WorkerGuard,
}

// === impl AuditWriter ===

impl AuditWriter {
    /// Opens the target.
    ///
    /// # Errors
    /// The error of the system, if the directory cannot be made or its file cannot be opened.
    pub fn open(target: &AuditTarget) -> io::Result<AuditWriter> {
        let builder = NonBlockingBuilder::default()
            .buffered_lines_limit(LINES_MAX)
            .lossy(true)
            .thread_name("ringq-audit");
        let (lines, guard) = match target {
            AuditTarget::Stdout => builder.finish(io::stdout()),
            AuditTarget::Directory(directory) => {
                let file = RollingFileAppender::builder()
                    .rotation(Rotation::DAILY)
                    .filename_prefix(FILE_NAME.0)
                    .filename_suffix(FILE_NAME.1)
                    .max_log_files(FILES_MAX)
                    .build(directory)
                    .map_err(io::Error::other)?;
                builder.finish(file)
            }
        };
        let lost = lines.error_counter();
        Ok(AuditWriter { lines, lost, _guard: guard })
    }

    /// Writes a line, as soon as the target takes it.
    pub(super) fn write(&self, entry: &impl Serialize) {
        let Ok(mut line) = serde_json::to_vec(entry) else { return };
        line.push(b'\n');
        // It fails if the thread has ended, with the process.
        let _ = self.lines.clone().write_all(&line);
    }

    /// Returns the number of lines that were lost.
    pub(super) fn lost_lines(&self) -> u64 {
        self.lost.dropped_lines() as u64
    }
}
