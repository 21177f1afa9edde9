//! Clocks of the measurement. No decision in this module depends on them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "a measuring tool reads clocks; it does so here")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Returns the time of the wall clock, to which due times refer, in microseconds.
#[expect(clippy::disallowed_methods, reason = "a measuring tool reads clocks; it does so here")]
pub(super) fn wall_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the CPU time of this process so far.
pub(super) fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Returns a duration in whole microseconds.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
