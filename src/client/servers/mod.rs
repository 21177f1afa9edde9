//! Calls to one of several servers that share their shards.
//!
//! ```text
//!   call ──▶ failover ──▶ choice: the first server of the client's order that serves
//!               │             ▲ state of each server
//!               └── link ─────┘ one task for each server: connects, watches its health, connects again
//! ```
//! - **Spread.** A client has an order of its own: the clients of a process begin at one server after the other, the
//!   first one at a random server. All calls of a client go to one server as long as that serves; a worker's acks
//!   free its credit without a message between servers then. While a stream is open, calls go to its server.
//! - **Failover.** A call that was surely not sent, or that a draining server refused, goes to the next server at
//!   once, within the same call. The error of a call that may have been executed is returned: the callers of this
//!   library have the rules for repeats, and a repeat uses another server.
//! - **Away.** A server that does not answer is tried again with growing pauses, by its own task: no call waits for
//!   it while another server serves. At the first call, the next server is tried when one has not answered within
//!   [`HEAD_START`]. Without any server, each call tries all of them at once and fails when all have failed.
//! - **Health.** Each connection watches `grpc.health.v1.Health`, as gRPC libraries of other languages can: a server
//!   that drains, has no shard or dies gets no new calls from that moment on. The watch also keeps pings going, by
//!   which a silent connection is found within [`KEEP_ALIVE`] twice. A proxy without that service counts as serving.
//!
//! `Channel::balance_list` of tonic (`tower::balance`) is not used: a server counts as ready there when its connection
//! failed, and while it is silent or drains. Measured with two servers: one of them dead, 23 of 60 calls failed with
//! "connection refused"; one that accepts connections and never answers, 5 of 10 calls had no answer in 7 s; one that
//! drains, 14 of 20 streams were refused. Here none failed, and a server that does not answer cost the first call 0.25 s.

mod choice;
mod failover;
mod link;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::TryFutureExt as _;
use futures::future::{BoxFuture, Either, ErrInto};
use rand::Rng as _;
use rand::seq::SliceRandom as _;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::codegen::{Service, StdError, http};
use tonic::transport::{Channel, Endpoint};

use crate::backoff::BackoffRange;

use choice::ServerState;
pub(super) use failover::RepeatNumber;

/// Timeout of connecting, and then of the TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a server has to answer at the first call before the next one is tried, too.
pub(super) const HEAD_START: Duration = Duration::from_millis(250);
/// Interval of pings on the connections of a client with several servers, and timeout of their answers.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Shortest and longest pause before a server that is away is tried again.
const RETRY_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(100), max: Duration::from_secs(10) };

/// Position at which the next client of this process begins.
static NEXT_START: LazyLock<AtomicUsize> =
    LazyLock::new(|| AtomicUsize::new(rand::rng().random_range(0..usize::MAX / 2)));

/// Connection of a client: to its only server, or to several.
#[derive(Clone, Debug)]
pub enum Connection {
    /// Connection to the only server: made at the first call, made again when it broke.
    One(Channel),
    /// Connections to several servers.
    Several(ServerPool),
}

/// Servers of a client. Clones share their connections, which end with the last clone.
#[derive(Clone)]
pub struct ServerPool(Arc<PoolTasks>);

/// Tasks of a pool, started by the calls that need them.
struct PoolTasks {
    pool: Arc<Pool>,
    links: Vec<OnceLock<AbortOnDropHandle<()>>>,
}

/// Servers, and their states.
struct Pool {
    servers: Vec<Server>,
    /// Indexes of the servers in the order in which this client uses them.
    order: Vec<usize>,
    states: watch::Sender<Vec<ServerState>>,
}

/// A server of a pool.
struct Server {
    url: String,
    endpoint: Endpoint,
    /// Asks the task of the server to look at its state at once.
    wake: Notify,
}

/// Server that answers a call; an extension of the response.
#[derive(Clone)]
pub(super) struct AnsweringServer {
    pool: Arc<Pool>,
    index: usize,
}

