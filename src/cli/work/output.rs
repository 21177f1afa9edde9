//! Standard output of commands that run at once: the output of each stays together.
//!
//! It is held until the command has ended and then written whole. What is too much to be held is passed
//! on in whole lines.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Held of each command.
const HELD_BYTES: usize = 1 << 20;
/// Read at once, at least.
const READ_BYTES: usize = 8 << 10;
/// Somebody else may have made our standard output non-blocking; nobody tells when it takes more.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// Our standard output, which the commands share. Clones share it, too.
#[derive(Clone, Debug)]
pub(super) struct Shared<W = File>(Arc<Mutex<W>>);

/// The output of one command.
#[derive(Debug)]
pub(super) struct Grouped<W = File> {
    shared: Shared<W>,
    held: Vec<u8>,
    /// What was passed on ended within a line.
    in_line: bool,
    writing: Writing,
    /// Whether all of it was written so far.
    written: io::Result<()>,
}

/// Whether a write is under way, which takes as long as the reader of our standard output wants.
#[derive(Clone, Debug, Default)]
pub(super) struct Writing(Arc<AtomicBool>);

// === impl Shared ===

impl Shared {
    pub(super) fn stdout() -> io::Result<Shared> {
        // Past the buffer of the standard library, which would keep what could not be written.
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Shared(Arc::new(Mutex::new(stdout.into()))))
    }
}

impl<W: Write + Send + 'static> Shared<W> {
    /// Writes it in one piece. What has begun is finished even if nobody waits for it any more.
    async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        let mut to = Arc::clone(&self.0).lock_owned().await;
        let written = spawn_blocking(move || write_all(&mut *to, &bytes)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

fn write_all(to: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(FULL_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

// === impl Grouped ===

impl<W: Write + Send + 'static> Grouped<W> {
    /// Nothing so far.
    pub(super) fn new(shared: &Shared<W>) -> Grouped<W> {
        let shared = Shared(Arc::clone(&shared.0));
        let writing = Writing::default();
        Grouped { shared, held: Vec::new(), in_line: false, writing, written: Ok(()) }
    }

    /// Whether [`Grouped::copy`] is writing at the moment.
    pub(super) fn writing(&self) -> Writing {
        self.writing.clone()
    }

    /// Reads to the end. Dropping the future while it does not write loses nothing that was read.
    pub(super) async fn copy(&mut self, mut from: impl AsyncRead + Unpin) {
        loop {
            self.held.reserve(READ_BYTES);
            match from.read_buf(&mut self.held).await {
                Ok(0) | Err(_) => return,
                Ok(_) if self.held.len() > HELD_BYTES => self.pass_on().await,
                Ok(_) => {}
            }
        }
    }

    /// Whole lines, since other commands write, too; of a line that is longer, what there is.
    async fn pass_on(&mut self) {
        let end = self.held.iter().rposition(|byte| *byte == b'\n').map(|last| last + 1);
        let rest = self.held.split_off(end.unwrap_or(self.held.len()));
        let lines = std::mem::replace(&mut self.held, rest);
        self.in_line = end.is_none();
        self.writing.0.store(true, Ordering::Relaxed);
        self.write(lines).await;
        self.writing.0.store(false, Ordering::Relaxed);
    }

    /// Writes what is held, and a line break if the last one is missing. Fails if any of it could not
    /// be written.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        let mut rest = std::mem::take(&mut self.held);
        if rest.last().map_or(self.in_line, |last| *last != b'\n') {
            rest.push(b'\n');
        }
        if !rest.is_empty() {
            self.write(rest).await;
        }
        self.written
    }

    async fn write(&mut self, bytes: Vec<u8>) {
        // A part that is missing is not made good by the next one.
        if self.written.is_ok() {
            self.written = self.shared.write(bytes).await;
        }
    }
}

// === impl Writing ===

impl Writing {
    pub(super) fn is_under_way(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at once, and none every other time.
    #[derive(Default)]
    struct Slow(Vec<u8>, bool);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let taken = bytes.len().min(100_000);
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What the parts of one output have become before its end, and after it.
    async fn write(parts: &[&[u8]]) -> (usize, Vec<u8>) {
        let shared = Shared(Arc::new(Mutex::new(Slow::default())));
        let mut grouped = Grouped::new(&shared);
        for part in parts {
            grouped.copy(*part).await;
        }
        let before = shared.0.lock().await.0.len();
        assert!(grouped.held.len() <= HELD_BYTES && !grouped.writing().is_under_way());
        grouped.finish().await.unwrap();
        let all = std::mem::take(&mut shared.0.lock().await.0);
        (before, all)
    }

    #[tokio::test]
    async fn it_is_held_to_its_end_and_ends_in_a_line_break() {
        assert_eq!(write(&[]).await, (0, vec![]));
        assert_eq!(write(&[b""]).await, (0, vec![]));
        assert_eq!(write(&[b"a\nb"]).await, (0, b"a\nb\n".to_vec()));
        assert_eq!(write(&[b"a\n", b"\n"]).await, (0, b"a\n\n".to_vec()));
    }

    #[tokio::test]
    async fn what_is_too_much_is_passed_on_in_whole_lines() {
        let line = [&[b'a'; 999][..], b"\n"].concat();
        let lines = line.repeat(1_500);
        let (before, all) = write(&[&lines, b"b"]).await;
        assert!(before > 0 && before % line.len() == 0, "{before}");
        assert_eq!(all, [&lines[..], b"b\n"].concat());

        let long = vec![b'a'; HELD_BYTES + 1];
        let (before, all) = write(&[&long]).await;
        assert_eq!((before, all), (long.len(), [&long[..], b"\n"].concat()));
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_told() {
        let mut small = Grouped::new(&Shared(Arc::new(Mutex::new(io::Cursor::new([0; 2])))));
        small.copy(&b"abc"[..]).await;
        assert_eq!(small.finish().await.unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
