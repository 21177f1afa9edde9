//! Progress of `--lines`, for people.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Interval in which the bar is redrawn without progress.
const TICK: Duration = Duration::from_millis(200);

/// Bar on stderr, if that is a terminal and ids do not go to one.
pub(super) struct Progress(Option<ProgressBar>);

// === impl Progress ===

impl Progress {
    /// Creates the bar; `size` is the bytes of the input, if known. Unless `quiet`, ids go to stdout.
    pub(super) fn new(size: Option<u64>, quiet: bool) -> Progress {
        if quiet || !io::stderr().is_terminal() || io::stdout().is_terminal() {
            return Progress(None);
        }
        let (bar, template) = match size {
            Some(size) => (ProgressBar::new(size), "{wide_bar} {percent:>3}%  {msg}  eta {eta}"),
            None => (ProgressBar::new_spinner(), "{spinner} {msg}  {elapsed}"),
        };
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
