//! Connections to one shard. deadpool-redis makes them, checks idle ones and lends those that a caller blocks. Calls
//! use clones of one held connection per lane: in a measurement with 64 callers, `Pool::get` for each command, which
//! pings, reduced 780,000 commands a second to 30,000.
//!
//! redis-rs's `ConnectionManager` keeps a connection whose replies time out, and sends calls on a new one before its
//! Redis is identified. So lanes are implemented here: a suspect connection is pinged before its next call, and a new
//! one is checked before its first call.
//!
//! A pool has the connections to one Redis; after a failover another pool replaces it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
};
use deadpool_redis::{Manager, Pool, Runtime};
use futures::TryFutureExt as _;
use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::limit;

use super::route::{self, RedisRoute};
use super::{RedisOpenError, error_mapping};

/// Response timeout. No script takes as long: Redis or the network is stalled.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of making a connection, and of waiting for a free one of the pool.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the ping of an idle connection.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a cancelled call makes its connection suspect: replies take milliseconds, and callers may have
/// shorter deadlines than [`RESPONSE_TIMEOUT`].
const SUSPECT_AFTER: Duration = Duration::from_millis(250);

/// Connection on which calls are made.
pub(super) type RedisConnection = MultiplexedConnection;

/// Held connection that a call uses. Writes keep the order in which they begin; claims do not wait for writes;
/// neither waits for long reads.
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
    /// Lock of each lane, held while its connection is verified or replaced.
    replacing: [tokio::sync::Mutex<()>; LANES],
    /// Number of times that all connections were replaced by connections to another Redis.
    redirects: watch::Sender<u64>,
}

#[derive(Default)]
struct ConnectionsState {
    /// Redis that is used.
    target: Option<RedisTarget>,
    lanes: [LaneConnection; LANES],
}

/// A Redis, and the pool of connections to it.
#[derive(Clone)]
struct RedisTarget {
    endpoint: ConnectionInfo,
    pool: Pool,
}

/// Connection of a lane.
#[derive(Default)]
struct LaneConnection {
    connection: Option<RedisConnection>,
    /// Number of reasons to ping the connection before its next call.
    suspicions: u64,
}

/// A call of a lane. A call that is dropped before its reply, but not at once, makes the connection suspect: calls
/// with short deadlines would use a dead connection for ever.
#[must_use = "a call that is dropped at once does not watch its connection"]
pub(super) struct PendingCall<'a> {
    link: &'a RedisConnections,
    lane: ConnectionLane,
    since: Instant,
    is_answered: bool,
}

// === impl RedisConnections ===

impl RedisConnections {
    /// Returns the connections of a route; none is made yet.
    pub(super) fn new(route: RedisRoute) -> RedisConnections {
        RedisConnections {
            route,
            state: Arc::default(),
            replacing: Default::default(),
            redirects: watch::Sender::new(0),
        }
    }

    /// Returns a clone of the lane's connection. A new connection has to pass `check` first.
    pub(super) async fn get(
        &self,
        lane: ConnectionLane,
        check: impl AsyncFnOnce(&mut RedisConnection) -> Result<(), RedisOpenError> + Clone,
    ) -> Result<RedisConnection, RedisOpenError> {
        if let (Some(connection), 0) = self.lane_connection(lane) {
            return Ok(connection);
        }
        let _replacing = self.replacing[lane as usize].lock().await;
        // Another caller may have replaced the connection.
        let (held, suspicions) = self.lane_connection(lane);
        let connection = match held {
            Some(connection) if suspicions == 0 => return Ok(connection),
            suspect => self.verify_or_replace(lane, suspect, check).await?,
        };
        // Suspicions that arose meanwhile stay.
        self.state.lock().lanes[lane as usize].suspicions -= suspicions;
        Ok(connection)
    }

    /// Returns the suspect connection, if it answers a ping, or a new one, whichever comes first. A dead connection
    /// then costs no time, and a slow Redis no connection.
    async fn verify_or_replace(
        &self,
        lane: ConnectionLane,
        suspect: Option<RedisConnection>,
        check: impl AsyncFnOnce(&mut RedisConnection) -> Result<(), RedisOpenError> + Clone,
    ) -> Result<RedisConnection, RedisOpenError> {
        // Idle connections may be dead, too, and a ping of each of them would take as long.
        if let Some(target) = &self.state.lock().target {
            target.pool.retain(|_, _| false);
        }
        let new = self.connect(Some(lane), check).map_ok(deadpool_redis::Connection::take);
        let Some(suspect) = suspect else { return new.await };
        match select(pin!(answers_ping(suspect.clone())), pin!(new)).await {
            Either::Left((true, _)) if self.holds(lane) => Ok(suspect),
            Either::Left((_, new)) => new.await,
            Either::Right((Ok(new), _)) => Ok(new),
            Either::Right((Err(error), answers)) => {
                if answers.await && self.holds(lane) {
                    return Ok(suspect);
                }
                self.state.lock().lanes[lane as usize].connection = None;
                Err(error)
            }
        }
    }

    /// Returns whether the lane still has its connection. A redirect takes it away: the Redis behind it may answer a
    /// ping, but is no longer the primary, and what it accepts is lost.
    fn holds(&self, lane: ConnectionLane) -> bool {
        self.state.lock().lanes[lane as usize].connection.is_some()
    }

