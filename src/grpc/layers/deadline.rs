//! `grpc-timeout`: until when the caller waits for an answer.
//!
//! A call ends a little earlier, so that its caller sees an answer and not only its own timer.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use tonic::Extensions;

/// When a call's caller stops waiting. An extension of the requests that ask for it: Pull, where
/// the caller has said so, and those that enqueue.
#[derive(Clone, Copy, Debug)]
pub(in crate::grpc) struct CallDeadline(pub(super) Instant);

/// An answer that names what makes a repeat safe leaves this long before the deadline, or a quarter
/// of what is left before a near one, so that it arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);
/// How much earlier: two ticks of the timer.
const MARGIN: Duration = Duration::from_millis(2);
/// Most digits of a `grpc-timeout` (the protocol's own bound).
const DIGITS_MAX: usize = 8;

// === impl Deadline ===

impl CallDeadline {
    /// When to stop trying and say so.
    pub(in crate::grpc) fn answer_by(self) -> Instant {
        self.0 - ANSWER_MARGIN.min(self.left() / 4)
    }

    /// What is left of it.
    pub(in crate::grpc) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// When a write stops trying, so that its answer arrives before the caller's deadline.
pub(in crate::grpc) fn write_deadline(extensions: &Extensions) -> Option<Instant> {
    extensions.get::<CallDeadline>().map(|deadline| deadline.answer_by())
}

/// The caller's deadline, if it has one. A header that is no time-out is ignored, as everywhere.
pub(super) fn from_headers(headers: &HeaderMap, now: Instant) -> Option<Instant> {
    let timeout = parse(headers.get("grpc-timeout")?.to_str().ok()?)?;
    // One beyond what the clock can say is none.
    now.checked_add(timeout.saturating_sub(MARGIN))
}

/// `TimeoutValue TimeoutUnit` of the gRPC protocol: up to eight digits and one letter.
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
    fn timeouts_are_parsed_as_the_protocol_says() {
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
