//! Headers of any size.

use std::sync::Arc;
use std::time::Duration;

use crate::attack::{Attack, Hostile, Port, Reading};
use crate::frames::{flag, frame, header, kind};
use crate::harness::Setup;
use crate::trial::{Bounds, run};

/// Number of hostile connections.
const CONNECTIONS: usize = 8;
/// Largest payload of a frame, of all that a server takes.
const FRAME_BYTES: usize = 16 << 10;
/// Bounds: a connection holds one list of headers of 16 KiB at most.
const BOUNDS: Bounds =
    Bounds { memory_mib: 32, connections: CONNECTIONS, ends: false, waits_for: 0 };

/// Pause between calls that the server takes: what is measured is the size of their headers, not their number, which the
/// quota of an identity limits.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs a scenario in which each call has these additional headers, in as many frames as they take, on both ports.
async fn calls_with(name: &str, headers: Vec<u8>, pause: Duration) {
    let block = |port: Port| [port.call("AdminService/GetServerInfo"), headers.clone()].concat();
    let blocks = Arc::new([block(Port::Grpc), block(Port::Http)]);
    run(name, Setup::new(), BOUNDS, |server, seen| {
        let attack = Attack::new(seen);
        let (ports, blocks) = ([server.grpc, server.http], Arc::clone(&blocks));
        attack.clients(CONNECTIONS, move |index, seen| {
            let (to, blocks) = (ports[index % 2], Arc::clone(&blocks));
            async move {
                let block = &blocks[index % 2];
                let mut hostile = Hostile::begin(to, &[], Reading::Frames, &seen).await?;
                let mut stream = 1;
                loop {
                    let parts: Vec<_> = block.chunks(FRAME_BYTES).collect();
                    let (mut bytes, last) = (Vec::with_capacity(block.len()), parts.len() - 1);
                    for (index, part) in parts.into_iter().enumerate() {
                        let kind = if index == 0 { kind::HEADERS } else { kind::CONTINUATION };
                        let end = if index == last { flag::END_HEADERS } else { flag::NONE };
                        let ends_call = if index == 0 { flag::END_STREAM } else { flag::NONE };
                        bytes.extend(frame(kind, end | ends_call, stream, part));
                    }
                    hostile.send(&bytes, last as u64 + 1).await?;
                    stream += 2;
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        });
        attack
    })
    .await;
}

/// A header of 4,000 bytes that enters the table of the connection, and a reference of one byte to it, often.
fn bomb() -> Vec<u8> {
    let mut block = header("x-bomb", &"b".repeat(4_000));
    // Literal with incremental indexing; the entry is then the first one behind the static table.
    block[0] = 0x40;
    block.extend(std::iter::repeat_n(0xbe, 12_000));
    block
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_a_megabyte() {
    let large = header("x-large", &"x".repeat(1 << 20));
    calls_with("headers of 1 MB", large, Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn of_many_small_fields() {
    let fields: Vec<u8> = (0..400).flat_map(|n| header(&format!("x{n}"), "")).collect();
    calls_with("400 fields", fields, PAUSE).await;
    let fields: Vec<u8> = (0..50_000).flat_map(|n| header(&format!("x{n}"), "")).collect();
    calls_with("50,000 fields", fields, Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn that_grow_when_they_are_decoded() {
    calls_with("HPACK bomb", bomb(), Duration::ZERO).await;
}
