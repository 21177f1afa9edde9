//! Retry policy: the wait before the next attempt, and the limits after which a job is dead.
//!
//! Exponential backoff with a cap and "equal to full" jitter: the wait is uniform in
//! `[d * (1 - jitter), d]` (after Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture
//! Blog, 2015), so the documented delay is an upper bound and a failed burst does not come back as
//! a burst.

mod crash_topic;
mod overrides;

use std::time::Duration;

use super::TopicName;

pub use crash_topic::CrashTopic;
pub use overrides::RetryOverrides;

/// Effective retry policy: every field has a value.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Number of failures allowed; `None`: no limit.
    pub max_attempts: Option<u32>,
    /// Explicit waits (a "ladder"); the last one repeats. Empty: exponential form.
    pub delays: Vec<Duration>,
    /// First wait of the exponential form.
    pub initial_delay: Duration,
    /// Growth per failure, at least 1.
    pub multiplier: f64,
    /// Cap of the exponential form.
    pub max_delay: Duration,
    /// Share of the wait that is random, 0 to 1.
    pub jitter: f64,
    /// Time from the start of the first attempt after which a failure is the last; `None`: no limit.
    pub max_retry_duration: Option<Duration>,
    /// True: expired leases do not count as failures.
    pub ignore_expired_leases: bool,
    /// Number of deliveries allowed, however they ended; `None`: no limit.
    pub max_deliveries: Option<u32>,
    /// Number of crashes allowed: expired leases, and streams that the worker broke; `None`: no limit.
    pub max_crashes: Option<u32>,
    /// Topic to which a job moves that has crashed as often as it may; `None`: it becomes a dead letter.
    pub crash_topic: Option<TopicName>,
}

/// The server's own policy, below every topic and job. The proto files and the help of `ringq enqueue` document it,
/// too; a test compares. A release without a failure waits by [`release_delay`] instead.
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
            max_crashes: None,
            crash_topic: None,
        }
    }
}

// === impl RetryPolicy ===

