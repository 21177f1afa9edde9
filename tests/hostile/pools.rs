//! Pools that clients without an identity fill from outside: connections of both ports, watches, messages that do not end,
//! headers that do not end, refusals that are not read. Each scenario fills one pool from two addresses, as far as the
//! server lets them, and others get all that the server owes them meanwhile. The memory of a connection is printed.

use ringq::auth::token::TokenHash;

use crate::attack::{Attack, Held, Port, Reading};
use crate::frames::{PREFACE, flag, frame, kind, settings};
use crate::harness::Setup;
use crate::polite::TOKEN;
use crate::trial::{Bounds, run};

/// Number of addresses that fill a pool.
const ADDRESSES: usize = 2;
/// Connections from one address with calls on them.
const WITH_CALLS: usize = 200;
/// Calls that each sends in one write.
const CALLS: u32 = 1_000;
/// Memory of an idle connection, in KiB.
const IDLE_KIB: u64 = 40;
/// Memory of a connection with all calls that it may have without an identity.
const CALLS_KIB: u64 = 128;

/// Pool, and how it is filled.
struct Pool {
    name: &'static str,
    port: Port,
    /// Connections from each address.
    connections: usize,
    /// Bytes that each sends at once.
    sent: Vec<u8>,
    reading: Reading,
    /// Memory of each, in KiB.
    kib: u64,
}

/// Returns the bytes of a new connection with many calls without a token, each of this message.
fn calls(port: Port, head: &[u8], message: &[u8], ends: u8) -> Vec<u8> {
    let mut sent = [PREFACE, &settings(&[])].concat();
    let calls = if port == Port::Grpc { CALLS } else { 100 };
    for stream in (0..calls).map(|n| 2 * n + 1) {
        sent.extend(frame(kind::HEADERS, flag::END_HEADERS, stream, head));
        sent.extend(frame(kind::DATA, ends, stream, message));
    }
    sent
}

/// Starts a server with one identity.
fn setup() -> (tempfile::TempDir, Setup) {
    let dir = tempfile::tempdir().unwrap();
    let rights = "producer = ['*']\nworker = ['*']\noperator = ['*']";
    let table =
        format!("[[identity]]\nname = 'polite'\ntokens = ['{}']\n{rights}\n", TokenHash::of(TOKEN));
    std::fs::write(dir.path().join("identities.toml"), table).unwrap();
    let limits = "max_connections = 2000\nmax_connections_per_peer = 1000\nmetrics_open = true\naudit_log = \"none\"";
    let setup = Setup::new().config(&format!("identities = {:?}\n{limits}", dir.path()));
    (dir, setup)
}

async fn fill(pool: Pool) {
    let Pool { name, port, connections, sent, reading, kib } = pool;
    let (_identities, setup) = setup();
    let count = ADDRESSES * connections;
    let memory_mib = 24 + (kib * count as u64 >> 10);
    let bounds = Bounds { memory_mib, connections: count, ends: false, waits_for: count };
    run(name, setup, bounds, |server, seen| {
        let attack = Attack::new(seen);
        let held = Held { count, addresses: ADDRESSES, reading };
        attack.hold(port.of(server), held, sent.clone());
        attack
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_connections() {
    let begun = [PREFACE, &settings(&[])].concat();
    let get = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec();
    for (name, port, connections, sent) in [
        ("pool: connections, gRPC", Port::Grpc, 1_000, begun.clone()),
        ("pool: connections, HTTP", Port::Http, 256, get),
        ("pool: connections, HTTP/2 on the HTTP port", Port::Http, 256, begun),
    ] {
        fill(Pool { name, port, connections, sent, reading: Reading::Bytes, kib: IDLE_KIB }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_watches_and_checks() {
    let head = |method: &str| {
        crate::frames::call_headers(&format!("/grpc.health.v1.Health/{method}"), "application/grpc")
    };
    for (name, method, message, ends) in [
        ("pool: watches", "Watch", &[0; 5][..], flag::END_STREAM),
        ("pool: half-sent checks", "Check", &[0; 2], flag::NONE),
    ] {
        let sent = calls(Port::Grpc, &head(method), message, ends);
        let (port, reading) = (Port::Grpc, Reading::Bytes);
        fill(Pool { name, port, connections: WITH_CALLS, sent, reading, kib: CALLS_KIB }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_refusals() {
    for (name, port, reading, ends) in [
        ("pool: refusals not read, gRPC", Port::Grpc, Reading::Never, flag::END_STREAM),
        ("pool: refusals read, gRPC", Port::Grpc, Reading::Bytes, flag::END_STREAM),
        ("pool: half-sent messages, gRPC", Port::Grpc, Reading::Bytes, flag::NONE),
        ("pool: refusals not read, HTTP", Port::Http, Reading::Never, flag::END_STREAM),
        ("pool: half-sent messages, HTTP", Port::Http, Reading::Bytes, flag::NONE),
    ] {
        let message = &port.empty_message()
            [..if ends == flag::NONE { 1 } else { port.empty_message().len() }];
        let sent = calls(port, &port.call("QueueService/Enqueue"), message, ends);
        fill(Pool { name, port, connections: WITH_CALLS, sent, reading, kib: CALLS_KIB }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_headers() {
    // A refused call first: the connection is among those that carry calls then, and may be idle for longer.
    let call = "POST /v1/ringq.v1.QueueService/Enqueue HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let call = format!(
        "{call}content-length: 2\r\n\r\n{{}}GET /healthz HTTP/1.1\r\nx: {}",
        "y".repeat(30 << 10)
    );
    let (name, port, reading) = ("pool: half-sent headers, HTTP/1.1", Port::Http, Reading::Never);
    let sent = call.into_bytes();
    fill(Pool { name, port, connections: WITH_CALLS, sent, reading, kib: CALLS_KIB }).await;
    for (name, port) in [
        ("pool: half-sent headers, gRPC", Port::Grpc),
        ("pool: half-sent headers, HTTP", Port::Http),
    ] {
        let begun = frame(kind::HEADERS, flag::NONE, 1, &port.call("QueueService/Enqueue"));
        let sent = [PREFACE, &settings(&[]), &begun, &begun[..9]].concat();
        let reading = Reading::Bytes;
        fill(Pool { name, port, connections: WITH_CALLS, sent, reading, kib: CALLS_KIB }).await;
    }
}
