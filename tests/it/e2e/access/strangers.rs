//! Clients without an identity: what they hold is no pool of others. `make hostile` fills each pool whole, and has times.

use std::net::SocketAddr;

use futures::future::join_all;
use prost::Message as _;
use ringq::pb;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::frames::{PREFACE, call_headers, flag, frame, kind, settings};
use crate::harness::{JsonClient, Server, eventually, http_get, job, within};

use super::identities::{Caller, IdentityDir, table, token};
use super::matrix::Scaled;

const ALL: &str = "producer = ['*']\nworker = ['*']\noperator = ['*']";
/// Calls of each connection: as many as one without an identity may have.
const CALLS: u32 = 8;
/// With the 16 KiB of a call each, these would be more than `max_message_mib`.
const CONNECTIONS: usize = 280;
const MESSAGES: &str = "max_message_mib = 32";

/// Calls that a client without an identity makes.
#[derive(Clone, Copy, Debug)]
enum Calls {
    /// Watches of health.
    Watch,
    /// Checks of health whose message does not end.
    HalfCheck,
    /// Calls that are refused, and whose message does not end.
    HalfEnqueue,
}

/// Opens a connection with these calls, and waits until the server has read them.
async fn stranger(grpc: SocketAddr, calls: Calls) -> TcpStream {
    let (path, body, end) = match calls {
        Calls::Watch => ("/grpc.health.v1.Health/Watch", &[0; 5][..], flag::END_STREAM),
        Calls::HalfCheck => ("/grpc.health.v1.Health/Check", &[0; 2][..], flag::NONE),
        Calls::HalfEnqueue => ("/ringq.v1.QueueService/Enqueue", &[0; 2][..], flag::NONE),
    };
    let head = call_headers(path, "application/grpc");
    let mut sent = [PREFACE, &settings(&[])].concat();
    for stream in (0..CALLS).map(|n| 2 * n + 1) {
        sent.extend(frame(kind::HEADERS, flag::END_HEADERS, stream, &head));
        sent.extend(frame(kind::DATA, end, stream, body));
    }
    sent.extend(frame(kind::PING, flag::NONE, 0, &[7; 8]));
    let mut socket = TcpStream::connect(grpc).await.unwrap();
    socket.write_all(&sent).await.unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        socket.read_exact(&mut vec![0; length]).await.unwrap();
        if head[3] == kind::PING {
            return socket;
        }
    }
}

/// Asks for all that a server owes to others: a producer, a worker, probes of both kinds, a scrape, an operator.
async fn serves(server: &Server, known: &Caller) {
    for caller in [known, &Caller::connect(server, "app").await] {
        caller.enqueue(job("mail")).await;
        let pull = pb::PullRequest { topics: vec!["mail".into()], ..Default::default() };
        let pulled: pb::PullResponse = caller.call("QueueService/Pull", &pull).await.unwrap();
        let receipt = pulled.deliveries[0].receipt.clone();
        let item = pb::AckItem { receipt, ..Default::default() };
        let ack = pb::AckRequest { items: vec![item] };
        let acked: pb::AckResponse = caller.call("QueueService/Ack", &ack).await.unwrap();
        assert!(acked.failures.is_empty());
        let lists = pb::ListShardsRequest::default();
        caller.call::<pb::ListShardsResponse>("AdminService/ListShards", &lists).await.unwrap();
    }
    let mut health = HealthClient::new(server.connect().await.channel);
    health.check(HealthCheckRequest::default()).await.unwrap();
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(http_get(server.http, path).await.0, 200, "{path}");
    }
    let mut json = JsonClient::connect(server.http).await;
    let bearer = format!("Bearer {}", token("app"));
    let headers = [("authorization", &*bearer)];
    let answer = json.send("AdminService/GetServerInfo", "{}", &headers).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn their_calls_take_no_bytes_of_others() {
    let dir = IdentityDir::new(&table("app", ALL));
    for calls in [Calls::Watch, Calls::HalfCheck, Calls::HalfEnqueue] {
        let config = format!("metrics_open = true\n{MESSAGES}");
        let server = dir.setup().config(&config).start().await;
        let known = Caller::connect(&server, "app").await;
        known.enqueue(job("other")).await;
        let held = (0..CONNECTIONS).map(|_| stranger(server.grpc, calls));
        let held = within("the calls", join_all(held)).await;
        serves(&server, &known).await;
        drop(held);
    }
}

/// Connects from another address of this machine, and sends nothing.
async fn silent(ip: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ip, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

#[tokio::test]
async fn their_connections_make_room_for_others() {
    let dir = IdentityDir::new(&table("app", ALL));
    let grpc = "max_connections = 30\nmax_connections_per_peer = 20";
    let http = "max_http_connections = 8\nmax_http_connections_per_peer = 5\nmetrics_open = true";
    let server = dir.setup().config(grpc).config(http).start().await;
    let known = Caller::connect(&server, "app").await;
    known.enqueue(job("other")).await;
    let mut held = Vec::new();
    for (port, count) in server.ports.into_iter().zip([20, 5]) {
        for ip in [[127, 0, 0, 2], [127, 0, 0, 3]] {
            for _ in 0..count {
                held.push(silent(ip, port).await);
            }
        }
    }
    let displaced = async |port: &str| {
        let name =
            format!("ringq_connections_refused_total{{port=\"{port}\",reason=\"displaced\"}} ");
        let metrics = http_get(server.http, "/metrics").await.1;
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        line.unwrap_or(0)
    };
    // The client that has shown its identity stays: 41 connections, and 11 with that of this scrape.
    eventually("all are accepted", async || {
        (displaced("grpc").await >= 11 && displaced("http").await >= 3).then_some(())
    })
    .await;
    for _ in 0..3 {
        serves(&server, &known).await;
    }
    let end = within("the end of the first one", held[0].read(&mut [0; 1])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let log = server.log();
    assert!(log.contains("the one without an identity that is unused for the longest is closed"));
    assert!(!log.contains("connection rejected"), "{log}");
}

/// StreamIsActive is a stream of its identity, too.
#[tokio::test]
async fn watches_of_an_identity_are_streams_of_its_quota() {
    let quota = "quota = { streams = 2 }\nviewer = ['*']";
    let dir = IdentityDir::new(&table("app", quota));
    let server = dir.setup().start().await;
    let app = Caller::connect(&server, "app").await;
    let open = async || {
        let path = "externalscaler.ExternalScaler/StreamIsActive";
        let mut watch = app.open(path, Scaled::of("a").encode_to_vec().into()).await?;
        watch.message().await.map(|_| watch)
    };
    let held = [open().await.unwrap(), open().await.unwrap()];
    let refused = open().await.unwrap_err();
    assert!(refused.message().contains("streams"), "{refused}");
    drop(held);
    eventually("there is room", async || open().await.ok()).await;
}
