//! Retry settings of a job or a topic, and their checks.

use std::time::Duration;

use super::super::limit;
use super::CrashTopic;

/// Retry settings of one level (a job, a topic); absent fields are inherited. [`RetryOverrides::try_new`] checks the
/// ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetryOverrides {
    /// Number of failures allowed, 1 or more; -1: no limit.
    pub max_attempts: Option<i32>,
    /// Explicit waits (a "ladder"), at most [`limit::RETRY_DELAYS_MAX`], each up to [`limit::DELAY_MAX`]; empty:
    /// inherited.
    pub delays: Vec<Duration>,
    /// First wait of the exponential form, above zero and up to [`limit::DELAY_MAX`].
    pub initial_delay: Option<Duration>,
    /// Growth per failure, finite and at least 1.
    pub multiplier: Option<f64>,
    /// Cap of the exponential form, above zero and up to [`limit::DELAY_MAX`].
    pub max_delay: Option<Duration>,
    /// Share of the wait that is random, 0 to 1.
    pub jitter: Option<f64>,
    /// Time from the start of the first attempt after which a failure is the last, above zero and up to
    /// [`limit::DELAY_MAX`].
    pub max_retry_duration: Option<Duration>,
    /// True: expired leases do not count as failures.
    pub ignore_expired_leases: Option<bool>,
    /// Number of deliveries allowed, 1 or more; -1: no limit.
    pub max_deliveries: Option<i32>,
    /// Number of crashes allowed, 1 or more; -1: no limit.
    pub max_crashes: Option<i32>,
    /// Topic of jobs that have crashed as often as they may.
    pub crash_topic: Option<CrashTopic>,
}

/// An invalid retry setting. Variants are in the order of the fields of [`RetryOverrides`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum InvalidRetry {
    /// `max_attempts` is neither 1 or more nor -1.
    #[error("max_attempts must be 1 or more, or -1 for no limit")]
    MaxAttempts,
    /// `delays` has more entries than [`limit::RETRY_DELAYS_MAX`].
    #[error("delays has too many entries")]
    TooManyDelays,
    /// The entry of `delays` with this index, counted from 0, is above [`limit::DELAY_MAX`].
    #[error("delays[{0}] is too long")]
    Delay(usize),
    /// `initial_delay` is zero, or above [`limit::DELAY_MAX`].
    #[error("initial_delay is zero or too long")]
    InitialDelay,
    /// `multiplier` is below 1, or not finite.
    #[error("multiplier must be a finite number of 1 or more")]
    Multiplier,
    /// `max_delay` is zero, or above [`limit::DELAY_MAX`].
    #[error("max_delay is zero or too long")]
    MaxDelay,
    /// `jitter` is not within 0 to 1.
    #[error("jitter must be within 0 to 1")]
    Jitter,
    /// `max_retry_duration` is zero, or above [`limit::DELAY_MAX`].
    #[error("max_retry_duration is zero or too long")]
    MaxRetryDuration,
    /// `max_deliveries` is neither 1 or more nor -1.
    #[error("max_deliveries must be 1 or more, or -1 for no limit")]
    MaxDeliveries,
    /// `max_crashes` is neither 1 or more nor -1.
    #[error("max_crashes must be 1 or more, or -1 for no limit")]
    MaxCrashes,
}

// === impl RetryOverrides ===

impl RetryOverrides {
    /// Returns the bytes of the settings whose size a client chooses, about as they are stored: a wait takes a byte for
    /// each seven bits of its microseconds.
    #[must_use]
    pub fn filled_bytes(&self) -> usize {
        let delay = |delay: &Duration| (128 - delay.as_micros().leading_zeros()).div_ceil(7).max(1);
        let delays: u32 = self.delays.iter().map(delay).sum();
        delays as usize + self.crash_topic.as_ref().map_or(0, |topic| topic.as_str().len())
    }

