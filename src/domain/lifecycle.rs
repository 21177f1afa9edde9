//! End of a lease and its consequences by the retry policy of the job: whether the attempt counts, and whether and when
//! another one follows. [`engine`](super::engine) then decides the state of the job.

use std::time::Duration;

use super::job::AttemptOutcome;
use super::limit;
use super::name::TopicName;
use super::retry::{RetryOverrides, RetryPolicy, release_delay};
use super::time::Time;

/// Cause of the end of a lease without an Ack. Each end that a worker can request has an outcome, or a dead letter, of
/// its own: that distinguishes a repeated settle from another one (`settled_code` of the engine).
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseEndCause {
    /// Nack RETRY; a delay overrides the policy's wait.
    Failed {
        /// Overrides the policy's wait; zero puts the job at the end of the order.
        delay: Option<Duration>,
        /// Error text of the worker.
        error: String,
    },
    /// Nack RELEASE; a delay overrides the default of [`release_delay`].
    Released {
        /// Overrides the default wait.
        delay: Option<Duration>,
        /// Error text of the worker.
        error: String,
    },
    /// Nack DEAD_LETTER.
    DeadLettered {
        /// Error text of the worker.
        error: String,
    },
    /// The deadline of the lease passed.
    Expired,
    /// The stream that held the lease broke, and no worker extended or settled it within its orphan grace. Its replica
    /// died, or the server has ended it.
    StreamBroken,
    /// As [`LeaseEndCause::StreamBroken`], but the worker broke the stream: its connection was reset or did not answer.
    WorkerCrashed,
    /// The deadline passed while no server served the shard, and no worker has extended or settled the lease since.
    Unserved,
}

/// Error texts of leases whose ends no worker reported.
const UNREPORTED: [&str; 5] = [
    "the lease expired before the job was settled",
    "the stream that held the job broke",
    "the worker broke the stream that held the job",
    "the lease ran out while no server served its shard",
    NO_ERROR,
];
/// Error text of a dead letter whose worker gave none.
const NO_ERROR: &str = "the worker gave no error";

impl LeaseEndCause {
    /// Returns the error text if no worker reported the end.
    fn unreported_error(&self) -> Option<&'static str> {
        match self {
            LeaseEndCause::Failed { .. }
            | LeaseEndCause::Released { .. }
            | LeaseEndCause::DeadLettered { .. } => None,
            LeaseEndCause::Expired => Some(UNREPORTED[0]),
            LeaseEndCause::StreamBroken => Some(UNREPORTED[1]),
            LeaseEndCause::WorkerCrashed => Some(UNREPORTED[2]),
            LeaseEndCause::Unserved => Some(UNREPORTED[3]),
        }
    }

    /// Returns the outcome that is stored with the attempt.
    #[must_use]
    pub fn outcome(&self) -> AttemptOutcome {
        match self {
            LeaseEndCause::Failed { .. } | LeaseEndCause::DeadLettered { .. } => {
                AttemptOutcome::Failed
            }
            LeaseEndCause::Released { .. }
            | LeaseEndCause::StreamBroken
            | LeaseEndCause::WorkerCrashed
            | LeaseEndCause::Unserved => AttemptOutcome::Released,
            LeaseEndCause::Expired => AttemptOutcome::LeaseExpired,
        }
    }

    /// Returns whether the worker requested a dead letter.
    #[must_use]
    pub fn is_dead_letter(&self) -> bool {
        matches!(self, LeaseEndCause::DeadLettered { .. })
    }

    /// Returns whether an end with this cause counts as a failure of the job.
    #[must_use]
    pub fn counts(&self, policy: &RetryPolicy) -> bool {
        match self {
            LeaseEndCause::Failed { .. } | LeaseEndCause::DeadLettered { .. } => true,
            LeaseEndCause::Released { .. }
            | LeaseEndCause::StreamBroken
            | LeaseEndCause::WorkerCrashed
            | LeaseEndCause::Unserved => false,
            LeaseEndCause::Expired => !policy.ignore_expired_leases,
        }
    }

    /// Returns whether an end with this cause counts as a crash of the worker.
    #[must_use]
    pub fn is_crash(&self) -> bool {
        matches!(self, LeaseEndCause::Expired | LeaseEndCause::WorkerCrashed)
    }
}

