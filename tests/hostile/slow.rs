//! Clients that send as slowly as they can: a byte now and then, in each part of a connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::attack::{ADDRESS, Attack, Hostile, Port, Reading, Seen};
use crate::frames::{PREFACE, flag, frame, kind, settings};
use crate::harness::Setup;
use crate::trial::{Bounds, run};

/// Number of connections of each kind.
const EACH: usize = 20;
/// Time between two bytes.
const BETWEEN: Duration = Duration::from_millis(500);
/// Number of moments between two bytes of a client at which others send theirs.
const IN_TURN: u32 = 100;
/// Number of bytes that would be sent in the end.
const LONG: usize = 10_000;

/// A connection: what it sends at once, and what byte by byte.
struct Drip {
    port: Port,
    first: Vec<u8>,
    slow: Vec<u8>,
}

/// Returns a connection that stalls in each part.
fn kinds() -> Vec<Drip> {
    let begin = [PREFACE, &settings(&[])].concat();
    let mut kinds = Vec::new();
    for port in [Port::Grpc, Port::Http] {
        let headers =
            frame(kind::HEADERS, flag::END_HEADERS, 1, &port.call("QueueService/Enqueue"));
        let body = frame(kind::DATA, flag::NONE, 1, &vec![0x20; LONG]);
        kinds.extend([
            Drip { port, first: Vec::new(), slow: PREFACE.to_vec() },
            Drip {
                port,
                first: PREFACE.to_vec(),
                slow: frame(kind::SETTINGS, flag::NONE, 0, &vec![0; LONG / 6 * 6]),
            },
            Drip {
                port,
                first: begin.clone(),
                slow: frame(kind::HEADERS, flag::NONE, 1, &vec![0; LONG]),
            },
            Drip {
                port,
                first: [&begin[..], &headers, &body[..9]].concat(),
                slow: body[9..].to_vec(),
            },
        ]);
    }
    let post = "POST /v1/ringq.v1.QueueService/Enqueue HTTP/1.1\r\nhost: x\r\n";
    let json = format!("{post}content-type: application/json\r\ncontent-length: {LONG}\r\n\r\n");
    kinds.extend([
        Drip { port: Port::Http, first: Vec::new(), slow: post.as_bytes().to_vec() },
        Drip { port: Port::Http, first: post.as_bytes().to_vec(), slow: b"x: y\r\n".repeat(LONG) },
        Drip { port: Port::Http, first: json.into_bytes(), slow: vec![b' '; LONG] },
    ]);
    kinds
}

async fn client(to: SocketAddr, index: usize, seen: Arc<Seen>) -> io::Result<()> {
    let kinds = kinds();
    let drip = &kinds[index % kinds.len()];
    let mut hostile = Hostile::connect(ADDRESS, to, Reading::Bytes, &seen).await?;
    hostile.send(&drip.first, 1).await?;
    // Slow clients do not act in step: the bytes of all at one moment would measure this machine's network.
    let part = u32::try_from(index).unwrap_or(0) % IN_TURN;
    tokio::time::sleep(BETWEEN * part / IN_TURN).await;
    for byte in &drip.slow {
        hostile.send(std::slice::from_ref(byte), 0).await?;
        tokio::time::sleep(BETWEEN).await;
    }
    hostile.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn bytes_one_by_one() {
    let connections = EACH * kinds().len();
    let bounds = Bounds { memory_mib: 32, connections, ends: true, waits_for: 0 };
    run("slow loris", Setup::new(), bounds, |server, seen| {
        let attack = Attack::new(seen);
        let ports = (server.grpc, server.http);
        attack.clients(connections, move |index, seen| {
            let kinds = kinds();
            let to = if kinds[index % kinds.len()].port == Port::Grpc { ports.0 } else { ports.1 };
            client(to, index, seen)
        });
        attack
    })
    .await;
}
