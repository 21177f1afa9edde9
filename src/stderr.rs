//! Standard error: the only place that writes to it.
//!
//! Its reader may stop: a log driver that hangs, a terminal that is halted. A process that serves, or holds leases, must not
//! stand still then, so it calls [`queue`] first: a thread writes from then on, see [`LineWriter`]. Commands that make one
//! call and end write directly.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::time::Duration;
use std::{panic, thread};

use crate::line_writer::LineWriter;

/// Maximum number of bytes that wait.
const BYTES_MAX: usize = 1 << 20;
/// Name of the thread.
const THREAD: &str = "ringq-stderr";
/// Maximum time that the end of the process waits for the reader.
const END_MAX: Duration = Duration::from_secs(1);
/// Maximum time that a panic waits for the reader: it may be the end of the process.
const PANIC_MAX: Duration = Duration::from_millis(100);

static QUEUE: OnceLock<LineWriter> = OnceLock::new();

/// Writer of whole lines; each write is one piece.
pub(crate) struct StderrLines;

/// Queues all that is written from now on, panic messages too; `lost_line` makes the line that reports a number of lost
/// lines.
///
/// # Errors
/// The error of the system, if it has no room for a thread.
pub(crate) fn queue(lost_line: impl Fn(u64) -> Vec<u8> + Send + 'static) -> io::Result<()> {
    let queue = LineWriter::start(THREAD, io::stderr(), BYTES_MAX, lost_line)?;
    if QUEUE.set(queue).is_ok() {
        panic::set_hook(Box::new(|panic| {
            let (thread, trace) = (thread::current(), Backtrace::capture());
            let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
            if trace.status() == BacktraceStatus::Captured {
                text.push_str(&trace.to_string());
            }
            write(text.as_bytes());
            flush_for(PANIC_MAX);
        }));
    }
    Ok(())
}

/// Writes whole lines. A closed standard error has no reader, so that is no error.
pub(crate) fn write(lines: &[u8]) {
    match QUEUE.get() {
        Some(queue) => queue.write(lines),
        None => _ = io::stderr().lock().write_all(lines),
    }
}

/// Waits until there is room for this number of bytes, as long as the reader takes any: what is written in turn is lost
/// only if the reader has stopped.
#[cfg(feature = "cli")]
pub(crate) async fn wait_for_room(bytes: usize) {
    if let Some(queue) = QUEUE.get() {
        queue.wait_for_room(bytes).await;
    }
}

/// Writes what is queued, as far as the reader takes it within a second. Each end of the process calls this.
pub(crate) fn flush() {
    flush_for(END_MAX);
}

fn flush_for(max: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.flush(max);
    }
}

/// Returns the number of lines that were lost since the start.
pub(crate) fn lost_lines() -> u64 {
    QUEUE.get().map_or(0, LineWriter::lost_lines)
}

pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Returns whether to write colours. This also reads NO_COLOR, CLICOLOR and TERM.
#[cfg(feature = "cli")]
pub(crate) fn is_coloured() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

/// Returns the columns of the terminal; 0: they are not known.
#[cfg(feature = "cli")]
pub(crate) fn columns() -> u16 {
    rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col)
}

// === impl StderrLines ===

impl Write for StderrLines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        write(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