/// Counters and settings of a running job, as stored: the input of a decision about the end of its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptContext {
    /// Number of counted failures, this attempt not included.
    pub failures: u32,
    /// Number of finished deliveries, this one not included.
    pub deliveries: u32,
    /// Number of crashes, this attempt not included.
    pub crashes: u32,
    /// True if a generation waits for the end of the lease and takes the place of this one.
    pub is_replaced: bool,
    /// Start of the first attempt.
    pub first_start: Time,
    /// Retry settings of the job itself, if it has any.
    pub retry: Option<Box<RetryOverrides>>,
}

/// End of a lease, as the store writes it. Every end counts one delivery, so a job without any never ran: both stores
/// use that when they undo a claim, to find whether its start was the first.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseEnd {
    /// Next step of the job.
    pub step: AfterLease,
    /// Outcome that is stored with the attempt.
    pub outcome: AttemptOutcome,
    /// True if the attempt counts as a failure.
    pub counted: bool,
    /// True if the attempt counts as a crash.
    pub crashed: bool,
    /// True if it was the last crash that the job may have.
    pub crashes_used: bool,
    /// True if the worker requested a dead letter. It distinguishes a repeat of that Nack from one with RETRY.
    pub dead_lettered: bool,
    /// Error text, stored with the attempt. Only a worker's Nack that gave none and ends in no dead letter has none.
    pub error: String,
    /// Effect of the text on the `last_error` of the job.
    pub keeps_error: KeepsError,
}

/// Effect of the error text of an attempt on the `last_error` of its job. An empty text never replaces one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepsError {
    /// The text replaces `last_error`: the attempt counts as a failure, or a limit made it the last one.
    Always,
    /// The text replaces `last_error` unless that has more to say: the worker reported nothing.
    UnlessReported,
    /// `last_error` stays.
    Never,
}

/// Next step of a job after a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLease {
    /// Waits for this time; `None`: keeps its due time and so its place.
    Wait(Option<Duration>),
    /// Becomes a dead letter.
    DeadLetter,
}

// === impl KeepsError ===

impl KeepsError {
    /// Returns whether `error` replaces this `last_error`.
    #[must_use]
    pub fn replaces(self, last_error: &str, error: &str) -> bool {
        let is_better = match self {
            KeepsError::Always => true,
            KeepsError::UnlessReported => last_error.is_empty() || UNREPORTED.contains(&last_error),
            KeepsError::Never => false,
        };
        is_better && !error.is_empty()
    }
}

/// Decides how a lease ends. `entropy` is uniform in `[0, 1)`.
#[must_use]
pub fn lease_end(
    cause: LeaseEndCause,
    attempt: &AttemptContext,
    policy: &RetryPolicy,
    now: Time,
    entropy: f64,
) -> LeaseEnd {
    let (outcome, counted, dead_lettered) =
        (cause.outcome(), cause.counts(policy), cause.is_dead_letter());
    let (crashed, crashes_used) = (cause.is_crash(), is_last_crash(&cause, attempt, policy));
    let unreported = cause.unreported_error();
    let (chosen, reported) = match cause {
        LeaseEndCause::Failed { delay, error } | LeaseEndCause::Released { delay, error } => {
            (delay, error)
        }
        LeaseEndCause::DeadLettered { error } => (None, error),
        LeaseEndCause::Expired
        | LeaseEndCause::StreamBroken
        | LeaseEndCause::WorkerCrashed
        | LeaseEndCause::Unserved => (None, unreported.unwrap_or_default().to_owned()),
    };
    let failures = attempt.failures + u32::from(counted);
    let deliveries = attempt.deliveries + 1;
    let failures_used = counted && are_failures_used(failures, attempt, policy, now);
    let deliveries_used = policy.max_deliveries.is_some_and(|max| deliveries >= max);
    let is_dead = dead_lettered || crashes_used || failures_used || deliveries_used;
    // Only a dead letter needs a text where the worker gave none.
    let is_silent = reported.is_empty() && is_dead;
    let mut error = if is_silent { NO_ERROR.to_owned() } else { reported };
    let limit = if dead_lettered {
        None
    } else if crashes_used {
        Some(format!(": crash {}, and max_crashes allows no more", attempt.crashes + 1))
    } else if deliveries_used && !failures_used {
        Some(format!(": delivery {deliveries}, and max_deliveries allows no more"))
    } else {
        None
    };
    if let Some(limit) = &limit {
        let most = error.len().min(limit::ERROR_BYTES_MAX - limit.len());
        let end = (0..=most).rev().find(|&end| error.is_char_boundary(end));
        error.truncate(end.unwrap_or(0));
        error += limit;
    }
    let step = if is_dead {
        AfterLease::DeadLetter
    } else if counted {
        AfterLease::Wait(Some(chosen.unwrap_or_else(|| policy.delay(failures, entropy))))
    } else if chosen == Some(Duration::ZERO) {
        // Released for another worker to take at once: the job keeps its place.
        AfterLease::Wait(None)
    } else {
        AfterLease::Wait(chosen.or_else(|| release_delay(deliveries - failures)))
    };
    let keeps_error = if limit.is_some() || counted && !is_silent {
        KeepsError::Always
    } else if is_silent || unreported.is_some() {
        KeepsError::UnlessReported
    } else {
        KeepsError::Never
    };
    LeaseEnd { step, outcome, counted, crashed, crashes_used, dead_lettered, error, keeps_error }
}

