//! A client that does its work beside the hostile ones, and is measured.

use std::time::Duration;

use ringq::pb::queue_service_client::QueueServiceClient;
use ringq::pb::{AckItem, AckRequest, EnqueueRequest, PullRequest};
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use crate::harness::{Client, job, proto};

const TOPIC: &str = "polite";

/// Client with a connection of its own.
pub(crate) struct Polite {
    queue: QueueServiceClient<Channel>,
}

// === impl Polite ===

impl Polite {
    /// Connects.
    pub(crate) async fn connect(grpc: std::net::SocketAddr) -> Polite {
        Polite { queue: Client::connect(grpc).await.queue }
    }

    /// Enqueues a job, takes it and settles it.
    pub(crate) async fn round(&mut self) -> Result<(), Status> {
        let job = Some(job(TOPIC));
        self.queue.enqueue(EnqueueRequest { job, ..Default::default() }).await?;
        let wait = Some(proto(Duration::from_secs(10)));
        let pull =
            PullRequest { topics: vec![TOPIC.into()], max_jobs: 1, wait, ..Default::default() };
        let pulled = self.queue.pull(pull).await?.into_inner().deliveries;
        let items =
            pulled.into_iter().map(|held| AckItem { receipt: held.receipt, ..Default::default() });
        let ack = AckRequest { items: items.collect() };
        let failures = self.queue.ack(ack).await?.into_inner().failures;
        assert!(failures.is_empty(), "{failures:?}");
        Ok(())
    }

    /// Works for this time and returns the time of each round.
    pub(crate) async fn work(&mut self, time: Duration) -> Vec<Duration> {
        let (begun, mut rounds) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let round = Instant::now();
            self.round().await.expect("a polite client is never refused");
            rounds.push(round.elapsed());
        }
        rounds
    }
}

/// Returns the 99th percentile.
pub(crate) fn p99(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort_unstable();
    rounds[rounds.len() * 99 / 100]
}
