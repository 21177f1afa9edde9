//! The files of the tour.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::config::io_problem;

use super::super::exit::Failure;

/// More would make the tour longer than five minutes.
const FILES_MAX: usize = 100_000;

/// The absolute paths of the files below `directory`, sorted: those that can be read and that fit on
/// a line.
pub(super) fn below(directory: &Path) -> Result<Vec<String>, Failure> {
    let bad = |why: String| {
        Failure::usage(format!("cannot hash the files below {}: {why}", directory.display()))
            .hint("name a directory with some files, as in `ringq demo /usr/share/doc`")
    };
    let root = directory.canonicalize().map_err(|error| bad(io_problem(&error)))?;
    let mut paths = Vec::new();
    let mut open = vec![root];
    while let Some(directory) = open.pop() {
        // One that cannot be read below the first is left out, like a file that cannot be.
        match fs::read_dir(&directory) {
            Ok(entries) => entries.flatten().for_each(|entry| sort(&entry, &mut open, &mut paths)),
            Err(error) if paths.is_empty() && open.is_empty() => {
                return Err(bad(io_problem(&error)));
            }
            Err(_) => {}
        }
        if paths.len() >= FILES_MAX {
            break;
        }
    }
    if paths.is_empty() {
        return Err(bad("there are none".to_owned()));
    }
    paths.truncate(FILES_MAX);
    paths.sort();
    Ok(paths)
}

fn sort(entry: &fs::DirEntry, open: &mut Vec<PathBuf>, paths: &mut Vec<String>) {
    let Ok(kind) = entry.file_type() else { return };
    if kind.is_dir() {
        open.push(entry.path());
    } else if kind.is_file()
        && let Some(path) = entry.path().to_str()
        && !path.chars().any(char::is_control)
        && File::open(path).is_ok()
    {
        paths.push(path.to_owned());
    }
}
