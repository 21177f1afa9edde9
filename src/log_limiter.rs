//! Log limiter: limits repeated log lines, and counts the suppressed ones.
//!
//! The number of suppressed lines is always logged: by the next line of that name, or a moment after the interval in a
//! line of its own, or at the latest when the limiter is dropped.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

/// Most lines that are kept. Beyond that, lines that were last logged before the interval are removed; if there are
/// none, all new lines share one entry.
const LINES_MAX: usize = 1_024;
/// Separator between the words of a line's name.
const SEPARATOR: &str = " ";

/// Limits repeated log lines: allows each line once in an interval. `T` is what is noted of suppressed lines.
pub(crate) struct LogLimiter<T: Default + Send + 'static = ()>(Arc<LimiterState<T>>);

/// Suppressed lines of one name: their number, and what was noted of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suppressed<T = ()> {
    pub(crate) count: u64,
    pub(crate) noted: T,
}

/// Writes the line about suppressed lines of a name that no later line has reported.
type Report<T> = Box<dyn Fn(&str, Suppressed<T>) + Send + Sync>;

struct LimiterState<T: Default> {
    interval: Duration,
    lines: Mutex<HashMap<String, LineState<T>>>,
    /// `None`: suppressed lines are no events.
    report: Option<Report<T>>,
}

#[derive(Debug)]
struct LineState<T> {
    at: Instant,
    suppressed: Suppressed<T>,
}

/// Permit to log a line now, with the lines suppressed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogPermit<T = ()>(Suppressed<T>);

// === impl LogLimiter ===

impl LogLimiter {
    /// Creates a limiter of log lines about `subject` that allows each line once in `interval`.
    pub(crate) fn new(subject: &'static str, interval: Duration) -> LogLimiter {
        LogLimiter::with_report(interval, move |name, Suppressed { count: suppressed, .. }| {
            tracing::info!(subject, name, suppressed, "log lines were suppressed");
        })
    }

    /// Creates a limiter of lines that remind of a state: those that it suppresses are no events, and not reported.
    pub(crate) fn of_reminders(interval: Duration) -> LogLimiter {
        LogLimiter(Arc::new(LimiterState { interval, lines: Mutex::default(), report: None }))
    }

    /// Returns a permit if the line of this name may be logged now; otherwise counts it as suppressed. The number of
    /// names must be small: clients must not choose them.
    pub(crate) fn allow(&self, name: &[&str]) -> Option<LogPermit> {
        self.allow_many(name, 1)
    }

    /// Does the same as [`LogLimiter::allow`] for a line that stands for this number of events.
    pub(crate) fn allow_many(&self, name: &[&str], events: u64) -> Option<LogPermit> {
        self.allow_noting(name, events, |()| {})
    }
}

impl<T: Default + Send + 'static> LogLimiter<T> {
    /// Creates a limiter that allows each line once in `interval`, and reports those suppressed by `report`.
    pub(crate) fn with_report(
        interval: Duration,
        report: impl Fn(&str, Suppressed<T>) + Send + Sync + 'static,
    ) -> LogLimiter<T> {
        let (lines, report): (_, Report<T>) = (Mutex::default(), Box::new(report));
        LogLimiter(Arc::new(LimiterState { interval, lines, report: Some(report) }))
    }

    /// Does the same as [`LogLimiter::allow_many`]; `note` adds to what is noted of suppressed lines.
    pub(crate) fn allow_noting(
        &self,
        name: &[&str],
        events: u64,
        note: impl FnOnce(&mut T),
    ) -> Option<LogPermit<T>> {
        let LimiterState { interval, .. } = *self.0;
        let mut lines = self.0.lines.lock();
        let now = Instant::now();
        let is_old = |line: &LineState<T>| now.duration_since(line.at) >= interval;
        let mut name = name.join(SEPARATOR);
        if lines.len() >= LINES_MAX && !lines.contains_key(&name) {
            lines.retain(|_, line| !is_old(line) || line.suppressed.count > 0);
            if lines.len() >= LINES_MAX {
                name.clear();
            }
        }
        match lines.get_mut(&name) {
            Some(line) if !is_old(line) => {
                if line.suppressed.count == 0 {
                    self.report_later(name, line.at);
                }
                line.suppressed.count += events;
                note(&mut line.suppressed.noted);
                None
            }
            old => {
                let suppressed = old.map(|line| std::mem::take(&mut line.suppressed));
                lines.insert(name, LineState { at: now, suppressed: Suppressed::default() });
                Some(LogPermit(suppressed.unwrap_or_default()))
            }
        }
    }

    /// Reports the suppressed lines of a name that was logged at `at`, unless the next line comes soon after the interval
    /// and does it.
    fn report_later(&self, name: String, at: Instant) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.0.report.is_none() {
            return;
        }
        let (state, interval): (Weak<_>, _) = (Arc::downgrade(&self.0), self.0.interval);
        runtime.spawn(async move {
            sleep_until(at + interval + interval / 4).await;
            let Some(state) = state.upgrade() else { return };
            let mut lines = state.lines.lock();
            let line = lines.get_mut(&name).filter(|line| line.at == at);
            let suppressed = line.map(|line| std::mem::take(&mut line.suppressed));
            drop(lines);
            state.report(&name, suppressed.unwrap_or_default());
        });
    }
}

