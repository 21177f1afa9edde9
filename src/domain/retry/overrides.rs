//! Retry settings of a job or a topic.

use std::time::Duration;

use super::CrashTopic;

/// Retry settings of one level (a job, a topic); absent fields are inherited. `contract` checks the ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetryOverrides {
    /// Number of failures allowed, 1 or more; -1: no limit.
    pub max_attempts: Option<i32>,
    /// Explicit waits (a "ladder"), at most `RETRY_DELAYS_MAX`, each up to `DELAY_MAX` of [`limit`](super::super::limit);
    /// empty: inherited.
    pub delays: Vec<Duration>,
    /// First wait of the exponential form, above zero and up to `DELAY_MAX`.
    pub initial_delay: Option<Duration>,
    /// Growth per failure, finite and at least 1.
    pub multiplier: Option<f64>,
    /// Cap of the exponential form, above zero and up to `DELAY_MAX`.
    pub max_delay: Option<Duration>,
    /// Share of the wait that is random, 0 to 1.
    pub jitter: Option<f64>,
    /// Time from the start of the first attempt after which a failure is the last, above zero and up to `DELAY_MAX`.
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

    use super::super::super::limit;
    use super::*;

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