    /// Takes a connection from the pool, to the first endpoint where it passes `check`, and makes it the lane's.
    /// Without a lane it is for one caller, which may block it, and returns to the pool when it is dropped.
    pub(super) async fn connect(
        &self,
        lane: Option<ConnectionLane>,
        check: impl AsyncFnOnce(&mut RedisConnection) -> Result<(), RedisOpenError> + Clone,
    ) -> Result<deadpool_redis::Connection, RedisOpenError> {
        let redirects = *self.redirects.borrow();
        let mut failure = None;
        for endpoint in self.endpoints(lane).await? {
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
        Err(failure.unwrap_or_else(|| error_mapping::unreachable_error("the url has no endpoint")))
    }

    /// Returns the endpoints to try. Without a lane it is the one in use: sentinels are not queried for every confirmed
    /// write, because events and [`RedisConnections::is_outdated`] notice a failover. While no sentinel answers, the
    /// endpoint in use stays.
    async fn endpoints(
        &self,
        lane: Option<ConnectionLane>,
    ) -> Result<Vec<ConnectionInfo>, RedisOpenError> {
        match (lane, self.endpoint()) {
            (None, Some(used)) => Ok(vec![used]),
            (_, used) => self.route.endpoints().await.or_else(|error| Ok(vec![used.ok_or(error)?])),
        }
    }

    /// Returns the target that is used, if it is this endpoint, or a new one. A new target is used once it has passed
    /// the check: while sentinels disagree, some endpoints are wrong.
    fn target(&self, endpoint: ConnectionInfo) -> Result<RedisTarget, RedisOpenError> {
        let used = self.state.lock().target.clone();
        if let Some(used) = used.filter(|used| used.endpoint.addr() == endpoint.addr()) {
            return Ok(used);
        }
        let pool = self.pool(endpoint.clone());
        let pool =
            pool.map_err(|error| error_mapping::unreachable_error(&error_mapping::text(&error)))?;
        Ok(RedisTarget { endpoint, pool })
    }

    /// Uses this target and drops the connections to another one. Rejected after a redirect since the endpoint was
    /// found: the primary may be another one by now.
    fn use_target(
        &self,
        new: RedisTarget,
        redirects: u64,
        lane: Option<ConnectionLane>,
        connection: RedisConnection,
    ) -> Result<(), RedisOpenError> {
        let mut state = self.state.lock();
        if *self.redirects.borrow() != redirects {
            let text = "another redis became the primary while connecting; retry";
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
                state.lock().lanes.iter_mut().for_each(|held| held.suspicions += 1);
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

    /// Begins a call on the lane.
    pub(super) fn begin(&self, lane: ConnectionLane) -> PendingCall<'_> {
        PendingCall { link: self, lane, since: Instant::now(), is_answered: false }
    }

    /// Records that a call on the lane failed.
    pub(super) fn failed(&self, lane: ConnectionLane, error: &RedisError) {
        if error.is_io_error() || error.is_unrecoverable_error() {
            self.suspect(lane);
        }
        // The check of the next connection names the missing rights, before another script fails half-way.
        if error_mapping::is_replica_error(error) || error_mapping::is_permission_error(error) {
            self.disconnect();
        }
    }

    fn suspect(&self, lane: ConnectionLane) {
        self.state.lock().lanes[lane as usize].suspicions += 1;
    }

    /// Drops all connections, so that the next one is checked: their Redis is no longer the primary, and its address
    /// may lead to another Redis by now, or a sentinel names another one; or their user has lost a right.
    pub(super) fn disconnect(&self) {
        self.drop_all(&mut self.state.lock());
    }

    fn drop_all(&self, state: &mut ConnectionsState) {
        if let Some(target) = state.target.take() {
            target.pool.close();
        }
        state.lanes.iter_mut().for_each(|held| held.connection = None);
        self.redirects.send_modify(|times| *times += 1);
    }

    /// Receiver of a number that changes with each redirect.
    pub(super) fn redirects(&self) -> watch::Receiver<u64> {
        self.redirects.subscribe()
    }

    /// Endpoint that is used.
    pub(super) fn endpoint(&self) -> Option<ConnectionInfo> {
        self.state.lock().target.as_ref().map(|target| target.endpoint.clone())
    }

    /// Returns whether sentinels agree on another primary than the one that is used: one of their events was lost.
    pub(super) async fn is_outdated(&self) -> bool {
        let used = self.endpoint().filter(|_| self.route.sentinels() > 0);
        let Some(used) = used else { return false };
        let agreed = self.route.agreed_endpoint().await;
        agreed.is_some_and(|agreed| agreed.addr() != used.addr())
    }

    pub(super) fn route(&self) -> &RedisRoute {
        &self.route
    }

    fn lane_connection(&self, lane: ConnectionLane) -> (Option<RedisConnection>, u64) {
        let held = &self.state.lock().lanes[lane as usize];
        (held.connection.clone(), held.suspicions)
    }
}

/// Returns whether Redis answers on this connection, within the time limit of any call.
async fn answers_ping(mut connection: RedisConnection) -> bool {
    redis::cmd("PING").exec_async(&mut connection).await.is_ok()
}

// === impl PendingCall ===

impl PendingCall<'_> {
    /// Ends the call after its reply or its error.
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
