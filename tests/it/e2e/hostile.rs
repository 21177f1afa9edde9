//! Hostile connections end, and a client beside them is served. `make hostile` has the whole of it, with times.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::frames::{PREFACE, call_headers, flag, frame, kind};
use crate::harness::{Client, Server, http_get, job, within_long};

/// Guard of the wait for the end of a flood: 5 s of delays, and the time of the reads between them.
const END_MAX: Duration = Duration::from_secs(120);
/// Bound on the growth of the server's memory.
const GROWTH_BYTES: u64 = 32 << 20;

/// Builds headers of a call.
fn headers(stream: u32) -> Vec<u8> {
    let block = call_headers("/ringq.v1.QueueService/Get", "application/grpc");
    frame(kind::HEADERS, flag::END_HEADERS, stream, &block)
}

/// Sends chunks until the connection ends.
async fn floods(mut socket: TcpStream, first: &[u8], mut chunk: impl FnMut() -> Vec<u8>) {
    socket.write_all(&[PREFACE, &frame(4, 0, 0, &[]), first].concat()).await.unwrap();
    let (mut read, mut write) = socket.into_split();
    let reading = async { while matches!(read.read(&mut [0; 4096]).await, Ok(1..)) {} };
    let writing = async { while write.write_all(&chunk()).await.is_ok() {} };
    tokio::select! { () = reading => {} () = writing => {} }
}

async fn works(client: &Client) {
    client.enqueue(job("polite")).await;
    let held = client.pull_one("polite").await;
    client.ack(&held.receipt).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_floods_is_ended() {
    let server = Server::start().await;
    let client = server.connect().await;
    works(&client).await;
    let (before, files) = (server.peak_bytes(), server.fds());
    let pings = frame(6, 0, 0, &[7; 8]).repeat(1_000);
    let empty = frame(0, 0, 1, &[]).repeat(1_000);
    let endless = frame(9, 0, 1, &[]).repeat(1_000);
    let open = &headers(1)[..];
    let unfinished = [&open[..4], &[0], &open[5..]].concat();
    let large = frame(1, 0, 1, &[0; 16 << 10]);
    let parts = frame(9, 0, 1, &[0; 16 << 10]);
    for (name, first, chunk) in [
        ("PING", &[][..], pings),
        ("empty DATA", open, empty),
        ("CONTINUATION", &unfinished, endless),
        ("large headers", &large, parts),
    ] {
        let socket = TcpStream::connect(server.grpc).await.unwrap();
        let flood = floods(socket, first, || chunk.clone());
        within_long(END_MAX, name, flood).await;
        works(&client).await;
    }
    let mut stream = 1;
    let resets = || {
        let mut chunk = Vec::new();
        for _ in 0..100 {
            chunk.extend(headers(stream));
            chunk.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
            stream += 2;
        }
        chunk
    };
    let socket = TcpStream::connect(server.grpc).await.unwrap();
    let flood = floods(socket, &[], resets);
    within_long(END_MAX, "resets", flood).await;
    works(&client).await;
    assert_eq!(http_get(server.http, "/healthz").await.0, 200);
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "the server has grown by {} KiB", grown >> 10);
    assert!(server.fds() <= files + 1, "connections are left");
}