    /// Checks the settings of a level.
    ///
    /// # Errors
    /// All invalid settings, at least one, in the order of the fields. Of too many `delays` only the first
    /// [`limit::RETRY_DELAYS_MAX`] are checked.
    pub fn try_new(over: RetryOverrides) -> Result<RetryOverrides, Vec<InvalidRetry>> {
        let is_count = |count: i32| count == -1 || count >= 1;
        let is_wait = |wait: Duration| !wait.is_zero() && wait <= limit::DELAY_MAX;
        let is_growth = |growth: f64| growth.is_finite() && growth >= 1.0;
        let is_share = |share: f64| (0.0..=1.0).contains(&share);

        let mut invalid = Vec::new();
        let mut require = |good: bool, otherwise| invalid.extend((!good).then_some(otherwise));
        require(over.max_attempts.is_none_or(is_count), InvalidRetry::MaxAttempts);
        require(over.delays.len() <= limit::RETRY_DELAYS_MAX, InvalidRetry::TooManyDelays);
        for (index, &rung) in over.delays.iter().take(limit::RETRY_DELAYS_MAX).enumerate() {
            require(rung <= limit::DELAY_MAX, InvalidRetry::Delay(index));
        }
        require(over.initial_delay.is_none_or(is_wait), InvalidRetry::InitialDelay);
        require(over.multiplier.is_none_or(is_growth), InvalidRetry::Multiplier);
        require(over.max_delay.is_none_or(is_wait), InvalidRetry::MaxDelay);
        require(over.jitter.is_none_or(is_share), InvalidRetry::Jitter);
        require(over.max_retry_duration.is_none_or(is_wait), InvalidRetry::MaxRetryDuration);
        require(over.max_deliveries.is_none_or(is_count), InvalidRetry::MaxDeliveries);
        require(over.max_crashes.is_none_or(is_count), InvalidRetry::MaxCrashes);
        if invalid.is_empty() { Ok(over) } else { Err(invalid) }
    }

