//! A shard moves to a new Redis: the name stays with the data.

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
        // What is done is remembered for a minute, so each lap has jobs of its own.
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
    /// The steps of "Scale out" in docs/sharding.md: replicate, let the new one take over, give its address in
    /// place of the old one, server by server, end the old one.
    async fn move_shard(&mut self) {
        // By default a Redis waits for 5 s whether others want to follow it, too.
        self.command(SHARD, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
        let from = self.cluster.redis[SHARD].port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &from];
        let next = Redis::with(&[&redis_args(self.cluster.fsync)[..], &follow].concat()).await;
        let next = next.expect("one more redis-server");
        self.note(format!("replicate s{SHARD}"));
        next.says("master_link_status:up").await;
        let to = next.port().to_string();
        let from = &self.cluster.redis[SHARD];
        // It knows of its replica a moment later than that of itself.
        eventually("the old one gives way", async || {
            let answer = from.command(&["FAILOVER", "TO", "127.0.0.1", &to]).await;
            (answer == "+OK").then_some(())
        })
        .await;
        next.says("role:master").await;
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
    /// Waits until it says so of its replication.
    async fn says(&self, what: &str) {
        eventually(what, async || {
            let info = self.command(&["INFO", "replication"]).await;
            info.lines().any(|line| line == what).then_some(())
        })
        .await;
    }
}
