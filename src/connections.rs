//! Incoming connections of one port: limits on open connections, in all and from one address, and on the time for
//! which a peer may not read, the frames that cost a client nothing, and how often an address connects.

mod frame_budget;
mod turns;
mod unread_body;

use std::collections::HashMap;
use std::error::Error as _;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::log_limiter::LogLimiter;

pub(crate) use frame_budget::FrameBudget;
pub(crate) use unread_body::UnreadBody;

use turns::{TurnBounds, Turns};

/// First delay after a failed accept.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);
/// Longest delay after failed accepts: short enough for a client that connects meanwhile.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// Longest time in which a peer takes nothing of the written data; then the connection ends. A peer that does not
/// answer pings has the same time.
const WRITE_STALL_MAX: Duration = Duration::from_secs(40);
/// Shortest interval between log lines about rejected connections; each has the number of suppressed ones.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// The first bytes of every HTTP/2 connection (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First byte of every TLS connection: the type of a record with a handshake message.
const TLS_HANDSHAKE: u8 = 22;
/// Number of bits of an IPv6 address for its network: one machine can have all addresses of a network.
const NETWORK_BITS: u32 = 64;
/// Number of addresses without open connections that are kept until their debt is paid, beside as many as have some.
const CLOSED_PEERS_MAX: usize = 1_024;

/// The connections of one port. A connection over a limit is closed at once, so that the client can try another server;
/// a connection that waited would look like a server that hangs.
#[derive(Debug)]
pub(crate) struct Connections {
    port: &'static str,
    max: usize,
    peer_max: usize,
    turns: TurnBounds,
    open: Mutex<OpenCounts>,
    log: LogLimiter,
}

#[derive(Debug, Default)]
struct OpenCounts {
    all: usize,
    by_peer: HashMap<IpAddr, Peer>,
}

/// Address with open connections, or with a debt.
#[derive(Debug, Default)]
struct Peer {
    open: usize,
    turns: Turns,
}

/// First bytes of a connection, by which its protocol is recognized.
pub(crate) struct FirstBytes {
    head: [u8; PREFACE.len()],
    length: usize,
    /// Number of bytes that a [`ReplayedSocket`] has returned.
    replayed: usize,
}

/// Socket whose first bytes have been read, and are read from it again.
pub(crate) struct ReplayedSocket<S> {
    first: FirstBytes,
    socket: S,
}

/// An accepted connection, and the slot that it occupies.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) socket: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) origin: ConnectionOrigin,
    pub(crate) slot: ConnectionSlot,
}

/// Address that a connection comes from, and the port that it reaches.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOrigin {
    connections: Arc<Connections>,
    peer: IpAddr,
}

/// A slot among the connections of a port; freed on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    origin: ConnectionOrigin,
    /// Time until its turn.
    wait: Duration,
}

/// Limit that rejects a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReachedLimit {
    Port,
    Peer,
}

// === impl Connections ===

impl Connections {
    /// Creates the limits of the port called `port`: at most `max` connections, and `peer_max` of them from one
    /// address.
    pub(crate) fn new(port: &'static str, max: usize, peer_max: usize) -> Arc<Connections> {
        let (open, log) = (Mutex::default(), LogLimiter::new("connections", LOG_EVERY));
        let peer_max = peer_max.min(max);
        Arc::new(Connections { port, max, peer_max, turns: TurnBounds::new(peer_max), open, log })
    }

