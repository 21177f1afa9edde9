//! Small files of a bounded size: identities, keys, certificates and tokens.

use std::path::Path;
use std::{fs, io};

/// Maximum number of bytes of a file.
const BYTES_MAX: u64 = 1 << 20;

/// Reads a file of at most 1 MiB.
///
/// # Errors
/// A text with its path.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let read = || {
        if fs::metadata(path)?.len() > BYTES_MAX {
            return Err(io::Error::other(format!("it has more than {BYTES_MAX} bytes")));
        }
        fs::read(path)
    };
    read().map_err(|error| unreadable(path, &error))
}

/// Reads a text file of at most 1 MiB.
///
/// # Errors
/// A text with its path.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    String::from_utf8(read(path)?).map_err(|error| unreadable(path, &error))
}

/// Returns the text for a file that cannot be read.
pub(super) fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot read {}: {error}", path.display())
}
