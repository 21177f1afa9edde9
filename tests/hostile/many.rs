//! Very many connections and calls.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::attack::{ADDRESS, Attack, Held, Hostile, Port, Reading, Seen};
use crate::frames::{PREFACE, flag, frame, kind, settings};
use crate::harness::Setup;
use crate::trial::{Bounds, run};

/// Number of idle connections, of the 10,000 that the server takes: there is room for the polite client.
const IDLE: usize = 9_900;
/// Memory that `docs/operations.md` states for each.
const IDLE_KIB: usize = 40;
/// Number of addresses that they come from, each with less than the 5,000 that one may have.
const ADDRESSES: usize = 4;
/// Open files that a process needs beside them.
const OTHER_FILES: usize = 200;

/// Raises the limit on open files, for this process and the server, and returns how many connections are possible.
fn connections(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
    let most = limit.maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let possible = wanted.min(most.saturating_sub(OTHER_FILES));
    if possible < wanted {
        println!("only {possible} connections: the limit on open files is {most}");
    }
    possible
}

/// Idle connections of HTTP/2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn idle_connections() {
    let count = connections(IDLE);
    let bounds = Bounds {
        memory_mib: (count * IDLE_KIB / 1_024) as u64,
        connections: count,
        ends: false,
        waits_for: count,
    };
    run("idle connections", Setup::new(), bounds, |server, seen| {
        let attack = Attack::new(seen);
        let held = Held { count, addresses: ADDRESSES, reading: Reading::Never };
        attack.hold(server.grpc, held, [PREFACE, &settings(&[])].concat());
        attack
    })
    .await;
}

/// Connections of which each closes its own side at once, or after a call has begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn half_closed_connections() {
    let bounds = Bounds { memory_mib: 64, connections: 2_000, ends: false, waits_for: 0 };
    for port in [Port::Grpc, Port::Http] {
        let count = if port == Port::Grpc { 2_000 } else { 200 };
        run(&format!("half-closed connections, {port:?}"), Setup::new(), bounds, |server, seen| {
            let attack = Attack::new(seen);
            let to = port.of(server);
            attack.clients(count, move |index, seen| half_closed(port, to, index, seen));
            attack
        })
        .await;
    }
}

async fn half_closed(
    port: Port,
    to: std::net::SocketAddr,
    index: usize,
    seen: Arc<Seen>,
) -> std::io::Result<()> {
    let mut hostile = Hostile::connect(ADDRESS, to, Reading::Bytes, &seen).await?;
    let mut bytes = [PREFACE, &settings(&[])].concat();
    if index % 2 == 1 {
        bytes.extend(frame(kind::HEADERS, flag::END_HEADERS, 1, &port.call("QueueService/Pull")));
    }
    hostile.send(&bytes, 1).await?;
    hostile.half_close().await?;
    hostile.end().await;
    Ok(())
}

/// As many calls as connections may have, none of which goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn calls_on_few_connections() {
    const CONNECTIONS: usize = 10;
    const CALLS: u32 = 1_000;
    let bounds = Bounds { memory_mib: 256, connections: CONNECTIONS, ends: false, waits_for: 0 };
    run("10,000 calls", Setup::new(), bounds, |server, seen| {
        let attack = Attack::new(seen);
        let to = server.grpc;
        attack.clients(CONNECTIONS, move |_, seen| async move {
            let mut hostile = Hostile::begin(to, &[], Reading::Frames, &seen).await?;
            let headers = Port::Grpc.call("QueueService/Enqueue");
            for stream in (0..CALLS).map(|n| 2 * n + 1) {
                hostile.send(&frame(kind::HEADERS, flag::END_HEADERS, stream, &headers), 1).await?;
            }
            hostile.end().await;
            Ok(())
        });
        attack
    })
    .await;
}
