//! The clocks of a measurement. Nothing here decides by them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "a measuring tool reads clocks; it does so here")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Microseconds of the wall clock, the one that due times are given by.
#[expect(clippy::disallowed_methods, reason = "a measuring tool reads clocks; it does so here")]
pub(super) fn wall_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

/// CPU time that this process has taken so far.
pub(super) fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Whole microseconds.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
