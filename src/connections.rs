//! Incoming connections of one port: limits on open connections, in all and from one address, and on the time for
//! which a peer may not read, the calls that a connection may have without an identity, the frames that cost a client
//! nothing, and how often an address connects.

mod anonymous_calls;
mod frame_budget;
mod frame_heads;
mod standing;
mod turns;
mod unread_body;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error as _;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::{Backoff, BackoffRange};
use crate::log_limiter::LogLimiter;
use crate::metrics::Metrics;

pub(crate) use frame_budget::FrameBudget;
pub(crate) use standing::{Standing, WatchPlace};
pub(crate) use unread_body::UnreadBody;

use standing::Place;
use turns::{TurnBounds, Turns};

/// Delays after failed accepts: short enough for a client that connects meanwhile.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(5), max: Duration::from_secs(1) };
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

/// The connections of one port. A connection over a limit takes the place of an anonymous one, see [`Standing`]. If there is
/// none it is closed at once, so that the client can try another server; a connection that waited would look like a
/// server that hangs.
#[derive(Debug)]
pub(crate) struct Connections {
    port: &'static str,
    max: usize,
    peer_max: usize,
    turns: TurnBounds,
    /// Bounds of the turns of calls without an identity.
    call_turns: TurnBounds,
    open: Mutex<OpenCounts>,
    metrics: Metrics,
    log: LogLimiter,
}

#[derive(Debug, Default)]
struct OpenCounts {
    all: usize,
    by_peer: HashMap<IpAddr, Peer>,
    /// Anonymous connections by their last use.
    anonymous: BTreeMap<u64, (IpAddr, Arc<Standing>)>,
    /// Number of uses of anonymous connections.
    uses: u64,
    /// Number of watches without an identity.
    watches: usize,
}

/// Address with open connections, or with a debt.
#[derive(Debug, Default)]
struct Peer {
    open: usize,
    turns: Turns,
    /// Turns of its calls without an identity.
    call_turns: Turns,
    /// Its anonymous connections by their last use.
    anonymous: BTreeSet<u64>,
    watches: usize,
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
    standing: Arc<Standing>,
    peer: IpAddr,
}

/// Counted connection.
#[derive(Debug)]
struct Counted {
    /// Number of its first use.
    last_use: u64,
    /// Time until its turn.
    wait: Duration,
    /// Connection whose place it has taken, and the limit for which it had to.
    displaced: Option<(Arc<Standing>, ReachedLimit)>,
}

/// Limit on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReachedLimit {
    Port,
    Peer,
}

// === impl Connections ===

impl Connections {
    /// Creates the limits of the port called `port`: at most `max` connections, and `peer_max` of them from one
    /// address.
    pub(crate) fn new(
        port: &'static str,
        max: usize,
        peer_max: usize,
        metrics: Metrics,
    ) -> Arc<Connections> {
        let (open, log) = (Mutex::default(), LogLimiter::new("connections", LOG_EVERY));
        let peer_max = peer_max.min(max);
        let (turns, call_turns) = (TurnBounds::new(peer_max), TurnBounds::of_calls(peer_max));
        Arc::new(Connections { port, max, peer_max, turns, call_turns, open, metrics, log })
    }

    /// Accepts the next connection that gets a slot. After an error of the listener it waits before the next try: a
    /// process without free file descriptors would spin otherwise.
    async fn accept(self: &Arc<Self>, listener: &TcpListener) -> (AcceptedConnection, Duration) {
        let mut pauses = Backoff::new(RETRY_DELAYS);
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => {
                    if let Some((slot, wait)) = self.admit(peer.ip())
                        && prepare(&socket).is_ok()
                    {
                        let connections = Arc::clone(self);
                        let origin = ConnectionOrigin { connections, peer: slot.peer };
                        return (AcceptedConnection { socket, peer, origin, slot }, wait);
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
            let (accepted, wait) = tokio::select! {
                () = &mut shutdown => break,
                accepted = self.accept(&listener) => accepted,
            };
            let (standing, stopped) = (Arc::clone(accepted.slot.standing()), stop.clone());
            let served = serve(accepted);
            let task = tasks.spawn(async move {
                if !wait.is_zero() {
                    let turn = tokio::time::sleep(wait);
                    tokio::select! { () = turn => {} () = stopped.cancelled() => return }
                }
                served.await;
            });
            standing.set_task(task.abort_handle());
        }
        stop.cancel();
        tasks.close();
        tasks
    }

    /// Returns a slot for a connection from `peer` and the time until its turn, unless all are taken, which is logged.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<(ConnectionSlot, Duration)> {
        let standing = Arc::new(Standing::default());
        let wait = self.take(&standing, peer)?;
        Some((ConnectionSlot { standing, peer: peer_network(peer) }, wait))
    }

