//! `--wait`: until a shard is empty.

use std::time::Duration;

use tokio::time::Instant;

use super::connect::Connection;
use super::exit::{self, Failure, note};
use super::view::{answers, content};
use crate::pb::{ListShardsRequest, Shard, ShardState};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// A shard that has left the ring is empty once it has been so for this long. A server of another version does not
/// tell the ring, and one that has not heard yet that it drains may have written to it meanwhile.
const EMPTY_FOR: Duration = Duration::from_secs(5);
/// How long a server that cannot be reached is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The shard once it is empty; `shard` is how it was last. What is left is told whenever it changes.
pub(super) async fn emptied(connection: &Connection, shard: Shard) -> Result<Shard, Failure> {
    let name = shard.name.clone();
    let mut told = content(&shard);
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
                if left != told {
                    note(&format!("{name}: {left}"));
                    told = left;
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
                empty_since = None;
            }
        }
        tokio::time::sleep(PAUSE).await;
        last = read(connection, &name).await;
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
            "no jobs; a minute at least, until no server can have a call under way that writes to it"
                .to_owned()
        }
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
