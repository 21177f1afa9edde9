//! Runs without faults, or with faults of the clients only.

use std::time::Duration;

use futures::future::join_all;
use ringq::pb::EnqueueOutcome;

use crate::cluster::{Cluster, Shape};
use crate::harness::{Client, for_a_while, job, millis, take};
use crate::load::Habits;
use crate::trial::{Trial, harm_time};

/// Number of calls that are cancelled together.
const LET_GO: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_faults_nothing_comes_twice() {
    // A busy machine may be slow to settle: that must not cause a second delivery.
    let lease = Duration::from_secs(5);
    let still = Habits { slow: 0.0, late: 0.0, forgotten: 0.0, ..Habits::default() };
    let habits = Habits { lease, failing: 0.05, deleted: 0.05, ..still };
    let Some(trial) = Trial::start("calm", Shape::default(), habits).await else { return };
    trial.run(harm_time()).await;
    let outcome = trial.finish().await;
    assert_eq!(outcome.verdict.duplicates, 0);
    assert_eq!(outcome.troubles(""), 0);
    let (given_up, cancelled) = (outcome.verdict.given_up, outcome.verdict.cancelled);
    assert!(given_up > 0 && cancelled > 0, "{given_up} given up, {cancelled} deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_streams_that_clients_let_go_of() {
    let life = Some(Duration::from_millis(800));
    let habits = Habits { cancelled: 0.2, stream_life: life, ..Habits::default() };
    let Some(trial) = Trial::start("cancelled", Shape::default(), habits).await else { return };
    trial.run(harm_time()).await;
    let outcome = trial.finish().await;
    assert!(outcome.verdict.broken > 0, "no stream broke with jobs in hand");
}

/// A server that stood still receives calls and their cancellations together. The other calls of the connection may
/// be those of other clients, behind a proxy.
#[tokio::test]
async fn calls_that_are_let_go_of_together_leave_the_rest_of_their_connection_alone() {
    let Some(cluster) = Cluster::start(&Shape { shards: 1, replicas: 1, ..Shape::default() }).await
    else {
        return;
    };
    let replica = &cluster.replica[0];
    let client = Client::connect(replica.grpc).await;
    let mut worker = client.stream(take("mail")).await;
    replica.pause();
    let calls = join_all((0..LET_GO).map(|_| client.find("mail", "none")));
    assert!(for_a_while(millis(200), calls).await.is_none(), "it answers while it stands");
    replica.resume();
    let job = client.enqueue(job("mail")).await;
    assert_eq!(worker.next().await.id, job.id);
}

/// A repeat by a producer, or by the server itself, when the first call had no answer.
#[tokio::test]
async fn a_repeat_with_the_servers_id_does_not_double_a_job_that_is_done() {
    let Some(cluster) = Cluster::start(&Shape { shards: 1, replicas: 1, ..Shape::default() }).await
    else {
        return;
    };
    let client = Client::connect(cluster.replica[0].grpc).await;
    let first = client.enqueue(job("mail")).await;
    client.ack(&client.pull_one("mail").await.receipt).await;
    let again = client.enqueue(job("mail").with_id(&first.id)).await;
    assert_eq!(again.outcome(), EnqueueOutcome::Unchanged);
}
