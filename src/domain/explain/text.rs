//! Parts of sentences: times, numbers, texts of users, and arguments of commands.

use std::time::Duration;

use jiff::{Timestamp, Unit};

use crate::domain::{JobKey, Time};

/// Longest part of a text of a user in a sentence, in characters: the job has all of it.
const QUOTE_CHARS_MAX: usize = 200;

/// Returns a time as RFC 3339, with milliseconds.
pub(super) fn at(time: Time) -> String {
    let exact = Timestamp::from_microsecond(time.0).unwrap_or(Timestamp::MAX);
    exact.round(Unit::Millisecond).unwrap_or(exact).to_string()
}

/// Returns the time from `now` to `end`, in its two largest units, as `3m20s`.
pub(super) fn left(end: Time, now: Time) -> String {
    length(end.since(now))
}

/// Returns a duration in its two largest units, as `3m20s`.
pub(super) fn length(left: Duration) -> String {
    if left < Duration::from_secs(1) {
        return format!("{}ms", left.as_millis());
    }
    let mut left = left.as_secs();
    let mut parts = Vec::new();
    for (seconds, unit) in [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")] {
        let number = left / seconds;
        left %= seconds;
        if number > 0 {
            parts.push(format!("{number}{unit}"));
        } else if !parts.is_empty() {
            break;
        }
    }
    parts.truncate(2);
    parts.concat()
}

/// Returns a number with its noun, as `2 streams`.
pub(super) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns the first line of a text in quotes, shortened; nothing for an empty text.
pub(super) fn quoted(text: &str) -> String {
    let first = text.trim_start().lines().next().unwrap_or_default().trim_end();
    if first.is_empty() {
        return String::new();
    }
    let mut shown: String = first.chars().take(QUOTE_CHARS_MAX).collect();
    if shown.len() < text.trim().len() {
        shown.push('…');
    }
    format!("\"{shown}\"")
}

/// Returns the arguments of a command that name a job. An id may begin with a dash, which a topic cannot.
pub(super) fn job_args(key: &JobKey) -> String {
    let JobKey { topic, id } = key;
    let dashes = if id.as_str().starts_with('-') { "-- " } else { "" };
    format!("{dashes}{topic} {id}")
}

/// Returns an argument of a command, in quotes where a shell needs them.
pub(super) fn arg(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:@=/-".contains(c);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
