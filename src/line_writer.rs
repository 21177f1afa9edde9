//! Writes lines to a descriptor that can block, such as a pipe whose reader has stopped: a bounded queue, and a thread that
//! writes. No caller waits for the reader; lines that do not fit are dropped, and counted in a line that follows.
//!
//! `tracing_appender::non_blocking` has the same queue without the line of the lost ones, and prints by `println!` when its
//! thread does not end: where standard output is full, the process then never ends.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Maximum number of bytes that are written at once, unless a line is longer. Other processes write to the same pipe:
/// only a write of this size at most is not mixed with theirs.
const WRITE_BYTES: usize = 4_096;
/// Time without any progress after which the reader counts as stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(1);
/// Pause before a full descriptor is tried again: another process may have made it non-blocking, and the system does not
/// report when it has room.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// Queue of lines. Clones share it.
#[derive(Clone)]
pub(crate) struct LineWriter(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    queue: Mutex<Queue>,
    /// Notified when the thread has something to write, and when it has written all.
    changed: Condvar,
    /// Notified with each progress of the thread.
    progress: Notify,
    /// Number of lines lost since the start.
    lost: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Whole lines that wait.
    lines: Vec<u8>,
    /// Number of lost lines that no line reports yet.
    lost: u64,
    is_writing: bool,
    /// True if the reader has stopped: set by a caller that has waited for it, cleared by progress.
    is_stopped: bool,
}

// === impl LineWriter ===

impl LineWriter {
    /// Starts the thread. At most `bytes_max` bytes wait; `lost_line` makes the line that reports a number of lost lines.
    ///
    /// # Errors
    /// The error of the system, if it has no room for a thread.
    pub(crate) fn start(
        name: &str,
        target: impl Write + Send + 'static,
        bytes_max: usize,
        lost_line: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> io::Result<LineWriter> {
        let shared = Arc::new(Shared {
            bytes_max,
            queue: Mutex::default(),
            changed: Condvar::new(),
            progress: Notify::new(),
            lost: AtomicU64::new(0),
        });
        let writer = LineWriter(Arc::clone(&shared));
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || shared.run(target, lost_line))?;
        Ok(writer)
    }

    /// Writes whole lines as soon as the reader takes them, or drops them.
    pub(crate) fn write(&self, lines: &[u8]) {
        let mut queue = self.0.queue.lock();
        if self.0.has_room(&queue, lines.len()) {
            queue.lines.extend_from_slice(lines);
            self.0.changed.notify_all();
        } else {
            self.0.add_lost(&mut queue, lines);
        }
    }

    /// Waits until there is room for this number of bytes, as long as the reader takes any.
    #[cfg(any(test, feature = "cli"))]
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        loop {
            let progress = self.0.progress.notified();
            {
                let queue = self.0.queue.lock();
                if queue.is_stopped || self.0.has_room(&queue, bytes) {
                    return;
                }
            }
            if timeout(STOPPED_AFTER, progress).await.is_err() {
                self.0.queue.lock().is_stopped = true;
            }
        }
    }

    /// Waits until all is written, for `max` at most.
    pub(crate) fn flush(&self, max: Duration) {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty();
        self.0.changed.wait_while_for(&mut self.0.queue.lock(), is_busy, max);
    }

    /// Returns the number of lines lost since the start.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }
}

// === impl Shared ===

impl Shared {
    fn has_room(&self, queue: &Queue, bytes: usize) -> bool {
        queue.lines.len() + bytes <= self.bytes_max
    }

    fn add_lost(&self, queue: &mut Queue, lines: &[u8]) {
        let count = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        queue.lost += count;
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Writes for the rest of the process.
    fn run(&self, mut target: impl Write, lost_line: impl Fn(u64) -> Vec<u8>) {
        loop {
            let (lines, lost) = self.next();
            self.write_lines(&mut target, &lines);
            if lost > 0 {
                self.write_lines(&mut target, &lost_line(lost));
            }
        }
    }

    /// Waits for lines; returns them with the number of those that were lost behind them.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut queue = self.queue.lock();
        queue.is_writing = false;
        self.changed.notify_all();
        self.changed.wait_while(&mut queue, |queue| queue.lines.is_empty());
        queue.is_writing = true;
        (std::mem::take(&mut queue.lines), std::mem::take(&mut queue.lost))
    }