/// Keeps the calls of a client at one server, for as long as a stream to it is open.
pub(super) struct ServerPin(AnsweringServer);

// === impl Connection ===

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Body>;
    type Error = StdError;
    type Future = Either<
        ErrInto<<Channel as Service<http::Request<Body>>>::Future, StdError>,
        BoxFuture<'static, Result<http::Response<Body>, StdError>>,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        match self {
            Connection::One(channel) => channel.poll_ready(cx).map_err(Into::into),
            // Each call waits for a server itself.
            Connection::Several(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self {
            Connection::One(channel) => Either::Left(channel.call(request).err_into()),
            Connection::Several(pool) => Either::Right(Box::pin(pool.clone().call(request))),
        }
    }
}

// === impl ServerPool ===

impl ServerPool {
    /// Creates a pool; nothing is connected before the first call.
    pub(super) fn new(servers: Vec<(String, Endpoint)>) -> ServerPool {
        let count = servers.len();
        let start = NEXT_START.fetch_add(1, Ordering::Relaxed) % count.max(1);
        let mut order: Vec<usize> = (0..count).map(|n| (start + n) % count).collect();
        // The clients of a server that fails spread over the others.
        order[1..].shuffle(&mut rand::rng());
        let server = |(url, endpoint)| Server { url, endpoint, wake: Notify::new() };
        let states = watch::Sender::new(vec![ServerState::default(); count]);
        let servers = servers.into_iter().map(server).collect();
        let pool = Arc::new(Pool { servers, order, states });
        let links = (0..count).map(|_| OnceLock::new()).collect();
        ServerPool(Arc::new(PoolTasks { pool, links }))
    }

    /// Starts the task of a server, unless it runs.
    fn start(&self, index: usize) {
        self.0.links[index].get_or_init(|| {
            AbortOnDropHandle::new(tokio::spawn(link::run(Arc::clone(&self.0.pool), index)))
        });
    }
}

impl fmt::Debug for ServerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.pool.servers.iter().map(|server| &server.url)).finish()
    }
}

// === impl Pool ===

impl Pool {
    /// Changes the state of a server.
    fn update(&self, index: usize, change: impl FnOnce(&mut ServerState)) {
        self.states.send_modify(|states| change(&mut states[index]));
    }
}

// === impl AnsweringServer ===

impl AnsweringServer {
    /// Returns the URL of the server.
    pub(super) fn url(&self) -> &str {
        &self.pool.servers[self.index].url
    }

    /// Keeps the calls of the client at this server until the pin is dropped, or the server fails.
    pub(super) fn pin(self) -> ServerPin {
        self.pool.update(self.index, |state| state.streams += 1);
        ServerPin(self)
    }
}

// === impl ServerPin ===

impl ServerPin {
    /// Returns the URL of the server.
    pub(super) fn url(&self) -> &str {
        self.0.url()
    }

    /// Records that the stream was silent: calls go to other servers until this one answers a new connection.
    pub(super) fn suspect(&self) {
        self.0.pool.update(self.0.index, ServerState::set_standby);
        self.0.pool.servers[self.0.index].wake.notify_one();
    }
}

impl Drop for ServerPin {
    fn drop(&mut self) {
        self.0.pool.update(self.0.index, |state| state.streams = state.streams.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_of_a_process_begin_at_one_server_after_the_other() {
        let servers = || {
            ["http://a", "http://b", "http://c"]
                .map(|url| (url.to_owned(), Endpoint::from_static(url)))
                .to_vec()
        };
        let orders: Vec<_> =
            (0..300).map(|_| ServerPool::new(servers()).0.pool.order.clone()).collect();
        for index in 0..3 {
            let first = orders.iter().filter(|order| order[0] == index).count();
            // Tests of other modules may create clients meanwhile.
            assert!((90..=110).contains(&first), "{first} of 300 begin at {index}");
            let second = orders.iter().filter(|order| order[1] == index).count();
            assert!((50..=150).contains(&second), "{second} of 300 have {index} next");
        }
    }
}
