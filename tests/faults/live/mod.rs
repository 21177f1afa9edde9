//! Operations under load: a shard drains, one is added, one moves to another Redis, replicas restart. Producers and
//! workers never stop, and their calls do not fail.
//!
//! While replicas disagree about the ring, docs/sharding.md asks clients that cannot accept the one exception to KEEP
//! to send their own ids through one server: the producers here do so, through [`ONE`].

mod add;
mod drain;
mod moved;
mod old;
mod rolled;

use std::time::Duration;

use ringq::pb::{ListShardsRequest, Shard};

use crate::harness::{Client, eventually};
use crate::load::Habits;
use crate::trial::{Trial, harm_time};

/// The replica that gets the client-chosen ids while the ring has changed.
const ONE: usize = 0;
/// A shard that exists from the start.
const SHARD: usize = 1;

/// Habits without repeats by the clients; a busy machine may be slow to settle.
fn careful() -> Habits {
    let lease = Duration::from_secs(5);
    Habits { lease, slow: 0.0, late: 0.0, forgotten: 0.0, chained: 0.1, ..Habits::default() }
}

/// Duration of one part of a scenario, which has several.
fn turn() -> Duration {
    (harm_time() / 4).min(Duration::from_secs(10))
}

impl Trial {
    async fn client(&self, replica: usize) -> Client {
        Client::connect(self.cluster.replica[replica].grpc).await
    }

    /// Returns the report of a replica about a shard.
    async fn shard(&self, replica: usize, name: &str) -> Shard {
        let mut admin = self.client(replica).await.admin;
        let shards = admin.list_shards(ListShardsRequest {}).await.unwrap().into_inner().shards;
        shards.into_iter().find(|shard| shard.name == name).expect("a shard of that name")
    }

    /// Returns how often each replica has begun to use another ring, by its log.
    fn ring_changes(&self) -> Vec<usize> {
        let count = |log: String| log.matches("the ring has changed").count();
        self.cluster.replica.iter().map(|replica| count(replica.log())).collect()
    }

    /// Waits until every replica has changed its ring more often than `before`.
    async fn another_ring(&self, before: &[usize]) {
        eventually("every replica serves the new ring", async || {
            let now = self.ring_changes();
            now.iter().zip(before).all(|(now, before)| now > before).then_some(())
        })
        .await;
        self.note("all serve another ring");
    }
}
