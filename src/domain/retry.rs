//! How long to wait before the next attempt, and when to give up.
//!
//! Exponential backoff with a cap and "equal to full" jitter: the wait is uniform in
//! `[d * (1 - jitter), d]` (after Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture
//! Blog, 2015), so the documented delay is an upper bound and a failed burst does not come back as
//! a burst.

use std::time::Duration;

use super::limit;

/// Effective policy: every field has a value.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Failures allowed; `None` is no limit.
    pub max_attempts: Option<u32>,
    /// Explicit ladder; the last rung repeats. Empty: exponential.
    pub delays: Vec<Duration>,
    /// First wait of the exponential form.
    pub initial_delay: Duration,
    /// Growth per failure, at least 1.
    pub multiplier: f64,
    /// Cap of the exponential form.
    pub max_delay: Duration,
    /// 0 to 1: share of the wait that is random.
    pub jitter: f64,
    /// Give up this long after the first attempt began; `None` is never.
    pub max_retry_duration: Option<Duration>,
    /// Expired leases do not count as failures.
    pub ignore_expired_leases: bool,
    /// Hand-overs allowed, however they ended; `None` is no limit.
    pub max_deliveries: Option<u32>,
}

/// What one level (a job, a topic) says; absent fields are inherited. [`RetryOverrides::try_new`] checks the ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetryOverrides {
    /// Failures allowed, 1 or more; -1 is no limit.
    pub max_attempts: Option<i32>,
    /// Explicit ladder of at most [`limit::RETRY_DELAYS_MAX`] rungs, each up to [`limit::DELAY_MAX`]; empty is
    /// inherited.
    pub delays: Vec<Duration>,
    /// First wait, above zero and up to [`limit::DELAY_MAX`].
    pub initial_delay: Option<Duration>,
    /// Growth per failure, finite and at least 1.
    pub multiplier: Option<f64>,
    /// Cap, above zero and up to [`limit::DELAY_MAX`].
    pub max_delay: Option<Duration>,
    /// Share of the wait that is random, 0 to 1.
    pub jitter: Option<f64>,
    /// Give up this long after the first attempt began, above zero and up to [`limit::DELAY_MAX`].
    pub max_retry_duration: Option<Duration>,
    /// Expired leases do not count as failures.
    pub ignore_expired_leases: Option<bool>,
    /// Hand-overs allowed, 1 or more; -1 is no limit.
    pub max_deliveries: Option<i32>,
}

/// What no policy can follow. In the order of the fields of [`RetryOverrides`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum InvalidRetry {
    /// Neither a number of failures nor -1.
    #[error("max_attempts is neither 1 or more nor -1")]
    MaxAttempts,
    /// More rungs than [`limit::RETRY_DELAYS_MAX`].
    #[error("delays has more rungs than a ladder may have")]
    TooManyDelays,
    /// The rung with this index, the first being 0, is above [`limit::DELAY_MAX`].
    #[error("delays[{0}] is too long")]
    Delay(usize),
    /// Zero, or above [`limit::DELAY_MAX`].
    #[error("initial_delay is zero or too long")]
    InitialDelay,
    /// Below 1, or no finite number.
    #[error("multiplier is no finite number of 1 or more")]
    Multiplier,
    /// Zero, or above [`limit::DELAY_MAX`].
    #[error("max_delay is zero or too long")]
    MaxDelay,
    /// Not within 0 to 1.
    #[error("jitter is not within 0 to 1")]
    Jitter,
    /// Zero, or above [`limit::DELAY_MAX`].
    #[error("max_retry_duration is zero or too long")]
    MaxRetryDuration,
    /// Neither a number of hand-overs nor -1.
    #[error("max_deliveries is neither 1 or more nor -1")]
    MaxDeliveries,
}

/// The server's own policy, below every topic and job. The contract and the help of `ringq enqueue` tell it, too; a
/// test compares.
impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            max_attempts: Some(25),
            delays: Vec::new(),
            initial_delay: Duration::from_secs(1),
            multiplier: 2.0,
            max_delay: Duration::from_secs(3600),
            jitter: 0.2,
            max_retry_duration: None,
            ignore_expired_leases: false,
            max_deliveries: Some(100),
        }
    }
}

