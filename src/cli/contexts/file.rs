//! The file of the contexts: private, and replaced as a whole.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{CommandFailure, io_problem};

/// Rights of the file: its user alone.
const MODE: u32 = 0o600;
/// Rights of directories that are made for it.
const DIRECTORY_MODE: u32 = 0o700;
/// Rights of others to write.
const OTHERS_WRITE: u32 = 0o022;
/// Rights of others to read.
const OTHERS_READ: u32 = 0o044;

/// Reads the file; `None` if there is none. As ssh does, refuses one that others can change, for they could send tokens
/// elsewhere, and one with a token that others can read.
pub(super) fn read(path: &Path) -> Result<Option<String>, CommandFailure> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    let text = io::read_to_string(&file).map_err(|error| unreadable(path, &error))?;
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::getuid().as_raw() {
        return Err(mistake(path, "belongs to another user"));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Err(private(path, "can be changed by other users"));
    }
    if metadata.mode() & OTHERS_READ != 0 && has_token(&text) {
        return Err(private(path, "has a token and can be read by other users"));
    }
    Ok(Some(text))
}

/// Returns whether a line sets a token. A text that is not TOML may have one, too.
fn has_token(text: &str) -> bool {
    let is_token = |line: &str| {
        let key = line.split('=').next().unwrap_or_default();
        key.trim().trim_matches(['"', '\'']) == "token"
    };
    text.split(['\n', '{', ',']).any(is_token)
}

/// Locks the file against other commands that change it, until the result is dropped. The lock is one of its directory:
/// the file itself is replaced. A file system without locks is used without one.
pub(super) fn lock(path: &Path) -> Result<File, CommandFailure> {
    let path = target(path);
    let directory = directory(&path);
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory);
    let opened = made.and_then(|()| File::open(directory));
    let file = opened.map_err(|error| unwritable(&path, &error))?;
    let _ = file.lock();
    Ok(file)
}

/// Replaces the file by one with this text: another command reads the old text or the new one, also after a crash.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CommandFailure> {
    let path = target(path);
    let temporary = directory(&path).join(format!(".contexts.{}.tmp", std::process::id()));
    let write = || {
        let _ = fs::remove_file(&temporary);
        let options = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&temporary);
        let mut file = options?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(directory(&path))?.sync_all()
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        unwritable(&path, &error)
    })
}

/// Returns the file itself, where the path is a link to it.
fn target(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Builds the failure of a file with a mistake.
pub(super) fn mistake(path: &Path, problem: &str) -> CommandFailure {
    CommandFailure::usage(format!("{} {problem}", path.display()))
}

fn private(path: &Path, problem: &str) -> CommandFailure {
    mistake(path, problem).with_hint(format!("chmod 600 {}", path.display()))
}

fn unreadable(path: &Path, error: &io::Error) -> CommandFailure {
    mistake(path, &format!("cannot be read: {}", io_problem(error)))
}

fn unwritable(path: &Path, error: &io::Error) -> CommandFailure {
    mistake(path, &format!("cannot be written: {}", io_problem(error)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TOKEN: &str = "[context.a]\nserver = \"s\"\ntoken = \"planted\"\n";

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_made_private_and_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/ringq/contexts.toml");
        assert_eq!(read(&path).unwrap(), None);
        drop(lock(&path).unwrap());
        write(&path, "one").unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let old = File::open(&path).unwrap();
        chmod(&path, 0o644);
        write(&path, "two").unwrap();
        assert_eq!((read(&path).unwrap().as_deref(), mode(&path)), (Some("two"), 0o600));
        assert_eq!(io::read_to_string(old).unwrap(), "one", "a reader keeps the old text");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file");
    }

    #[test]
    fn a_link_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "one").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link, "two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "two");
    }

    #[test]
    fn a_file_of_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts.toml");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            chmod(&path, mode);
            read(&path).map_err(|failure| format!("{failure:?}"))
        };
        let plain = TOKEN.replace("token = \"planted\"", "token_file = \"/t\"");
        for (text, mode, part) in [
            (TOKEN, 0o640, "can be read by other users"),
            (TOKEN, 0o604, "can be read by other users"),
            ("context.a = { server = \"s\", token = \"planted\" }", 0o644, "can be read"),
            (&plain, 0o660, "can be changed by other users"),
            (&plain, 0o602, "can be changed by other users"),
        ] {
            let failure = read(text, mode).unwrap_err();
            assert!(failure.contains(part) && failure.contains("chmod 600 "), "{failure}");
            assert!(!failure.contains("planted"), "{failure}");
        }
        assert!(read(TOKEN, 0o600).is_ok() && read(&plain, 0o644).is_ok());
    }

    #[test]
    fn commands_that_change_the_file_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts.toml");
        let first = lock(&path).unwrap();
        let second = File::open(dir.path()).unwrap();
        assert!(second.try_lock().is_err());
        drop(first);
        assert!(second.try_lock().is_ok());
    }
}