    /// Gives a connection a place here instead of the one that it has, and returns the time until its turn, unless all
    /// are taken, which is logged.
    fn take(self: &Arc<Self>, standing: &Arc<Standing>, peer: IpAddr) -> Option<Duration> {
        let network = peer_network(peer);
        match self.count_opened(network, standing) {
            Ok(Counted { last_use, wait, displaced }) => {
                if let Some((displaced, full)) = displaced {
                    displaced.end();
                    self.log_full(peer, full, true);
                }
                if !wait.is_zero() {
                    self.log_late(peer, wait);
                }
                let (connections, last_use) = (Arc::clone(self), Some(last_use));
                standing.set_place(Some(Place { connections, peer: network, last_use }));
                Some(wait)
            }
            Err(full) => {
                self.log_full(peer, full, false);
                None
            }
        }
    }

    fn count_opened(
        &self,
        peer: IpAddr,
        standing: &Arc<Standing>,
    ) -> Result<Counted, ReachedLimit> {
        let (now, mut open) = (Instant::now(), self.open.lock());
        if open.by_peer.len() > 2 * open.all + CLOSED_PEERS_MAX {
            open.by_peer.retain(|_, peer| !peer.is_forgotten(now));
        }
        let full = match open.by_peer.get(&peer) {
            Some(of_peer) if of_peer.open >= self.peer_max => Some(ReachedLimit::Peer),
            _ => (open.all >= self.max).then_some(ReachedLimit::Port),
        };
        let displaced = match full {
            None => None,
            Some(full) => Some((open.displace(full, peer).ok_or(full)?, full)),
        };
        let of_peer = open.by_peer.entry(peer).or_default();
        of_peer.open += 1;
        let wait = of_peer.turns.take(self.turns, now);
        open.all += 1;
        let last_use = open.add_anonymous(peer, standing);
        Ok(Counted { last_use, wait, displaced })
    }

    /// Frees the place of a connection, unless it was taken away.
    fn count_closed(&self, peer: IpAddr, last_use: Option<u64>) {
        let mut open = self.open.lock();
        if last_use.is_none_or(|number| open.remove_anonymous(peer, number).is_some()) {
            open.count_closed(peer);
        }
    }

    /// Counts an anonymous connection as one that is not. Returns false if its place was taken away.
    fn forget_anonymous(&self, peer: IpAddr, last_use: u64) -> bool {
        self.open.lock().remove_anonymous(peer, last_use).is_some()
    }

    /// Counts a use of an anonymous connection. Returns its number; `None`: its place was taken away.
    fn renew_anonymous(&self, peer: IpAddr, last_use: u64) -> Option<u64> {
        let mut open = self.open.lock();
        let standing = open.remove_anonymous(peer, last_use)?;
        Some(open.add_anonymous(peer, &standing))
    }

    /// Counts a call without an identity and returns the time until its turn.
    fn count_call(&self, peer: IpAddr) -> Duration {
        let mut open = self.open.lock();
        let of_peer = open.by_peer.entry(peer).or_default();
        of_peer.call_turns.take(self.call_turns, Instant::now())
    }

    /// Counts a watch without an identity. Returns false if there are as many as connections may be, of this address or
    /// in all.
    fn count_watch(&self, peer: IpAddr) -> bool {
        let mut open = self.open.lock();
        let is_full = open.watches >= self.max;
        let of_peer = open.by_peer.entry(peer).or_default();
        if is_full || of_peer.watches >= self.peer_max {
            return false;
        }
        of_peer.watches += 1;
        open.watches += 1;
        true
    }

