//! Instants and "when" in the unit that every store shares: microseconds since the Unix epoch.

use std::time::Duration;

/// An instant: microseconds since 1970-01-01T00:00:00Z.
///
/// Microseconds because a delay must never be cut short: an enqueue at 0.9 ms into a millisecond
/// with a delay of 50 ms is not due 49.1 ms later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

/// When something happens, as its asker said it. Only the store turns it into a [`Time`], because
/// only the store's clock decides what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as possible.
    Now,
    /// This long after the store takes the call.
    After(Duration),
    /// At this instant of the store's clock.
    At(Time),
}

// === impl Time ===

impl Time {
    /// The last instant there is.
    pub const MAX: Time = Time(i64::MAX);

    /// This instant plus `duration`, rounded up to a whole microsecond, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(micros(duration)))
    }

    /// This instant minus `duration`, saturating.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(micros(duration)))
    }

    /// How long after `earlier` this instant is; zero when it is not after it.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// Whole microseconds of `duration`, rounded up.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

// === impl When ===

impl When {
    /// The instant from which on a job can run, for a store whose clock says `now`. A time that has
    /// passed is now: who names one does not overtake those who have waited since then.
    #[must_use]
    pub fn due(self, now: Time) -> Time {
        self.at(now).max(now)
    }

    /// The instant meant, for a store whose clock says `now`.
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
