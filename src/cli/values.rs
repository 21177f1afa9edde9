//! From the text of a flag to its value. An error is shown by clap after the flag's name.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::config;

/// `250ms`, `30s`, `5m`, `1h30m`, `7d`: the syntax of the server's settings.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    config::parse_duration(text)
}

/// RFC 3339, with `Z` or an offset.
pub(super) fn time(text: &str) -> Result<SystemTime, String> {
    let example = "2027-01-31T09:00:00Z or 2027-01-31T09:00:00+01:00";
    let time: Timestamp = text.parse().map_err(|_| format!("it is no time like {example}"))?;
    Ok(time.into())
}

/// `NAME=VALUE`; the value may be empty.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it is not NAME=VALUE".to_owned()),
    }
}

/// `10/s`, `600/m`, `1000/h`, or a number: that many per second.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_an_offset() {
        assert!(time("2027-01-31T09:00:00Z").is_ok());
        assert_eq!(time("2027-01-31T10:00:00+01:00"), time("2027-01-31T09:00:00Z"));
        for bad in ["", "tomorrow", "2027-01-31", "2027-01-31T09:00:00", "1800000000"] {
            assert!(time(bad).is_err(), "{bad:?}");
        }
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
    fn rates_have_a_unit_of_time() {
        for (text, want) in [("10/s", Some(10.0)), ("10", Some(10.0)), ("90/m", Some(1.5))] {
            assert_eq!(rate(text).ok(), want, "{text:?}");
        }
        for bad in ["", "0", "-1/s", "10/d", "inf", "NaN/s", "ten"] {
            assert!(rate(bad).is_err(), "{bad:?}");
        }
    }
}
