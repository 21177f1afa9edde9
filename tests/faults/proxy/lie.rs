//! Answers to calls that Redis never sees, as `settle.lua` and `enqueue.lua` give them when all is well.

use std::time::{SystemTime, UNIX_EPOCH};

/// What Redis is asked instead: its answer takes the place of the one that is made up.
pub(super) const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// That all of these acks count; none: they are not plain ones alone.
pub(super) fn acked(words: &[&[u8]]) -> Option<Vec<u8>> {
    let all_plain = match arguments(words)? {
        // One, and by what it is recalled.
        [_, _topic, _id, _end] | [_, _topic, _id, _end, _, _] => true,
        [_, sections, rest @ ..] => are_plain(number(sections)?, rest)?,
        _ => false,
    };
    all_plain.then(|| b":1\r\n".to_vec())
}

/// That all of these jobs were created.
pub(super) fn enqueued() -> Vec<u8> {
    format!(":{}\r\n", now_micros()).into_bytes()
}

/// Whether there is nothing behind so many sections of plain acks.
fn are_plain(sections: usize, mut rest: &[&[u8]]) -> Option<bool> {
    for _ in 0..sections {
        // Topic, number and whose they are; ids and ends; under how many digits they are recalled, with their lines.
        let digits = 3 + 2 * number(rest.get(1)?)?;
        rest = rest.get(digits + 1 + 2 * number(rest.get(digits)?)?..)?;
    }
    Some(rest.is_empty())
}

/// Behind the script, the number of keys and the keys.
fn arguments<'a>(words: &'a [&'a [u8]]) -> Option<&'a [&'a [u8]]> {
    let keys = number(words.get(2)?)?;
    words.get(3 + keys..)
}

fn number(word: &[u8]) -> Option<usize> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn now_micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}
