//! A TCP proxy in front of a Redis that holds the requests of existing connections and delivers them late, as a
//! network with lost packets or a proxy with a full buffer does. Connections that are made meanwhile pass everything
//! at once.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::Redis;

/// A running proxy.
pub(crate) struct HoldingProxy {
    port: u16,
    redis: u16,
    /// Connections up to this number are held.
    held: Arc<watch::Sender<u64>>,
    accepted: watch::Receiver<u64>,
    late: Arc<watch::Sender<Late>>,
    _accepting: AbortOnDropHandle<()>,
}

/// Number of connections with held requests, and number of them whose requests were delivered.
#[derive(Default)]
struct Late {
    held: u64,
    delivered: u64,
}

/// A connection through the proxy.
struct Connection {
    number: u64,
    held: watch::Receiver<u64>,
    late: Arc<watch::Sender<Late>>,
}

// === impl HoldingProxy ===

impl HoldingProxy {
    /// Starts a proxy that holds nothing yet.
    pub(crate) async fn start(redis: &Redis) -> HoldingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, to) = (listener.local_addr().unwrap().port(), redis.port());
        let (held, accepted) = (Arc::new(watch::Sender::new(0)), watch::Sender::new(0));
        let late = Arc::new(watch::Sender::default());
        let (holds, seen, lates) = (held.subscribe(), accepted.subscribe(), Arc::clone(&late));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                accepted.send_modify(|number| *number += 1);
                let number = *accepted.borrow();
                let (held, late) = (holds.clone(), Arc::clone(&lates));
                tokio::spawn(Connection { number, held, late }.pass(client, server));
            }
        });
        let accepting = AbortOnDropHandle::new(accepting);
        HoldingProxy { port, redis: to, held, accepted: seen, late, _accepting: accepting }
    }

    /// Returns the proxy's address as the url of a Redis.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Holds requests of the existing connections. Only [`HoldingProxy::release`] delivers them, even if their client
    /// has gone.
    pub(crate) fn hold(&self) {
        self.held.send_replace(*self.accepted.borrow());
    }

    /// Delivers the held requests, waits until Redis has executed them and returns the number of their connections.
    pub(crate) async fn release(&self) -> u64 {
        self.held.send_replace(0);
        let mut late = self.late.subscribe();
        let held = late.wait_for(|late| late.delivered == late.held).await.unwrap().held;
        // Redis reads from all connections in turn: after two answers it has read everything that was sent before.
        let mut direct = TcpStream::connect(("127.0.0.1", self.redis)).await.unwrap();
        for _ in 0..2 {
            direct.write_all(b"PING\r\n").await.unwrap();
            let mut pong = [0; 7];
            direct.read_exact(&mut pong).await.unwrap();
        }
        held
    }
}

// === impl Connection ===

impl Connection {
    async fn pass(mut self, client: TcpStream, server: TcpStream) {
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        let answers = tokio::spawn(copy(from_server, to_client));
        self.requests(from_client, to_server).await;
        // Redis also executes everything that was sent before it closes.
        let _ = answers.await;
    }

    /// Passes requests on until their client closes.
    async fn requests(&mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let (mut buffer, number) = (Vec::new(), self.number);
        while let Ok(1..) = from.read_buf(&mut buffer).await {
            let is_held = *self.held.borrow() >= number;
            if is_held {
                self.late.send_modify(|late| late.held += 1);
                self.collect(&mut from, &mut buffer).await;
            }
            let passed = to.write_all(&buffer).await;
            if is_held {
                self.late.send_modify(|late| late.delivered += 1);
            }
            if passed.is_err() {
                break;
            }
            buffer.clear();
        }
        let _ = to.shutdown().await;
    }

    /// Reads what the client sends until the connection is released.
    async fn collect(&mut self, from: &mut OwnedReadHalf, all: &mut Vec<u8>) {
        let (mut held, number) = (self.held.clone(), self.number);
        let release = async { drop(held.wait_for(|held| *held < number).await) };
        tokio::pin!(release);
        loop {
            tokio::select! {
                biased;
                () = &mut release => return,
                read = from.read_buf(all) => if !matches!(read, Ok(1..)) {
                    return release.await;
                },
            }
        }
    }
}

/// Passes answers on until Redis closes.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let _ = to.write_all(&buffer[..read]).await;
    }
}
