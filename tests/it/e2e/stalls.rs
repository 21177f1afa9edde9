use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use prost::Message as _;
use ringq::pb::{GetServerInfoRequest, NackAction, NackItem, PullRequest, StreamRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use crate::harness::{
    Client, RawAnswer, RawCalls, Server, Setup, assert_refused, eventually, framed, http_get, job,
    millis, nack, request, take, within,
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
async fn calls_whose_messages_do_not_come_keep_no_other_out() {
    let server = Setup::new().config("max_concurrent_requests = 4").start().await;
    let client = server.connect().await;
    let mut rude = RawCalls::connect(server.grpc, 65_535).await;
    let whole = framed(&request(job("mail")));
    let half = whole.slice(..whole.len() - 1);
    let mut calls: FuturesUnordered<_> = (0..100)
        .map(|n| rude.begin(ENQUEUE, if n % 2 == 0 { half.clone() } else { Bytes::new() }, false))
        .collect();
    let refused = tokio::time::timeout(millis(300), calls.next()).await;
    assert!(refused.is_err(), "none is refused before its message is there: {refused:?}");
    works(&client).await;
}

#[tokio::test]
async fn half_messages_of_one_connection_take_a_bounded_number_of_bytes() {
    let server = Setup::new().config("max_message_mib = 32").start().await;
    let client = server.connect().await;
    let mut rude = RawCalls::connect(server.grpc, 65_535).await;
    let large = framed(&request(job("mail").with_data(vec![7; 900 << 10])));
    let half = large.slice(..800 << 10);
    let mut calls: FuturesUnordered<_> =
        (0..20).map(|_| rude.begin(ENQUEUE, half.clone(), false)).collect();
    for _ in 0..15 {
        let answer = within("a refusal", calls.next()).await.unwrap();
        assert_eq!(status(&answer), Some("8"), "RESOURCE_EXHAUSTED beyond 4 MiB");
    }
    works(&client).await;
}

#[tokio::test]
async fn a_client_that_goes_in_the_middle_of_a_request_is_no_error_of_the_server() {
    let server = Setup::new().config("log_filter = \"debug\"").start().await;
    let client = server.connect().await;
    let whole = framed(&request(job("mail")));
    for bytes in [0, 3, whole.len() - 1] {
        let mut rude = RawCalls::connect(server.grpc, 65_535).await;
        let call = rude.begin(ENQUEUE, whole.slice(..bytes), false);
        assert!(tokio::time::timeout(millis(50), call).await.is_err());
    }
    let cancelled = r#"ringq_rpc_seconds_count{code="CANCELLED",method="Enqueue"} 3"#;
    eventually("they are counted", async || {
        http_get(server.http, "/metrics").await.1.contains(cancelled).then_some(())
    })
    .await;
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

/// Both ports close connections without a complete request. Unit tests use a fake clock; here real time passes,
/// beside a client that works.
#[tokio::test]
async fn connections_that_send_nothing_whole_are_closed() {
    let server = Server::start().await;
    let client = server.connect().await;
    let begun = Instant::now();
    let parts: [(SocketAddr, &[u8]); 4] = [
        (server.grpc, b""),
        (server.grpc, b"PRI * HTTP/2.0\r\n\r\nSM"),
        (server.http, b""),
        (server.http, b"GET /healthz HTTP/1.1\r\nhost: x\r\n"),
    ];
    let silent = parts.map(async |(port, part)| {
        let mut socket = TcpStream::connect(port).await.unwrap();
        socket.write_all(part).await.unwrap();
        let mut answer = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(30), socket.read_to_end(&mut answer));
        assert!(end.await.is_ok(), "{part:?} is still open");
    });
    let busy = async {
        while begun.elapsed() < Duration::from_secs(11) {
            works(&client).await;
            tokio::time::sleep(millis(100)).await;
        }
    };
    tokio::join!(join_all(silent), busy);
}

/// A stream whose client reads nothing ends at its maximum age all the same, and its place is free.
#[tokio::test]
async fn a_stream_that_is_not_read_ends_at_its_age() {
    let limits = "max_streams = 1\nstream_max_age = \"1s\"";
    let server = Setup::new().config(limits).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let mut rude = RawCalls::connect(server.grpc, 0).await;
    let stream = framed(&take("mail"));
    let unread = rude.begin("QueueService/Stream", stream, true).await.unwrap();
    let Err(full) = client.queue.clone().stream(take("mail")).await else {
        panic!("a second stream was opened")
    };
    assert_refused(&full, Code::ResourceExhausted, "TOO_MANY_STREAMS", "");
    let opened = tokio::time::timeout(Duration::from_secs(30), async {
        while client.queue.clone().stream(take("mail")).await.is_err() {
            tokio::time::sleep(millis(100)).await;
        }
    });
    assert!(opened.await.is_ok(), "the place is not free");
    drop(unread);
}

/// A message of a stream has at most 1 MiB, whatever its content.
#[tokio::test]
async fn errors_and_names_count_for_the_size_of_a_message() {
    const JOBS: i32 = 600;
    let server = Server::start().await;
    let client = server.connect().await;
    let long = "x".repeat(100);
    let jobs: Vec<_> = (0..JOBS).map(|n| job(&long).with_id(format!("{long}-{n}"))).collect();
    client.enqueue_all(jobs).await;
    let mut left = JOBS;
    while left > 0 {
        let held = client.pull_now(&long, 256).await;
        left -= i32::try_from(held.len()).unwrap();
        let failed = |receipt: &str| NackItem {
            error: "e".repeat(4 << 10),
            delay: Some(prost_types::Duration { seconds: 0, nanos: 0 }),
            ..nack(receipt, NackAction::Retry)
        };
        client.nack_items(held.iter().map(|held| failed(&held.receipt)).collect()).await;
    }
    let many = StreamRequest { max_in_flight: 1_000, max_batch: 1_000, ..take(&long) };
    let mut stream = client.queue.clone().stream(many).await.unwrap().into_inner();
    let mut seen = 0;
    while seen < JOBS {
        let message = within("a message", stream.message()).await.unwrap().unwrap();
        assert!(message.encoded_len() <= 1 << 20, "{}", message.encoded_len());
        seen += i32::try_from(message.deliveries.len()).unwrap();
    }
}

/// Time for which the well-behaved clients are measured.
const MEASURED: Duration = Duration::from_secs(3);
/// Shorter than delays of a busy machine itself: below, times are not compared.
const QUICK: Duration = millis(20);
/// Number of calls of a stalling connection, of each kind.
const RUDE_CALLS: usize = 250;

/// Returns the 99th percentile of 100 rounds of a well-behaved client.
async fn p99(client: &Client) -> Duration {
    let (begun, mut took) = (Instant::now(), Vec::new());
    while begun.elapsed() < MEASURED {
        let round = Instant::now();
        works(client).await;
        took.push(round.elapsed());
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

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

/// A well-behaved client is never refused and hardly waits: an undisturbed server is measured at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polite_client_works_beside_all_kinds_of_stalled_ones() {
    for rude_connections in [1, 3] {
        let (alone, server) = (Server::start().await, Server::start().await);
        let (one, other) = (alone.connect().await, server.connect().await);
        let jobs = (0..500).map(|_| job("rude").with_data(vec![7; 4 << 10]));
        other.enqueue_all(jobs.collect()).await;
        let _rude = stall(&server, rude_connections).await;
        let mut measured = Vec::new();
        // A busy machine may slow one of the two servers, but not each time.
        while measured.len() < 4 {
            let (quiet, beside) = tokio::join!(p99(&one), p99(&other));
            measured.push((quiet, beside));
            if beside <= 3 * quiet.max(QUICK) {
                break;
            }
        }
        let (quiet, beside) = measured[measured.len() - 1];
        assert!(beside <= 3 * quiet.max(QUICK), "{rude_connections}: {measured:?}");
    }
}
