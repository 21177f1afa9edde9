//! Target of the audit log. Lines are written by a thread of their own: a slow disk delays no call.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tracing_appender::rolling::{RollingFileAppender, Rotation};

use super::entry::Entry;
use crate::clock::Clock;
use crate::line_writer::LineWriter;

/// Maximum number of bytes of lines that wait for the target; lines beyond that are lost, and counted.
const BYTES_MAX: usize = 16 << 20;
/// Maximum time that the end of the process waits for the target.
const END_MAX: Duration = Duration::from_secs(1);
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
pub struct AuditWriter(LineWriter);

// === impl AuditWriter ===

impl AuditWriter {
    /// Opens the target. `clock` is the time of lines that report lost ones.
    ///
    /// # Errors
    /// The error of the system, if the directory cannot be made or its file cannot be opened.
    pub fn open(target: &AuditTarget, clock: Clock) -> io::Result<AuditWriter> {
        let lost_line = move |lost| line(&Entry::of_lost_lines(clock.now(), lost));
        let start = |target: Box<dyn io::Write + Send>| {
            LineWriter::start("ringq-audit", target, BYTES_MAX, lost_line)
        };
        let lines = match target {
            AuditTarget::Stdout => start(Box::new(io::stdout())),
            AuditTarget::Directory(directory) => {
                let file = RollingFileAppender::builder()
                    .rotation(Rotation::DAILY)
                    .filename_prefix(FILE_NAME.0)
                    .filename_suffix(FILE_NAME.1)
                    .max_log_files(FILES_MAX)
                    .build(directory)
                    .map_err(io::Error::other)?;
                start(Box::new(file))
            }
        };
        lines.map(AuditWriter)
    }

    /// Writes a line, as soon as the target takes it.
    pub(super) fn write(&self, entry: &impl Serialize) {
        self.0.write(&line(entry));
    }

    /// Returns the number of lines that were lost.
    pub(super) fn lost_lines(&self) -> u64 {
        self.0.lost_lines()
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        self.0.flush(END_MAX);
    }
}

fn line(entry: &impl Serialize) -> Vec<u8> {
    let Ok(mut line) = serde_json::to_vec(entry) else { return Vec::new() };
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Time;

    #[test]
    fn a_line_has_the_number_of_lost_ones() {
        let text = String::from_utf8(line(&Entry::of_lost_lines(Time(0), 7))).unwrap();
        let expected = r#"{"time":"1970-01-01T00:00:00.000Z","event":"lines_lost","lost":7}"#;
        assert_eq!(text, format!("{expected}\n"));
    }
}