    /// Returns the settings as a job has them: `None` if nothing is set.
    #[must_use]
    pub fn boxed(self) -> Option<Box<RetryOverrides>> {
        (self != RetryOverrides::default()).then(|| Box::new(self))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rand::Rng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn secs(list: &[u64]) -> Vec<Duration> {
        list.iter().map(|&s| Duration::from_secs(s)).collect()
    }

    #[test]
    fn every_field_has_its_range() {
        use InvalidRetry::{
            Delay, InitialDelay, Jitter, MaxDelay, MaxRetryDuration, Multiplier, TooManyDelays,
        };
        type SetOverride = fn(&mut RetryOverrides);
        const ABOVE: Duration = limit::DELAY_MAX.saturating_add(Duration::from_nanos(1));
        let cases: [(&[SetOverride], &[SetOverride], InvalidRetry); 7] = [
            (&[|r| r.delays = secs(&[0; 100])], &[|r| r.delays = secs(&[0; 101])], TooManyDelays),
            (
                &[|r| r.delays = vec![limit::DELAY_MAX; 2]],
                &[|r| r.delays = vec![limit::DELAY_MAX, ABOVE]],
                Delay(1),
            ),
            (
                &[|r| r.initial_delay = Some(Duration::from_nanos(1))],
                &[|r| r.initial_delay = Some(Duration::ZERO), |r| r.initial_delay = Some(ABOVE)],
                InitialDelay,
            ),
            (
                &[|r| r.multiplier = Some(1.0), |r| r.multiplier = Some(f64::MAX)],
                &[
                    |r| r.multiplier = Some(1.0_f64.next_down()),
                    |r| r.multiplier = Some(f64::NAN),
                    |r| r.multiplier = Some(f64::INFINITY),
                ],
                Multiplier,
            ),
            (
                &[|r| r.max_delay = Some(limit::DELAY_MAX)],
                &[|r| r.max_delay = Some(Duration::ZERO), |r| r.max_delay = Some(ABOVE)],
                MaxDelay,
            ),
            (
                &[|r| r.jitter = Some(0.0), |r| r.jitter = Some(1.0)],
                &[
                    |r| r.jitter = Some(0.0_f64.next_down()),
                    |r| r.jitter = Some(1.0_f64.next_up()),
                    |r| r.jitter = Some(f64::NAN),
                ],
                Jitter,
            ),
            (
                &[|r| r.max_retry_duration = Some(limit::DELAY_MAX)],
                &[
                    |r| r.max_retry_duration = Some(Duration::ZERO),
                    |r| r.max_retry_duration = Some(ABOVE),
                ],
                MaxRetryDuration,
            ),
        ];
        let taken = |set: &SetOverride| {
            let mut over = RetryOverrides::default();
            set(&mut over);
            RetryOverrides::try_new(over).map(|_| ())
        };
        for (good, bad, what) in cases {
            assert!(good.iter().all(|set| taken(set) == Ok(())), "{what}");
            assert!(bad.iter().all(|set| taken(set) == Err(vec![what])), "{what}");
        }
    }

    #[test]
    fn every_count_is_one_or_more_or_without_limit() {
        type SetCount = fn(&mut RetryOverrides, i32);
        let cases: [(SetCount, InvalidRetry); 3] = [
            (|r, count| r.max_attempts = Some(count), InvalidRetry::MaxAttempts),
            (|r, count| r.max_deliveries = Some(count), InvalidRetry::MaxDeliveries),
            (|r, count| r.max_crashes = Some(count), InvalidRetry::MaxCrashes),
        ];
        for (set, what) in cases {
            let taken = |count: i32| {
                let mut over = RetryOverrides::default();
                set(&mut over, count);
                RetryOverrides::try_new(over).map(|_| ())
            };
            assert!([-1, 1, 2, i32::MAX].into_iter().all(|count| taken(count) == Ok(())));
            let refused = |count| taken(count) == Err(vec![what]);
            assert!([i32::MIN, -2, 0].into_iter().all(refused), "{what}");
        }
    }

    #[test]
    fn errors_are_listed_in_field_order() {
        let long = Duration::MAX;
        let over = RetryOverrides {
            max_attempts: Some(0),
            delays: vec![long; 101],
            initial_delay: Some(long),
            multiplier: Some(-1.0),
            max_delay: Some(long),
            jitter: Some(2.0),
            max_retry_duration: Some(long),
            ignore_expired_leases: None,
            max_deliveries: Some(0),
            max_crashes: Some(0),
            crash_topic: None,
        };
        let invalid = RetryOverrides::try_new(over).unwrap_err();
        assert!(invalid.is_sorted());
        assert_eq!(invalid.len(), 9 + limit::RETRY_DELAYS_MAX);
    }

    /// Returns one of these values, or none.
    fn some<T: Copy>(random: &mut StdRng, values: &[T]) -> Option<T> {
        values.get(random.random_range(0..=values.len())).copied()
    }

    /// Returns random valid settings; extreme values are more frequent than others.
    pub(in super::super) fn any_overrides(random: &mut StdRng) -> RetryOverrides {
        let nanos = |random: &mut StdRng| {
            // Every order of magnitude is as likely.
            let most = 1_u64 << random.random_range(1..=58);
            Duration::from_nanos(random.random_range(1..=most)).min(limit::DELAY_MAX)
        };
        let waits = [Duration::from_nanos(1), limit::DELAY_MAX, nanos(random), nanos(random)];
        let [growth, steep] = [random.random_range(1.0..4.0), random.random_range(1.0..1e9)];
        let share = random.random_range(0.0..=1.0);
        let rungs = if random.random_bool(0.3) { random.random_range(1..=100) } else { 0 };
        RetryOverrides {
            max_attempts: some(random, &[-1, 1, i32::MAX]),
            delays: (0..rungs).map(|_| some(random, &waits).unwrap_or_default()).collect(),
            initial_delay: some(random, &waits),
            multiplier: some(random, &[1.0, 1.0_f64.next_up(), f64::MAX, growth, steep]),
            max_delay: some(random, &waits),
            jitter: some(random, &[0.0, 1.0, share]),
            max_retry_duration: some(random, &waits),
            ignore_expired_leases: None,
            max_deliveries: some(random, &[-1, 1, i32::MAX]),
            max_crashes: some(random, &[-1, 1, i32::MAX]),
            crash_topic: None,
        }
    }
}
