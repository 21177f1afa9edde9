//! The ring changes under load, by what an operator does: a shard drains, one comes, one moves to another
//! Redis. Producers and workers never stop, and nobody is the worse for it.
//!
//! While replicas disagree about the ring, docs/sharding.md asks those who cannot accept the one exception to
//! KEEP to send ids of their own through one server: so do the producers here, through [`ONE`].

mod add;
mod drain;
mod moved;
mod old;

use std::time::Duration;

use ringq::pb::{ListShardsRequest, Shard};

use crate::harness::{Client, eventually};
use crate::load::Habits;
use crate::trial::{Trial, harm_time};

/// The replica through which ids that clients chose go while the ring changes.
const ONE: usize = 0;
/// A shard that is there from the start.
const SHARD: usize = 1;

/// Nothing comes again by the clients' doing; a busy machine may be slow to settle.
fn careful() -> Habits {
    let lease = Duration::from_secs(5);
    Habits { lease, slow: 0.0, late: 0.0, forgotten: 0.0, chained: 0.1, ..Habits::default() }
}

/// A part of the time of a scenario, of which it has several.
fn turn() -> Duration {
    (harm_time() / 4).min(Duration::from_secs(10))
}

impl Trial {
    async fn client(&self, replica: usize) -> Client {
        Client::connect(self.cluster.replica[replica].grpc).await
    }

    /// What a replica says of a shard.
    async fn shard(&self, replica: usize, name: &str) -> Shard {
        let mut admin = self.client(replica).await.admin;
        let shards = admin.list_shards(ListShardsRequest {}).await.unwrap().into_inner().shards;
        shards.into_iter().find(|shard| shard.name == name).expect("a shard of that name")
    }

    /// How often each replica has begun to serve another ring, by its log.
    fn ring_changes(&self) -> Vec<usize> {
        let count = |log: String| log.matches("the ring changes").count();
        self.cluster.replica.iter().map(|replica| count(replica.log())).collect()
    }

    /// Waits until every replica serves another ring than when it had changed so often.
    async fn another_ring(&self, before: &[usize]) {
        eventually("every replica serves the new ring", async || {
            let now = self.ring_changes();
            now.iter().zip(before).all(|(now, before)| now > before).then_some(())
        })
        .await;
        self.note("all serve another ring");
    }
}