// === impl RetryOverrides ===

impl RetryOverrides {
    /// Takes what a level says, if a policy can follow it.
    ///
    /// # Errors
    /// Everything that it cannot follow, at least one, in the order of the fields. Of too many rungs only those that a
    /// ladder may have are looked at.
    pub fn try_new(said: RetryOverrides) -> Result<RetryOverrides, Vec<InvalidRetry>> {
        let is_count = |count: i32| count == -1 || count >= 1;
        let is_wait = |wait: Duration| !wait.is_zero() && wait <= limit::DELAY_MAX;
        let is_growth = |growth: f64| growth.is_finite() && growth >= 1.0;
        let is_share = |share: f64| (0.0..=1.0).contains(&share);

        let mut invalid = Vec::new();
        let mut require = |good: bool, otherwise| invalid.extend((!good).then_some(otherwise));
        require(said.max_attempts.is_none_or(is_count), InvalidRetry::MaxAttempts);
        require(said.delays.len() <= limit::RETRY_DELAYS_MAX, InvalidRetry::TooManyDelays);
        for (index, &rung) in said.delays.iter().take(limit::RETRY_DELAYS_MAX).enumerate() {
            require(rung <= limit::DELAY_MAX, InvalidRetry::Delay(index));
        }
        require(said.initial_delay.is_none_or(is_wait), InvalidRetry::InitialDelay);
        require(said.multiplier.is_none_or(is_growth), InvalidRetry::Multiplier);
        require(said.max_delay.is_none_or(is_wait), InvalidRetry::MaxDelay);
        require(said.jitter.is_none_or(is_share), InvalidRetry::Jitter);
        require(said.max_retry_duration.is_none_or(is_wait), InvalidRetry::MaxRetryDuration);
        require(said.max_deliveries.is_none_or(is_count), InvalidRetry::MaxDeliveries);
        if invalid.is_empty() { Ok(said) } else { Err(invalid) }
    }
}

// === impl RetryPolicy ===

impl RetryPolicy {
    /// This policy with what `over` says put over it, field by field. A ladder switches jitter off
    /// unless jitter is named too: who writes down four exact waits means them. Exponential fields
    /// switch an inherited ladder off for the same reason.
    #[must_use]
    pub fn merge(mut self, over: &RetryOverrides) -> RetryPolicy {
        if let Some(max) = over.max_attempts {
            self.max_attempts = u32::try_from(max).ok();
        }
        if let Some(max) = over.max_deliveries {
            self.max_deliveries = u32::try_from(max).ok();
        }
        if !over.delays.is_empty() {
            self.delays.clone_from(&over.delays);
            self.jitter = 0.0;
        } else if over.initial_delay.or(over.max_delay).is_some() || over.multiplier.is_some() {
            self.delays.clear();
        }
        self.initial_delay = over.initial_delay.unwrap_or(self.initial_delay);
        self.multiplier = over.multiplier.unwrap_or(self.multiplier);
        self.max_delay = over.max_delay.unwrap_or(self.max_delay);
        self.jitter = over.jitter.unwrap_or(self.jitter);
        self.max_retry_duration = over.max_retry_duration.or(self.max_retry_duration);
        self.ignore_expired_leases =
            over.ignore_expired_leases.unwrap_or(self.ignore_expired_leases);
        self
    }

    /// The wait after failure number `failure` (1 is the first). `entropy` is uniform in `[0, 1)`.
    #[must_use]
    pub fn delay(&self, failure: u32, entropy: f64) -> Duration {
        let full = self.full_delay(failure.max(1));
        // Taken off, not multiplied out: so a wait without jitter is exact, and none is longer than told.
        full.saturating_sub(full.mul_f64(self.jitter.clamp(0.0, 1.0) * entropy.clamp(0.0, 1.0)))
    }

    /// The wait before jitter: an upper bound of [`RetryPolicy::delay`].
    fn full_delay(&self, failure: u32) -> Duration {
        let rung = usize::try_from(failure - 1).unwrap_or(usize::MAX);
        if let Some(last) = self.delays.last() {
            return *self.delays.get(rung).unwrap_or(last);
        }
        let exponent = i32::try_from(failure - 1).unwrap_or(i32::MAX);
        let seconds = self.initial_delay.as_secs_f64() * self.multiplier.powi(exponent);
        if seconds < self.max_delay.as_secs_f64() {
            Duration::from_secs_f64(seconds)
        } else {
            self.max_delay
        }
    }
}