    /// Accepts the next connection that gets a slot. After an error of the listener it waits before the next try: a
    /// process without free file descriptors would spin otherwise.
    async fn accept(self: &Arc<Self>, listener: &TcpListener) -> AcceptedConnection {
        let mut pauses = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => {
                    if let Some(slot) = self.admit(peer.ip())
                        && prepare(&socket).is_ok()
                    {
                        let origin = slot.origin.clone();
                        return AcceptedConnection { socket, peer, origin, slot };
                    }
                }
                Err(error) => {
                    tracing::warn!(port = self.port, %error, "cannot accept a connection, retrying");
                    tokio::time::sleep(pauses.next_delay()).await;
                }
            }
        }
    }

    /// Runs `serve` for each connection, in a task of its own, until `shutdown` ends; then cancels `stop`. Returns the
    /// tasks that still run.
    pub(crate) async fn serve<F>(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
        stop: &CancellationToken,
        mut serve: impl FnMut(AcceptedConnection) -> F,
    ) -> TaskTracker
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = TaskTracker::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = self.accept(&listener) => accepted,
            };
            let (wait, stopped) = (accepted.slot.wait, stop.clone());
            let served = serve(accepted);
            tasks.spawn(async move {
                if !wait.is_zero() {
                    let turn = tokio::time::sleep(wait);
                    tokio::select! { () = turn => {} () = stopped.cancelled() => return }
                }
                served.await;
            });
        }
        stop.cancel();
        tasks.close();
        tasks
    }

    /// Returns a slot for a connection from `peer`, unless all are taken, which is logged.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let network = peer_network(peer);
        match self.count_opened(network) {
            Ok(wait) => {
                if !wait.is_zero() {
                    self.log_late(peer, wait);
                }
                let connections = Arc::clone(self);
                let origin = ConnectionOrigin { connections, peer: network };
                Some(ConnectionSlot { origin, wait })
            }
            Err(full) => {
                self.log_refused(peer, full);
                None
            }
        }
    }

    /// Returns for how long the connection waits for its turn.
    fn count_opened(&self, peer: IpAddr) -> Result<Duration, ReachedLimit> {
        let (now, mut open) = (Instant::now(), self.open());
        if open.all >= self.max {
            return Err(ReachedLimit::Port);
        }
        if open.by_peer.len() > 2 * open.all + CLOSED_PEERS_MAX {
            open.by_peer.retain(|_, peer| !peer.is_forgotten(now));
        }
        let of_peer = open.by_peer.entry(peer).or_default();
        if of_peer.open >= self.peer_max {
            return Err(ReachedLimit::Peer);
        }
        of_peer.open += 1;
        let wait = of_peer.turns.take(self.turns, now);
        open.all += 1;
        Ok(wait)
    }

    fn count_closed(&self, peer: IpAddr) {
        let mut open = self.open();
        open.all -= 1;
        if let Some(of_peer) = open.by_peer.get_mut(&peer) {
            of_peer.open -= 1;
            if of_peer.is_forgotten(Instant::now()) {
                open.by_peer.remove(&peer);
            }
        }
    }

    fn log_late(&self, peer: IpAddr, wait: Duration) {
        const WHY: &str = "its address connects too often, or sends what the server must end";
        if let Some(passed) = self.log.allow(&[WHY]) {
            let (port, suppressed) = (self.port, passed.suppressed());
            let wait_ms = wait.as_millis();
            tracing::warn!(port, %peer, wait_ms, suppressed, "connection waits: {WHY}");
        }
    }

    fn log_refused(&self, peer: IpAddr, full: ReachedLimit) {
        let (max, why) = match full {
            ReachedLimit::Port => (self.max, "too many connections"),
            ReachedLimit::Peer => (self.peer_max, "too many connections from one address"),
        };
        if let Some(passed) = self.log.allow(&[why]) {
            let (port, suppressed) = (self.port, passed.suppressed());
            tracing::warn!(port, %peer, max, suppressed, "connection rejected: {why}");
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenCounts> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Peer ===

impl Peer {
    /// Returns whether nothing of it has to be kept.
    fn is_forgotten(&self, now: Instant) -> bool {
        self.open == 0 && self.turns.is_paid(now)
    }
}

// === impl ConnectionOrigin ===

impl ConnectionOrigin {
    /// Counts how the connection has ended: if the server had to end it, the next ones from its address wait.
    pub(crate) fn ended(&self, error: &hyper::Error) {
        let is_violation = error
            .source()
            .and_then(|cause| cause.downcast_ref::<h2::Error>())
            .is_some_and(|error| error.is_library() || frame_budget::is_flood(error.get_io()));
        if is_violation {
            let (now, mut open) = (Instant::now(), self.connections.open());
            let bounds = self.connections.turns;
            open.by_peer.entry(self.peer).or_default().turns.punish(bounds, now);
        }
    }
}

// === impl ConnectionSlot ===

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.origin.connections.count_closed(self.origin.peer);
    }
}

// === impl FirstBytes ===

