//! Durations in the form in which people write them.

use std::fmt::Write as _;
use std::time::Duration;

/// Units in which durations are shown, in seconds, largest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Parses a duration of any length: numbers with their units, as in `1h30m` or `5 min`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err(format!("{text:?} is negative; a duration is like 250ms, 30s, 5m or 1h30m"));
    }
    let parsed = humantime::parse_duration(text);
    parsed.map_err(|error| {
        format!("{text:?} is not a duration like 250ms, 30s, 5m or 1h30m: {error}")
    })
}

/// Formats the duration, like `1h30m` or `1500ms`; [`parse_duration`] reads it back.
pub(crate) fn show_duration(duration: Duration) -> String {
    if duration.subsec_millis() > 0 {
        return format!("{}ms", duration.as_millis());
    }
    let (mut text, mut rest) = (String::new(), duration.as_secs());
    for (unit, seconds) in UNITS {
        if rest >= seconds {
            let _ = write!(text, "{}{unit}", rest / seconds);
            rest %= seconds;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_duration_reads_back() {
        for (millis, text) in [
            (0, "0s"),
            (1_500, "1500ms"),
            (90_000, "1m30s"),
            (5_400_000, "1h30m"),
            (172_800_000, "2d"),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(show_duration(duration), text);
            assert_eq!(parse_duration(text), Ok(duration));
        }
        assert_eq!(show_duration(Duration::from_micros(999)), "0s");
    }
}
