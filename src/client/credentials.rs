//! The bearer token of a client: fixed, or in a file that is read again.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::codegen::http::HeaderValue;

use super::Error;
use super::error::in_sentence;

/// Maximum length of a token: the server accepts headers of 16 KiB.
const TOKEN_BYTES_MAX: u64 = 15 << 10;
/// Age at which a file is read again even if it seems unchanged: its times can be too coarse to show a change.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(60);

/// Bearer token of the calls of a client; clones share it.
#[derive(Clone)]
pub(super) struct Credentials(Source);

#[derive(Clone)]
enum Source {
    None,
    Fixed(HeaderValue),
    File(Arc<TokenFile>),
}

/// Value of the header `authorization` for one call.
pub(super) struct Authorization {
    pub(super) header: HeaderValue,
    /// Problem of the token's file, which could not be read again.
    pub(super) problem: Option<Arc<str>>,
}

struct TokenFile {
    path: PathBuf,
    state: Mutex<TokenState>,
}

struct TokenState {
    header: HeaderValue,
    /// `None`: not a regular file, which is read once. A pipe has nothing more, and opening it again would block.
    stamp: Option<FileStamp>,
    read_at: Instant,
    problem: Option<Arc<str>>,
}

/// Time of change and length of a file: both are equal while it is the same.
type FileStamp = (SystemTime, u64);

// === impl Credentials ===

impl Credentials {
    /// Returns those of a client without a token.
    pub(super) fn none() -> Credentials {
        Credentials(Source::None)
    }

    /// Returns those of a client with a fixed token.
    pub(super) fn from_text(token: &str) -> Result<Credentials, Error> {
        let header = bearer(token).map_err(|why| Error::usage("token", format!("the token {why}")));
        Ok(Credentials(Source::Fixed(header?)))
    }

    /// Reads a token from a file.
    pub(super) fn from_file(path: PathBuf) -> Result<Credentials, Error> {
        let file = TokenFile::open(path).map_err(|problem| Error::usage("token_file", problem))?;
        Ok(Credentials(Source::File(Arc::new(file))))
    }

    /// Returns the header for a call that begins now; `None` without a token.
    pub(super) fn current(&self) -> Option<Authorization> {
        match &self.0 {
            Source::None => None,
            Source::Fixed(header) => Some(Authorization { header: header.clone(), problem: None }),
            Source::File(file) => Some(file.current(Instant::now())),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::None => f.write_str("Credentials(none)"),
            Source::Fixed(_) => f.write_str("Credentials(…)"),
            Source::File(file) => write!(f, "Credentials({:?})", file.path),
        }
    }
}

// === impl TokenFile ===

impl TokenFile {
    fn open(path: PathBuf) -> Result<TokenFile, String> {
        let (header, stamp) = read(&path)?;
        let state = TokenState { header, stamp, read_at: Instant::now(), problem: None };
        Ok(TokenFile { path, state: Mutex::new(state) })
    }

    /// Returns the token, from the file if that has changed. Blocks for a look at the file's times and rarely for the
    /// read of a few bytes, which take less time than a switch to another thread.
    fn current(&self, now: Instant) -> Authorization {
        let mut state = self.state.lock();
        if let Some(stamp) = state.stamp {
            let found = self.regular_stamp();
            let is_young = now < state.read_at + TOKEN_AGE_MAX;
            let is_unchanged = found.as_ref().is_ok_and(|found| *found == stamp);
            if !is_young || !is_unchanged || state.problem.is_some() {
                match found.and_then(|_| read(&self.path)) {
                    Ok((header, stamp)) => {
                        *state = TokenState { header, stamp, read_at: now, problem: None };
                    }
                    Err(problem) => state.problem = Some(problem.into()),
                }
            }
        }
        Authorization { header: state.header.clone(), problem: state.problem.clone() }
    }

    fn regular_stamp(&self) -> Result<FileStamp, String> {
        let metadata = fs::metadata(&self.path);
        let stamp = metadata.and_then(|metadata| stamp(&metadata));
        let found = stamp.map_err(|error| unreadable(&self.path, &error))?;
        found.ok_or_else(|| format!("the token file {:?} is not a file any more", self.path))
    }
}

/// Reads the token of a file. The stamp is older than what was read, so that a change in between is found later.
fn read(path: &PathBuf) -> Result<(HeaderValue, Option<FileStamp>), String> {
    let mut token = Vec::new();
    let mut read = || {
        let file = File::open(path)?;
        let stamp = stamp(&file.metadata()?)?;
        file.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut token)?;
        Ok(stamp)
    };
    let stamp = read().map_err(|error| unreadable(path, &error))?;
    let token = String::from_utf8_lossy(&token);
    let header = bearer(token.trim_ascii()).map_err(|why| format!("the token file {path:?} {why}"));
    Ok((header?, stamp))
}

/// Returns the stamp of a regular file.
fn stamp(metadata: &fs::Metadata) -> io::Result<Option<FileStamp>> {
    metadata.is_file().then(|| Ok((metadata.modified()?, metadata.len()))).transpose()
}