impl RetryPolicy {
    /// Returns this policy with the fields of `over` put over it. A ladder switches jitter off unless jitter is set
    /// too: explicit waits are meant exactly. For the same reason exponential fields switch an inherited ladder off.
    #[must_use]
    pub fn merge(mut self, over: Option<&RetryOverrides>) -> RetryPolicy {
        let Some(over) = over else { return self };
        if let Some(max) = over.max_attempts {
            self.max_attempts = u32::try_from(max).ok();
        }
        if let Some(max) = over.max_deliveries {
            self.max_deliveries = u32::try_from(max).ok();
        }
        if let Some(max) = over.max_crashes {
            self.max_crashes = u32::try_from(max).ok();
        }
        if let Some(crash_topic) = &over.crash_topic {
            self.crash_topic = crash_topic.name().cloned();
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

    /// Returns the wait after failure number `failure` (1 is the first). `entropy` is uniform in `[0, 1)`.
    #[must_use]
    pub fn delay(&self, failure: u32, entropy: f64) -> Duration {
        let full = self.full_delay(failure.max(1));
        // Subtracted, not multiplied: so a wait without jitter is exact, and none is longer than documented.
        full.saturating_sub(full.mul_f64(self.jitter.clamp(0.0, 1.0) * entropy.clamp(0.0, 1.0)))
    }

    /// Returns the wait before jitter: an upper bound of [`RetryPolicy::delay`].
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

/// Returns the wait before a job that was released without a failure is delivered again. `free` is the number of such
/// deliveries so far, this one included. `None`: no wait, and the job keeps its place. The wait doubles from 1 s to
/// 60 s, so that a worker which releases all its jobs cannot spin.
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

    use super::overrides::tests::any_overrides;
    use super::*;

    fn secs(list: &[u64]) -> Vec<Duration> {
        list.iter().map(|&s| Duration::from_secs(s)).collect()
    }

    #[test]
    fn a_ladder_is_exact_and_its_last_rung_repeats() {
        let over = RetryOverrides { delays: secs(&[60, 180, 300]), ..Default::default() };
        let policy = RetryPolicy::default().merge(Some(&over));
        let waits: Vec<_> = (1..=5).map(|n| policy.delay(n, 0.99)).collect();
        assert_eq!(waits, secs(&[60, 180, 300, 300, 300]));
    }

    #[test]
    fn the_exponential_form_doubles_up_to_its_cap() {
        let over = RetryOverrides { jitter: Some(0.0), ..Default::default() };
        let policy = RetryPolicy::default().merge(Some(&over));
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
    fn every_policy_waits_within_its_bounds() {
        const POLICIES: usize = 20_000;
        // Rounding error of the longest waits: ten years in a float.
        const ROUNDED: Duration = Duration::from_micros(1);
        let seed: u64 = rand::rng().random();
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..POLICIES {
            let over = any_overrides(&mut random);
            let policy = RetryPolicy::default().merge(Some(&over));
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

    /// Returns the comment of a field of `RetryPolicy` in `job.proto`, in one line.
    fn contract(field: &str) -> String {
        let contract = include_str!("../../../proto/ringq/v1/job.proto");
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
    fn proto_comments_match_the_default_policy() {
        let policy = RetryPolicy::default();
        let inherited = |max: Option<u32>| format!("in the end {} from the server", max.unwrap());
        // Format of the proto comments, which have whole units only.
        let in_units = |wait: Duration, unit: Duration, name: &str| {
            assert_eq!(wait.as_nanos() % unit.as_nanos(), 0, "{wait:?} is no number of {name}");
            format!("Default {} {name}.", wait.as_nanos() / unit.as_nanos())
        };
        let [second, hour] = [1, 3600].map(Duration::from_secs);
        for (field, expected) in [
            ("max_attempts", inherited(policy.max_attempts)),
            ("initial_delay", in_units(policy.initial_delay, second, "s")),
            ("multiplier", format!("Default {}.", policy.multiplier)),
            ("max_delay", in_units(policy.max_delay, hour, "h")),
            ("jitter", format!("Default {},", policy.jitter)),
            ("ignore_expired_leases", format!("Default {}.", policy.ignore_expired_leases)),
            ("max_deliveries", inherited(policy.max_deliveries)),
        ] {
            let comment = contract(field);
            assert!(comment.contains(&expected), "{field}: {expected:?} is not in {comment:?}");
        }
    }

    #[test]
    fn a_crash_topic_is_inherited_replaced_or_switched_off() {
        let level = |text| RetryOverrides {
            crash_topic: CrashTopic::parse(text).unwrap(),
            ..Default::default()
        };
        for (topic, job, expected) in [
            ("", "", None),
            ("a", "", Some("a")),
            ("a", "b", Some("b")),
            ("a", "-", None),
            ("-", "b", Some("b")),
        ] {
            let policy = RetryPolicy::default().merge(Some(&level(topic))).merge(Some(&level(job)));
            let crash_topic = policy.crash_topic.as_ref().map(TopicName::as_str);
            assert_eq!(crash_topic, expected, "{topic:?} {job:?}");
        }
    }

    #[test]
    fn minus_one_means_no_limit_and_absence_inherits() {
        let over = RetryOverrides { max_attempts: Some(-1), ..Default::default() };
        let policy = RetryPolicy::default().merge(Some(&over));
        assert_eq!((policy.max_attempts, policy.max_deliveries), (None, Some(100)));
    }

    #[test]
    fn exponential_fields_replace_an_inherited_ladder() {
        let ladder = RetryOverrides { delays: secs(&[60]), ..Default::default() };
        let topic = RetryPolicy::default().merge(Some(&ladder));
        let over = RetryOverrides { initial_delay: Some(Duration::from_secs(5)), ..ladder.clone() };
        let job = RetryOverrides { delays: Vec::new(), ..over };
        assert_eq!(topic.merge(Some(&job)).delay(1, 0.0), Duration::from_secs(5));
    }

    #[test]
    fn first_release_has_no_delay_then_delay_doubles() {
        let waits: Vec<_> = (1..=9).map(|n| release_delay(n).map_or(0, |d| d.as_secs())).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn release_delay_is_documented_everywhere() {
        let first: Vec<_> = (2..=4).filter_map(release_delay).map(|wait| wait.as_secs()).collect();
        let cap = release_delay(u32::MAX).unwrap().as_secs();
        let [one, two, four] = first[..] else { panic!("{first:?}") };
        for (expected, texts) in [
            (
                format!("{one} s, {two} s, {four} s and so on up to {cap} s"),
                [
                    include_str!("../../../proto/ringq/v1/queue_service.proto"),
                    include_str!("../../client/worker/delivery.rs"),
                ]
                .as_slice(),
            ),
            (
                format!("then {one}s, {two}s, {four}s … {cap}s"),
                [include_str!("../../cli/work/mod.rs")].as_slice(),
            ),
        ] {
            assert!(texts.iter().all(|text| text.contains(&expected)), "{expected}");
        }
    }
}
