//! Timestamps and durations, checked for their form and against the limits.

use std::time::Duration;

use crate::domain::{Time, limit};

use super::{Checks, FieldPath};

/// Range of durations, with its text for people.
pub(crate) struct DurationRange {
    min: Duration,
    max: Duration,
    /// Accepted values.
    text: &'static str,
}

/// Range of a lease.
pub(crate) const LEASE: DurationRange =
    DurationRange { min: limit::LEASE_MIN, max: limit::LEASE_MAX, text: "must be 1s to 24h" };
/// Range of a delay.
pub(crate) const DELAY: DurationRange =
    DurationRange { min: Duration::ZERO, max: limit::DELAY_MAX, text: "must be 0s to 10 years" };
/// Range of a duration that has no meaning when it is zero.
pub(crate) const POSITIVE: DurationRange = DurationRange {
    min: Duration::from_nanos(1),
    max: limit::DELAY_MAX,
    text: "must be more than 0s and at most 10 years",
};
/// Range of a retention.
pub(crate) const RETENTION: DurationRange = DurationRange {
    min: Duration::ZERO,
    max: limit::RETENTION_MAX,
    text: "must be 0s to 366 days",
};
/// Range of the waiting time that one level of priority is worth.
pub(crate) const AGEING: DurationRange = DurationRange {
    min: Duration::ZERO,
    max: limit::PRIORITY_AGEING_MAX,
    text: "must be 0s to 24h",
};
/// Range of the time in which a job that is put back must start.
pub(crate) const TTL: DurationRange = DurationRange {
    min: Duration::from_nanos(1),
    max: limit::DELAY_MAX,
    text: "must be more than 0s and at most 10 years",
};
/// Range of any duration that is not negative.
pub(crate) const ANY: DurationRange =
    DurationRange { min: Duration::ZERO, max: Duration::MAX, text: "must not be negative" };

/// Last second of a `google.protobuf.Timestamp`, 9999-12-31T23:59:59Z.
const TIMESTAMP_SECONDS_MAX: i64 = 253_402_300_799;
/// First second of a `google.protobuf.Timestamp`, 0001-01-01T00:00:00Z.
const TIMESTAMP_SECONDS_MIN: i64 = -62_135_596_800;
/// Maximum of a `google.protobuf.Duration` in seconds, about 10,000 years.
const DURATION_SECONDS_MAX: u64 = 315_576_000_000;
/// Error text for a duration that breaks the rules of its own message.
pub(crate) const MALFORMED: &str =
    "is no duration: nanos must be 0 to 999999999 and seconds in range";
/// Nanoseconds in a second.
const NANOS: u32 = 1_000_000_000;

/// Reads a duration within `range`, if there is one.
pub(crate) fn duration(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: Option<&prost_types::Duration>,
    range: &DurationRange,
) -> Option<Duration> {
    let prost_types::Duration { seconds, nanos } = *given?;
    let is_positive = seconds >= 0 && nanos >= 0;
    let (seconds, nanos) = (seconds.unsigned_abs(), nanos.unsigned_abs());
    if is_positive && (seconds > DURATION_SECONDS_MAX || nanos >= NANOS) {
        checks.invalid(path, MALFORMED);
        return None;
    }
    let found = is_positive.then(|| Duration::new(seconds, nanos));
    let found = found.filter(|duration| (range.min..=range.max).contains(duration));
    if found.is_none() {
        checks.invalid(path, range.text);
    }
    found
}

/// Reads a point in time, rounded up to a microsecond so that nothing comes early.
pub(crate) fn timestamp(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: &prost_types::Timestamp,
) -> Option<Time> {
    let seconds = TIMESTAMP_SECONDS_MIN..=TIMESTAMP_SECONDS_MAX;
    let nanos = u32::try_from(given.nanos).ok().filter(|&nanos| nanos < NANOS);
    match nanos.filter(|_| seconds.contains(&given.seconds)) {
        Some(nanos) => Some(Time(given.seconds * 1_000_000 + i64::from(nanos.div_ceil(1_000)))),
        None => {
            checks
                .invalid(path, "is no timestamp: years must be 1 to 9999 and nanos 0 to 999999999");
            None
        }
    }
}

/// Converts a point in time.
pub(crate) fn to_timestamp(time: Time) -> prost_types::Timestamp {
    let micros = i32::try_from(time.0.rem_euclid(1_000_000)).unwrap_or(0);
    prost_types::Timestamp { seconds: time.0.div_euclid(1_000_000), nanos: micros * 1_000 }
}

/// Converts a duration.
pub(crate) fn to_duration(duration: Duration) -> prost_types::Duration {
    let seconds = duration.as_secs().min(DURATION_SECONDS_MAX);
    prost_types::Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noted;
    use super::*;

    const NOW: Time = Time(1_800_000_000_000_000);

    fn span(seconds: i64, nanos: i32) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos }
    }

    fn instant(seconds: i64, nanos: i32) -> prost_types::Timestamp {
        prost_types::Timestamp { seconds, nanos }
    }

    #[test]
    fn durations_keep_to_their_range() {
        let year = 366 * 24 * 3600;
        let cases = [
            (span(0, 0), &DELAY, true),
            (span(10 * year, 0), &DELAY, true),
            (span(10 * year, 1), &DELAY, false),
            (span(-1, 0), &DELAY, false),
            (span(0, -1), &DELAY, false),
            (span(0, 1_000_000_000), &DELAY, false),
            (span(i64::MAX, 0), &ANY, false),
            (span(1, 0), &LEASE, true),
            (span(0, 999_999_999), &LEASE, false),
            (span(24 * 3600, 0), &LEASE, true),
            (span(24 * 3600, 1), &LEASE, false),
            (span(year, 0), &RETENTION, true),
            (span(year + 1, 0), &RETENTION, false),
            (span(0, 0), &POSITIVE, false),
            (span(0, 1), &POSITIVE, true),
        ];
        for (given, range, good) in cases {
            let found = noted(|checks| {
                duration(checks, FieldPath::ROOT.field("d"), Some(&given), range);
            });
            let expected = if good { vec![] } else { vec![("d".to_owned(), "INVALID_FIELD")] };
            assert_eq!(found, expected, "{given:?} {}", range.text);
        }
    }

    #[test]
    fn timestamps_keep_to_their_range_and_round_up() {
        let cases = [
            (instant(1, 0), Some(Time(1_000_000))),
            (instant(1, 1), Some(Time(1_000_001))),
            (instant(1, 999_999_999), Some(Time(2_000_000))),
            (instant(-1, 500_000_000), Some(Time(-500_000))),
            (instant(1, -1), None),
            (instant(1, 1_000_000_000), None),
            (instant(TIMESTAMP_SECONDS_MAX + 1, 0), None),
            (instant(i64::MIN, 0), None),
        ];
        for (given, expected) in cases {
            let mut checks = Checks::default();
            let time = timestamp(&mut checks, FieldPath::ROOT, &given);
            assert_eq!(time, expected, "{given:?}");
            assert_eq!(checks.finish(Some(())).is_ok(), expected.is_some(), "{given:?}");
        }
    }

    #[test]
    fn times_survive_their_round_trip() {
        for time in [Time(0), Time(1), Time(-1), NOW, Time(-62_135_596_800_000_000)] {
            let mut checks = Checks::default();
            assert_eq!(timestamp(&mut checks, FieldPath::ROOT, &to_timestamp(time)), Some(time));
        }
        assert_eq!(to_duration(Duration::from_millis(1_500)), span(1, 500_000_000));
        assert_eq!(to_duration(Duration::MAX).seconds, 315_576_000_000);
    }
}
