//! Connections to one shard. deadpool-redis makes them, checks idle ones and lends those that a caller blocks. Calls use
//! clones of one held connection per lane: measured with 64 callers, `Pool::get` for each command, which pings, leaves
//! 30,000 commands a second of 780,000.
//!
//! redis-rs's `ConnectionManager` keeps a connection whose answers time out, and sends calls on a new one before it
//! is known which Redis that is. So lanes are ours: a suspect connection is pinged before its next call, and a
//! new one is checked before its first.
//!
//! A pool has the connections to one Redis; after a failover another pool replaces it.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
};
use deadpool_redis::{Manager, Pool, Runtime};
use futures::TryFutureExt as _;
use futures::future::{Either, select};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::limit;

use super::route::{self, RedisRoute};
use super::{RedisOpenError, error_mapping};

/// Response timeout. No script takes as long: Redis or the network stands still.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of making a connection, and of waiting for a free one of the pool.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the ping of an idle connection.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// A call that is cancelled after so long makes its connection suspect: answers take milliseconds, and callers
/// may have shorter deadlines than [`ANSWER_MAX`].
const SUSPECT_AFTER: Duration = Duration::from_millis(250);

/// Calls are made on this.
pub(super) type RedisConnection = MultiplexedConnection;

/// The held connection that a call uses. Writes keep the order in which they begin; claims do not
/// wait behind them; nor does either behind long reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionLane {
    Write,
    Claim,
    Read,
}

const LANES: usize = 3;

/// All connections to one shard.
pub(super) struct RedisConnections {
    route: RedisRoute,
    state: Arc<Mutex<ConnectionsState>>,
    /// Of each lane, held while its connection is verified or replaced.
    replacing: [tokio::sync::Mutex<()>; LANES],
    /// How often all connections were dropped for those to another Redis.
    redirects: watch::Sender<u64>,
}

#[derive(Default)]
struct ConnectionsState {
    /// The Redis that is used.
    target: Option<RedisTarget>,
    lanes: [LaneConnection; LANES],
}

/// One Redis, and the pool of connections to it.
#[derive(Clone)]
struct RedisTarget {
    endpoint: ConnectionInfo,
    pool: Pool,
}

/// The connection of a lane.
#[derive(Default)]
struct LaneConnection {
    connection: Option<RedisConnection>,
    /// The number of reasons to ping the connection before its next call.
    suspicions: u64,
}

/// A call of a lane. Dropped before its answer, but after a while, it makes the connection suspect: calls with short
/// deadlines would use a dead one for ever.
#[must_use = "a call that is dropped at once does not watch its connection"]
pub(super) struct PendingCall<'a> {
    link: &'a RedisConnections,
    lane: ConnectionLane,
    since: Instant,
    is_answered: bool,
}

// === impl Link ===

impl RedisConnections {
    /// A link by a route; nothing is connected yet.
    pub(super) fn new(route: RedisRoute) -> RedisConnections {
        RedisConnections {
            route,
            state: Arc::default(),
            replacing: Default::default(),
            redirects: watch::Sender::new(0),
        }
    }

    /// A clone of the lane's connection. A new one has to pass `check` first.
    pub(super) async fn get(
        &self,
        lane: ConnectionLane,
        check: impl AsyncFnOnce(&mut RedisConnection) -> Result<(), RedisOpenError> + Clone,
    ) -> Result<RedisConnection, RedisOpenError> {
        if let (Some(connection), 0) = self.lane_connection(lane) {
            return Ok(connection);
        }
        let _replacing = self.replacing[lane as usize].lock().await;
        // Another caller may have replaced it.
        let (held, suspicions) = self.lane_connection(lane);
        let connection = match held {
            Some(connection) if suspicions == 0 => return Ok(connection),
            suspect => self.verify_or_replace(lane, suspect, check).await?,
        };
        // Those that came up meanwhile stay.
        self.state().lanes[lane as usize].suspicions -= suspicions;
        Ok(connection)
    }