fn unreadable(path: &PathBuf, error: &io::Error) -> String {
    format!("the token file {path:?} cannot be read: {}", in_sentence(&error.to_string()))
}

/// Returns the header of a token, or the reason that it is none, without the token itself.
fn bearer(token: &str) -> Result<HeaderValue, &'static str> {
    if token.is_empty() {
        return Err("is empty");
    }
    if token.len() as u64 > TOKEN_BYTES_MAX {
        return Err("is longer than 15 KiB");
    }
    if token.contains('\n') {
        return Err("has more than one line; it is the token alone");
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has spaces, or characters outside of ASCII");
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "has characters that no header may have")?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(authorization: &Authorization) -> &str {
        authorization.header.to_str().unwrap().strip_prefix("Bearer ").unwrap()
    }

    /// A file with its modification time set by the test.
    struct Rotated {
        dir: tempfile::TempDir,
        clock: SystemTime,
    }

    impl Rotated {
        fn new() -> Rotated {
            Rotated { dir: tempfile::tempdir().unwrap(), clock: SystemTime::UNIX_EPOCH }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("token")
        }

        /// Writes a token, `seconds` later by the file's clock.
        fn write(&mut self, token: &str, seconds: u64) {
            fs::write(self.path(), token).unwrap();
            self.clock += Duration::from_secs(seconds);
            File::options()
                .write(true)
                .open(self.path())
                .unwrap()
                .set_modified(self.clock)
                .unwrap();
        }
    }

    #[test]
    fn a_changed_file_is_used_by_the_next_call() {
        let mut rotated = Rotated::new();
        rotated.write("one\n", 1);
        let file = TokenFile::open(rotated.path()).unwrap();
        let now = Instant::now();
        assert_eq!(token(&file.current(now)), "one");
        rotated.write(" two \r\n", 1);
        assert_eq!(token(&file.current(now)), "two");
    }

    /// A change within the resolution of the file's times, of the same length, is found by age.
    #[test]
    fn a_token_is_never_older_than_a_minute() {
        let mut rotated = Rotated::new();
        rotated.write("one", 1);
        let file = TokenFile::open(rotated.path()).unwrap();
        let opened = Instant::now();
        rotated.write("two", 0);
        assert_eq!(token(&file.current(opened)), "one");
        let later = opened + TOKEN_AGE_MAX;
        assert_eq!(token(&file.current(later)), "two");
        rotated.write("six", 0);
        assert_eq!(token(&file.current(later + TOKEN_AGE_MAX - Duration::from_millis(1))), "two");
        assert_eq!(token(&file.current(later + TOKEN_AGE_MAX)), "six");
    }

    #[test]
    fn a_file_that_cannot_be_read_again_keeps_the_last_token() {
        let mut rotated = Rotated::new();
        rotated.write("one", 1);
        let file = TokenFile::open(rotated.path()).unwrap();
        let now = Instant::now();
        fs::remove_file(rotated.path()).unwrap();
        let kept = file.current(now);
        assert_eq!(token(&kept), "one");
        let problem = kept.problem.unwrap();
        assert!(problem.contains("cannot be read: no such file or directory"), "{problem}");
        fs::create_dir(rotated.path()).unwrap();
        assert!(file.current(now).problem.unwrap().contains("is not a file any more"));
        fs::remove_dir(rotated.path()).unwrap();
        rotated.write("", 1);
        assert!(file.current(now).problem.unwrap().contains("is empty"));
        rotated.write("two", 1);
        let back = file.current(now);
        assert_eq!((token(&back), back.problem.as_deref()), ("two", None));
    }

    #[test]
    fn a_pipe_is_read_once() {
        use std::io::Write as _;
        use std::os::fd::AsRawFd as _;
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one\n").unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        // Opened by its path a pipe without writers blocks, so the first read goes through the open end.
        let stamp = stamp(&fs::metadata(&path).unwrap()).unwrap();
        assert_eq!(stamp, None);
        let header = bearer("one").unwrap();
        let state = TokenState { header, stamp, read_at: Instant::now(), problem: None };
        let file = TokenFile { path, state: Mutex::new(state) };
        let later = file.current(Instant::now() + 2 * TOKEN_AGE_MAX);
        assert_eq!((token(&later), later.problem.as_deref()), ("one", None));
    }

    #[test]
    fn what_is_no_token_is_refused_without_showing_it() {
        for (bad, why) in [
            ("", "is empty"),
            ("planted\nplanted", "more than one line"),
            ("plan ted", "has spaces"),
            ("plänted", "outside of ASCII"),
            ("planted\u{7}", "outside of ASCII"),
        ] {
            let error = Credentials::from_text(bad).unwrap_err();
            assert_eq!(error.field(), Some("token"));
            assert!(error.message().contains(why), "{bad:?}: {error}");
            assert!(!error.message().contains("ted"), "{error}");
        }
        let endless = Credentials::from_file("/dev/zero".into()).unwrap_err();
        assert!(endless.message().contains("longer than 15 KiB"), "{endless}");
        let planted = Credentials::from_text("planted").unwrap();
        let header = planted.current().unwrap().header;
        assert!(!format!("{planted:?} {header:?}").contains("planted"), "{planted:?} {header:?}");
    }
}
