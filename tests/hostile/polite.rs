//! A client that does its work beside the hostile ones, and is measured.

use std::time::Duration;

use ringq::pb::admin_service_client::AdminServiceClient;
use ringq::pb::queue_service_client::QueueServiceClient;
use ringq::pb::{AckItem, AckRequest, EnqueueRequest, ListShardsRequest, PullRequest};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{Client, JsonClient, Server, http_get_on, job, proto};

const TOPIC: &str = "polite";
/// Token of the client, where there are identities.
pub(crate) const TOKEN: &str = "token-of-the-polite-client";

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
        self.queue.enqueue(known(EnqueueRequest { job, ..Default::default() })).await?;
        let wait = Some(proto(Duration::from_secs(10)));
        let pull =
            PullRequest { topics: vec![TOPIC.into()], max_jobs: 1, wait, ..Default::default() };
        let pulled = self.queue.pull(known(pull)).await?.into_inner().deliveries;
        let items =
            pulled.into_iter().map(|held| AckItem { receipt: held.receipt, ..Default::default() });
        let ack = AckRequest { items: items.collect() };
        let failures = self.queue.ack(known(ack)).await?.into_inner().failures;
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

/// Returns the request with the token.
fn known<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let bearer = format!("Bearer {TOKEN}").parse().expect("a header");
    request.metadata_mut().insert("authorization", bearer);
    request
}

/// Asks on new connections for what a server owes to others: a producer and a worker, both kinds of probe, a scrape, a JSON
/// call, and a call of an operator. Returns the time of the slowest.
pub(crate) async fn ask_all(server: &Server) -> Duration {
    let mut slowest = Duration::ZERO;
    let mut begun = Instant::now();
    let mut took = |what: &str| {
        let time = begun.elapsed();
        assert!(time < Duration::from_secs(5), "{what} took {time:?}");
        slowest = slowest.max(time);
        begun = Instant::now();
    };
    Polite::connect(server.grpc).await.round().await.expect("a new client is served");
    took("a new client");
    let mut health = HealthClient::new(server.connect().await.channel);
    health.check(HealthCheckRequest::default()).await.expect("a gRPC probe is answered");
    took("a gRPC probe");
    for path in ["/healthz", "/readyz", "/metrics"] {
        let socket = TcpStream::connect(server.http).await.unwrap();
        assert_eq!(http_get_on(socket, path).await.0, 200, "{path}");
        took(path);
    }
    let mut json = JsonClient::connect(server.http).await;
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let answer = json.send("AdminService/GetServerInfo", "{}", &headers).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    took("a JSON call");
    let mut admin = AdminServiceClient::new(server.connect().await.channel);
    admin.list_shards(known(ListShardsRequest::default())).await.expect("an operator is served");
    took("an operator");
    slowest
}

/// Returns the 99th percentile.
pub(crate) fn p99(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort_unstable();
    rounds[rounds.len() * 99 / 100]
}
