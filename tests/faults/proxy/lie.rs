//! Answers to calls that Redis never sees, as `settle.lua` and `enqueue.lua` give them when all is well.

use std::time::{SystemTime, UNIX_EPOCH};

/// What Redis is asked instead: its answer takes the place of the one that is made up.
pub(super) const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// That all of these acks count; none: they are not plain ones alone.
pub(super) fn acked(words: &[&[u8]]) -> Option<Vec<u8>> {
    let began = format!(":{}\r\n", now_micros());
    match arguments(words)? {
        [_, _topic, _id, _token] => Some(began.into_bytes()),
        [_, topics, rest @ ..] => {
            let acks = plain(number(topics)?, rest)?;
            let answer = format!("*{}\r\n:0\r\n:0\r\n{}", 2 + acks, began.repeat(acks));
            Some(answer.into_bytes())
        }
        _ => None,
    }
}

/// That all of these jobs were created.
pub(super) fn enqueued() -> Vec<u8> {
    format!(":{}\r\n", now_micros()).into_bytes()
}

/// How many plain acks there are; none: there is something else, too.
fn plain(topics: usize, mut rest: &[&[u8]]) -> Option<usize> {
    let mut acks = 0;
    for _ in 0..topics {
        let here = number(rest.get(1)?)?;
        // Behind the name and the number ids, then tokens.
        rest = rest.get(2 + 2 * here..)?;
        acks += here;
    }
    rest.is_empty().then_some(acks)
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
