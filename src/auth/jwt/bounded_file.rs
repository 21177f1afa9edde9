//! Files with keys, certificates and tokens, of a bounded size.

use std::path::Path;
use std::{fs, io};

/// Maximum number of bytes of a file.
const BYTES_MAX: u64 = 1 << 20;

/// Reads a file.
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
    read().map_err(|error| format!("cannot read {}: {error}", path.display()))
}
