//! Log limiter: limits repeated log lines, and counts the suppressed ones.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Most lines that are kept. Beyond that, lines that were last logged before the interval are removed; if there are
/// none, all new lines share one entry.
const LINES_MAX: usize = 1_024;
/// Separator between the words of a line's name.
const SEPARATOR: &str = "\n";

/// Limits repeated log lines: allows each line once in an interval.
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

/// Permit to log a line now, with the number of events suppressed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPermit {
    suppressed: u64,
}

// === impl LogLimiter ===

impl LogLimiter {
    /// Creates a limiter that allows each line once in `interval`.
    pub(crate) fn new(interval: Duration) -> LogLimiter {
        LogLimiter { interval, lines: Mutex::default() }
    }

    /// Returns a permit if the line of this name may be logged now; otherwise counts it as suppressed. The number of
    /// names must be small: clients must not choose them.
    pub(crate) fn allow(&self, name: &[&str]) -> Option<LogPermit> {
        self.allow_many(name, 1)
    }

    /// Does the same as [`LogLimiter::allow`] for a line that stands for this number of events.
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

// === impl LogPermit ===

impl LogPermit {
    /// Returns the number of events suppressed since the line was last logged; `None`: no event was suppressed.
    pub(crate) fn suppressed(self) -> Option<u64> {
        Some(self.suppressed).filter(|&suppressed| suppressed > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    /// Returns the number of suppressed events, if the line is allowed.
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
