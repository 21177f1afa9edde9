//! Answers to calls that Redis never sees, as `settle.lua` and `enqueue.lua` give them on success.

use std::time::{SystemTime, UNIX_EPOCH};

/// Request that Redis gets instead: its answer is replaced by the invented one.
pub(super) const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Builds the answer that all of these acks count; `None`: other settles than plain acks are among them.
pub(super) fn acked(words: &[&[u8]]) -> Option<Vec<u8>> {
    let all_plain = match arguments(words)? {
        // One ack, and the token by which it is recalled.
        [_, _topic, _id, _end] | [_, _topic, _id, _end, _, _] => true,
        [_, sections, rest @ ..] => are_plain(number(sections)?, rest)?,
        _ => false,
    };
    all_plain.then(|| b":1\r\n".to_vec())
}

/// Builds the answer that all of these jobs were created.
pub(super) fn enqueued() -> Vec<u8> {
    format!(":{}\r\n", now_micros()).into_bytes()
}

/// Returns whether nothing follows this number of sections of plain acks.
fn are_plain(sections: usize, mut rest: &[&[u8]]) -> Option<bool> {
    for _ in 0..sections {
        // Topic, number and owner; ids and ends; number of digits by which they are recalled, with their lines.
        let digits = 3 + 2 * number(rest.get(1)?)?;
        rest = rest.get(digits + 1 + 2 * number(rest.get(digits)?)?..)?;
    }
    Some(rest.is_empty())
}

/// Returns the arguments behind the script, the number of keys and the keys.
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
