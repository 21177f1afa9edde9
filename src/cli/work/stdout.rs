//! Standard output of concurrent commands: the output of each stays together.
//!
//! Output is held until the command has ended and is then written whole. Output beyond the buffer is passed on in
//! whole lines.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::line_writer::write_all;

/// Bytes held per command.
const BUFFER_BYTES: usize = 1 << 20;
/// Least bytes per read.
const READ_BYTES: usize = 8 << 10;

/// Standard output of this process, which the commands share. Clones share it, too.
#[derive(Clone, Debug)]
pub(super) struct SharedStdout<W = File>(Arc<Mutex<W>>);

/// Output of one command.
#[derive(Debug)]
pub(super) struct BufferedStdout<W = File> {
    shared: SharedStdout<W>,
    buffer: Vec<u8>,
    /// Set if the output that was passed on ended within a line.
    in_line: bool,
    writing: WriteInProgress,
    /// Result of the writes so far.
    written: io::Result<()>,
}

/// Set while a write is in progress, which takes as long as the reader of standard output needs.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteInProgress(Arc<AtomicBool>);

// === impl SharedStdout ===

impl SharedStdout {
    pub(super) fn stdout() -> io::Result<SharedStdout> {
        // Without the buffer of the standard library, which would keep data that could not be written.
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(SharedStdout(Arc::new(Mutex::new(stdout.into()))))
    }
}

impl<W: Write + Send + 'static> SharedStdout<W> {
    /// Writes bytes in one piece. A write that has begun is finished even if its future is dropped.
    async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        let mut to = Arc::clone(&self.0).lock_owned().await;
        let written = spawn_blocking(move || write_all(&mut *to, &bytes)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

// === impl BufferedStdout ===

impl<W: Write + Send + 'static> BufferedStdout<W> {
    /// Creates an empty one.
    pub(super) fn new(shared: &SharedStdout<W>) -> BufferedStdout<W> {
        let shared = SharedStdout(Arc::clone(&shared.0));
        let writing = WriteInProgress::default();
        BufferedStdout { shared, buffer: Vec::new(), in_line: false, writing, written: Ok(()) }
    }

    /// Returns the flag that is set while [`BufferedStdout::copy`] writes.
    pub(super) fn writing(&self) -> WriteInProgress {
        self.writing.clone()
    }

    /// Reads to the end. Dropping the future while it does not write loses nothing that was read.
    pub(super) async fn copy(&mut self, mut from: impl AsyncRead + Unpin) {
        loop {
            self.buffer.reserve(READ_BYTES);
            match from.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) if self.buffer.len() > BUFFER_BYTES => self.flush_lines().await,
                Ok(_) => {}
            }
        }
    }

    /// Writes whole lines, since other commands write, too; of a longer line, the part so far.
    async fn flush_lines(&mut self) {
        let end = self.buffer.iter().rposition(|byte| *byte == b'\n').map(|last| last + 1);
        let rest = self.buffer.split_off(end.unwrap_or(self.buffer.len()));
        let lines = std::mem::replace(&mut self.buffer, rest);
        self.in_line = end.is_none();
        self.writing.0.store(true, Ordering::Relaxed);
        self.write(lines).await;
        self.writing.0.store(false, Ordering::Relaxed);
    }

    /// Writes the rest, and a line break if the last one is missing. Fails if any part could not be written.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        let mut rest = std::mem::take(&mut self.buffer);
        if rest.last().map_or(self.in_line, |last| *last != b'\n') {
            rest.push(b'\n');
        }
        if !rest.is_empty() {
            self.write(rest).await;
        }
        self.written
    }

    async fn write(&mut self, bytes: Vec<u8>) {
        // A missing part is not repaired by a later one.
        if self.written.is_ok() {
            self.written = self.shared.write(bytes).await;
        }
    }
}

// === impl WriteInProgress ===

impl WriteInProgress {
    pub(super) fn is_under_way(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writer that takes a few bytes at once, and fails every other time.
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

    /// Writes the parts of one output; returns the bytes written before its end, and all of them.
    async fn write(parts: &[&[u8]]) -> (usize, Vec<u8>) {
        let shared = SharedStdout(Arc::new(Mutex::new(Slow::default())));
        let mut grouped = BufferedStdout::new(&shared);
        for part in parts {
            grouped.copy(*part).await;
        }
        let before = shared.0.lock().await.0.len();
        assert!(grouped.buffer.len() <= BUFFER_BYTES && !grouped.writing().is_under_way());
        grouped.finish().await.unwrap();
        let all = std::mem::take(&mut shared.0.lock().await.0);
        (before, all)
    }

    #[tokio::test]
    async fn output_is_buffered_and_ends_in_a_line_break() {
        assert_eq!(write(&[]).await, (0, vec![]));
        assert_eq!(write(&[b""]).await, (0, vec![]));
        assert_eq!(write(&[b"a\nb"]).await, (0, b"a\nb\n".to_vec()));
        assert_eq!(write(&[b"a\n", b"\n"]).await, (0, b"a\n\n".to_vec()));
    }

    #[tokio::test]
    async fn large_output_is_flushed_in_whole_lines() {
        let line = [&[b'a'; 999][..], b"\n"].concat();
        let lines = line.repeat(1_500);
        let (before, all) = write(&[&lines, b"b"]).await;
        assert!(before > 0 && before % line.len() == 0, "{before}");
        assert_eq!(all, [&lines[..], b"b\n"].concat());

        let long = vec![b'a'; BUFFER_BYTES + 1];
        let (before, all) = write(&[&long]).await;
        assert_eq!((before, all), (long.len(), [&long[..], b"\n"].concat()));
    }

    #[tokio::test]
    async fn a_write_error_is_returned() {
        let mut small =
            BufferedStdout::new(&SharedStdout(Arc::new(Mutex::new(io::Cursor::new([0; 2])))));
        small.copy(&b"abc"[..]).await;
        assert_eq!(small.finish().await.unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
