//! The only reader of clocks. Everything else takes the time as a parameter or asks this.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

use crate::domain::Time;

/// Wall time that never runs backwards within a process, or a hand-driven one for tests.
///
/// The system clock follows forward steps of the wall clock (a resumed machine) and ignores
/// backward ones until the process ends: it goes on at monotonic speed, so nothing that is due gets
/// stuck and no relative delay is cut short.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock.
    System(SystemClock),
    /// A clock that stands still until it is moved.
    Manual(ManualClock),
}

/// See [`Clock`].
#[derive(Clone, Debug)]
pub struct SystemClock {
    started: Instant,
    /// Microseconds that the wall clock was ahead of the monotonic one at most; only ever rises.
    ahead: Arc<AtomicI64>,
}

/// A clock that tests move by hand; whoever sleeps on it wakes when it moves.
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<Mutex<Time>>,
    moved: Arc<Notify>,
}

// === impl Clock ===

impl Clock {
    /// The machine's clock, read now.
    #[must_use]
    pub fn system() -> Clock {
        Clock::System(SystemClock {
            started: monotonic(),
            ahead: Arc::new(AtomicI64::new(i64::MIN)),
        })
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        match self {
            Clock::System(clock) => clock.now(),
            Clock::Manual(clock) => clock.now(),
        }
    }

    /// Sleeps until the clock says `deadline` or later.
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
        // The wall first: a pause between the two readings then makes `ahead` too small for once,
        // where the other way round it would be too large for ever.
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
            // A minute at most: a timer does not notice that the wall clock was moved forward.
            tokio::time::sleep(left.min(Duration::from_secs(60))).await;
        }
    }
}

/// How far the shard's clock is ahead of this replica's, which said `before` and `after` around a
/// call that was answered with `shard`. Clocks that agree as far as one can tell are the same.
#[must_use]
pub fn skew(before: Time, shard: Time, after: Time) -> i64 {
    if (before..=after).contains(&shard) { 0 } else { shard.0.saturating_sub(after.0) }
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

// === impl ManualClock ===

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: Time) -> ManualClock {
        ManualClock { now: Arc::new(Mutex::new(now)), moved: Arc::new(Notify::new()) }
    }

    /// The time it stands at.
    #[must_use]
    pub fn now(&self) -> Time {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        let to = self.now().plus(by);
        self.set(to);
    }

    /// Sets it.
    pub fn set(&self, to: Time) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = to;
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
        assert_eq!(skew(Time(10), Time(12), Time(14)), 0);
        assert_eq!(skew(Time(10), Time(9), Time(14)), -5);
        assert_eq!(skew(Time(10), Time(20), Time(14)), 6);
    }
}
