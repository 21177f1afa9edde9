//! Retry policies, of jobs and of topics.

use std::time::Duration;

use crate::domain::{CrashTopic, RetryOverrides, TopicName, limit};
use crate::pb;

use super::time::{self, DELAY, POSITIVE};
use super::{Checks, FieldPath};

/// Accepted values of a count.
const COUNT: &str = "must be 1 or more, -1 for no limit, or 0 to inherit";

/// Reads the retry policy of a job of `topic`, or of that topic. Numbers that are 0 inherit.
pub(crate) fn retry(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: Option<pb::RetryPolicy>,
    topic: Option<&TopicName>,
) -> RetryOverrides {
    let Some(given) = given else { return RetryOverrides::default() };
    let pb::RetryPolicy {
        max_attempts,
        delays,
        initial_delay,
        multiplier,
        max_delay,
        jitter,
        max_retry_duration,
        ignore_expired_leases,
        max_deliveries,
        max_crashes,
        crash_topic,
    } = given;
    RetryOverrides {
        max_attempts: count(checks, path.field("max_attempts"), max_attempts),
        delays: self::delays(checks, path, &delays),
        initial_delay: wait(checks, path.field("initial_delay"), initial_delay),
        multiplier: self::multiplier(checks, path.field("multiplier"), multiplier),
        max_delay: wait(checks, path.field("max_delay"), max_delay),
        jitter: self::jitter(checks, path.field("jitter"), jitter),
        max_retry_duration: wait(checks, path.field("max_retry_duration"), max_retry_duration),
        ignore_expired_leases,
        max_deliveries: count(checks, path.field("max_deliveries"), max_deliveries),
        max_crashes: count(checks, path.field("max_crashes"), max_crashes),
        crash_topic: self::crash_topic(checks, path.field("crash_topic"), &crash_topic, topic),
    }
}

fn count(checks: &mut Checks, path: FieldPath<'_>, given: i32) -> Option<i32> {
    if given < -1 {
        checks.invalid(path, COUNT);
    }
    Some(given).filter(|&count| count != 0)
}

/// Reads the waits of a ladder. Of too many only the first ones are checked.
fn delays(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: &[prost_types::Duration],
) -> Vec<Duration> {
    checks.at_most_items(path.field("delays"), given.len(), limit::RETRY_DELAYS_MAX);
    let rungs = given.iter().take(limit::RETRY_DELAYS_MAX).enumerate();
    let rung =
        |(index, rung)| time::duration(checks, path.item("delays", index), Some(rung), &DELAY);
    rungs.filter_map(rung).collect()
}

fn wait(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: Option<prost_types::Duration>,
) -> Option<Duration> {
    time::duration(checks, path, given.as_ref(), &POSITIVE)
}

fn multiplier(checks: &mut Checks, path: FieldPath<'_>, given: f64) -> Option<f64> {
    let growth = Some(given).filter(|&growth| growth != 0.0)?;
    if !growth.is_finite() || growth < 1.0 {
        checks.invalid(path, "must be a finite number of 1 or more, or 0 to inherit");
    }
    Some(growth)
}

fn jitter(checks: &mut Checks, path: FieldPath<'_>, given: Option<f64>) -> Option<f64> {
    if given.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
        checks.invalid(path, "must be 0 to 1");
    }
    given
}

/// Reads a crash topic, which must not be the topic of the job itself.
fn crash_topic(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: &str,
    topic: Option<&TopicName>,
) -> Option<CrashTopic> {
    let setting = checks.check(path, CrashTopic::parse(given))??;
    if setting.name().is_some_and(|name| Some(name) == topic) {
        checks.invalid(path, "must be another topic than that of the job");
    }
    Some(setting)
}

