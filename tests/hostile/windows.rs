//! Answers that are not read, or byte by byte.

use std::sync::Arc;

use prost::Message as _;
use ringq::pb::{GetRequest, JobView};

use crate::attack::{Attack, Hostile, Port, Reading, Seen};
use crate::frames::{flag, frame, kind, setting, window_update};
use crate::harness::{Client, Server, Setup, http_get, job};
use crate::trial::{Bounds, run_on};

/// Number of hostile connections.
const CONNECTIONS: usize = 8;
/// Number of calls that each of them has in flight, on the gRPC port and on the HTTP port. There each answer is written as
/// JSON, which is work, and the work is not what is measured.
const CALLS: (u32, u32) = (25, 5);
/// Job in the answers.
const TOPIC: &str = "large";
const ID: &str = "one";
/// Size of an answer in bytes, about.
const ANSWER_BYTES: usize = 900 << 10;
/// Bounds: three times the bytes of messages that the server may hold, `max_message_mib`, because an answer exists as a job
/// and as JSON, too, for a while.
const BOUNDS: Bounds =
    Bounds { memory_mib: 192, connections: CONNECTIONS, ends: false, waits_for: 0 };
const MESSAGES: &str = "max_message_mib = 64\nrequest_timeout = \"2s\"";

/// Way in which the client lets answers arrive.
#[derive(Clone, Copy, Debug)]
enum Window {
    /// Not at all.
    Closed,
    /// A byte at a time.
    OneByte,
    /// The window is open, and the socket is not read.
    Unread,
}

/// Returns the bytes of a call for a large job on this port.
fn get_call(port: Port, stream: u32) -> Vec<u8> {
    let view = JobView::Full.into();
    let topic = TOPIC.to_owned();
    let request = GetRequest { topic, id: ID.to_owned(), view };
    let body = match port {
        Port::Grpc => {
            let length = u32::try_from(request.encoded_len()).unwrap().to_be_bytes();
            [&[0], &length[..], &request.encode_to_vec()].concat()
        }
        Port::Http => br#"{"topic":"large","id":"one","view":"JOB_VIEW_FULL"}"#.to_vec(),
    };
    let headers = frame(kind::HEADERS, flag::END_HEADERS, stream, &port.call("QueueService/Get"));
    [headers, frame(kind::DATA, flag::END_STREAM, stream, &body)].concat()
}

async fn client(
    port: Port,
    to: std::net::SocketAddr,
    window: Window,
    seen: Arc<Seen>,
) -> std::io::Result<()> {
    let (size, reading) = match window {
        Window::Closed | Window::OneByte => (0, Reading::Frames),
        Window::Unread => (i32::MAX as u32, Reading::Never),
    };
    let mut hostile =
        Hostile::begin(to, &[(setting::INITIAL_WINDOW_SIZE, size)], reading, &seen).await?;
    let calls = if port == Port::Grpc { CALLS.0 } else { CALLS.1 };
    let streams = (0..calls).map(|n| 2 * n + 1);
    if matches!(window, Window::Unread) {
        hostile.send(&window_update(0, 1 << 30), 1).await?;
    }
    for stream in streams.clone() {
        hostile.send(&get_call(port, stream), 2).await?;
    }
    match window {
        Window::OneByte => {
            let updates: Vec<u8> = streams.flat_map(|stream| window_update(stream, 1)).collect();
            hostile.flood(&updates, u64::from(calls)).await
        }
        Window::Closed | Window::Unread => {
            hostile.end().await;
            Ok(())
        }
    }
}

/// Starts a server with a job that makes an answer large.
async fn start() -> Server {
    let server = Setup::new().config(MESSAGES).start().await;
    let client = Client::connect(server.grpc).await;
    client.enqueue(job(TOPIC).with_id(ID).with_data(vec![7; ANSWER_BYTES])).await;
    server
}

async fn answers(window: Window) {
    let name = format!("window {window:?}");
    let server = run_on(&name, start().await, BOUNDS, |server, seen| {
        let attack = Attack::new(seen);
        let ports = [(Port::Grpc, server.grpc), (Port::Http, server.http)];
        attack.clients(CONNECTIONS, move |index, seen| {
            let (port, to) = ports[index % 2];
            client(port, to, window, seen)
        });
        attack
    })
    .await;
    // The calls were executed, and ended with their deadline or their client.
    let metrics = http_get(server.http, "/metrics").await.1;
    let is_unread = |line: &&str| {
        line.starts_with("ringq_rpc_seconds_count") && line.contains("method=\"Get\"")
    };
    let lines: Vec<_> = metrics.lines().filter(is_unread).collect();
    println!("{name}: {lines:?}");
    assert!(lines.iter().any(|line| line.contains("CANCELLED") || line.contains("DEADLINE")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn that_stay_closed() {
    answers(Window::Closed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_one_byte() {
    answers(Window::OneByte).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_a_client_that_does_not_read() {
    answers(Window::Unread).await;
}
