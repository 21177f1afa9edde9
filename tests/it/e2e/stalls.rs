use std::net::SocketAddr;

use bytes::Bytes;
use futures::future::join_all;
use ringq::pb::{GetServerInfoRequest, PullRequest, StreamRequest};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::{
    Client, RawAnswer, RawCalls, Server, Setup, eventually, for_a_while, framed, http_get, job,
    millis, request, take, within,
};

const INFO: &str = "AdminService/GetServerInfo";
const ENQUEUE: &str = "QueueService/Enqueue";
const PULL: &str = "QueueService/Pull";

/// Returns the gRPC status in the headers of an answer; `None`: it has a body.
fn status(answer: &RawAnswer) -> Option<&str> {
    answer.as_ref().unwrap().headers().get("grpc-status").map(|code| code.to_str().unwrap())
}

/// Checks a well-behaved client beside the others: its jobs come and are settled.
async fn works(client: &Client) {
    client.enqueue(job("polite")).await;
    let held = client.pull_one("polite").await;
    client.extend(&held.receipt, millis(30_000)).await;
    client.ack(&held.receipt).await;
}

#[tokio::test]
async fn answers_that_are_not_read_cost_no_settle_and_others_only_for_a_moment() {
    let limits = "max_concurrent_requests = 40\nrequest_timeout = \"2s\"";
    let server = Setup::new().config(limits).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let held = client.pull_one("mail").await;
    let mut rude = RawCalls::connect(server.grpc, 0).await;
    let info = framed(&GetServerInfoRequest {});
    let calls: Vec<_> = (0..60).map(|_| rude.begin(INFO, info.clone(), true)).collect();
    let answers = join_all(calls).await;
    let refused = answers.iter().filter(|answer| status(answer).is_some()).count();
    assert_eq!(refused, 20, "40 places are taken by answers that are not read");
    client.extend(&held.receipt, millis(30_000)).await;
    client.ack(&held.receipt).await;
    eventually("room for others", async || client.send(request(job("mail"))).await.ok()).await;
}

/// Jobs of an answer without room in the window are released.
#[tokio::test]
async fn answers_of_pulls_that_are_not_read_cost_no_settle() {
    const JOBS: usize = 60;
    let server = Setup::new().config("max_message_mib = 32").start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let held = client.pull_one("mail").await;
    for _ in 0..JOBS {
        client.enqueue(job("large").with_data(vec![7; 900 << 10])).await;
    }
    let pull = framed(&PullRequest { topics: vec!["large".into()], ..Default::default() });
    let mut calls = Vec::new();
    for _ in 0..15 {
        let mut rude = RawCalls::connect(server.grpc, 1).await;
        calls.extend((0..8).map(|_| tokio::spawn(rude.begin(PULL, pull.clone(), true))));
    }
    let answers = join_all(calls).await;
    let is_kept = async || client.stats("large").await.running.try_into().ok().filter(|&n| n <= 36);
    let running: usize = eventually("the others go back", is_kept).await;
    assert!(running > 10, "{running} wait to be read");
    for _ in 0..20 {
        client.extend(&held.receipt, millis(30_000)).await;
    }
    client.ack(&held.receipt).await;
    drop(answers);
}

#[tokio::test]
async fn a_client_that_goes_in_the_middle_of_a_request_is_no_error_of_the_server() {
    let server = Setup::new().config("log_filter = \"debug\"").start().await;
    let client = server.connect().await;
    let whole = framed(&request(job("mail")));
    let cancelled = async || {
        let series = r#"ringq_rpc_seconds_count{code="CANCELLED",method="Enqueue"} "#;
        let metrics = http_get(server.http, "/metrics").await.1;
        let count = metrics.lines().find_map(|line| line.strip_prefix(series));
        count.map_or(0, |count| count.parse::<u32>().unwrap())
    };
    for bytes in [0, 3, whole.len() - 1] {
        let before = cancelled().await;
        // A busy machine may have sent nothing yet when the client goes.
        eventually("it is counted", async || {
            let mut rude = RawCalls::connect(server.grpc, 65_535).await;
            let call = rude.begin(ENQUEUE, whole.slice(..bytes), false);
            assert!(for_a_while(millis(50), call).await.is_none());
            drop(rude);
            (cancelled().await > before).then_some(())
        })
        .await;
    }
    works(&client).await;
    assert!(!http_get(server.http, "/metrics").await.1.contains("UNKNOWN"));
    assert!(!server.log().contains(" ERROR "), "{}", server.log());
}

#[tokio::test]
async fn connections_are_bounded_and_those_over_it_are_closed_at_once() {
    let limits = "max_connections = 4\nmax_connections_per_peer = 3";
    let server = Setup::new().config(limits).start().await;
    let held = [server.connect().await, server.connect().await, server.connect().await];
    for client in &held {
        works(client).await;
    }
    let [client, ..] = &held;
    let mut refused = TcpStream::connect(server.grpc).await.unwrap();
    let end = within("its end", refused.read(&mut [0; 1])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let other = from("127.0.0.2", server.grpc).await;
    works(client).await;
    assert_eq!(http_get(server.http, "/healthz").await.0, 200);
    drop((held, other));
    eventually("there is room", async || {
        let next = Client::connect(server.grpc).await;
        next.send(request(job("mail"))).await.ok()
    })
    .await;
    assert!(server.log().contains("connection rejected: too many connections from one address"));
}

/// Connects from another address of this machine.
async fn from(ip: &str, to: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Number of jobs of the well-behaved client.
const POLITE_JOBS: usize = 200;
/// Number of calls of a stalling connection, of each kind.
const RUDE_CALLS: usize = 250;

/// Clients that stall in every way at once: messages that do not come, answers and streams that are not read, and
/// silent sockets. They last as long as the returned value.
async fn stall(
    server: &Server,
    connections: usize,
) -> (Vec<AbortOnDropHandle<RawAnswer>>, Vec<TcpStream>) {
    let (mut calls, mut silent) = (Vec::new(), Vec::new());
    let whole = framed(&request(job("mail").with_data(vec![7; 20 << 10])));
    let (half, info) = (whole.slice(..10 << 10), framed(&GetServerInfoRequest {}));
    let stream = framed(&StreamRequest { max_in_flight: 100, ..take("rude") });
    for _ in 0..connections {
        let mut rude = RawCalls::connect(server.grpc, 0).await;
        let kinds = [(ENQUEUE, &half, false), (ENQUEUE, &Bytes::new(), false), (INFO, &info, true)];
        for (method, message, ends) in std::iter::repeat_n(kinds, RUDE_CALLS).flatten() {
            calls.push(tokio::spawn(rude.begin(method, message.clone(), ends)));
        }
        calls.push(tokio::spawn(rude.begin("QueueService/Stream", stream.clone(), true)));
        for _ in 0..50 {
            silent.push(TcpStream::connect(server.grpc).await.unwrap());
            silent.push(TcpStream::connect(server.http).await.unwrap());
        }
    }
    (calls.into_iter().map(AbortOnDropHandle::new).collect(), silent)
}

/// A well-behaved client is never refused; `make hostile` compares its times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polite_client_works_beside_all_kinds_of_stalled_ones() {
    let server = Server::start().await;
    let client = server.connect().await;
    let jobs = (0..500).map(|_| job("rude").with_data(vec![7; 4 << 10]));
    client.enqueue_all(jobs.collect()).await;
    let _rude = stall(&server, 3).await;
    for _ in 0..POLITE_JOBS {
        works(&client).await;
    }
}
