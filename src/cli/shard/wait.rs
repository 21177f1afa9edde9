//! `--wait`: until a shard is empty.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::connect::Connection;
use super::exit::{self, Failure, note, trying_again};
use super::view::{answers, content};
use crate::pb::{ListShardsRequest, Shard, ShardState};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// A shard that has left the ring is empty once it has been so for this long. A server of another version does not
/// tell the ring, and one that has not heard yet that it drains may have written to it meanwhile.
const EMPTY_FOR: Duration = Duration::from_secs(5);
/// How long a server that cannot be reached is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon the same is told once more, if something else was told meanwhile.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// The shard once it is empty; `shard` is how it was last. What is left is told whenever it changes.
pub(super) async fn emptied(connection: &Connection, shard: Shard) -> Result<Shard, Failure> {
    let name = shard.name.clone();
    let mut told = Told::new(&content(&shard));
    let mut last = read(connection, &name).await;
    let (mut empty_since, mut alone_since) = (None, None);
    loop {
        let now = Instant::now();
        match last {
            Ok((shard, silent)) => {
                alone_since = None;
                if shard.role() != ShardState::Draining {
                    let problem = format!("shard {name} takes new jobs again");
                    return Err(Failure::new(exit::FAILED, problem));
                }
                let is_empty = answers(&shard) && shard.jobs == 0 && !shard.on_ring;
                let left = left(&shard, &silent);
                if told.is_news(&left, now) {
                    note(&format!("{name}: {left}"));
                }
                match empty_since {
                    Some(since) if is_empty && now - since >= EMPTY_FOR => return Ok(shard),
                    since => empty_since = is_empty.then(|| since.unwrap_or(now)),
                }
            }
            Err(failure) => {
                let since = *alone_since.get_or_insert(now);
                if failure.code() != exit::UNAVAILABLE || now - since >= PATIENCE {
                    return Err(failure);
                }
                if told.is_news(&failure.problem(), now) {
                    note(&format!("ringq: {}; {}", failure.problem(), trying_again(PATIENCE)));
                }
                empty_since = None;
            }
        }
        tokio::time::sleep(PAUSE).await;
        last = read(connection, &name).await;
    }
}

/// What was told of the wait, and when.
struct Told {
    last: String,
    before: HashMap<String, Instant>,
}

// === impl Told ===

impl Told {
    fn new(first: &str) -> Told {
        Told { last: first.to_owned(), before: HashMap::new() }
    }

    /// Whether to tell this now. What comes and goes, as a shard does that answers now and then, is told anew
    /// only after a while.
    fn is_news(&mut self, text: &str, now: Instant) -> bool {
        self.before.retain(|_, told| now - *told < TELL_AGAIN);
        if text == self.last || self.before.contains_key(text) {
            return false;
        }
        text.clone_into(&mut self.last);
        self.before.insert(text.to_owned(), now);
        true
    }
}

/// What has to go before it can be removed; `silent`: the other shards that do not answer.
fn left(shard: &Shard, silent: &[String]) -> String {
    match (answers(shard), shard.jobs) {
        (false, _) => "no answer".to_owned(),
        (true, 0) if shard.on_ring && !silent.is_empty() => format!(
            "no jobs; whether a server can have a call under way that writes to it, nobody knows before {} \
             answers or is removed",
            silent.join(", ")
        ),
        (true, 0) if shard.on_ring => {
            "no jobs; now until no server can have a call under way that writes to it, a minute after the drain at the \
             earliest"
                .to_owned()
        }
        (true, 0) => "no jobs, and no server can have a call under way that writes to it".to_owned(),
        (true, _) => content(shard),
    }
}

/// The shard, and which others do not answer.
async fn read(connection: &Connection, name: &str) -> Result<(Shard, Vec<String>), Failure> {
    let what = format!("cannot read shard {name}");
    let mut admin = connection.client().admin();
    let answer = admin.list_shards(connection.request(ListShardsRequest {}));
    let answer = connection.call(&what, answer).await?;
    let (found, others): (Vec<_>, Vec<_>) =
        answer.shards.into_iter().partition(|shard| shard.name == name);
    let silent = others.into_iter().filter(|shard| !answers(shard)).map(|shard| shard.name);
    match found.into_iter().next() {
        Some(shard) => Ok((shard, silent.collect())),
        // Its server was started anew without it.
        None => Err(Failure::new(exit::NOT_FOUND, format!("{what}: it is not there any more"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_told_once_a_minute() {
        let start = Instant::now();
        let mut told = Told::new("1 job");
        assert!(!told.is_news("1 job", start), "that was told before the wait");
        let mut news = Vec::new();
        for second in 0..120 {
            let text = if second % 2 == 0 { "no jobs; a silent" } else { "no jobs" };
            if told.is_news(text, start + Duration::from_secs(second)) {
                news.push(second);
            }
        }
        assert_eq!(news, [0, 1, 60, 61]);
        assert!(told.is_news("2 jobs", start + Duration::from_secs(120)), "all that is new");
    }
}