    /// The suspect connection, if it answers a ping, or a new one, whichever comes first. A dead connection
    /// costs no time by that, and a slow Redis no connection.
    async fn verify_or_replace(
        &self,
        lane: ConnectionLane,
        suspect: Option<RedisConnection>,
        check: impl AsyncFnOnce(&mut RedisConnection) -> Result<(), RedisOpenError> + Clone,
    ) -> Result<RedisConnection, RedisOpenError> {
        // Idle connections may be as dead, and to ping each of them would take as long.
        if let Some(target) = &self.state().target {
            target.pool.retain(|_, _| false);
        }
        let new = self.connect(Some(lane), check).map_ok(deadpool_redis::Connection::take);
        let Some(suspect) = suspect else { return new.await };
        match select(pin!(answers_ping(suspect.clone())), pin!(new)).await {
            Either::Left((true, _)) => Ok(suspect),
            Either::Left((false, new)) => new.await,
            Either::Right((Ok(new), _)) => Ok(new),
            Either::Right((Err(error), answers)) => {
                if answers.await {
                    return Ok(suspect);
                }
                self.state().lanes[lane as usize].connection = None;
                Err(error)
            }
        }
    }

    /// A connection of the pool, to the first endpoint where it passes `check`. It is the lane's from now on. Without a
    /// lane it is for one caller, which may block it, and goes back to the pool when it is dropped.
    pub(super) async fn connect(
        &self,
        lane: Option<ConnectionLane>,
        check: impl AsyncFnOnce(&mut RedisConnection) -> Result<(), RedisOpenError> + Clone,
    ) -> Result<deadpool_redis::Connection, RedisOpenError> {
        let redirects = *self.redirects.borrow();
        let mut failure = None;
        for endpoint in self.route.endpoints().await? {
            let target = self.target(endpoint)?;
            let pooled = match target.pool.get().await {
                Ok(pooled) => pooled,
                Err(error) => {
                    let error = route::connect_refusal(&error, &target.endpoint).await;
                    failure = Some(RedisOpenError::prefer_transient(failure, error));
                    continue;
                }
            };
            let mut connection = RedisConnection::clone(&pooled);
            let checked = check.clone()(&mut connection).await;
            match checked.and_then(|()| self.use_target(target, redirects, lane, connection)) {
                Ok(()) => return Ok(pooled),
                Err(error) => failure = Some(RedisOpenError::prefer_transient(failure, error)),
            }
            // A Redis that is wrong or not ready yet is checked again on a new connection.
            drop(deadpool_redis::Connection::take(pooled));
        }
        Err(failure.unwrap_or_else(|| error_mapping::unreachable_error("it has no endpoint")))
    }

    /// The target that is used, if it is this endpoint, or a new one. A new one is used once it has passed the check:
    /// while sentinels disagree, some endpoints are wrong.
    fn target(&self, endpoint: ConnectionInfo) -> Result<RedisTarget, RedisOpenError> {
        let used = self.state().target.clone();
        if let Some(used) = used.filter(|used| used.endpoint.addr() == endpoint.addr()) {
            return Ok(used);
        }
        let pool = self.pool(endpoint.clone());
        let pool =
            pool.map_err(|error| error_mapping::unreachable_error(&error_mapping::text(&error)))?;
        Ok(RedisTarget { endpoint, pool })
    }

    /// Uses this target and drops the connections to another one. Refused after a redirect since the endpoint was
    /// found: the primary may be another one by now.
    fn use_target(
        &self,
        new: RedisTarget,
        redirects: u64,
        lane: Option<ConnectionLane>,
        connection: RedisConnection,
    ) -> Result<(), RedisOpenError> {
        let mut state = self.state();
        if *self.redirects.borrow() != redirects {
            let text = "another redis became the primary meanwhile";
            return Err(RedisOpenError::Unreachable(text.to_owned()));
        }
        let used = state.target.as_ref();
        if used.is_some_and(|used| used.endpoint.addr() != new.endpoint.addr()) {
            self.drop_all(&mut state);
        }
        state.target.get_or_insert(new);
        if let Some(lane) = lane {
            state.lanes[lane as usize].connection = Some(connection);
        }
        Ok(())
    }

