//! Execution window of a write: the time until which Redis may execute it.
//!
//! A connection that was given up is not dead. The kernel and proxies go on delivering data that was sent by it,
//! seconds later, and Redis would execute it after newer writes: a job that ran and ended would be created again, a
//! Delete would remove the job that was enqueued after it. So every write that no lease token guards carries the
//! latest time of Redis's clock at which it may be executed; after that its script rejects it and writes nothing
//! (`lib/clock.lua`). An unknown outcome is reported only once that time has passed: from then on the outcome cannot
//! change.
//!
//! The time is taken from an estimate of Redis's clock, which is never ahead of it: each reply with the time bounds
//! the offset from both sides (the clock was read after the call was sent and before the reply arrived), and all
//! replies together bound it more closely. If the clock of Redis steps forward, calls under way are rejected, and
//! sent again with the new time. If it steps back, the window of calls under way is longer by the step, until the
//! next reply shows it. Both are logged.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::Time;

/// Longest window, equal to the response timeout of a connection. A busy Redis answers far sooner.
pub(super) const WINDOW_MAX: Duration = Duration::from_secs(3);
/// Divisor of the drift: two clocks drift apart by less than one part in this number. Quartz stays below 1 in 5,000;
/// while a clock is slewed, 1 in 2,000.
const DRIFT_DIVISOR: i64 = 1_000;

/// Estimate of Redis's clock.
pub(super) struct RedisClock {
    origin: Instant,
    offset: Mutex<Option<ClockOffset>>,
}

/// Microseconds by which Redis's clock is ahead of the time since `origin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockOffset {
    /// Lower bound.
    low: i64,
    /// Upper bound.
    high: i64,
    /// Time for which the bounds hold, in microseconds since `origin`.
    at: i64,
}

// === impl RedisClock ===

impl RedisClock {
    /// Returns an estimate without any observation.
    pub(super) fn new() -> RedisClock {
        RedisClock { origin: Instant::now(), offset: Mutex::default() }
    }

    /// Adds the time of a reply; `sent`: time at which its call was sent. Returns the microseconds by which the clock
    /// stepped, if it did.
    pub(super) fn observe(&self, sent: Instant, shown: Time) -> Option<i64> {
        let (sent, received) = (self.micros(sent), self.micros(Instant::now()));
        let seen = ClockOffset { low: shown.0 - received, high: shown.0 - sent, at: received };
        let mut offset = self.offset.lock();
        let (known, step) = match *offset {
            None => (seen, None),
            Some(known) => known.widened(received).intersect(seen),
        };
        *offset = Some(known);
        step
    }

    /// Lower bound of the time that Redis's clock shows at `when`. `None`: no reply was observed yet.
    pub(super) fn at(&self, when: Instant) -> Option<Time> {
        let known = (*self.offset.lock())?;
        let when = self.micros(when);
        Some(Time(known.widened(when).low.saturating_add(when)))
    }

    fn micros(&self, when: Instant) -> i64 {
        let since = when.saturating_duration_since(self.origin).as_micros();
        i64::try_from(since).unwrap_or(i64::MAX)
    }
}

// === impl ClockOffset ===

impl ClockOffset {
    /// Returns the offset at a later time, widened by the possible drift.
    fn widened(self, at: i64) -> ClockOffset {
        let drift = (at - self.at).max(0) / DRIFT_DIVISOR;
        ClockOffset { low: self.low - drift, high: self.high + drift, at: at.max(self.at) }
    }

    /// Intersects two observations; if they contradict each other the clock stepped, by the returned number, and the
    /// later one counts.
    fn intersect(self, seen: ClockOffset) -> (ClockOffset, Option<i64>) {
        if seen.low > self.high {
            return (seen, Some(seen.low - self.high));
        }
        if seen.high < self.low {
            return (seen, Some(seen.high - self.low));
        }
        (
            ClockOffset {
                low: self.low.max(seen.low),
                high: self.high.min(seen.high),
                at: self.at,
            },
            None,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const START: i64 = 1_700_000_000 * S;

    /// Redis whose clock shows `START` plus the elapsed time plus its steps.
    struct SimulatedRedis {
        clock: RedisClock,
        stepped: i64,
    }

    impl SimulatedRedis {
        fn new() -> SimulatedRedis {
            SimulatedRedis { clock: RedisClock::new(), stepped: 0 }
        }

        fn shows(&self) -> Time {
            Time(START + self.stepped + self.clock.micros(Instant::now()))
        }

        /// Makes a call that takes `there` on its way to Redis and `back` on its way back.
        async fn call(&self, there: u64, back: u64) -> Option<i64> {
            let sent = Instant::now();
            tokio::time::sleep(Duration::from_millis(there)).await;
            let shown = self.shows();
            tokio::time::sleep(Duration::from_millis(back)).await;
            self.clock.observe(sent, shown)
        }

        /// Microseconds by which the estimate is behind the clock.
        fn behind(&self) -> i64 {
            self.shows().0 - self.clock.at(Instant::now()).unwrap().0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_estimated_before_an_answer() {
        let redis = SimulatedRedis::new();
        assert_eq!(redis.clock.at(Instant::now()), None);
        redis.call(0, 0).await;
        assert_eq!(redis.behind(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_estimate_is_never_ahead_and_as_close_as_the_fastest_way_back() {
        let redis = SimulatedRedis::new();
        for (there, back, most) in [(5, 900, 900), (900, 20, 20), (1, 400, 21), (700, 700, 24)] {
            assert_eq!(redis.call(there, back).await, None);
            let behind = redis.behind();
            assert!((0..=most * 1_000).contains(&behind), "{behind} after {there} and {back}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_hour_widens_the_estimate_by_the_drift() {
        let redis = SimulatedRedis::new();
        redis.call(0, 0).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(redis.behind(), 3_600 * S / DRIFT_DIVISOR);
        assert_eq!(redis.call(0, 1).await, None, "no step");
        assert!(redis.behind() <= 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_is_noticed_in_both_directions() {
        for step in [-3_600 * S, -S, S, 3_600 * S] {
            let mut redis = SimulatedRedis::new();
            redis.call(2, 2).await;
            redis.stepped = step;
            let noticed = redis.call(2, 2).await.expect("a step");
            assert!((noticed - step).abs() <= 8_000, "{noticed} of {step}");
            assert!((0..=2_000).contains(&redis.behind()));
            assert_eq!(redis.call(2, 2).await, None, "noticed once");
        }
    }
}
