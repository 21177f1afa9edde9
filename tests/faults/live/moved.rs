//! A shard moves to a new Redis and keeps its name.

use tokio::time::Instant;

use super::old::Old;
use super::{ONE, SHARD, careful, turn};
use crate::cluster::{Shape, redis_args, shard};
use crate::harness::{Redis, eventually};
use crate::trial::{Trial, harm_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_shard_moves_to_a_new_redis() {
    let Some(mut trial) = Trial::start("shard_moves", Shape::default(), careful()).await else {
        return;
    };
    let (end, mut lap) = (Instant::now() + harm_time(), 0);
    while Instant::now() < end {
        lap += 1;
        trial.run(turn()).await;
        // Tombstones stay for a minute, so each lap has jobs of its own.
        let old = Old::make(&trial.client(ONE).await, &format!("before-{lap}")).await;
        trial.move_shard().await;
        for replica in 0..trial.cluster.replica.len() {
            old.are_known(&trial.client(replica).await).await;
        }
        trial.run(turn()).await;
    }
    trial.finish().await;
}

impl Trial {
    /// Follows "Scale out" in docs/sharding.md: replicate, promote the new Redis, replace the address of the old one
    /// server by server, end the old one.
    async fn move_shard(&mut self) {
        // By default a Redis waits 5 s for further replicas.
        self.command(SHARD, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
        let from = self.cluster.redis[SHARD].port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &from];
        let next = Redis::with(&[&redis_args(self.cluster.fsync)[..], &follow].concat()).await;
        let next = next.expect("one more redis-server");
        self.note(format!("replicate s{SHARD}"));
        next.wait_for_info("master_link_status:up").await;
        let to = next.port().to_string();
        let from = &self.cluster.redis[SHARD];
        // The primary registers its replica a moment after the replica itself is linked.
        eventually("the old one gives way", async || {
            let answer = from.command(&["FAILOVER", "TO", "127.0.0.1", &to]).await;
            (answer == "+OK").then_some(())
        })
        .await;
        next.wait_for_info("role:master").await;
        self.note(format!("s{SHARD} is moved"));
        self.cluster.ring[SHARD] = shard(SHARD, &next.url());
        for replica in 0..self.cluster.replica.len() {
            self.roll_replica(replica).await;
        }
        self.cluster.redis[SHARD] = next;
        self.note("the old one is gone");
    }
}

impl Redis {
    /// Waits until its replication info contains `what`.
    async fn wait_for_info(&self, what: &str) {
        eventually(what, async || {
            let info = self.command(&["INFO", "replication"]).await;
            info.lines().any(|line| line == what).then_some(())
        })
        .await;
    }
}