impl FirstBytes {
    /// Reads bytes until they are the preface of HTTP/2, or cannot become it. Until then a connection costs its socket
    /// and a small task.
    pub(crate) async fn read(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<FirstBytes> {
        let (mut head, mut length) = ([0; PREFACE.len()], 0);
        while length < head.len() && PREFACE.starts_with(&head[..length]) {
            match socket.read(&mut head[length..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => length += more,
            }
        }
        Ok(FirstBytes { head, length, replayed: 0 })
    }

    /// Returns whether they are the preface of HTTP/2.
    pub(crate) fn are_preface(&self) -> bool {
        self.head == PREFACE
    }

    /// Returns whether they begin a TLS handshake.
    pub(crate) fn are_tls(&self) -> bool {
        self.length > 0 && self.head[0] == TLS_HANDSHAKE
    }

    /// Returns a socket that yields the bytes first.
    pub(crate) fn before<S>(self, socket: S) -> ReplayedSocket<S> {
        ReplayedSocket { first: self, socket }
    }
}

// === impl ReplayedSocket ===

impl<S: AsyncRead + Unpin> AsyncRead for ReplayedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let FirstBytes { head, length, replayed } = &mut self.first;
        let left = &head[*replayed..*length];
        if left.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, buffer);
        }
        let now = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..now]);
        *replayed += now;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReplayedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Sets the socket options. Fails if the peer has already closed the connection.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    // Without this option a small response waits for the acknowledgement of the one before.
    socket.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(
        socket,
        u32::try_from(WRITE_STALL_MAX.as_millis()).unwrap_or(u32::MAX),
    )?;
    Ok(())
}

/// Returns the address that counts as one peer: an IPv4 address or an IPv6 network.
fn peer_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(v6) => {
            let mask = !(u128::MAX >> NETWORK_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_bounded_in_all_and_by_peer() {
        let connections = Connections::new("grpc", 3, 2);
        let (a, b) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let held = [connections.admit(a), connections.admit(a)];
        assert!(held.iter().all(Option::is_some));
        assert_eq!(connections.count_opened(a), Err(ReachedLimit::Peer));
        let of_b = connections.admit(b);
        assert_eq!((of_b.is_some(), connections.count_opened(b)), (true, Err(ReachedLimit::Port)));
        drop(held);
        assert!(connections.admit(a).is_some() && connections.admit(a).is_some());
        drop(of_b);
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(connections.admit(a));
        tokio::time::advance(Duration::from_secs(1)).await;
        let open = connections.open();
        let forgotten = |peer: &Peer| peer.is_forgotten(Instant::now());
        assert_eq!((open.all, open.by_peer.values().all(forgotten)), (0, true));
    }

    #[tokio::test(start_paused = true)]
    async fn peers_without_connections_are_forgotten() {
        let connections = Connections::new("grpc", 10, 10);
        for peer in 0..10_000_u32 {
            drop(connections.admit(IpAddr::V4(peer.into())));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let kept = connections.open().by_peer.len();
        assert!(kept <= CLOSED_PEERS_MAX + 1, "{kept}");
    }

    #[test]
    fn a_peer_is_an_address_or_an_ipv6_network() {
        assert_eq!(peer_network(ip("2001:db8:1:2:3::4")), peer_network(ip("2001:db8:1:2::5")));
        assert_ne!(peer_network(ip("2001:db8:1:2::5")), peer_network(ip("2001:db8:1:3::5")));
        assert_eq!(peer_network(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(peer_network(ip("10.0.0.1")), peer_network(ip("10.0.0.2")));
    }

    #[tokio::test]
    async fn a_connection_over_the_bound_is_closed_at_once_and_the_next_one_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections::new("grpc", 1, 1);
        let first = TcpStream::connect(address).await.unwrap();
        let accepted = connections.accept(&listener).await;
        #[cfg(target_os = "linux")]
        {
            let stall = rustix::net::sockopt::tcp_user_timeout(&accepted.socket).unwrap();
            assert_eq!(u128::from(stall), WRITE_STALL_MAX.as_millis());
        }
        let mut second = TcpStream::connect(address).await.unwrap();
        let third = tokio::spawn(async move {
            let next = connections.accept(&listener).await;
            (next.peer, connections)
        });
        assert_eq!(second.read(&mut [0; 1]).await.unwrap_or(0), 0);
        drop((first, accepted));
        let socket = TcpStream::connect(address).await.unwrap();
        assert_eq!(third.await.unwrap().0, socket.local_addr().unwrap());
    }
}
