//! Connections. deadpool creates, checks and replaces them; calls use clones of a few that are held, because
//! taking one from the pool costs a round trip, and a clone shares its pipeline with all others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    AsyncConnectionConfig, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
};
use deadpool_redis::{Manager, Pool, Runtime};

use crate::domain::limit;
use crate::store::{Error, Result};

use super::fault;

/// An answer that takes longer is none. A script never takes as long, so by then Redis or the way to it
/// stands still.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long a held connection may take to prove that it is alive.
const CHECK_MAX: Duration = Duration::from_secs(1);
/// Data that is not acknowledged for so long breaks the connection.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What calls are made on.
pub(super) type Connection = MultiplexedConnection;

/// Which of the held connections a call goes by. Writes keep the order in which they are begun; claims do not
/// wait behind them; nor does either behind long reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Write,
    Claim,
    Read,
}

const LANES: usize = 3;

/// All connections to one Redis.
pub(super) struct Link {
    pool: Pool,
    lanes: [Held; LANES],
    /// By lane, whether its connection has to be tried before it is used again.
    suspects: Arc<[AtomicBool; LANES]>,
}

#[derive(Default)]
struct Held {
    connection: Mutex<Option<deadpool_redis::Connection>>,
    /// Held by whoever replaces the connection.
    replacing: tokio::sync::Mutex<()>,
}

// === impl Link ===

impl Link {
    /// A link to an address; nothing is connected yet.
    pub(super) fn new(info: ConnectionInfo) -> std::result::Result<Link, RedisError> {
        let suspects: Arc<[AtomicBool; LANES]> = Arc::default();
        // A disconnection is heard of at once, so that no call is sent into the void.
        let all = Arc::clone(&suspects);
        let hear = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                all.iter().for_each(|suspect| suspect.store(true, Ordering::Release));
            }
            Ok::<(), ()>(())
        };
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let tcp = tcp_settings(&info);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(ANSWER_MAX))
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_push_sender(hear);
        let pool = Pool::builder(Manager::new_with_config(info, config)?)
            .max_size(LANES + 1 + 2 * limit::CONFIRMED_CALLS_MAX)
            .wait_timeout(Some(CONNECT_MAX))
            .create_timeout(Some(2 * CONNECT_MAX))
            .recycle_timeout(Some(CHECK_MAX))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Link { pool, lanes: Default::default(), suspects })
    }

    /// A clone of the lane's connection. A new one is shown to `check` before anybody gets it.
    pub(super) async fn get(
        &self,
        lane: Lane,
        check: impl AsyncFnOnce(&mut Connection) -> Result<()>,
    ) -> Result<Connection> {
        if let Some(connection) = self.sound(lane) {
            return Ok(connection);
        }
        let held = &self.lanes[lane as usize];
        let _replacing = held.replacing.lock().await;
        // Somebody else may have replaced it meanwhile.
        if let Some(connection) = self.sound(lane) {
            return Ok(connection);
        }
        self.suspects[lane as usize].store(false, Ordering::Release);
        // Given back, it is tried when the pool hands it out again, or another is made.
        held.set(None);
        let pooled = self.pool.get().await.map_err(|error| fault::of_pool(&error))?;
        let mut connection = Connection::clone(&pooled);
        check(&mut connection).await?;
        held.set(Some(pooled));
        Ok(connection)
    }

    /// A connection for one caller alone, who may block it; given back when it is dropped.
    pub(super) async fn own(&self) -> Result<deadpool_redis::Connection> {
        self.pool.get().await.map_err(|error| fault::of_pool(&error))
    }

    /// The lane's connection, if there is no doubt about it.
    fn sound(&self, lane: Lane) -> Option<Connection> {
        if self.suspects[lane as usize].load(Ordering::Acquire) {
            return None;
        }
        let held = self.lanes[lane as usize].connection.lock();
        let held = held.unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|connection| Connection::clone(connection))
    }

    /// A call on the lane failed: its connection is tried before the next one uses it.
    pub(super) fn failed(&self, lane: Lane, error: &RedisError) {
        if fault::casts_doubt(error) {
            self.suspects[lane as usize].store(true, Ordering::Release);
        }
        if fault::leads_elsewhere(error) {
            // It is well, but not the primary any more: the address may stand for another by now.
            self.lanes[lane as usize].drop_connection();
        }
    }

    /// Lets go of all connections.
    pub(super) fn close(&self) {
        self.lanes.iter().for_each(|held| held.set(None));
        self.pool.close();
    }
}

/// Small writes go out at once; a peer that has gone silent is noticed.
pub(super) fn tcp_settings(info: &ConnectionInfo) -> deadpool_redis::redis::io::tcp::TcpSettings {
    let settings = info.tcp_settings().clone().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE_MAX);
    settings
}

// === impl Held ===

impl Held {
    /// Lets go of the connection without giving it back.
    fn drop_connection(&self) {
        let held = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held.map(deadpool_redis::Connection::take));
    }

    fn set(&self, connection: Option<deadpool_redis::Connection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}

impl From<Error> for super::OpenError {
    fn from(error: Error) -> super::OpenError {
        super::OpenError::Unreachable(error.to_string())
    }
}