/// Converts the retry policy of a job; `None` if it sets nothing.
pub(crate) fn to_retry_policy(retry: RetryOverrides) -> Option<pb::RetryPolicy> {
    if retry == RetryOverrides::default() {
        return None;
    }
    Some(pb::RetryPolicy {
        max_attempts: retry.max_attempts.unwrap_or_default(),
        delays: retry.delays.into_iter().map(time::to_duration).collect(),
        initial_delay: retry.initial_delay.map(time::to_duration),
        multiplier: retry.multiplier.unwrap_or_default(),
        max_delay: retry.max_delay.map(time::to_duration),
        jitter: retry.jitter,
        max_retry_duration: retry.max_retry_duration.map(time::to_duration),
        ignore_expired_leases: retry.ignore_expired_leases,
        max_deliveries: retry.max_deliveries.unwrap_or_default(),
        max_crashes: retry.max_crashes.unwrap_or_default(),
        crash_topic: retry.crash_topic.map(|s| s.as_str().to_owned()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::noted;
    use super::super::time::MALFORMED;
    use super::*;

    fn span(seconds: i64) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos: 0 }
    }

    /// Returns the longest wait.
    fn longest() -> prost_types::Duration {
        time::to_duration(limit::DELAY_MAX)
    }

    /// Returns a wait that is a little too long.
    fn above() -> prost_types::Duration {
        prost_types::Duration { nanos: 1, ..longest() }
    }

    fn check(given: pb::RetryPolicy) -> Vec<(String, &'static str)> {
        let own = TopicName::stored("t");
        noted(|checks| {
            retry(checks, FieldPath::ROOT.field("retry"), Some(given), Some(&own));
        })
    }

    #[test]
    fn every_field_has_its_range() {
        type SetRetryField = fn(&mut pb::RetryPolicy);
        let cases: [(SetRetryField, &[(&str, &str)]); 32] = [
            (|_| (), &[]),
            (|r| r.max_attempts = -1, &[]),
            (|r| r.max_attempts = i32::MAX, &[]),
            (|r| r.max_attempts = i32::MIN, &[("retry.max_attempts", "INVALID_FIELD")]),
            (|r| r.max_attempts = -2, &[("retry.max_attempts", "INVALID_FIELD")]),
            (|r| r.max_deliveries = -2, &[("retry.max_deliveries", "INVALID_FIELD")]),
            (|r| r.max_crashes = 1, &[]),
            (|r| r.max_crashes = -2, &[("retry.max_crashes", "INVALID_FIELD")]),
            (|r| r.crash_topic = "crashed".into(), &[]),
            (|r| r.crash_topic = "-".into(), &[]),
            (|r| r.crash_topic = "a b".into(), &[("retry.crash_topic", "INVALID_FIELD")]),
            (|r| r.crash_topic = "t".into(), &[("retry.crash_topic", "INVALID_FIELD")]),
            (|r| r.delays = vec![span(0), span(60)], &[]),
            (|r| r.delays = vec![span(1), span(-1)], &[("retry.delays[1]", "INVALID_FIELD")]),
            (|r| r.delays = vec![longest(); 100], &[]),
            (|r| r.delays = vec![longest(), above()], &[("retry.delays[1]", "INVALID_FIELD")]),
            (|r| r.delays = vec![span(1); 101], &[("retry.delays", "TOO_LARGE")]),
            (|r| r.multiplier = 1.0, &[]),
            (|r| r.multiplier = f64::MAX, &[]),
            (|r| r.multiplier = 1.0_f64.next_down(), &[("retry.multiplier", "INVALID_FIELD")]),
            (|r| r.multiplier = f64::NAN, &[("retry.multiplier", "INVALID_FIELD")]),
            (|r| r.multiplier = f64::INFINITY, &[("retry.multiplier", "INVALID_FIELD")]),
            (|r| r.jitter = Some(0.0), &[]),
            (|r| r.jitter = Some(1.0), &[]),
            (|r| r.jitter = Some(1.0_f64.next_up()), &[("retry.jitter", "INVALID_FIELD")]),
            (|r| r.jitter = Some(f64::NAN), &[("retry.jitter", "INVALID_FIELD")]),
            (|r| r.initial_delay = Some(span(0)), &[("retry.initial_delay", "INVALID_FIELD")]),
            (|r| r.initial_delay = Some(above()), &[("retry.initial_delay", "INVALID_FIELD")]),
            (|r| r.max_delay = Some(longest()), &[]),
            (|r| r.max_delay = Some(span(-1)), &[("retry.max_delay", "INVALID_FIELD")]),
            (
                |r| r.max_retry_duration = Some(span(0)),
                &[("retry.max_retry_duration", "INVALID_FIELD")],
            ),
            (
                |r| {
                    r.jitter = Some(-0.1);
                    r.multiplier = -1.0;
                },
                &[("retry.multiplier", "INVALID_FIELD"), ("retry.jitter", "INVALID_FIELD")],
            ),
        ];
        for (set, expected) in cases {
            let mut given = pb::RetryPolicy::default();
            set(&mut given);
            let found = check(given.clone());
            let found: Vec<_> = found.iter().map(|(field, r)| (field.as_str(), *r)).collect();
            assert_eq!(found, expected, "{given:?}");
        }
    }

    #[test]
    fn violations_are_reported_in_field_order() {
        let malformed = prost_types::Duration { seconds: 0, nanos: 1_000_000_000 };
        let mut delays = vec![span(1); limit::RETRY_DELAYS_MAX + 2];
        delays[7] = malformed;
        delays[limit::RETRY_DELAYS_MAX] = malformed;
        let given = pb::RetryPolicy {
            max_attempts: -2,
            delays,
            initial_delay: Some(span(-1)),
            multiplier: f64::NAN,
            max_delay: Some(malformed),
            jitter: Some(7.0),
            max_retry_duration: Some(span(i64::MAX)),
            ignore_expired_leases: None,
            max_deliveries: i32::MIN,
            max_crashes: -7,
            crash_topic: "-x".to_owned(),
        };
        let mut checks = Checks::default();
        retry(&mut checks, FieldPath::ROOT, Some(given), None);
        let violations = checks.finish(Some(())).unwrap_err().0;
        let texts: Vec<_> = violations.iter().map(|v| format!("{}: {}", v.field, v.text)).collect();
        let growth = "must be a finite number of 1 or more, or 0 to inherit";
        let wait = "must be more than 0s and at most 10 years";
        let expected = [
            format!("max_attempts: {COUNT}"),
            "delays: must have at most 100 items, not 102".to_owned(),
            format!("delays[7]: {MALFORMED}"),
            format!("initial_delay: {wait}"),
            format!("multiplier: {growth}"),
            format!("max_delay: {MALFORMED}"),
            "jitter: must be 0 to 1".to_owned(),
            format!("max_retry_duration: {MALFORMED}"),
            format!("max_deliveries: {COUNT}"),
            format!("max_crashes: {COUNT}"),
            format!("crash_topic: {}", TopicName::try_new("-x").unwrap_err()),
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn overrides_come_back_as_they_were_given() {
        let given = pb::RetryPolicy {
            max_attempts: -1,
            delays: vec![span(60), span(180)],
            initial_delay: Some(span(2)),
            multiplier: 1.5,
            max_delay: Some(span(9)),
            jitter: Some(0.0),
            max_retry_duration: Some(span(600)),
            ignore_expired_leases: Some(false),
            max_deliveries: 7,
            max_crashes: 3,
            crash_topic: "crashed".to_owned(),
        };
        let back =
            |given| to_retry_policy(retry(&mut Checks::default(), FieldPath::ROOT, given, None));
        assert_eq!(back(Some(given.clone())), Some(given));
        assert_eq!(back(None), None);
        assert_eq!(back(Some(pb::RetryPolicy::default())), None);
    }
}
