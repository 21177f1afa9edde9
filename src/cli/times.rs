//! Times and durations as text for people.

use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp, Unit};

use super::exit::print_note;
use crate::clock::Clock;

/// Clock of this machine, read once per command: all rows of a table use the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now(Timestamp);

/// Almost one second, the smallest unit that is shown: added to round up.
const PART: Duration = Duration::from_millis(999);

// === impl Now ===

impl Now {
    pub(super) fn read() -> Now {
        Now(Timestamp::from_microsecond(Clock::system().now().0).unwrap_or_default())
    }

    pub(super) fn timestamp(self) -> Timestamp {
        self.0
    }

    /// Returns `3m ago` or `in 5m`; empty for no time.
    pub(super) fn relative(self, time: Option<prost_types::Timestamp>) -> String {
        let Some(time) = time.and_then(timestamp) else { return String::new() };
        let ahead = time.duration_since(self.0);
        match ahead.unsigned_abs() {
            span if span < Duration::from_secs(1) => "now".to_owned(),
            // Rounded up, so that a job just enqueued with a delay of 1h is due in 1h, not in 59m.
            span if ahead.is_positive() => format!("in {}", short(span + PART)),
            span => format!("{} ago", short(span)),
        }
    }

    /// Returns `2026-11-21T10:25:16.283Z (3m ago)`; empty for no time.
    pub(super) fn full(self, time: Option<prost_types::Timestamp>) -> String {
        let Some(exact) = time.and_then(timestamp) else { return String::new() };
        let shown = exact.round(Unit::Millisecond).unwrap_or(exact);
        format!("{shown} ({})", self.relative(time))
    }
}

fn timestamp(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

/// Prints a note if the time of `--at` has passed: it may be a mistake, and the job runs at once.
pub(super) fn warn_past_time(at: Option<SystemTime>) {
    let ago = Now::read().relative(at.map(prost_types::Timestamp::from));
    if ago.ends_with(" ago") {
        print_note(&format!("--at is {ago}: the job is due now"));
    }
}

/// Returns `80ms`, `12s`, `3m20s`, `5h`, `9d` or `2y`: the significant part of a duration, rounded down.
pub(super) fn short(duration: Duration) -> String {
    let secs = duration.as_secs();
    let (minutes, hours, days) = (secs / 60, secs / 3600, secs / 86_400);
    match () {
        () if secs == 0 => format!("{}ms", duration.as_millis()),
        () if minutes == 0 => format!("{secs}s"),
        () if hours == 0 => two_units(minutes, "m", secs % 60, "s"),
        () if days == 0 => two_units(hours, "h", minutes % 60, "m"),
        () if days >= 365 => format!("{}y", days / 365),
        () => two_units(days, "d", hours % 24, "h"),
    }
}

/// Formats a duration; the second unit is shown only if the first is below 10.
fn two_units(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    if large < 10 && small > 0 {
        format!("{large}{unit}{small}{small_unit}")
    } else {
        format!("{large}{unit}")
    }
}

/// Formats a duration of a message; empty for none.
pub(super) fn span(duration: Option<prost_types::Duration>) -> String {
    let signed = duration.map(|duration| SignedDuration::new(duration.seconds, duration.nanos));
    signed.map_or_else(String::new, |signed| short(signed.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_show_two_units_at_most() {
        for (millis, want) in [
            (0, "0ms"),
            (80, "80ms"),
            (12_900, "12s"),
            (200_000, "3m20s"),
            (180_000, "3m"),
            (1_234_000, "20m"),
            (5_400_000, "1h30m"),
            (100_000_000, "1d3h"),
            (31_536_000_000, "1y"),
            (200_000_000_000, "6y"),
        ] {
            assert_eq!(short(Duration::from_millis(millis)), want, "{millis}");
        }
    }

    #[test]
    fn times_are_shown_relative_to_now() {
        let now = Now(Timestamp::from_second(1_000_000).unwrap());
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        assert_eq!(now.relative(at(1_000_300)), "in 5m");
        let part = prost_types::Timestamp { seconds: 1_000_299, nanos: 900_000_000 };
        assert_eq!(now.relative(Some(part)), "in 5m");
        assert_eq!(now.relative(at(999_940)), "1m ago");
        assert_eq!(now.relative(at(1_000_000)), "now");
        assert_eq!(now.relative(None), "");
        assert_eq!(now.full(at(999_940)), "1970-01-12T13:45:40Z (1m ago)");
    }
}
