//! `--wait`: waits until a shard is empty.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::connect::ServerConnection;
use super::exit::{self, CommandFailure, print_note, retry_notice};
use super::view::{is_reachable, job_counts};
use crate::pb::{ListShardsRequest, Shard, ShardState};

/// Interval of the polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a shard outside the ring must be empty. A server of another version does not report the ring, and a
/// server that has not yet read the draining state may have written to the shard meanwhile.
const EMPTY_FOR: Duration = Duration::from_secs(5);
/// Time for which an unreachable server is retried.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a text is printed again, if another one was printed meanwhile.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// Waits until the shard is empty; `shard` is its last known state. Changes of what is left are printed.
pub(super) async fn wait_until_empty(
    connection: &ServerConnection,
    shard: Shard,
) -> Result<Shard, CommandFailure> {
    let name = shard.name.clone();
    let mut notes = RepeatFilter::new(&job_counts(&shard));
    let mut last = read_shards(connection, &name).await;
    let (mut empty_since, mut alone_since) = (None, None);
    loop {
        let now = Instant::now();
        match last {
            Ok((shard, silent)) => {
                alone_since = None;
                if shard.role() != ShardState::Draining {
                    let problem = format!("shard {name} takes new jobs again");
                    return Err(CommandFailure::new(exit::FAILED, problem));
                }
                let is_empty = is_reachable(&shard) && shard.jobs == 0 && !shard.on_ring;
                let left = remaining_text(&shard, &silent);
                if notes.should_print(&left, now) {
                    print_note(&format!("{name}: {left}"));
                }
                match empty_since {
                    Some(since) if is_empty && now - since >= EMPTY_FOR => return Ok(shard),
                    since => empty_since = is_empty.then(|| since.unwrap_or(now)),
                }
            }
            Err(failure) => {
                let since = *alone_since.get_or_insert(now);
                if failure.code() != exit::UNAVAILABLE || now - since >= UNREACHABLE_TIMEOUT {
                    return Err(failure);
                }
                if notes.should_print(&failure.problem(), now) {
                    print_note(&format!(
                        "ringq: {}; {}",
                        failure.problem(),
                        retry_notice(UNREACHABLE_TIMEOUT)
                    ));
                }
                empty_since = None;
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        last = read_shards(connection, &name).await;
    }
}

/// Filter of repeated notes: the last text, and the time of each earlier one.
struct RepeatFilter {
    last: String,
    before: HashMap<String, Instant>,
}

// === impl RepeatFilter ===

impl RepeatFilter {
    fn new(first: &str) -> RepeatFilter {
        RepeatFilter { last: first.to_owned(), before: HashMap::new() }
    }

    /// Returns whether to print this now. A text that alternates with others, as for a shard that answers only at
    /// times, is printed again only after a while.
    fn should_print(&mut self, text: &str, now: Instant) -> bool {
        self.before.retain(|_, printed| now - *printed < REPEAT_AFTER);
        if text == self.last || self.before.contains_key(text) {
            return false;
        }
        text.clone_into(&mut self.last);
        self.before.insert(text.to_owned(), now);
        true
    }
}

/// Describes what must end before the shard can be removed; `silent`: the other shards that do not answer.
fn remaining_text(shard: &Shard, silent: &[String]) -> String {
    match (is_reachable(shard), shard.jobs) {
        (false, _) => "no answer".to_owned(),
        (true, 0) if shard.on_ring && !silent.is_empty() => format!(
            "no jobs; a server may have a call in flight that writes to it, which is unknown until {} \
             answers or is removed",
            silent.join(", ")
        ),
        (true, 0) if shard.on_ring => {
            "no jobs; waiting until no server can have a call in flight that writes to it, a minute after the \
             drain at the earliest"
                .to_owned()
        }
        (true, 0) => "no jobs, and no server can have a call in flight that writes to it".to_owned(),
        (true, _) => job_counts(shard),
    }
}

/// Reads the shard, and the names of the others that do not answer.
async fn read_shards(
    connection: &ServerConnection,
    name: &str,
) -> Result<(Shard, Vec<String>), CommandFailure> {
    let what = format!("cannot read shard {name}");
    let mut admin = connection.client().admin();
    let answer = admin.list_shards(connection.request(ListShardsRequest {}));
    let answer = connection.call(&what, answer).await?;
    let (found, others): (Vec<_>, Vec<_>) =
        answer.shards.into_iter().partition(|shard| shard.name == name);
    let silent = others.into_iter().filter(|shard| !is_reachable(shard)).map(|shard| shard.name);
    match found.into_iter().next() {
        Some(shard) => Ok((shard, silent.collect())),
        // The server of the shard was started again without it.
        None => Err(CommandFailure::new(
            exit::NOT_FOUND,
            format!("{what}: the shard is not configured any more"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_message_is_printed_once_a_minute() {
        let start = Instant::now();
        let mut notes = RepeatFilter::new("1 job");
        assert!(!notes.should_print("1 job", start), "printed before the wait");
        let mut news = Vec::new();
        for second in 0..120 {
            let text = if second % 2 == 0 { "no jobs; a silent" } else { "no jobs" };
            if notes.should_print(text, start + Duration::from_secs(second)) {
                news.push(second);
            }
        }
        assert_eq!(news, [0, 1, 60, 61]);
        assert!(notes.should_print("2 jobs", start + Duration::from_secs(120)), "a new text");
    }
}
