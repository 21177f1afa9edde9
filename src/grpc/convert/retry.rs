//! Retry policies.

use crate::domain::{RetryOverrides, limit};
use crate::pb;

use super::time::{self, DELAY, POSITIVE};
use super::{Checks, Path};

/// What a job says about retries. Numbers that are 0 inherit.
pub(in crate::grpc) fn retry(
    checks: &mut Checks,
    path: Path<'_>,
    given: Option<pb::RetryPolicy>,
) -> RetryOverrides {
    let Some(given) = given else { return RetryOverrides::default() };
    let optional = |checks: &mut Checks, name, given: &Option<prost_types::Duration>| {
        time::duration(checks, path.field(name), given.as_ref(), &POSITIVE)
    };
    RetryOverrides {
        max_attempts: count(checks, path.field("max_attempts"), given.max_attempts),
        delays: delays(checks, path, &given.delays),
        initial_delay: optional(checks, "initial_delay", &given.initial_delay),
        multiplier: multiplier(checks, path.field("multiplier"), given.multiplier),
        max_delay: optional(checks, "max_delay", &given.max_delay),
        jitter: jitter(checks, path.field("jitter"), given.jitter),
        max_retry_duration: optional(checks, "max_retry_duration", &given.max_retry_duration),
        ignore_expired_leases: given.ignore_expired_leases,
        max_deliveries: count(checks, path.field("max_deliveries"), given.max_deliveries),
    }
}

/// A count where -1 means no limit and 0 inherits.
fn count(checks: &mut Checks, path: Path<'_>, given: i32) -> Option<i32> {
    if given < -1 {
        checks.invalid(path, "must be 1 or more, -1 for no limit, or 0 to inherit");
    }
    Some(given).filter(|&count| count != 0)
}

fn delays(
    checks: &mut Checks,
    parent: Path<'_>,
    given: &[prost_types::Duration],
) -> Vec<std::time::Duration> {
    checks.at_most_items(parent.field("delays"), given.len(), limit::RETRY_DELAYS_MAX);
    let delays = given.iter().take(limit::RETRY_DELAYS_MAX).enumerate();
    let delay =
        |(index, delay)| time::duration(checks, parent.item("delays", index), Some(delay), &DELAY);
    delays.filter_map(delay).collect()
}

fn multiplier(checks: &mut Checks, path: Path<'_>, given: f64) -> Option<f64> {
    if given == 0.0 {
        return None;
    }
    if !given.is_finite() || given < 1.0 {
        checks.invalid(path, "must be a finite number of 1 or more, or 0 to inherit");
    }
    Some(given)
}

fn jitter(checks: &mut Checks, path: Path<'_>, given: Option<f64>) -> Option<f64> {
    if given.is_some_and(|jitter| !(0.0..=1.0).contains(&jitter)) {
        checks.invalid(path, "must be 0 to 1");
    }
    given
}

/// What a job says about retries; nothing when it says nothing.
pub(in crate::grpc) fn to_retry_policy(retry: RetryOverrides) -> Option<pb::RetryPolicy> {
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
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::noted;
    use super::*;

    fn span(seconds: i64) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos: 0 }
    }

    fn check(given: pb::RetryPolicy) -> Vec<(String, &'static str)> {
        noted(|checks| {
            retry(checks, Path::ROOT.field("retry"), Some(given));
        })
    }

    #[test]
    fn every_field_has_its_range() {
        type Set = fn(&mut pb::RetryPolicy);
        let cases: [(Set, &[(&str, &str)]); 18] = [
            (|_| (), &[]),
            (|r| r.max_attempts = -1, &[]),
            (|r| r.max_attempts = -2, &[("retry.max_attempts", "INVALID_FIELD")]),
            (|r| r.max_deliveries = -2, &[("retry.max_deliveries", "INVALID_FIELD")]),
            (|r| r.delays = vec![span(0), span(60)], &[]),
            (|r| r.delays = vec![span(1), span(-1)], &[("retry.delays[1]", "INVALID_FIELD")]),
            (|r| r.delays = vec![span(1); 101], &[("retry.delays", "TOO_LARGE")]),
            (|r| r.multiplier = 1.0, &[]),
            (|r| r.multiplier = 0.5, &[("retry.multiplier", "INVALID_FIELD")]),
            (|r| r.multiplier = f64::NAN, &[("retry.multiplier", "INVALID_FIELD")]),
            (|r| r.multiplier = f64::INFINITY, &[("retry.multiplier", "INVALID_FIELD")]),
            (|r| r.jitter = Some(0.0), &[]),
            (|r| r.jitter = Some(1.1), &[("retry.jitter", "INVALID_FIELD")]),
            (|r| r.jitter = Some(f64::NAN), &[("retry.jitter", "INVALID_FIELD")]),
            (|r| r.initial_delay = Some(span(0)), &[("retry.initial_delay", "INVALID_FIELD")]),
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
        };
        let taken = retry(&mut Checks::default(), Path::ROOT, Some(given.clone()));
        assert_eq!(to_retry_policy(taken), Some(given));
        assert_eq!(to_retry_policy(retry(&mut Checks::default(), Path::ROOT, None)), None);
        let empty = Some(pb::RetryPolicy::default());
        assert_eq!(to_retry_policy(retry(&mut Checks::default(), Path::ROOT, empty)), None);
    }
}
