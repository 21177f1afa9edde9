//! Replicas restart one after the other, as in an upgrade.

use tokio::time::Instant;

use super::{careful, turn};
use crate::cluster::Shape;
use crate::trial::{Trial, harm_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn replicas_are_rolled_one_after_the_other() {
    let Some(mut trial) = Trial::start("replicas_rolled", Shape::default(), careful()).await else {
        return;
    };
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        for replica in 0..trial.cluster.replica.len() {
            trial.roll_replica(replica).await;
            trial.run(turn() / 4).await;
        }
    }
    let outcome = trial.finish().await;
    // A replica that ends waits for its jobs: no lease is released, none expires.
    assert_eq!((outcome.verdict.broken, outcome.verdict.ran_out), (0, 0));
}
