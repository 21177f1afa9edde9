//! Limits repeated log lines: when each was logged last, and how many were suppressed since.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lines that are remembered at most. Beyond that those that have not been logged lately are forgotten, and new ones
/// share one place while there are none.
const LINES_MAX: usize = 1_024;
/// Between the words of a line's name.
const SEPARATOR: &str = "\n";

/// Lets each line through once in an interval.
#[derive(Debug)]
pub(crate) struct LogLimiter {
    interval: Duration,
    lines: Mutex<HashMap<String, LineState>>,
}

#[derive(Debug)]
struct LineState {
    at: Instant,
    suppressed: u64,
}

/// A line that may be logged now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPermit {
    suppressed: u64,
}

// === impl LogLimiter ===

impl LogLimiter {
    /// Lets the same line through once in `interval`.
    pub(crate) fn new(interval: Duration) -> LogLimiter {
        LogLimiter { interval, lines: Mutex::default() }
    }

    /// Whether the line of this name may be logged now; if not, it is counted as suppressed. Names are few: clients
    /// cannot make them up.
    pub(crate) fn allow(&self, name: &[&str]) -> Option<LogPermit> {
        self.allow_many(name, 1)
    }

    /// The same for a line that stands for so many events.
    pub(crate) fn allow_many(&self, name: &[&str], events: u64) -> Option<LogPermit> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_old = |line: &LineState| now.duration_since(line.at) >= self.interval;
        let mut name = name.join(SEPARATOR);
        if lines.len() >= LINES_MAX && !lines.contains_key(&name) {
            lines.retain(|_, line| !is_old(line));
            if lines.len() >= LINES_MAX {
                name.clear();
            }
        }
        match lines.get_mut(&name) {
            Some(line) if !is_old(line) => {
                line.suppressed += events;
                None
            }
            old => {
                let suppressed = old.map_or(0, |line| line.suppressed);
                lines.insert(name, LineState { at: now, suppressed: 0 });
                Some(LogPermit { suppressed })
            }
        }
    }
}

// === impl Passed ===

impl LogPermit {
    /// Events since the line was last logged that were not; `None` if all were.
    pub(crate) fn suppressed(self) -> Option<u64> {
        Some(self.suppressed).filter(|&suppressed| suppressed > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    /// How many events were suppressed, if the line passes.
    fn pass(limiter: &LogLimiter, name: &[&str]) -> Option<u64> {
        limiter.allow(name).map(|passed| passed.suppressed().unwrap_or(0))
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_line_passes_again_after_the_interval_and_other_lines_at_once() {
        let limiter = LogLimiter::new(INTERVAL);
        assert_eq!(pass(&limiter, &["claim", "FULL"]), Some(0));
        assert_eq!(pass(&limiter, &["claim", "UNAVAILABLE"]), Some(0));
        assert_eq!(pass(&limiter, &["claim", "FULL"]), None);
        tokio::time::advance(INTERVAL).await;
        assert!(pass(&limiter, &["claim", "FULL"]).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn suppressed_events_are_counted_once() {
        let limiter = LogLimiter::new(INTERVAL);
        for expected in [Some(0), None, None] {
            assert_eq!(pass(&limiter, &["claim"]), expected);
        }
        assert_eq!(limiter.allow_many(&["claim"], 5), None);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(pass(&limiter, &["claim"]), Some(7));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(pass(&limiter, &["claim"]), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_however_many_lines_there_are() {
        let limiter = LogLimiter::new(INTERVAL);
        let all: Vec<String> = (0..2 * LINES_MAX).map(|n| n.to_string()).collect();
        let count = |all: &[String]| all.iter().filter(|n| limiter.allow(&[n]).is_some()).count();
        let passed = count(&all);
        assert!((LINES_MAX..=LINES_MAX + 1).contains(&passed), "{passed}");
        assert!(limiter.lines.lock().unwrap().len() <= LINES_MAX + 1);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(count(&all[..LINES_MAX]), LINES_MAX, "the old ones make room");
    }
}
