//! Frames that cost their sender little, as many as the connection takes, on both ports at once.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use crate::attack::{Attack, Hostile, Port, Reading, Seen};
use crate::frames::{flag, frame, kind, reset, setting, settings, window_update};
use crate::harness::{Setup, eventually_in};
use crate::trial::{Bounds, run};

/// Number of hostile connections, half of them on each port.
const CONNECTIONS: usize = 8;
/// Bytes of frames that are sent at once.
const CHUNK: usize = 32 << 10;
/// Time in which a connection that goes on with a flood is ended.
const END_MAX: Duration = Duration::from_secs(30);

/// Kind of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flood {
    /// Calls without a message that are reset at once (CVE-2023-44487).
    Resets,
    /// Calls that are reset when the server has begun their work.
    ResetsOfCalls,
    Pings,
    Settings,
    Priorities,
    UnknownFrames,
    WindowUpdates,
    /// Empty DATA of a call.
    EmptyData,
    /// Changes of the window of all streams, with as many open as the server takes.
    WindowSettings,
    /// Headers without end (VU#421644).
    Continuations,
}

const ALL: [Flood; 10] = [
    Flood::Resets,
    Flood::ResetsOfCalls,
    Flood::Pings,
    Flood::Settings,
    Flood::Priorities,
    Flood::UnknownFrames,
    Flood::WindowUpdates,
    Flood::EmptyData,
    Flood::WindowSettings,
    Flood::Continuations,
];

// === impl Flood ===

impl Flood {
    /// Sends the flood on a new connection until that ends.
    async fn send(self, port: Port, to: SocketAddr, seen: &Arc<Seen>) -> io::Result<()> {
        let mut hostile = Hostile::begin(to, &[], Reading::Frames, seen).await?;
        let call = port.call("QueueService/Enqueue");
        let headers = |stream| frame(kind::HEADERS, flag::END_HEADERS, stream, &call);
        let repeated = match self {
            Flood::Resets | Flood::ResetsOfCalls => return self.send_resets(port, hostile).await,
            Flood::Pings => frame(kind::PING, flag::NONE, 0, &[7; 8]),
            Flood::Settings => settings(&[]),
            Flood::Priorities => frame(kind::PRIORITY, flag::NONE, 1, &[0, 0, 0, 0, 7]),
            Flood::UnknownFrames => frame(kind::UNKNOWN, flag::NONE, 0, &[]),
            Flood::WindowUpdates => window_update(0, 1),
            Flood::EmptyData => {
                hostile.send(&headers(1), 1).await?;
                frame(kind::DATA, flag::NONE, 1, &[])
            }
            Flood::WindowSettings => {
                let streams = if port == Port::Grpc { 1_024 } else { 128 };
                let calls = (0..streams).flat_map(|n| headers(2 * n + 1));
                hostile.send(&calls.collect::<Vec<_>>(), u64::from(streams)).await?;
                [1_000, 2_000]
                    .map(|size| settings(&[(setting::INITIAL_WINDOW_SIZE, size)]))
                    .concat()
            }
            Flood::Continuations => {
                hostile.send(&frame(kind::HEADERS, flag::NONE, 1, &call), 1).await?;
                frame(kind::CONTINUATION, flag::NONE, 1, &[])
            }
        };
        let count = CHUNK / repeated.len();
        hostile.flood(&repeated.repeat(count), count as u64).await
    }

    async fn send_resets(self, port: Port, mut hostile: Hostile) -> io::Result<()> {
        let headers = port.call("AdminService/GetServerInfo");
        let mut stream = 1;
        loop {
            let (mut chunk, mut frames) = (Vec::with_capacity(CHUNK), 0);
            while chunk.len() < CHUNK {
                chunk.extend(frame(kind::HEADERS, flag::END_HEADERS, stream, &headers));
                if self == Flood::ResetsOfCalls {
                    chunk.extend(frame(kind::DATA, flag::END_STREAM, stream, port.empty_message()));
                    frames += 1;
                }
                chunk.extend(reset(stream));
                frames += 2;
                stream += 2;
            }
            hostile.send(&chunk, frames).await?;
        }
    }

    /// Runs the scenario. The server keeps no frame; calls that are open have their buffers.
    async fn run(self) {
        let memory_mib = if self == Flood::WindowSettings { 112 } else { 24 };
        let bounds = Bounds { memory_mib, connections: CONNECTIONS, ends: false, waits_for: 0 };
        run(&format!("{self:?}"), Setup::new(), bounds, |server, seen| {
            let attack = Attack::new(seen);
            let ports = [(Port::Grpc, server.grpc), (Port::Http, server.http)];
            attack.clients(CONNECTIONS, move |index, seen| async move {
                let (port, to) = ports[index % 2];
                self.send(port, to, &seen).await
            });
            attack
        })
        .await;
    }
}

/// Defines a test for each flood.
macro_rules! floods {
    ($($name:ident: $flood:ident;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "make hostile runs it"]
            async fn $name() {
                Flood::$flood.run().await;
            }
        )*
    };
}

floods! {
    resets: Resets;
    resets_of_calls: ResetsOfCalls;
    pings: Pings;
    settings_frames: Settings;
    priorities: Priorities;
    unknown_frames: UnknownFrames;
    window_updates: WindowUpdates;
    empty_data: EmptyData;
    window_settings: WindowSettings;
    continuations: Continuations;
}

/// A connection that goes on with a flood of any kind is ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make hostile runs it"]
async fn every_flood_is_ended() {
    let server = Setup::new().start().await;
    for (flood, port) in ALL.iter().flat_map(|flood| [(flood, Port::Grpc), (flood, Port::Http)]) {
        let (seen, to, begun) = (Arc::new(Seen::default()), port.of(&server), Instant::now());
        let attack = Attack::new(Arc::clone(&seen));
        attack.clients(1, move |_, seen| async move { flood.send(port, to, &seen).await });
        let what = format!("{flood:?} on {port:?} is ended");
        eventually_in(END_MAX, &what, async || (seen.ended.load(Relaxed) > 0).then_some(())).await;
        println!("{what}: after {:.1} s", begun.elapsed().as_secs_f64());
    }
}
