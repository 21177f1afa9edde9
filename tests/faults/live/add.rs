//! A shard is added.

use tokio::time::Instant;

use super::old::Old;
use super::{ONE, careful, turn};
use crate::checker::history::Event;
use crate::cluster::{Shape, redis_args, shard};
use crate::harness::Redis;
use crate::trial::{Trial, harm_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_shard_comes_and_the_replicas_are_rolled() {
    let shape = Shape { shards: 3, ..Shape::default() };
    let Some(mut trial) = Trial::start("shard_comes", shape, careful()).await else { return };
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        trial.run(turn()).await;
        let number = trial.cluster.redis.len();
        let old = Old::make(&trial.client(ONE).await, &format!("before-s{number}")).await;
        trial.add_shard(number, &old).await;
        let since = trial.shared().history.now();
        trial.run(turn()).await;
        let is_new = |event: &Event| match event {
            Event::Enqueued { id, at, .. } => *at > since && id.starts_with(&format!("s{number}~")),
            _ => false,
        };
        assert!(trial.shared().history.events().iter().any(is_new), "s{number} gets no jobs");
    }
    let outcome = trial.finish().await;
    // A replica that ends waits for its jobs: no lease is released, none expires.
    assert_eq!((outcome.verdict.broken, outcome.verdict.ran_out), (0, 0));
}

impl Trial {
    /// Adds one more shard to one replica after the other, first to the one that gets the client-chosen ids: it needs
    /// the shard on which a chain is acknowledged. Replicas with and without it find all old jobs meanwhile.
    async fn add_shard(&mut self, number: usize, old: &Old) {
        let redis =
            Redis::with(&redis_args(self.cluster.fsync)).await.expect("one more redis-server");
        self.cluster.ring.push(shard(number, &redis.url()));
        self.cluster.redis.push(redis);
        self.note(format!("add s{number}"));
        self.shared().send_ids_through(Some(ONE));
        let last = self.cluster.replica.len() - 1;
        for replica in ONE..=last {
            self.roll_replica(replica).await;
            for replica in [ONE, last] {
                old.are_known(&self.client(replica).await).await;
            }
        }
        self.shared().send_ids_through(None);
    }
}