    fn pool(&self, endpoint: ConnectionInfo) -> Result<Pool, RedisError> {
        // After a disconnect no call is sent on a dead connection.
        let state = Arc::downgrade(&self.state);
        let on_push = move |push: PushInfo| {
            if let (PushKind::Disconnection, Some(state)) = (push.kind, state.upgrade()) {
                lock_state(&state).lanes.iter_mut().for_each(|held| held.suspicions += 1);
            }
            Ok::<(), ()>(())
        };
        let login = endpoint.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_push_sender(on_push);
        Pool::builder(Manager::new_with_config(endpoint.set_redis_settings(login), config)?)
            .max_size(LANES + 1 + 2 * limit::CONFIRMED_CALLS_MAX)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(PING_TIMEOUT))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| std::io::Error::other(error.to_string()).into())
    }

    /// A call on the lane begins.
    pub(super) fn begin(&self, lane: ConnectionLane) -> PendingCall<'_> {
        PendingCall { link: self, lane, since: Instant::now(), is_answered: false }
    }

    /// A call on the lane failed.
    pub(super) fn failed(&self, lane: ConnectionLane, error: &RedisError) {
        if error.is_io_error() || error.is_unrecoverable_error() {
            self.suspect(lane);
        }
        if error_mapping::is_replica_error(error) {
            self.disconnect();
        }
    }

    fn suspect(&self, lane: ConnectionLane) {
        self.state().lanes[lane as usize].suspicions += 1;
    }

    /// Drops all connections, because their Redis is no longer the primary: its address may stand for another
    /// one by now, or a sentinel names another.
    pub(super) fn disconnect(&self) {
        self.drop_all(&mut self.state());
    }

    fn drop_all(&self, state: &mut ConnectionsState) {
        if let Some(target) = state.target.take() {
            target.pool.close();
        }
        state.lanes.iter_mut().for_each(|held| held.connection = None);
        self.redirects.send_modify(|times| *times += 1);
    }

    /// Changes with each redirect.
    pub(super) fn redirects(&self) -> watch::Receiver<u64> {
        self.redirects.subscribe()
    }

    /// The endpoint that is used.
    pub(super) fn endpoint(&self) -> Option<ConnectionInfo> {
        self.state().target.as_ref().map(|target| target.endpoint.clone())
    }

    /// Whether sentinels agree on another primary than the one that is used: an event of them was lost.
    pub(super) async fn is_outdated(&self) -> bool {
        let used = self.endpoint().filter(|_| self.route.sentinels() > 0);
        let Some(used) = used else { return false };
        let named = self.route.endpoints().await;
        matches!(named.as_deref(), Ok([named]) if named.addr() != used.addr())
    }

    pub(super) fn route(&self) -> &RedisRoute {
        &self.route
    }

    fn lane_connection(&self, lane: ConnectionLane) -> (Option<RedisConnection>, u64) {
        let held = &self.state().lanes[lane as usize];
        (held.connection.clone(), held.suspicions)
    }

    fn state(&self) -> MutexGuard<'_, ConnectionsState> {
        lock_state(&self.state)
    }
}

fn lock_state(state: &Mutex<ConnectionsState>) -> MutexGuard<'_, ConnectionsState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether Redis answers on this connection, within the time limit of any call.
async fn answers_ping(mut connection: RedisConnection) -> bool {
    redis::cmd("PING").exec_async(&mut connection).await.is_ok()
}

// === impl PendingCall ===

impl PendingCall<'_> {
    /// The call has its answer or its error.
    pub(super) fn end(mut self) {
        self.is_answered = true;
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if !self.is_answered && self.since.elapsed() >= SUSPECT_AFTER {
            self.link.suspect(self.lane);
        }
    }
}
