//! `grpc-timeout`: the time until which the caller waits for an answer.
//!
//! A call ends a little earlier, so that its caller receives an answer before its own timer fires.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use tonic::Extensions;

/// Deadline of the caller. An extension of the requests whose handlers use it: Pull, if its caller has set one, and
/// those that enqueue.
#[derive(Clone, Copy, Debug)]
pub(in crate::grpc) struct CallDeadline(pub(super) Instant);

/// Time that is left for an answer with the data for a safe retry to arrive before the deadline; a quarter of the
/// remaining time before a near deadline.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);
/// Time by which a call ends before its deadline: two ticks of the timer.
const MARGIN: Duration = Duration::from_millis(2);
/// Maximum number of digits of a `grpc-timeout` (the limit of the protocol).
const DIGITS_MAX: usize = 8;

// === impl CallDeadline ===

impl CallDeadline {
    /// Returns the time at which to stop trying and to return an error.
    pub(in crate::grpc) fn answer_by(self) -> Instant {
        self.0 - ANSWER_MARGIN.min(self.left() / 4)
    }

    /// Returns the time left until the deadline.
    pub(in crate::grpc) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Returns the time at which a write stops trying, so that its answer arrives before the caller's deadline.
pub(in crate::grpc) fn write_deadline(extensions: &Extensions) -> Option<Instant> {
    extensions.get::<CallDeadline>().map(|deadline| deadline.answer_by())
}

/// Returns the caller's deadline, if it has one. An invalid timeout header is ignored.
pub(super) fn from_headers(headers: &HeaderMap, now: Instant) -> Option<Instant> {
    let timeout = parse(headers.get("grpc-timeout")?.to_str().ok()?)?;
    // A deadline beyond the range of the clock counts as none.
    now.checked_add(timeout.saturating_sub(MARGIN))
}

/// Parses `TimeoutValue TimeoutUnit` of the gRPC protocol: up to eight digits and one letter.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3_600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_parsed_by_the_protocol() {
        let cases = [
            ("1H", Some(Duration::from_secs(3_600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("", None),
            ("S", None),
            ("5", None),
            ("5s", None),
            ("-5S", None),
            ("+5S", None),
            ("123456789S", None),
            ("5ä", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn the_deadline_is_a_little_before_the_callers() {
        let now = Instant::now();
        let of = |text: &str| {
            from_headers(
                &HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]),
                now,
            )
        };
        assert_eq!(of("100m"), Some(now + Duration::from_millis(98)));
        assert_eq!(of("1m"), Some(now));
        assert_eq!(of("99999999H").map(|deadline| deadline > now), Some(true));
        assert_eq!(of("soon"), None);
    }
}
