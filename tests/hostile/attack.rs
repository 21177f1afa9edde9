//! Hostile clients: tasks on threads of their own, which connect again whenever a connection ends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::{Builder, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::frames::{ENHANCE_YOUR_CALM, PREFACE, call_headers, kind, settings};
use crate::harness::Server;

/// Pause before a client connects again.
const PAUSE: Duration = Duration::from_millis(1);
/// Address that they connect from, unless a scenario needs several; another one than that of the polite client.
pub(crate) const ADDRESS: [u8; 4] = [127, 0, 0, 2];
/// Send buffer of a hostile socket: a larger one would take megabytes that never reach the server.
const SEND_BUFFER_BYTES: u32 = 64 << 10;

/// Port under attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Grpc,
    Http,
}

/// Results of all hostile clients of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Frames that were sent, about.
    pub(crate) sent: AtomicU64,
    /// Bytes that were sent.
    pub(crate) bytes: AtomicU64,
    /// Connections that were opened.
    pub(crate) opened: AtomicU64,
    /// Connections that the server ended.
    pub(crate) ended: AtomicU64,
    /// GOAWAY with ENHANCE_YOUR_CALM.
    pub(crate) calm: AtomicU64,
    /// Streams that the server reset.
    pub(crate) resets: AtomicU64,
    /// Answers that have begun.
    pub(crate) answers: AtomicU64,
}

/// Connections that are held open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) count: usize,
    /// Number of addresses that they come from.
    pub(crate) addresses: usize,
    pub(crate) reading: Reading,
}

/// Hostile clients that run until this is dropped.
pub(crate) struct Attack {
    runtime: Option<Runtime>,
    pub(crate) seen: Arc<Seen>,
}

/// Hostile connection.
pub(crate) struct Hostile {
    write: OwnedWriteHalf,
    reader: AbortOnDropHandle<()>,
    seen: Arc<Seen>,
}

/// Way in which a hostile client treats what the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Reads frames, and answers none.
    Frames,
    /// Reads bytes of any protocol.
    Bytes,
    /// Reads nothing.
    Never,
}

// === impl Port ===

impl Port {
    /// Returns its address.
    pub(crate) fn of(self, server: &Server) -> SocketAddr {
        match self {
            Port::Grpc => server.grpc,
            Port::Http => server.http,
        }
    }

    /// Returns the headers of a call on this port.
    pub(crate) fn call(self, method: &str) -> Vec<u8> {
        match self {
            Port::Grpc => call_headers(&format!("/ringq.v1.{method}"), "application/grpc"),
            Port::Http => call_headers(&format!("/v1/ringq.v1.{method}"), "application/json"),
        }
    }

    /// Returns the body of a call without fields.
    pub(crate) fn empty_message(self) -> &'static [u8] {
        match self {
            Port::Grpc => &[0; 5],
            Port::Http => b"{}",
        }
    }
}

// === impl Attack ===

impl Attack {
    /// Starts attacks without clients.
    pub(crate) fn new(seen: Arc<Seen>) -> Attack {
        // Hostile clients are on other machines: here they have the time that the server does not need.
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(|| {
                rustix::process::nice(19).expect("a thread may lower its priority");
            })
            .enable_all()
            .build()
            .unwrap();
        Attack { runtime: Some(runtime), seen }
    }

