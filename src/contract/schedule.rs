//! Due time and expiration of a job.

use crate::domain::{Time, When, limit};
use crate::pb;

use super::time::{ANY, DELAY, duration, timestamp};
use super::{Checks, FieldPath};

/// Due time in one of the two forms that several messages have.
pub(crate) enum Schedule {
    /// Absolute time.
    DueTime(prost_types::Timestamp),
    /// Delay from now.
    Delay(prost_types::Duration),
}

// === impl Schedule ===

impl From<pb::job_spec::Schedule> for Schedule {
    fn from(schedule: pb::job_spec::Schedule) -> Schedule {
        match schedule {
            pb::job_spec::Schedule::DueTime(time) => Schedule::DueTime(time),
            pb::job_spec::Schedule::Delay(delay) => Schedule::Delay(delay),
        }
    }
}

impl From<pb::reschedule_request::Schedule> for Schedule {
    fn from(schedule: pb::reschedule_request::Schedule) -> Schedule {
        match schedule {
            pb::reschedule_request::Schedule::DueTime(time) => Schedule::DueTime(time),
            pb::reschedule_request::Schedule::Delay(delay) => Schedule::Delay(delay),
        }
    }
}

/// Reads the due time of a job, given in one of the two forms; at most [`limit::DELAY_MAX`] ahead of `now`.
pub(crate) fn due(
    checks: &mut Checks,
    parent: FieldPath<'_>,
    given: Option<Schedule>,
    now: Time,
) -> Option<When> {
    match given? {
        Schedule::DueTime(time) => {
            let path = parent.field("due_time");
            let time = timestamp(checks, path, &time)?;
            if time > now.plus(limit::DELAY_MAX) {
                checks.invalid(path, "must be at most 10 years ahead");
            }
            // The clock of the store, which may be behind this one, decides whether the time has passed.
            Some(When::At(time))
        }
        Schedule::Delay(delay) => {
            duration(checks, parent.field("delay"), Some(&delay), &DELAY).map(When::After)
        }
    }
}

/// Reads the expiration of a job, which must be after its due time. Two relative forms are compared with each other,
/// others by the clock.
pub(crate) fn expiration(
    checks: &mut Checks,
    parent: FieldPath<'_>,
    given: Option<pb::job_spec::Expiration>,
    due: When,
    now: Time,
) -> Option<When> {
    let (path, expire) = match given? {
        pb::job_spec::Expiration::ExpireTime(time) => {
            let path = parent.field("expire_time");
            (path, When::At(timestamp(checks, path, &time)?))
        }
        pb::job_spec::Expiration::Ttl(ttl) => {
            let path = parent.field("ttl");
            (path, When::After(duration(checks, path, Some(&ttl), &ANY)?))
        }
    };
    // A due time that has passed means now.
    if expire.at(now) <= due.at(now).max(now) {
        checks.invalid(path, "must lie after the due time");
    }
    Some(expire)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn a_due_time_is_ten_years_ahead_at_most() {
        let ten_years = 10 * 366 * 24 * 3600;
        let at = |seconds| Schedule::DueTime(instant(NOW.0 / 1_000_000 + seconds, 0));
        let cases = [
            (Some(at(-5)), vec![]),
            (Some(at(ten_years)), vec![]),
            (Some(at(ten_years + 1)), vec!["due_time"]),
            (Some(Schedule::Delay(span(ten_years, 0))), vec![]),
            (Some(Schedule::Delay(span(ten_years + 1, 0))), vec!["delay"]),
            (Some(Schedule::Delay(span(-1, 0))), vec!["delay"]),
            (None, vec![]),
        ];
        for (given, expected) in cases {
            let found = noted(|checks| {
                due(checks, FieldPath::ROOT, given, NOW);
            });
            let fields: Vec<_> = found.into_iter().map(|(field, _)| field).collect();
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn a_due_time_is_not_judged_by_the_clock_of_this_replica() {
        for seconds in [-5, 0, 5] {
            let time = instant(NOW.0 / 1_000_000 + seconds, 0);
            let given = Some(Schedule::DueTime(time));
            let expected = When::At(Time(NOW.0 + seconds * 1_000_000));
            assert_eq!(due(&mut Checks::default(), FieldPath::ROOT, given, NOW), Some(expected));
        }
    }

    #[test]
    fn what_expires_expires_after_it_is_due() {
        use pb::job_spec::Expiration::{ExpireTime, Ttl};
        let after = |seconds| When::After(Duration::from_secs(seconds));
        let at = |seconds: i64| When::At(Time(NOW.0 + seconds * 1_000_000));
        let expire_at = |seconds| ExpireTime(instant(NOW.0 / 1_000_000 + seconds, 0));
        let cases = [
            (When::Now, Ttl(span(1, 0)), None),
            (When::Now, Ttl(span(0, 0)), Some("ttl")),
            (When::Now, Ttl(span(-1, 0)), Some("ttl")),
            (after(60), Ttl(span(61, 0)), None),
            (after(60), Ttl(span(60, 0)), Some("ttl")),
            (after(60), expire_at(61), None),
            (after(60), expire_at(59), Some("expire_time")),
            (at(60), expire_at(61), None),
            (at(60), expire_at(60), Some("expire_time")),
            (at(60), Ttl(span(59, 0)), Some("ttl")),
            (at(-60), expire_at(-30), Some("expire_time")),
            (When::Now, expire_at(0), Some("expire_time")),
        ];
        for (due, given, expected) in cases {
            let found = noted(|checks| {
                expiration(checks, FieldPath::ROOT, Some(given), due, NOW);
            });
            let field = found.first().map(|(field, _)| field.as_str());
            assert_eq!(field, expected, "{due:?} {given:?}");
        }
    }
}
