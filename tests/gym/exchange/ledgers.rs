//! Ledgers of several workers: the jobs that each has done, with the time at which the line was seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::super::handle::LedgerLine;

/// Line of a ledger.
pub(super) struct Entry {
    pub(super) at: Instant,
    pub(super) language: &'static str,
    pub(super) line: LedgerLine,
}

/// Ledgers, read as they grow.
pub(super) struct Ledgers {
    files: Vec<Ledger>,
    pub(super) entries: Vec<Entry>,
}

struct Ledger {
    language: &'static str,
    path: PathBuf,
    /// Bytes that were read.
    read: usize,
}

// === impl Ledgers ===

impl Ledgers {
    pub(super) fn new(folder: &Path, languages: impl IntoIterator<Item = &'static str>) -> Ledgers {
        let file =
            |language: &'static str| Ledger { language, path: folder.join(language), read: 0 };
        Ledgers { files: languages.into_iter().map(file).collect(), entries: Vec::new() }
    }

    /// Reads the lines that have come since the last time.
    pub(super) fn read(&mut self) -> Result<(), String> {
        let at = Instant::now();
        for Ledger { language, path, read } in &mut self.files {
            let text = std::fs::read(&*path).unwrap_or_default();
            let new = &text[*read..];
            let whole = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            *read += whole;
            for line in String::from_utf8_lossy(&new[..whole]).lines() {
                let line = serde_json::from_str(line).map_err(|error| {
                    format!("{language}: bad line in its ledger: {error}: {line}")
                })?;
                self.entries.push(Entry { at, language, line });
            }
        }
        Ok(())
    }

    /// Returns the entries of each id.
    pub(super) fn by_id(&self) -> BTreeMap<&str, Vec<&Entry>> {
        let mut ids: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.entries {
            ids.entry(&entry.line.id).or_default().push(entry);
        }
        ids
    }

    /// Returns the number of lines of a language, and the seconds from its first to its last.
    pub(super) fn rate(&self, language: &str) -> (usize, f64) {
        let times: Vec<_> =
            self.entries.iter().filter(|it| it.language == language).map(|it| it.at).collect();
        let span = times.first().zip(times.last()).map(|(first, last)| *last - *first);
        (times.len(), span.unwrap_or_default().as_secs_f64())
    }
}
