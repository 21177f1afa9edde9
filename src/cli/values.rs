//! Parsers of flag values. clap prints an error after the name of the flag.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::contract::duration_text;
use crate::domain::ShardName;
use crate::domain::limit::PRIORITY_MAX;

/// Longest name of a context.
const CONTEXT_CHARS_MAX: usize = 64;

/// Text that no output shows.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Parses a secret; it is not empty.
pub(super) fn secret(text: &str) -> Result<Secret, String> {
    non_empty(text).map(Secret)
}

/// Parses the name of a context.
pub(super) fn context_name(text: &str) -> Result<String, String> {
    let may = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_name = (1..=CONTEXT_CHARS_MAX).contains(&text.len())
        && text.chars().all(may)
        && !text.starts_with('-');
    if is_name {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a context is named by 1 to {CONTEXT_CHARS_MAX} of A-Z, a-z, 0-9, `.`, `_` and `-`, and does not begin with `-`"
    ))
}

/// Parses any non-empty text: an argument like `--id "$KEY"` must not be accepted as empty if KEY is not set.
pub(super) fn non_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty; is a variable not set?".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses the name of a shard.
pub(super) fn shard(text: &str) -> Result<String, String> {
    ShardName::try_new(text)
        .map(|name| name.to_string())
        .map_err(|_| "a shard is named by 1 to 8 of a-z and 0-9".to_owned())
}

/// Parses `250ms`, `30s`, `5m`, `1h30m` or `7d`: the syntax of the server's settings.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    duration_text::parse_duration(text.trim())
}

/// Parses an RFC 3339 time, with `Z` or an offset.
pub(super) fn time(text: &str) -> Result<SystemTime, String> {
    let wrong = || {
        let reads = |rest: &str| format!("{text}{rest}").parse::<Timestamp>().is_ok();
        if reads("Z") {
            return "it has no time zone: add Z or an offset like +01:00".to_owned();
        }
        if reads("T00:00:00Z") {
            return format!("it has no time of day: write {text}T09:00:00Z");
        }
        "not a time like 2027-01-31T09:00:00Z or 2027-01-31T09:00:00+01:00".to_owned()
    };
    let time: Timestamp = text.parse().map_err(|_| wrong())?;
    Ok(time.into())
}

/// Parses `NAME=VALUE`; the value may be empty.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("its name is empty; write NAME=VALUE".to_owned()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("it is not NAME=VALUE".to_owned()),
    }
}

/// Parses a priority, 0 to 9.
pub(super) fn priority(text: &str) -> Result<i32, String> {
    match text.parse::<u8>() {
        Ok(priority @ 0..=PRIORITY_MAX) => Ok(priority.into()),
        _ => Err(format!("not a whole number from 0 to {PRIORITY_MAX}")),
    }
}

/// Parses a whole number, 0 included.
pub(super) fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "not a whole number from 0 on".to_owned())
}

/// Parses a whole number in this range.
pub(super) fn integer_in_range<T: TryFrom<i64>>(
    range: RangeInclusive<i64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("not a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses `10/s`, `600/m`, `1000/h`, or a number per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let wrong = || "it is no rate like 10/s, 600/m or 1000/h".to_owned();
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    if number.is_finite() && number > 0.0 { Ok(number / seconds) } else { Err(wrong()) }
}

/// Parses a number of attempts: at least 1, or -1. The API's 0, for the topic's value, is given by leaving out the
/// flag.
pub(super) fn attempts(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(number) if number >= 1 || number == -1 => Ok(number),
        _ => Err("must be a whole number of 1 or more, or -1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_an_offset() {
        assert!(time("2027-01-31T09:00:00Z").is_ok());
        assert_eq!(time("2027-01-31T10:00:00+01:00"), time("2027-01-31T09:00:00Z"));
        for (bad, part) in [
            ("", "not a time like"),
            ("tomorrow", "not a time like"),
            ("1800000000", "not a time like"),
            ("2027-01-31", "write 2027-01-31T09:00:00Z"),
            ("2027-01-31T09:00:00", "add Z"),
        ] {
            let problem = time(bad).unwrap_err();
            assert!(problem.contains(part), "{bad:?}: {problem}");
        }
    }

    #[test]
    fn contexts_have_plain_names() {
        for good in ["prod", "eu-1.prod", "_x", &"a".repeat(64)] {
            assert_eq!(context_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "-x", "a b", "a/b", "ä", &"a".repeat(65)] {
            assert!(context_name(bad).is_err(), "{bad:?}");
        }
        assert!(!format!("{:?}", secret("planted")).contains("planted"));
    }

    #[test]
    fn headers_split_at_the_first_sign() {
        assert_eq!(header("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(header("a="), Ok(("a".to_owned(), String::new())));
        for bad in ["", "a", "=b"] {
            assert!(header(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_stay_in_range() {
        assert_eq!((priority("0"), priority("9")), (Ok(0), Ok(9)));
        for bad in ["", "-1", "10", "999", "high", "1.0"] {
            assert!(priority(bad).is_err(), "{bad:?}");
        }
        assert_eq!(number("0"), Ok(0));
        let few = integer_in_range::<u16>(1..=10_000);
        assert_eq!((few("1"), few("10000")), (Ok(1), Ok(10_000)));
        for bad in ["", "0", "10001", "99999999999999999999", "abc", "1.0"] {
            assert_eq!(few(bad).unwrap_err(), "not a whole number from 1 to 10000", "{bad:?}");
        }
        assert!(number("-1").is_err() && number("all").is_err() && non_empty("").is_err());
    }

    #[test]
    fn rates_have_a_unit_of_time() {
        for (text, want) in [("10/s", Some(10.0)), ("10", Some(10.0)), ("90/m", Some(1.5))] {
            assert_eq!(rate(text).ok(), want, "{text:?}");
        }
        for bad in ["", "0", "-1/s", "10/d", "inf", "NaN/s", "ten"] {
            assert!(rate(bad).is_err(), "{bad:?}");
        }
    }
}
