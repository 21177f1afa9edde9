//! The only module that reads clocks. All others take the time as a parameter or from a [`Clock`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::Time;

/// Wall time that never runs backwards within a process, or a manual clock for tests.
///
/// The system clock follows forward steps of the wall clock (a resumed machine) and ignores backward ones until the
/// process ends: it goes on at monotonic speed, so no due job is stuck and no relative delay is cut short.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Clock of the machine.
    System(SystemClock),
    /// Clock that stands still until it is moved.
    Manual(ManualClock),
}

/// Clock of the machine, see [`Clock`].
#[derive(Clone, Debug)]
pub struct SystemClock {
    started: Instant,
    /// Largest lead of the wall clock over the monotonic one, in microseconds; never falls.
    ahead: Arc<AtomicI64>,
}

/// Difference between a shard's clock and this replica's clock; the only way to convert times between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    /// Lead of the shard's clock in microseconds; negative: it is behind.
    ahead: i64,
}

/// Last measured skew of a shard, shared between tasks.
#[derive(Debug, Default)]
pub struct LastSkew {
    ahead: AtomicI64,
}

/// A clock that tests move; each sleeper wakes and checks its deadline when the clock moves.
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<Mutex<Time>>,
    moved: Arc<Notify>,
}

// === impl Clock ===

impl Clock {
    /// Creates a clock of the machine, which starts now.
    #[must_use]
    pub fn system() -> Clock {
        Clock::System(SystemClock {
            started: monotonic(),
            ahead: Arc::new(AtomicI64::new(i64::MIN)),
        })
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Time {
        match self {
            Clock::System(clock) => clock.now(),
            Clock::Manual(clock) => clock.now(),
        }
    }

    /// Sleeps until the clock is at `deadline` or later.
    pub async fn sleep_until(&self, deadline: Time) {
        match self {
            Clock::System(clock) => clock.sleep_until(deadline).await,
            Clock::Manual(clock) => clock.sleep_until(deadline).await,
        }
    }
}

// === impl SystemClock ===

impl SystemClock {
    fn now(&self) -> Time {
        // The wall clock first: a pause between the two readings then makes `ahead` too small once. In the other
        // order it would be too large for ever.
        let wall = wall();
        let elapsed = monotonic().duration_since(self.started).as_micros();
        let elapsed = i64::try_from(elapsed).unwrap_or(i64::MAX);
        let ahead = wall.0 - elapsed;
        Time(elapsed + ahead.max(self.ahead.fetch_max(ahead, Ordering::Relaxed)))
    }

    async fn sleep_until(&self, deadline: Time) {
        loop {
            let left = deadline.since(self.now());
            if left.is_zero() {
                return;
            }
            // A minute at most: a timer does not detect a forward step of the wall clock.
            tokio::time::sleep(left.min(Duration::from_secs(60))).await;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
fn wall() -> Time {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
fn monotonic() -> Instant {
    Instant::now()
}

// === impl Skew, LastSkew ===

impl Skew {
    /// No skew: both clocks are equal.
    pub const NONE: Skew = Skew { ahead: 0 };

    /// Measures the skew by a call that returned the time `shard`; `before` and `after` are this replica's times around
    /// the call. Clocks whose difference is not measurable count as equal.
    #[must_use]
    pub fn measured(before: Time, shard: Time, after: Time) -> Skew {
        let agree = (before..=after).contains(&shard);
        Skew { ahead: if agree { 0 } else { shard.0.saturating_sub(after.0) } }
    }

    /// Returns the least difference of the clocks that these times prove; the duration of the call does not count.
    #[must_use]
    pub fn at_least(before: Time, shard: Time, after: Time) -> Skew {
        Skew { ahead: shard.0.saturating_sub(shard.clamp(before, after.max(before)).0) }
    }

    /// Returns the lead of the shard's clock in seconds; below 0: it is behind.
    #[must_use]
    pub fn seconds(self) -> f64 {
        let by = Duration::from_micros(self.ahead.unsigned_abs()).as_secs_f64();
        if self.ahead < 0 { -by } else { by }
    }

    /// Converts a time of the shard to this replica's clock.
    #[must_use]
    pub fn to_local(self, there: Time) -> Time {
        Time(there.0.saturating_sub(self.ahead))
    }

    /// Converts a time of this replica to the shard's clock.
    #[must_use]
    pub fn to_shard(self, here: Time) -> Time {
        Time(here.0.saturating_add(self.ahead))
    }
}

impl LastSkew {
    /// Returns the last measured skew; [`Skew::NONE`] before the first measurement.
    #[must_use]
    pub fn get(&self) -> Skew {
        Skew { ahead: self.ahead.load(Ordering::Relaxed) }
    }

    /// Stores a measured skew.
    pub fn set(&self, skew: Skew) {
        self.ahead.store(skew.ahead, Ordering::Relaxed);
    }
}

// === impl ManualClock ===

impl ManualClock {
    /// Creates a clock that stands at `now`.
    #[must_use]
    pub fn new(now: Time) -> ManualClock {
        ManualClock { now: Arc::new(Mutex::new(now)), moved: Arc::new(Notify::new()) }
    }

    /// Returns the time of the clock.
    #[must_use]
    pub fn now(&self) -> Time {
        *self.now.lock()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let to = self.now().plus(by);
        self.set(to);
    }

    /// Sets the clock.
    pub fn set(&self, to: Time) {
        *self.now.lock() = to;
        self.moved.notify_waiters();
    }

    async fn sleep_until(&self, deadline: Time) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.now() >= deadline {
                return;
            }
            moved.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_agree_are_the_same() {
        let ahead = |shard| Skew::measured(Time(10), Time(shard), Time(14)).ahead;
        assert_eq!((ahead(12), ahead(9), ahead(20)), (0, -5, 6));
    }

    #[test]
    fn call_duration_is_not_counted_as_skew() {
        let seconds = |shard| {
            let at = |second: i64| Time(second * 1_000_000);
            Skew::at_least(at(10), at(shard), at(14)).seconds()
        };
        assert_eq!((seconds(9), seconds(10), seconds(14), seconds(17)), (-1.0, 0.0, 0.0, 3.0));
    }

    #[test]
    fn skew_conversion_round_trips() {
        let ahead = Skew::measured(Time(10), Time(20), Time(14));
        assert_eq!((ahead.to_local(Time(20)), ahead.to_shard(Time(14))), (Time(14), Time(20)));
        let last = LastSkew::default();
        assert_eq!(last.get().to_local(Time(20)), Time(20), "not measured yet");
        last.set(ahead);
        assert_eq!(last.get(), ahead);
        assert_eq!(
            (ahead.to_local(Time(i64::MIN)), ahead.to_shard(Time::MAX)),
            (Time(i64::MIN), Time::MAX)
        );
    }
}