    fn count_watch_end(&self, peer: IpAddr) {
        let mut open = self.open.lock();
        open.watches -= 1;
        if let Some(of_peer) = open.by_peer.get_mut(&peer) {
            of_peer.watches -= 1;
            open.forget(peer);
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

    /// Logs and counts that a limit is reached; a connection was displaced, or else the new one rejected.
    fn log_full(&self, peer: IpAddr, full: ReachedLimit, is_displaced: bool) {
        let (max, why) = match full {
            ReachedLimit::Port => (self.max, "too many connections"),
            ReachedLimit::Peer => (self.peer_max, "too many connections from one address"),
        };
        let port = self.port;
        if is_displaced {
            self.metrics.connection_refused(port, "displaced");
            const HOW: &str =
                "the one without an identity that is unused for the longest is closed";
            if let Some(passed) = self.log.allow(&[why, HOW]) {
                let suppressed = passed.suppressed();
                tracing::warn!(port, %peer, max, suppressed, "{why}: {HOW}");
            }
            return;
        }
        self.metrics.connection_refused(port, "rejected");
        if let Some(passed) = self.log.allow(&[why]) {
            let suppressed = passed.suppressed();
            tracing::warn!(port, %peer, max, suppressed, "connection rejected: {why}");
        }
    }
}

// === impl OpenCounts ===

impl OpenCounts {
    /// Takes away the place of the anonymous connection that is unused for the longest time, of this address if that has
    /// too many.
    fn displace(&mut self, full: ReachedLimit, peer: IpAddr) -> Option<Arc<Standing>> {
        let number = match full {
            ReachedLimit::Peer => self.by_peer.get(&peer)?.anonymous.first(),
            ReachedLimit::Port => self.anonymous.keys().next(),
        };
        let number = *number?;
        let (peer, _) = self.anonymous.get(&number)?;
        let peer = *peer;
        let standing = self.remove_anonymous(peer, number);
        self.count_closed(peer);
        standing
    }

    fn add_anonymous(&mut self, peer: IpAddr, standing: &Arc<Standing>) -> u64 {
        self.uses += 1;
        self.anonymous.insert(self.uses, (peer, Arc::clone(standing)));
        self.by_peer.entry(peer).or_default().anonymous.insert(self.uses);
        self.uses
    }

    fn remove_anonymous(&mut self, peer: IpAddr, last_use: u64) -> Option<Arc<Standing>> {
        let (_, standing) = self.anonymous.remove(&last_use)?;
        if let Some(of_peer) = self.by_peer.get_mut(&peer) {
            of_peer.anonymous.remove(&last_use);
        }
        Some(standing)
    }

    fn count_closed(&mut self, peer: IpAddr) {
        self.all -= 1;
        if let Some(of_peer) = self.by_peer.get_mut(&peer) {
            of_peer.open -= 1;
            self.forget(peer);
        }
    }

    /// Removes an address of which nothing has to be kept.
    fn forget(&mut self, peer: IpAddr) {
        if self.by_peer.get(&peer).is_some_and(|peer| peer.is_forgotten(Instant::now())) {
            self.by_peer.remove(&peer);
        }
    }
}

// === impl Peer ===

impl Peer {
    /// Returns whether nothing of it has to be kept.
    fn is_forgotten(&self, now: Instant) -> bool {
        let is_paid = self.turns.is_paid(now) && self.call_turns.is_paid(now);
        self.open == 0 && self.watches == 0 && is_paid
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
            self.violated();
        }
    }

    /// Counts a violation: the next connections from its address wait.
    pub(crate) fn violated(&self) {
        let (now, mut open) = (Instant::now(), self.connections.open.lock());
        let bounds = self.connections.turns;
        open.by_peer.entry(self.peer).or_default().turns.punish(bounds, now);
    }
}

// === impl ConnectionSlot ===

impl ConnectionSlot {
    /// Returns the standing of the connection.
    pub(crate) fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// Moves the connection to those of another port. Returns false, and leaves it where it is, if there all are taken.
    pub(crate) fn move_to(&self, connections: &Arc<Connections>) -> bool {
        connections.take(&self.standing, self.peer).is_some()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.standing.set_place(None);
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

    /// Returns a connection that has shown an identity.
    fn known(connections: &Arc<Connections>, peer: IpAddr) -> Option<ConnectionSlot> {
        let (slot, _) = connections.admit(peer)?;
        slot.standing().identify();
        Some(slot)
    }

    fn refused(connections: &Connections, peer: IpAddr) -> Option<ReachedLimit> {
        connections.count_opened(peer, &Arc::default()).err()
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_bounded_in_all_and_by_peer() {
        let connections = Connections::new("grpc", 3, 2, Metrics::new());
        let (a, b) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let held = [known(&connections, a), known(&connections, a)];
        assert!(held.iter().all(Option::is_some));
        assert_eq!(refused(&connections, a), Some(ReachedLimit::Peer));
        let of_b = known(&connections, b);
        assert_eq!((of_b.is_some(), refused(&connections, b)), (true, Some(ReachedLimit::Port)));
        drop(held);
        let again = [known(&connections, a), known(&connections, a)];
        assert!(again.iter().all(Option::is_some));
        drop((of_b, again));
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(connections.admit(a));
        tokio::time::advance(Duration::from_secs(1)).await;
        let open = connections.open.lock();
        let forgotten = |peer: &Peer| peer.is_forgotten(Instant::now());
        assert_eq!((open.all, open.by_peer.values().all(forgotten)), (0, true));
        assert!(open.anonymous.is_empty());
    }

    /// Connection whose task runs until its place is taken away.
    struct Held {
        slot: ConnectionSlot,
        task: tokio::task::JoinHandle<()>,
    }

    impl Held {
        fn admit(connections: &Arc<Connections>, peer: IpAddr) -> Option<Held> {
            let (slot, _) = connections.admit(peer)?;
            let task = tokio::spawn(std::future::pending());
            slot.standing().set_task(task.abort_handle());
            Some(Held { slot, task })
        }

        async fn is_open(&self) -> bool {
            // An aborted task has its turn before this one has several.
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
            !self.task.is_finished()
        }
    }

    /// For 0, 1, 2 and many connections that have shown an identity, the others are taken from those that have not, in the
    /// order of their last use, first of the same address; and the counts are exact afterwards.
    #[tokio::test(start_paused = true)]
    async fn a_full_port_takes_the_place_of_the_anonymous_connection_unused_for_the_longest() {
        let (a, b, c) = (ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3"));
        for identified in [0, 1, 2, 7] {
            let connections = Connections::new("grpc", 16, 10, Metrics::new());
            let of_a: Vec<_> = (0..10).map(|_| Held::admit(&connections, a).unwrap()).collect();
            let of_b: Vec<_> = (0..6).map(|_| Held::admit(&connections, b).unwrap()).collect();
            for held in &of_a[..identified] {
                held.slot.standing().identify();
            }
            let (first, second) = (&of_a[identified], &of_a[identified + 1]);
            first.slot.standing().touch();
            // The port is full: the one of all that is unused for the longest time.
            let one = Held::admit(&connections, c).unwrap();
            assert!(!second.is_open().await && first.is_open().await, "{identified}");
            // The address is full: its own, though one of another address is unused for longer.
            let more: Vec<_> = (0..4).map(|_| Held::admit(&connections, b).unwrap()).collect();
            let own = Held::admit(&connections, b).unwrap();
            assert!(!of_b[0].is_open().await, "{identified}");
            assert!(own.is_open().await && one.is_open().await, "{identified}");
            // Those with an identity stay, however many connect.
            let flood: Vec<_> = (0..100).filter_map(|_| Held::admit(&connections, c)).collect();
            assert_eq!(flood.len(), 100);
            for held in &of_a[..identified] {
                assert!(held.is_open().await, "{identified}");
            }
            assert_eq!(connections.open.lock().all, 16, "{identified}");
            let refused = connections.metrics.render();
            assert!(
                refused.contains(r#"reason="displaced""#)
                    && !refused.contains(r#"reason="rejected""#)
            );
            // A place that was taken away is freed once.
            drop((of_a, of_b, one, more, own, flood));
            let open = connections.open.lock();
            assert_eq!((open.all, open.anonymous.len()), (0, 0), "{identified}");
            assert!(open.by_peer.values().all(|peer| peer.open == 0 && peer.anonymous.is_empty()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_taken_away_before_the_task_begins_ends_it() {
        let connections = Connections::new("grpc", 1, 1, Metrics::new());
        let (first, _) = connections.admit(ip("10.0.0.1")).unwrap();
        let _second = connections.admit(ip("10.0.0.1")).unwrap();
        let task = tokio::spawn(std::future::pending::<()>());
        first.standing().set_task(task.abort_handle());
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_have_shown_an_identity_one_more_is_rejected() {
        let connections = Connections::new("grpc", 4, 2, Metrics::new());
        let peers = ["10.0.0.1", "10.0.0.2"].map(ip);
        let held: Vec<_> =
            peers.iter().flat_map(|peer| [0, 1].map(|_| known(&connections, *peer))).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(
            connections.admit(peers[0]).is_none() && connections.admit(ip("10.0.0.3")).is_none()
        );
        assert!(connections.metrics.render().contains(r#"reason="rejected"} 2"#));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_moved_to_those_of_another_port() {
        let metrics = Metrics::new();
        let (http, grpc) = (
            Connections::new("http", 1, 1, metrics.clone()),
            Connections::new("grpc", 1, 1, metrics),
        );
        let peer = ip("10.0.0.1");
        let (moved, _) = http.admit(peer).unwrap();
        assert!(moved.move_to(&grpc));
        assert_eq!((http.open.lock().all, grpc.open.lock().all), (0, 1));
        moved.standing().identify();
        let (next, _) = http.admit(peer).unwrap();
        assert!(!next.move_to(&grpc), "that one has shown an identity");
        assert_eq!((http.open.lock().all, grpc.open.lock().all), (1, 1));
        drop(moved);
        assert!(next.move_to(&grpc));
        assert_eq!((http.open.lock().all, grpc.open.lock().all), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn watches_are_bounded_like_connections() {
        let connections = Connections::new("grpc", 5, 3, Metrics::new());
        let slots = ["10.0.0.1", "10.0.0.2"].map(|peer| connections.admit(ip(peer)).unwrap().0);
        let watch = |n: usize| slots[n].standing().open_watch();
        let of_a: Vec<_> = (0..4).map_while(|_| watch(0)).collect();
        let of_b: Vec<_> = (0..4).map_while(|_| watch(1)).collect();
        assert_eq!((of_a.len(), of_b.len()), (3, 2));
        drop(of_a);
        assert!(watch(0).is_some());
        drop((of_b, slots));
        assert_eq!(connections.open.lock().watches, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn peers_without_connections_are_forgotten() {
        let connections = Connections::new("grpc", 10, 10, Metrics::new());
        for peer in 0..10_000_u32 {
            drop(connections.admit(IpAddr::V4(peer.into())));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let kept = connections.open.lock().by_peer.len();
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
        let connections = Connections::new("grpc", 1, 1, Metrics::new());
        let first = TcpStream::connect(address).await.unwrap();
        let (accepted, _) = connections.accept(&listener).await;
        accepted.slot.standing().identify();
        #[cfg(target_os = "linux")]
        {
            let stall = rustix::net::sockopt::tcp_user_timeout(&accepted.socket).unwrap();
            assert_eq!(u128::from(stall), WRITE_STALL_MAX.as_millis());
        }
        let mut second = TcpStream::connect(address).await.unwrap();
        let third = tokio::spawn(async move {
            let (next, _) = connections.accept(&listener).await;
            (next.peer, connections)
        });
        assert_eq!(second.read(&mut [0; 1]).await.unwrap_or(0), 0);
        drop((first, accepted));
        let socket = TcpStream::connect(address).await.unwrap();
        assert_eq!(third.await.unwrap().0, socket.local_addr().unwrap());
    }
}