impl<T: Default + Send + 'static> fmt::Debug for LogLimiter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLimiter").field("interval", &self.0.interval).finish_non_exhaustive()
    }
}

// === impl LimiterState ===

impl<T: Default> LimiterState<T> {
    /// Reports suppressed lines, if there are any.
    fn report(&self, name: &str, suppressed: Suppressed<T>) {
        if let Some(report) = self.report.as_ref().filter(|_| suppressed.count > 0) {
            report(name, suppressed);
        }
    }
}

impl<T: Default> Drop for LimiterState<T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut *self.lines.lock());
        for (name, LineState { suppressed, .. }) in lines {
            self.report(&name, suppressed);
        }
    }
}

// === impl LogPermit ===

impl<T> LogPermit<T> {
    /// Returns the number of events suppressed since the line was last logged; `None`: no event was suppressed.
    pub(crate) fn suppressed(&self) -> Option<u64> {
        Some(self.0.count).filter(|&suppressed| suppressed > 0)
    }

    /// Returns what was noted of them.
    pub(crate) fn noted(&self) -> &T {
        &self.0.noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    /// A limiter, and the lines that it reports as `name count`.
    fn reported() -> (LogLimiter, Arc<Mutex<Vec<String>>>) {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&reports);
        let report = move |name: &str, suppressed: Suppressed| {
            lines.lock().push(format!("{name} {}", suppressed.count));
        };
        (LogLimiter::with_report(INTERVAL, report), reports)
    }

    /// Whatever comes after them, and whenever: each suppressed line is counted in exactly one line.
    #[tokio::test(start_paused = true)]
    async fn what_is_suppressed_is_always_counted_once() {
        for pauses in [&[0][..], &[0, 31], &[0, 60], &[0, 31, 31, 40], &[0, 0, 60, 0], &[]] {
            let (limiter, reports) = reported();
            let (mut events, mut logged) = (0, 0);
            for pause in pauses {
                tokio::time::sleep(Duration::from_secs(*pause)).await;
                for many in [1, 1, 5] {
                    let permit = limiter.allow_many(&["a", "b"], many);
                    logged += permit.map_or(0, |permit| many + permit.suppressed().unwrap_or(0));
                    events += many;
                }
            }
            drop(limiter);
            let reports = reports.lock().clone();
            let count = |line: &String| line.strip_prefix("a b ").unwrap().parse::<u64>().unwrap();
            assert_eq!(logged + reports.iter().map(count).sum::<u64>(), events, "{reports:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_suppressed_last_is_reported_soon_after_the_interval() {
        let (limiter, reports) = reported();
        assert!(limiter.allow(&["a"]).is_some());
        assert_eq!(limiter.allow_many(&["a"], 499), None);
        tokio::time::sleep(INTERVAL).await;
        assert!(reports.lock().is_empty(), "the next line may report it");
        tokio::time::sleep(INTERVAL / 2).await;
        assert_eq!(*reports.lock(), ["a 499"]);
        assert_eq!(limiter.allow(&["a"]).unwrap().suppressed(), None);
    }

    /// Returns the number of suppressed events, if the line is allowed.
    fn pass(limiter: &LogLimiter, name: &[&str]) -> Option<u64> {
        limiter.allow(name).map(|passed| passed.suppressed().unwrap_or(0))
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_line_passes_again_after_the_interval_and_other_lines_at_once() {
        let limiter = LogLimiter::new("a test", INTERVAL);
        assert_eq!(pass(&limiter, &["claim", "FULL"]), Some(0));
        assert_eq!(pass(&limiter, &["claim", "UNAVAILABLE"]), Some(0));
        assert_eq!(pass(&limiter, &["claim", "FULL"]), None);
        tokio::time::advance(INTERVAL).await;
        assert!(pass(&limiter, &["claim", "FULL"]).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn suppressed_events_are_counted_once() {
        let limiter = LogLimiter::new("a test", INTERVAL);
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
        let limiter = LogLimiter::new("a test", INTERVAL);
        let all: Vec<String> = (0..2 * LINES_MAX).map(|n| n.to_string()).collect();
        let count = |all: &[String]| all.iter().filter(|n| limiter.allow(&[n]).is_some()).count();
        let passed = count(&all);
        assert!((LINES_MAX..=LINES_MAX + 1).contains(&passed), "{passed}");
        assert!(limiter.0.lines.lock().len() <= LINES_MAX + 1);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(count(&all[..LINES_MAX]), LINES_MAX, "the old ones make room");
    }
}
