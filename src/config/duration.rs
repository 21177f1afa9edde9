//! Durations of settings, within their bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::contract::duration_text::{parse_duration, show_duration};

/// Parses `250ms`, `30s`, `5m`, `1h30m`, `7d`, within the bounds.
pub(super) fn duration(text: &str, bounds: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let value = parse_duration(text)?;
    if bounds.contains(&value) {
        return Ok(value);
    }
    let [min, max] = [bounds.start(), bounds.end()].map(|bound| show_duration(*bound));
    Err(format!("{text:?} is not within {min} to {max}"))
}

/// Parses a duration like [`duration`]; `0s` means none.
pub(super) fn duration_or_zero(
    text: &str,
    bounds: &RangeInclusive<Duration>,
) -> Result<Option<Duration>, String> {
    if parse_duration(text)?.is_zero() {
        return Ok(None);
    }
    duration(text, bounds).map(Some).map_err(|problem| format!("{problem}, nor 0s"))
}

pub(super) const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(super) const fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}

pub(super) const fn minutes(number: u64) -> Duration {
    secs(number * 60)
}

pub(super) const fn hours(number: u64) -> Duration {
    minutes(number * 60)
}

pub(super) const fn days(number: u64) -> Duration {
    hours(number * 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_number_a_unit_and_the_range() {
        for (text, want) in [
            ("250ms", Some(millis(250))),
            ("0s", Some(secs(0))),
            ("90s", Some(secs(90))),
            ("5m", Some(minutes(5))),
            ("1h", Some(hours(1))),
            ("61m", None),
            ("1d", None),
            ("30", None),
            ("s", None),
            ("", None),
            ("-1s", None),
            ("59m30s", Some(secs(59 * 60 + 30))),
            ("1m 500 ms", Some(millis(60_500))),
            ("5 min", Some(minutes(5))),
            ("1m30", None),
            ("1h30m", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(duration(text, &(secs(0)..=hours(1))).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn error_names_form_and_range() {
        let problem = |text| duration(text, &(secs(0)..=hours(1))).unwrap_err();
        for text in ["30", "", "soon", "5x"] {
            let form = format!("{text:?} is not a duration like 250ms, 30s, 5m or 1h30m: ");
            assert!(problem(text).starts_with(&form), "{}", problem(text));
        }
        assert!(problem("-5s").starts_with("\"-5s\" is negative"));
        assert_eq!(problem("2h"), "\"2h\" is not within 0s to 1h");
    }

    #[test]
    fn zero_may_mean_none() {
        assert_eq!(duration_or_zero("0ms", &(secs(1)..=days(7))), Ok(None));
        assert_eq!(duration_or_zero("1s", &(secs(1)..=days(7))), Ok(Some(secs(1))));
        let problem = "\"1ms\" is not within 1s to 7d, nor 0s".to_owned();
        assert_eq!(duration_or_zero("1ms", &(secs(1)..=days(7))), Err(problem));
    }
}