    /// Starts `count` clients; each runs `client` again and again.
    pub(crate) fn clients<F>(
        &self,
        count: usize,
        client: impl Fn(usize, Arc<Seen>) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let Some(runtime) = &self.runtime else { return };
        for index in 0..count {
            let (client, seen) = (client.clone(), Arc::clone(&self.seen));
            runtime.spawn(async move {
                loop {
                    let _ = client(index, Arc::clone(&seen)).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
    }

    /// Opens connections, each of which sends these bytes at once and then nothing.
    pub(crate) fn hold(&self, to: SocketAddr, held: Held, sent: Vec<u8>) {
        let sent = Arc::new(sent);
        self.clients(held.count, move |index, seen| {
            let sent = Arc::clone(&sent);
            async move {
                // One after the other: this is not about the number of connections in a second.
                tokio::time::sleep(Duration::from_micros(500) * u32::try_from(index).unwrap())
                    .await;
                let from = [127, 0, 0, u8::try_from(2 + index % held.addresses).unwrap()];
                let mut hostile = Hostile::connect(from, to, held.reading, &seen).await?;
                hostile.send(&sent, 1).await?;
                hostile.end().await;
                Ok(())
            }
        });
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        // Within a runtime another must not wait for its threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

// === impl Hostile ===

impl Hostile {
    /// Connects, and begins HTTP/2 with these settings.
    pub(crate) async fn begin(
        to: SocketAddr,
        values: &[(u16, u32)],
        reading: Reading,
        seen: &Arc<Seen>,
    ) -> io::Result<Hostile> {
        let mut hostile = Hostile::connect(ADDRESS, to, reading, seen).await?;
        hostile.send(&[PREFACE, &settings(values)].concat(), 1).await?;
        Ok(hostile)
    }

    /// Connects from this address.
    pub(crate) async fn connect(
        from: [u8; 4],
        to: SocketAddr,
        reading: Reading,
        seen: &Arc<Seen>,
    ) -> io::Result<Hostile> {
        let socket = TcpSocket::new_v4()?;
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.bind(SocketAddr::from((from, 0)))?;
        let socket = socket.connect(to).await?;
        socket.set_nodelay(true)?;
        seen.opened.fetch_add(1, Relaxed);
        let (read, write) = socket.into_split();
        let of_reader = Arc::clone(seen);
        let reader = tokio::spawn(async move {
            match reading {
                Reading::Frames => {
                    let _ = read_frames(read, &of_reader).await;
                    of_reader.ended.fetch_add(1, Relaxed);
                }
                Reading::Bytes => {
                    let mut read = read;
                    let _ = tokio::io::copy(&mut read, &mut tokio::io::sink()).await;
                    of_reader.ended.fetch_add(1, Relaxed);
                }
                Reading::Never => {
                    // Keeps the socket open.
                    std::future::pending::<()>().await;
                    drop(read);
                }
            }
        });
        Ok(Hostile { write, reader: AbortOnDropHandle::new(reader), seen: Arc::clone(seen) })
    }

    /// Sends bytes with this number of frames.
    pub(crate) async fn send(&mut self, bytes: &[u8], frames: u64) -> io::Result<()> {
        if self.reader.is_finished() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.write.write_all(bytes).await?;
        self.seen.sent.fetch_add(frames, Relaxed);
        self.seen.bytes.fetch_add(bytes.len() as u64, Relaxed);
        Ok(())
    }

    /// Sends this over and over until the connection ends.
    pub(crate) async fn flood(&mut self, chunk: &[u8], frames: u64) -> io::Result<()> {
        loop {
            self.send(chunk, frames).await?;
        }
    }

    /// Closes the sending side.
    pub(crate) async fn half_close(&mut self) -> io::Result<()> {
        self.write.shutdown().await
    }

    /// Waits until the server closes the connection.
    pub(crate) async fn end(self) {
        let Hostile { reader, write, .. } = self;
        let _ = reader.await;
        drop(write);
    }
}

/// Reads frames until the connection ends.
async fn read_frames(mut read: OwnedReadHalf, seen: &Seen) -> io::Result<()> {
    let mut payload = Vec::new();
    loop {
        let mut head = [0; 9];
        read.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        payload.resize(length as usize, 0);
        read.read_exact(&mut payload).await?;
        match head[3] {
            kind::GOAWAY => {
                let code =
                    payload.get(4..8).map(|code| u32::from_be_bytes(code.try_into().unwrap()));
                seen.calm.fetch_add(u64::from(code == Some(ENHANCE_YOUR_CALM)), Relaxed);
            }
            kind::RST_STREAM => _ = seen.resets.fetch_add(1, Relaxed),
            kind::HEADERS => _ = seen.answers.fetch_add(1, Relaxed),
            _ => {}
        }
    }
}
