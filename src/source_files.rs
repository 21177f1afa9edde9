//! Small files of a bounded size that are read again while the server runs: identities, keys, tokens, policies of topics.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Maximum number of bytes of a file.
const BYTES_MAX: u64 = 1 << 20;

/// Reads a file of at most 1 MiB.
///
/// # Errors
/// A text with its path.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
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
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    String::from_utf8(read(path)?).map_err(|error| unreadable(path, &error))
}

/// Returns the text for a file that cannot be read.
pub(crate) fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// Content of files, with their paths.
pub(crate) type FileTexts = Vec<(PathBuf, String)>;

/// Reads a text file, or each `*.toml` of a directory, in order.
///
/// # Errors
/// A text for each file that cannot be read.
pub(crate) fn read_texts(path: &Path) -> Result<FileTexts, Vec<String>> {
    let (mut texts, mut problems) = (FileTexts::new(), Vec::new());
    let paths = match path.is_dir() {
        true => toml_files(path).map_err(|error| vec![unreadable(path, &error)])?,
        false => vec![path.to_owned()],
    };
    for path in paths {
        match read_text(&path) {
            Ok(text) => texts.push((path, text)),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(texts) } else { Err(problems) }
}

/// Returns the `*.toml` files of a directory, in order. Names that begin with a dot are not among them: those of a
/// Kubernetes volume lead to the same files again.
fn toml_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        if !is_hidden && path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}
