//! Progress of `--lines`, for people.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use crate::stderr;

/// Interval in which the bar is redrawn without progress.
const TICK: Duration = Duration::from_millis(200);
/// Redraws of the bar per second, at most.
const REDRAWS: u8 = 20;

/// Bar on stderr, if that is a terminal and ids do not go to one.
pub(super) struct Progress(Option<ProgressBar>);

/// Terminal of the bar: a halted one makes no caller wait.
#[derive(Debug)]
struct StderrTerminal;

// === impl Progress ===

impl Progress {
    /// Creates the bar; `size` is the bytes of the input, if known. Unless `quiet`, ids go to stdout.
    pub(super) fn new(size: Option<u64>, quiet: bool) -> Progress {
        if quiet || !stderr::is_terminal() || io::stdout().is_terminal() {
            return Progress(None);
        }
        let template = match size {
            Some(_) => "{wide_bar} {percent:>3}%  {msg}  eta {eta}",
            None => "{spinner} {msg}  {elapsed}",
        };
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(StderrTerminal), REDRAWS);
        let bar = ProgressBar::with_draw_target(size, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Progress(Some(bar))
    }

    /// Sets the progress in bytes and lines.
    pub(super) fn set(&self, offset: u64, lines: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(offset);
            bar.set_message(format!("{lines} lines"));
        }
    }

    /// Writes to stderr without disturbing the bar.
    pub(super) fn suspend(&self, write: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

// === impl StderrTerminal ===

impl StderrTerminal {
    fn move_cursor(count: usize, direction: char) -> io::Result<()> {
        if count > 0 {
            stderr::write(format!("\x1b[{count}{direction}").as_bytes());
        }
        Ok(())
    }
}

impl TermLike for StderrTerminal {
    fn width(&self) -> u16 {
        stderr::columns()
    }

    fn move_cursor_up(&self, count: usize) -> io::Result<()> {
        StderrTerminal::move_cursor(count, 'A')
    }

    fn move_cursor_down(&self, count: usize) -> io::Result<()> {
        StderrTerminal::move_cursor(count, 'B')
    }

    fn move_cursor_right(&self, count: usize) -> io::Result<()> {
        StderrTerminal::move_cursor(count, 'C')
    }

    fn move_cursor_left(&self, count: usize) -> io::Result<()> {
        StderrTerminal::move_cursor(count, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        stderr::write(text.as_bytes());
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