/// The wait before a job that was handed back without a failure is handed out again; `free` is the
/// number of such hand-overs so far, this one included. `None`: at once, and it keeps its place.
/// Doubles from 1 s to 60 s, so that a worker which releases all it gets cannot spin.
#[must_use]
pub fn release_delay(free: u32) -> Option<Duration> {
    const CAP: Duration = Duration::from_secs(60);
    match free {
        0 | 1 => None,
        n => Some(Duration::from_secs(1 << (n - 2).min(6)).min(CAP)),
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn secs(list: &[u64]) -> Vec<Duration> {
        list.iter().map(|&s| Duration::from_secs(s)).collect()
    }

    #[test]
    fn a_ladder_is_exact_and_its_last_rung_repeats() {
        let over = RetryOverrides { delays: secs(&[60, 180, 300]), ..Default::default() };
        let policy = RetryPolicy::default().merge(&over);
        let waits: Vec<_> = (1..=5).map(|n| policy.delay(n, 0.99)).collect();
        assert_eq!(waits, secs(&[60, 180, 300, 300, 300]));
    }

    #[test]
    fn the_exponential_form_doubles_up_to_its_cap() {
        let over = RetryOverrides { jitter: Some(0.0), ..Default::default() };
        let policy = RetryPolicy::default().merge(&over);
        let waits: Vec<_> = (1..=13).map(|n| policy.delay(n, 0.5).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600]);
        assert_eq!(policy.delay(u32::MAX, 0.5).as_secs(), 3600);
    }

    #[test]
    fn jitter_only_shortens_and_by_no_more_than_its_share() {
        let policy = RetryPolicy::default();
        for entropy in [0.0, 0.3, 0.999] {
            let wait = policy.delay(3, entropy);
            assert!(wait <= Duration::from_secs(4), "{wait:?}");
            assert!(wait >= Duration::from_secs_f64(3.2), "{wait:?}");
        }
    }

    #[test]
    fn every_field_has_its_range() {
        use InvalidRetry::{
            Delay, InitialDelay, Jitter, MaxAttempts, MaxDelay, MaxDeliveries, MaxRetryDuration,
            Multiplier, TooManyDelays,
        };
        type Set = fn(&mut RetryOverrides);
        const ABOVE: Duration = limit::DELAY_MAX.saturating_add(Duration::from_nanos(1));
        let cases: [(&[Set], &[Set], InvalidRetry); 9] = [
            (
                &[|r| r.max_attempts = Some(-1), |r| r.max_attempts = Some(1)],
                &[|r| r.max_attempts = Some(-2), |r| r.max_attempts = Some(0)],
                MaxAttempts,
            ),
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
            (
                &[|r| r.max_deliveries = Some(-1), |r| r.max_deliveries = Some(i32::MAX)],
                &[|r| r.max_deliveries = Some(i32::MIN), |r| r.max_deliveries = Some(0)],
                MaxDeliveries,
            ),
        ];
        let taken = |set: &Set| {
            let mut said = RetryOverrides::default();
            set(&mut said);
            RetryOverrides::try_new(said).map(|_| ())
        };
        for (good, bad, what) in cases {
            assert!(good.iter().all(|set| taken(set) == Ok(())), "{what}");
            assert!(bad.iter().all(|set| taken(set) == Err(vec![what])), "{what}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_told_in_the_order_of_the_fields() {
        let long = Duration::MAX;
        let said = RetryOverrides {
            max_attempts: Some(0),
            delays: vec![long; 101],
            initial_delay: Some(long),
            multiplier: Some(-1.0),
            max_delay: Some(long),
            jitter: Some(2.0),
            max_retry_duration: Some(long),
            ignore_expired_leases: None,
            max_deliveries: Some(0),
        };
        let invalid = RetryOverrides::try_new(said).unwrap_err();
        assert!(invalid.is_sorted());
        assert_eq!(invalid.len(), 8 + limit::RETRY_DELAYS_MAX);
    }

    /// One of these, or nothing.
    fn some<T: Copy>(random: &mut StdRng, values: &[T]) -> Option<T> {
        values.get(random.random_range(0..=values.len())).copied()
    }

    /// Anything that a level may say, its extremes more often than what lies between.
    fn any_overrides(random: &mut StdRng) -> RetryOverrides {
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
        }
    }

    #[test]
    fn every_policy_waits_within_its_bounds() {
        const POLICIES: usize = 20_000;
        // Below it the rounding of the longest waits, ten years in a float.
        const ROUNDED: Duration = Duration::from_micros(1);
        let seed: u64 = rand::rng().random();
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..POLICIES {
            let over = RetryOverrides::try_new(any_overrides(&mut random)).unwrap();
            let policy = RetryPolicy::default().merge(&over);
            let longest = policy.delays.iter().copied().max().unwrap_or(policy.max_delay);
            let failures = [0, 1, 2, 3, random.random_range(4..1_000), random.random(), u32::MAX];
            for failure in failures {
                let full = policy.full_delay(failure.max(1));
                assert!(full <= longest, "{failure} {policy:?}");
                let next = policy.full_delay(failure.saturating_add(1).max(1));
                let grows = !policy.delays.is_empty() || full <= next;
                assert!(grows, "{full:?} {next:?} {failure} {policy:?}");
                for entropy in [0.0, random.random(), 1.0_f64.next_down()] {
                    let wait = policy.delay(failure, entropy);
                    let least = full.mul_f64(1.0 - policy.jitter).saturating_sub(ROUNDED);
                    assert!((least..=full).contains(&wait), "{wait:?} {failure} {policy:?}");
                }
            }
            assert_eq!(policy.delay(7, 0.0), policy.full_delay(7), "{policy:?}");
        }
    }

    /// What the comment of a field of `RetryPolicy` says, in one line.
    fn contract(field: &str) -> String {
        let contract = include_str!("../../proto/ringq/v1/job.proto");
        let (_, message) = contract.split_once("message RetryPolicy {").unwrap();
        let (before, _) = message.split_once(&format!(" {field} = ")).unwrap();
        let comment = before.rsplit(";\n").next().unwrap();
        comment
            .lines()
            .map(|line| line.trim().trim_start_matches("//").trim())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_contract_tells_the_servers_own_policy() {
        let policy = RetryPolicy::default();
        let inherited = |max: Option<u32>| format!("in the end {} from the server", max.unwrap());
        for (field, told) in [
            ("max_attempts", inherited(policy.max_attempts)),
            ("initial_delay", format!("Default {} s.", policy.initial_delay.as_secs())),
            ("multiplier", format!("Default {}.", policy.multiplier)),
            ("max_delay", format!("Default {} h.", policy.max_delay.as_secs() / 3600)),
            ("jitter", format!("Default {},", policy.jitter)),
            ("ignore_expired_leases", format!("Default {}.", policy.ignore_expired_leases)),
            ("max_deliveries", inherited(policy.max_deliveries)),
        ] {
            let said = contract(field);
            assert!(said.contains(&told), "{field}: {told:?} is not in {said:?}");
        }
    }

    #[test]
    fn minus_one_means_no_limit_and_absence_inherits() {
        let over = RetryOverrides { max_attempts: Some(-1), ..Default::default() };
        let policy = RetryPolicy::default().merge(&over);
        assert_eq!((policy.max_attempts, policy.max_deliveries), (None, Some(100)));
    }

    #[test]
    fn exponential_fields_replace_an_inherited_ladder() {
        let ladder = RetryOverrides { delays: secs(&[60]), ..Default::default() };
        let topic = RetryPolicy::default().merge(&ladder);
        let over = RetryOverrides { initial_delay: Some(Duration::from_secs(5)), ..ladder.clone() };
        let job = RetryOverrides { delays: Vec::new(), ..over };
        assert_eq!(topic.merge(&job).delay(1, 0.0), Duration::from_secs(5));
    }

    #[test]
    fn the_first_free_hand_over_costs_nothing_then_waits_double() {
        let waits: Vec<_> = (1..=9).map(|n| release_delay(n).map_or(0, |d| d.as_secs())).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
