//! Instants, and times of callers, in the unit that every store shares: microseconds since the Unix epoch.

use std::time::Duration;

/// An instant: microseconds since 1970-01-01T00:00:00Z.
///
/// The unit is microseconds because a delay must never be cut short: with milliseconds, an enqueue at 0.9 ms into a
/// millisecond with a delay of 50 ms would be due 49.1 ms later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

/// Time of an event, as the caller gives it. Only the store converts it to a [`Time`], because only the store's clock
/// decides which jobs are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The earliest possible time.
    Now,
    /// This delay after the store receives the call.
    After(Duration),
    /// This instant of the store's clock.
    At(Time),
}

// === impl Time ===

impl Time {
    /// The last instant.
    pub const MAX: Time = Time(i64::MAX);

    /// Returns this instant plus `duration`, rounded up to a whole microsecond, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(micros(duration)))
    }

    /// Returns this instant minus `duration`, saturating.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(micros(duration)))
    }

    /// Returns the time from `earlier` to this instant; zero if this instant is not later.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// Returns the whole microseconds of `duration`, rounded up.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

// === impl When ===

impl When {
    /// Returns the due time of a job, for a store whose clock is at `now`. A time that has passed becomes `now`, so
    /// that a job cannot overtake jobs that have waited since then.
    #[must_use]
    pub fn due(self, now: Time) -> Time {
        self.at(now).max(now)
    }

    /// Returns the instant meant, for a store whose clock is at `now`.
    #[must_use]
    pub fn at(self, now: Time) -> Time {
        match self {
            When::Now => now,
            When::After(delay) => now.plus(delay),
            When::At(time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_never_cut() {
        assert_eq!(Time(10).plus(Duration::from_nanos(1)), Time(11));
        assert_eq!(Time(10).plus(Duration::from_micros(5)), Time(15));
        assert_eq!(Time::MAX.plus(Duration::from_secs(1)), Time::MAX);
    }

    #[test]
    fn since_is_never_negative() {
        assert_eq!(Time(5).since(Time(9)), Duration::ZERO);
        assert_eq!(Time(9).since(Time(5)), Duration::from_micros(4));
    }
}
