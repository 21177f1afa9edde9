//! Durations as people write them.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Units of durations in milliseconds, largest first.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// `250ms`, `30s`, `5m`, `1h30m`, `7d`, within the bounds.
pub(super) fn duration(text: &str, bounds: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let value = any_duration(text)?;
    if bounds.contains(&value) {
        return Ok(value);
    }
    let [min, max] = [bounds.start(), bounds.end()].map(|bound| show_duration(*bound));
    Err(format!("{text:?} is not within {min} to {max}"))
}

/// Like [`duration`], and `0s` for none.
pub(super) fn duration_or_zero(
    text: &str,
    bounds: &RangeInclusive<Duration>,
) -> Result<Option<Duration>, String> {
    if any_duration(text)?.is_zero() {
        return Ok(None);
    }
    duration(text, bounds).map(Some).map_err(|problem| format!("{problem}, nor 0s"))
}

/// A duration of any length: numbers with their units, the larger unit first, as in `1h30m`.
pub(crate) fn any_duration(text: &str) -> Result<Duration, String> {
    plain_duration(text).ok_or_else(|| {
        let why = duration_advice(text).map(|why| format!(": {why}")).unwrap_or_default();
        format!("{text:?} is not a duration like 250ms, 30s, 5m or 1h30m{why}")
    })
}

fn plain_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total, mut bound) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() || bound == u64::MAX {
        let (number, tail) = split_at(rest, |c| !c.is_ascii_digit());
        let (unit, tail) = split_at(tail, |c| c.is_ascii_digit());
        let number: u64 = number.parse().ok()?;
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        if *unit >= bound {
            return None;
        }
        total = total.checked_add(number.checked_mul(*unit)?)?;
        (rest, bound) = (tail, *unit);
    }
    Some(Duration::from_millis(total))
}

/// What people write instead of a duration.
fn duration_advice(text: &str) -> Option<String> {
    if text.starts_with('-') {
        return Some("it cannot be negative".to_owned());
    }
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit()) {
        return Some(format!("its unit is missing; for seconds write {text}s"));
    }
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if number.contains(['.', ',']) && number.parse::<f64>().is_ok() {
        return Some("write whole numbers, as in 1h30m or 1500ms".to_owned());
    }
    let meant = meant_duration(text);
    plain_duration(&meant).map(|_| format!("write {meant}"))
}

/// `5 m`, `5min`, `5 Minutes` as `5m`.
fn meant_duration(text: &str) -> String {
    let (mut rest, mut meant) = (text, String::new());
    while !rest.is_empty() {
        let (number, tail) = split_at(rest, |c| !c.is_ascii_digit());
        let (unit, tail) = split_at(tail, |c| c.is_ascii_digit());
        let unit = unit.trim().to_ascii_lowercase();
        let unit = match unit.as_str() {
            "day" | "days" => "d",
            "hr" | "hrs" | "hour" | "hours" => "h",
            "min" | "mins" | "minute" | "minutes" => "m",
            "sec" | "secs" | "second" | "seconds" => "s",
            "msec" | "millis" | "millisecond" | "milliseconds" => "ms",
            other => other,
        };
        meant.push_str(number);
        meant.push_str(unit);
        rest = tail;
    }
    meant
}

/// The text before the first such character, and from it on.
fn split_at(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// The duration in its largest whole unit; [`duration`] reads it back.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let whole = UNITS.iter().find(|(_, unit)| millis > 0 && millis.is_multiple_of(*unit));
    whole.map_or_else(|| "0s".to_owned(), |(name, unit)| format!("{}{name}", millis / unit))
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
            ("1.5s", None),
            ("1 s", None),
            ("59m30s", Some(secs(59 * 60 + 30))),
            ("1m0s500ms", Some(millis(60_500))),
            ("30s59m", None),
            ("1m1m", None),
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
        assert_eq!(
            problem("30"),
            "\"30\" is not a duration like 250ms, 30s, 5m or 1h30m: its unit is missing; for \
             seconds write 30s"
        );
        assert_eq!(problem("2h"), "\"2h\" is not within 0s to 1h");
    }

    #[test]
    fn error_suggests_a_correction() {
        for (text, want) in [
            ("-5s", "negative"),
            ("5 m", "write 5m"),
            ("1h 30min", "write 1h30m"),
            ("2 Days", "write 2d"),
            ("1.5h", "whole numbers"),
        ] {
            let problem = any_duration(text).unwrap_err();
            assert!(problem.contains(want), "{problem}");
        }
        for text in ["", "soon", "30s1h", "5x"] {
            assert!(any_duration(text).unwrap_err().ends_with("or 1h30m"), "{text:?}");
        }
    }

    #[test]
    fn zero_may_mean_none() {
        assert_eq!(duration_or_zero("0ms", &(secs(1)..=days(7))), Ok(None));
        assert_eq!(duration_or_zero("1s", &(secs(1)..=days(7))), Ok(Some(secs(1))));
        let problem = "\"1ms\" is not within 1s to 7d, nor 0s".to_owned();
        assert_eq!(duration_or_zero("1ms", &(secs(1)..=days(7))), Err(problem));
    }

    #[test]
    fn a_shown_duration_reads_back() {
        for (value, text) in
            [(secs(0), "0s"), (millis(1_500), "1500ms"), (secs(90), "90s"), (days(2), "2d")]
        {
            assert_eq!(show_duration(value), text);
            assert_eq!(any_duration(text), Ok(value));
        }
    }
}
