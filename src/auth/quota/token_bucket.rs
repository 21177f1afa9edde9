//! Token bucket of one rate of one identity, on one server.
//!
//! It is not one of a library: those refuse for ever what is larger than the burst, and a batch of 1,000 jobs has to pass
//! a rate of 100 jobs per second one day; and their rate is fixed, while the share of a server changes with the number
//! of servers. Here a full bucket passes anything, and then owes the rest.

use std::time::Duration;

use tokio::time::Instant;

use super::Rate;

/// Tolerance for sums of fractions.
const EPSILON: f64 = 1e-6;

/// Tokens of one rate. A bucket holds those of one second, and at least one.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    rate: Rate,
    /// Tokens at `at`; negative: owed.
    tokens: f64,
    at: Instant,
}

// === impl TokenBucket ===

impl TokenBucket {
    /// Creates a full bucket.
    pub(super) fn new(rate: Rate, now: Instant) -> TokenBucket {
        TokenBucket { rate, tokens: f64::INFINITY, at: now }
    }

    /// Returns the rate of all servers together.
    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// Adds the tokens of the time since the last call, at the share of one of `servers`. Returns whether `count`
    /// tokens may be taken now; otherwise the time after which they may. More than the bucket holds may be taken from
    /// a full one.
    pub(super) fn check(&mut self, count: u64, now: Instant, servers: u32) -> Result<(), Duration> {
        let (share, burst) = self.refill(now, servers);
        let missing = (count as f64).min(burst) - self.tokens;
        if missing <= EPSILON {
            return Ok(());
        }
        // Rounded up: the call succeeds after this time.
        let millis = (missing / share * 1_000.0).ceil();
        Err(Duration::try_from_secs_f64(millis / 1_000.0).unwrap_or(Duration::MAX))
    }

    /// Takes tokens that [`TokenBucket::check`] has allowed.
    pub(super) fn take(&mut self, count: u64) {
        self.tokens -= count as f64;
    }

    /// Takes tokens for a call that is never refused. It makes the bucket owe those of one second at most, so that
    /// later calls do not pay for hours of such calls.
    pub(super) fn take_in_any_case(&mut self, count: u64, now: Instant, servers: u32) {
        let (_, burst) = self.refill(now, servers);
        let lowest = self.tokens.min(-burst);
        self.tokens = (self.tokens - count as f64).max(lowest);
    }

    /// Returns the share of this server per second, and the tokens of a full bucket.
    fn refill(&mut self, now: Instant, servers: u32) -> (f64, f64) {
        let share = self.rate.number() / f64::from(servers.max(1));
        let burst = share.max(1.0);
        let elapsed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.tokens = (self.tokens + elapsed.as_secs_f64() * share).min(burst);
        (share, burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Driven {
        bucket: TokenBucket,
        now: Instant,
        servers: u32,
    }

    impl Driven {
        fn new(per_second: f64) -> Driven {
            let now = Instant::now();
            let rate = Rate::per_second(per_second).unwrap();
            Driven { bucket: TokenBucket::new(rate, now), now, servers: 1 }
        }

        fn pass(&mut self, count: u64) -> Result<(), Duration> {
            self.bucket.check(count, self.now, self.servers)?;
            self.bucket.take(count);
            Ok(())
        }

        /// Returns the number of single calls that pass in `time`, of one each millisecond.
        fn passed(&mut self, time: Duration) -> u64 {
            let mut passed = 0;
            for _ in 0..time.as_millis() {
                self.now += Duration::from_millis(1);
                passed += u64::from(self.pass(1).is_ok());
            }
            passed
        }
    }

    #[test]
    fn a_bucket_holds_one_second_and_fills_at_its_rate() {
        let mut limit = Driven::new(100.0);
        assert_eq!((0..200).filter(|_| limit.pass(1).is_ok()).count(), 100);
        let delay = limit.pass(1).unwrap_err();
        assert_eq!(delay, Duration::from_millis(10));
        limit.now += delay;
        assert_eq!(limit.pass(1), Ok(()), "after the delay");
        assert_eq!(limit.passed(10 * SECOND), 1_000);
        limit.now += 3_600 * SECOND;
        assert_eq!((0..200).filter(|_| limit.pass(1).is_ok()).count(), 100, "no more is saved");
    }

    #[test]
    fn a_batch_larger_than_the_bucket_passes_a_full_one_and_is_paid_for() {
        let mut limit = Driven::new(100.0);
        assert_eq!(limit.pass(1_000), Ok(()));
        assert_eq!(limit.pass(1), Err(Duration::from_millis(9_010)));
        assert_eq!(limit.pass(1_000), Err(10 * SECOND));
        limit.now += 10 * SECOND;
        assert_eq!(limit.pass(1_000), Ok(()));
        let (begin, mut jobs) = (limit.now, 0);
        while limit.now < begin + 600 * SECOND {
            match limit.pass(1_000) {
                Ok(()) => jobs += 1_000,
                Err(delay) => limit.now += delay,
            }
        }
        assert_eq!(jobs, 60_000 - 1_000, "100 per second; the first had to be paid for");
    }

    #[test]
    fn rates_below_one_per_second_pass_single_calls() {
        let mut limit = Driven::new(0.1);
        assert_eq!(limit.pass(1), Ok(()));
        assert_eq!(limit.pass(1), Err(10 * SECOND));
        assert_eq!(limit.passed(100 * SECOND), 10);
    }

    #[test]
    fn servers_share_a_rate() {
        let mut two = [Driven::new(100.0), Driven::new(100.0)];
        two.iter_mut().for_each(|server| server.servers = 2);
        let bursts =
            two.iter_mut().map(|server| (0..99).filter(|_| server.pass(1).is_ok()).count());
        assert_eq!(bursts.sum::<usize>(), 100, "together one second's worth");
        let passed = two.iter_mut().map(|server| server.passed(10 * SECOND));
        assert_eq!(passed.sum::<u64>(), 1_000);
        let [first, _] = &mut two;
        first.servers = 1;
        assert_eq!(first.passed(10 * SECOND), 1_000, "the other one has stopped");
        first.now += 10 * SECOND;
        first.servers = 4;
        assert_eq!((0..99).filter(|_| first.pass(1).is_ok()).count(), 25, "a full bucket shrinks");
    }

    #[test]
    fn calls_that_are_never_refused_owe_one_second_at_most() {
        let mut limit = Driven::new(100.0);
        limit.bucket.take_in_any_case(30, limit.now, 1);
        assert_eq!(limit.bucket.check(70, limit.now, 1), Ok(()), "they count");
        limit.bucket.take_in_any_case(100_000, limit.now, 1);
        assert_eq!(limit.pass(1), Err(Duration::from_millis(1_010)));
        let mut limit = Driven::new(100.0);
        limit.pass(1_000).unwrap();
        limit.bucket.take_in_any_case(5, limit.now, 1);
        assert_eq!(limit.pass(1), Err(Duration::from_millis(9_010)), "a debt stays as it is");
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_gives_no_tokens() {
        let mut limit = Driven::new(1.0);
        limit.pass(1).unwrap();
        limit.now -= Duration::from_millis(500);
        assert_eq!(limit.pass(1), Err(SECOND));
    }
}