    /// Writes lines, a few at once. Those that the target refuses are lost: it is closed, or its disk is full.
    fn write_lines(&self, target: &mut impl Write, mut lines: &[u8]) {
        while !lines.is_empty() {
            let (first, rest) = lines.split_at(end_of_lines(lines));
            let written = write_all(target, first);
            let mut queue = self.queue.lock();
            queue.is_stopped = false;
            if written.is_err() {
                self.add_lost(&mut queue, first);
            }
            drop(queue);
            self.progress.notify_waiters();
            lines = rest;
        }
    }
}

/// Returns the end of the last line that ends within [`WRITE_BYTES`], or that of the first line.
fn end_of_lines(lines: &[u8]) -> usize {
    let is_end = |byte: &u8| *byte == b'\n';
    let last = lines.iter().take(WRITE_BYTES).rposition(is_end);
    last.or_else(|| lines.iter().position(is_end)).map_or(lines.len(), |end| end + 1)
}

/// Writes all bytes. Waits where the descriptor is full, blocking or not.
pub(crate) fn write_all(to: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(FULL_PAUSE),
            Err(error) => return Err(error),
        }
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Reader that has stopped: each write waits until the test takes it.
    struct Stopped(SyncSender<Vec<u8>>);

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const BYTES_MAX: usize = 100;
    const LONG: Duration = Duration::from_secs(60);

    fn start() -> (LineWriter, Receiver<Vec<u8>>) {
        let (sender, receiver) = sync_channel(0);
        let lost = |count| format!("{count} lost\n").into_bytes();
        (LineWriter::start("test", Stopped(sender), BYTES_MAX, lost).unwrap(), receiver)
    }

    fn text(read: &Receiver<Vec<u8>>) -> String {
        String::from_utf8(read.recv().unwrap()).unwrap()
    }

    /// Writes lines until the first one is being written and none waits.
    fn stall(writer: &LineWriter) {
        writer.write(b"first\n");
        while !writer.0.queue.lock().lines.is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_in_a_line_that_comes() {
        for too_many in [0, 1, 2, 97, 10_000] {
            let (writer, read) = start();
            stall(&writer);
            let fitting = BYTES_MAX / 5;
            (0..fitting + too_many).for_each(|_| writer.write(b"line\n"));
            assert_eq!(writer.lost_lines(), too_many as u64);
            assert_eq!(text(&read), "first\n");
            assert_eq!(text(&read), "line\n".repeat(fitting));
            writer.write(b"later\n");
            if too_many > 0 {
                assert_eq!(text(&read), format!("{too_many} lost\n"));
            }
            assert_eq!(text(&read), "later\n");
            writer.flush(LONG);
            assert!(writer.0.queue.lock().lines.is_empty());
        }
    }

    #[test]
    fn a_flush_ends_though_the_reader_has_stopped() {
        let (writer, _read) = start();
        stall(&writer);
        writer.flush(Duration::from_millis(1));
        assert!(writer.0.queue.lock().is_writing);
    }

    #[test]
    fn lines_that_the_target_refuses_are_lost() {
        let (writer, read) = start();
        drop(read);
        writer.write(b"one\ntwo\n");
        writer.flush(LONG);
        assert_eq!(writer.lost_lines(), 2);
    }

    #[tokio::test]
    async fn a_slow_reader_loses_nothing_and_a_stopped_one_holds_up_only_once() {
        let (writer, read) = start();
        let slow = thread::spawn(move || {
            let count = |_| text(&read).lines().count();
            (
                (0..)
                    .map(count)
                    .scan(0, |sum, lines| {
                        *sum += lines;
                        Some(*sum)
                    })
                    .find(|sum| *sum == 1_000),
                read,
            )
        });
        for _ in 0..1_000 {
            writer.wait_for_room(22).await;
            writer.write(b"a line of some length\n");
        }
        let (all, read) = slow.join().unwrap();
        assert_eq!((all, writer.lost_lines()), (Some(1_000), 0));
        stall(&writer);
        for _ in 0..1_000 {
            writer.wait_for_room(22).await;
            writer.write(b"a line of some length\n");
        }
        assert!(writer.lost_lines() > 900 && writer.0.queue.lock().is_stopped);
        text(&read);
        text(&read);
        assert!(!writer.0.queue.lock().is_stopped, "it goes on");
    }

    #[test]
    fn a_write_ends_at_the_end_of_a_line() {
        assert_eq!(end_of_lines(b"a\nb"), 2);
        assert_eq!(end_of_lines(b"ab"), 2);
        let long = [&vec![b'a'; WRITE_BYTES][..], b"\nb\n"].concat();
        assert_eq!(end_of_lines(&long), WRITE_BYTES + 1);
        assert_eq!(end_of_lines(&b"0123456\n".repeat(1_000)), WRITE_BYTES);
    }
}