/// Returns whether an end with this cause is the last crash that the job may have.
fn is_last_crash(cause: &LeaseEndCause, attempt: &AttemptContext, policy: &RetryPolicy) -> bool {
    cause.is_crash() && policy.max_crashes.is_some_and(|max| attempt.crashes + 1 >= max)
}

/// Returns the topic to which an end with this cause moves a job of `topic`; `None`: the job stays in its topic. A job
/// that has another generation waiting is replaced by that one. A topic is never its own crash topic, which settings of
/// a pattern can make it.
#[must_use]
pub fn crash_target<'p>(
    cause: &LeaseEndCause,
    attempt: &AttemptContext,
    policy: &'p RetryPolicy,
    topic: &TopicName,
) -> Option<&'p TopicName> {
    let moves = !attempt.is_replaced && is_last_crash(cause, attempt, policy);
    policy.crash_topic.as_ref().filter(|target| moves && *target != topic)
}

/// Returns whether the failures of a job, or the time for retries, are used up. Neither applies to an attempt that did not
/// fail: a release makes a job dead only by the limit on deliveries.
fn are_failures_used(
    failures: u32,
    attempt: &AttemptContext,
    policy: &RetryPolicy,
    now: Time,
) -> bool {
    policy.max_attempts.is_some_and(|max| failures >= max)
        || policy.max_retry_duration.is_some_and(|max| now.since(attempt.first_start) >= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(failures: u32, deliveries: u32) -> AttemptContext {
        AttemptContext {
            failures,
            deliveries,
            crashes: 0,
            is_replaced: false,
            first_start: Time(0),
            retry: None,
        }
    }

    fn failed() -> LeaseEndCause {
        LeaseEndCause::Failed { delay: None, error: "no".into() }
    }

    fn released() -> LeaseEndCause {
        LeaseEndCause::Released { delay: None, error: String::new() }
    }

    #[test]
    fn a_failure_waits_by_policy_until_attempts_are_used_up() {
        let policy = RetryPolicy { max_attempts: Some(3), ..Default::default() };
        let end =
            |failures| lease_end(failed(), &attempt(failures, failures), &policy, Time(0), 0.0);
        assert_eq!(end(0).step, AfterLease::Wait(Some(Duration::from_secs(1))));
        assert_eq!(end(1).step, AfterLease::Wait(Some(Duration::from_secs(2))));
        assert_eq!(end(2).step, AfterLease::DeadLetter);
        assert!(end(2).counted);
    }

    #[test]
    fn a_release_counts_no_failure_and_dies_only_by_deliveries() {
        let policy = RetryPolicy { max_attempts: Some(1), ..Default::default() };
        let end =
            |deliveries| lease_end(released(), &attempt(0, deliveries), &policy, Time(0), 0.0);
        assert_eq!(end(0).step, AfterLease::Wait(None));
        assert_eq!(end(1).step, AfterLease::Wait(Some(Duration::from_secs(1))));
        assert_eq!(end(98).step, AfterLease::Wait(Some(Duration::from_secs(60))));
        assert_eq!(end(99).step, AfterLease::DeadLetter);
        assert!(!end(99).counted);
    }

    #[test]
    fn retry_stops_at_max_retry_duration_to_the_microsecond() {
        let limit = Duration::from_secs(10);
        let policy = RetryPolicy { max_retry_duration: Some(limit), ..Default::default() };
        let end = |now| lease_end(failed(), &attempt(0, 0), &policy, now, 0.0).step;
        assert_ne!(end(Time(9_999_999)), AfterLease::DeadLetter);
        assert_eq!(end(Time(10_000_000)), AfterLease::DeadLetter);
    }

    #[test]
    fn an_expired_lease_counts_unless_the_policy_ignores_it() {
        let counts = RetryPolicy::default();
        let ignores = RetryPolicy { ignore_expired_leases: true, ..Default::default() };
        let end = |policy| lease_end(LeaseEndCause::Expired, &attempt(0, 0), policy, Time(0), 0.0);
        assert!(end(&counts).counted);
        assert!(!end(&ignores).counted);
        assert_eq!(end(&ignores).outcome, AttemptOutcome::LeaseExpired);
        assert_eq!(end(&ignores).step, AfterLease::Wait(None));
    }

    #[test]
    fn a_lease_that_ran_out_unserved_is_no_failure_even_of_the_last_attempt() {
        let policy = RetryPolicy { max_attempts: Some(1), ..Default::default() };
        let end = lease_end(LeaseEndCause::Unserved, &attempt(0, 0), &policy, Time(0), 0.0);
        assert_eq!((end.step, end.counted), (AfterLease::Wait(None), false));
    }

    #[test]
    fn only_crashes_count_as_crashes_and_their_limit_counts_nothing_else() {
        let policy = RetryPolicy { max_crashes: Some(2), ..Default::default() };
        let end = |cause: LeaseEndCause, crashes| {
            let attempt = AttemptContext { crashes, ..attempt(9, 9) };
            lease_end(cause, &attempt, &policy, Time(0), 0.0)
        };
        for (cause, crashed, counted) in [
            (failed(), false, true),
            (released(), false, false),
            (LeaseEndCause::StreamBroken, false, false),
            (LeaseEndCause::Unserved, false, false),
            (LeaseEndCause::WorkerCrashed, true, false),
            (LeaseEndCause::Expired, true, true),
        ] {
            for crashes in [0, 1, 7] {
                let end = end(cause.clone(), crashes);
                assert_eq!((end.crashed, end.counted), (crashed, counted), "{cause:?}");
                let is_last = crashed && crashes >= 1;
                assert_eq!(end.step == AfterLease::DeadLetter, is_last, "{cause:?} {crashes}");
                assert_eq!(end.crashes_used, is_last);
                assert_eq!(end.error.contains("max_crashes"), is_last, "{}", end.error);
            }
        }
        let unlimited = RetryPolicy::default();
        let attempt = AttemptContext { crashes: 98, ..attempt(0, 98) };
        let end = lease_end(LeaseEndCause::WorkerCrashed, &attempt, &unlimited, Time(0), 0.0);
        assert_ne!(end.step, AfterLease::DeadLetter);
    }

    /// Every way in which a lease ends without an Ack, with and without a text of the worker, on its way and for the last
    /// time by each limit: no job is dead, and none came back unreported, without a reason.
    #[test]
    fn every_end_has_a_reason_unless_the_worker_gave_none_and_goes_on() {
        let long = "é".repeat(limit::ERROR_BYTES_MAX / 2);
        let by_worker = |error: &str| {
            let (delay, error) = (None, error.to_owned());
            [
                LeaseEndCause::Failed { delay, error: error.clone() },
                LeaseEndCause::Released { delay, error: error.clone() },
                LeaseEndCause::DeadLettered { error },
            ]
        };
        let reports = ["", "no route", &long].map(by_worker).concat();
        let unreported = [
            LeaseEndCause::Expired,
            LeaseEndCause::StreamBroken,
            LeaseEndCause::WorkerCrashed,
            LeaseEndCause::Unserved,
        ];
        let unlimited =
            RetryPolicy { max_attempts: None, max_deliveries: None, ..Default::default() };
        let limits = [
            ("", unlimited.clone()),
            ("", RetryPolicy { max_attempts: Some(3), ..unlimited.clone() }),
            ("max_deliveries", RetryPolicy { max_deliveries: Some(3), ..unlimited.clone() }),
            ("max_crashes", RetryPolicy { max_crashes: Some(1), ..unlimited }),
        ];
        for cause in reports.into_iter().chain(unreported.clone()) {
            for ((name, policy), ignores) in limits.iter().flat_map(|l| [(l, false), (l, true)]) {
                let policy = RetryPolicy { ignore_expired_leases: ignores, ..policy.clone() };
                let end = lease_end(cause.clone(), &attempt(2, 2), &policy, Time(0), 0.0);
                let by_text = end.error.contains(name) && !name.is_empty();
                let is_dead = end.step == AfterLease::DeadLetter;
                let given = match &cause {
                    LeaseEndCause::Failed { error, .. }
                    | LeaseEndCause::Released { error, .. }
                    | LeaseEndCause::DeadLettered { error } => error.as_str(),
                    cause => cause.unreported_error().unwrap(),
                };
                let what = format!("{cause:?} {policy:?}: {end:?}");
                assert!(end.error.len() <= limit::ERROR_BYTES_MAX, "{what}");
                assert_eq!(end.error.is_empty(), given.is_empty() && !is_dead, "{what}");
                assert!(end.error.starts_with(&given[..given.len().min(8)]), "{what}");
                let last = |before: &str| match end.keeps_error.replaces(before, &end.error) {
                    true => end.error.clone(),
                    false => before.to_owned(),
                };
                let is_unreported = unreported.contains(&cause);
                assert!(!last("").is_empty() || !is_dead && !is_unreported, "{what}");
                // What a worker reported stays until another failure, or a limit, has more to say.
                let replaces = by_text || end.counted && !given.is_empty();
                assert_eq!(last("timeout") != "timeout", replaces, "{what}");
                // And what no worker reported stays only until the next end.
                for own in UNREPORTED {
                    assert!(last(own) == end.error || end.error.is_empty() || !is_dead, "{what}");
                    assert!(!is_unreported || last(own) == end.error, "{what}");
                }
            }
        }
    }

    #[test]
    fn a_job_that_is_dead_by_a_limit_names_it_behind_the_last_text() {
        let end = |cause, policy: &RetryPolicy| {
            let end = lease_end(cause, &attempt(2, 99), policy, Time(0), 0.0);
            assert_eq!(end.step, AfterLease::DeadLetter);
            end.error
        };
        let released = |error: &str| LeaseEndCause::Released { delay: None, error: error.into() };
        let policy = RetryPolicy::default();
        let limit = ": delivery 100, and max_deliveries allows no more";
        assert_eq!(end(released("no such handler"), &policy), format!("no such handler{limit}"));
        assert_eq!(end(released(""), &policy), format!("the worker gave no error{limit}"));
        assert_eq!(
            end(LeaseEndCause::StreamBroken, &policy),
            format!("the stream that held the job broke{limit}")
        );
        // A failure that was the last one anyway is its own reason, and so is a dead letter.
        let both = RetryPolicy { max_attempts: Some(3), ..policy.clone() };
        assert_eq!(end(failed(), &both), "no");
        assert_eq!(end(failed(), &policy), format!("no{limit}"));
        assert_eq!(end(LeaseEndCause::DeadLettered { error: "bad".into() }, &policy), "bad");
    }

    #[test]
    fn only_the_last_crash_moves_a_job_and_never_to_its_own_topic() {
        let (own, target) = (TopicName::stored("t"), TopicName::stored("crashed"));
        let policy = RetryPolicy {
            max_crashes: Some(2),
            max_attempts: Some(1),
            crash_topic: Some(target.clone()),
            ..Default::default()
        };
        let crashed = |crashes| AttemptContext { crashes, ..attempt(9, 9) };
        let moves = |cause, attempt: &AttemptContext, topic| {
            crash_target(&cause, attempt, &policy, topic).cloned()
        };
        for cause in [LeaseEndCause::Expired, LeaseEndCause::WorkerCrashed] {
            assert_eq!(moves(cause.clone(), &crashed(0), &own), None);
            assert_eq!(moves(cause.clone(), &crashed(1), &own), Some(target.clone()));
            assert_eq!(moves(cause.clone(), &crashed(9), &own), Some(target.clone()));
            assert_eq!(moves(cause.clone(), &crashed(9), &target), None);
            let replaced = AttemptContext { is_replaced: true, ..crashed(9) };
            assert_eq!(moves(cause.clone(), &replaced, &own), None);
            let unlimited = RetryPolicy { max_crashes: None, ..policy.clone() };
            assert_eq!(crash_target(&cause, &crashed(9), &unlimited, &own), None);
        }
        for cause in [failed(), released(), LeaseEndCause::StreamBroken, LeaseEndCause::Unserved] {
            assert_eq!(moves(cause, &crashed(9), &own), None);
        }
    }

    #[test]
    fn a_delay_of_the_worker_overrides_the_policy() {
        let policy = RetryPolicy::default();
        let cause = LeaseEndCause::Failed { delay: Some(Duration::ZERO), error: String::new() };
        let end = lease_end(cause, &attempt(4, 4), &policy, Time(0), 0.0);
        assert_eq!(end.step, AfterLease::Wait(Some(Duration::ZERO)));
    }
}
