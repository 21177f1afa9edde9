//! Connections. deadpool creates, checks and replaces them; calls use clones of a few that are held, because
//! taking one from the pool costs a round trip, and a clone shares its pipeline with all others.
//!
//! Each pool leads to one Redis. When the route leads to another one (a failover), it is replaced.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
};
use deadpool_redis::{Manager, Pool, Runtime};
use futures::future::{Either, select};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::limit;

use super::route::{Route, answers_plainly};
use super::sentinel::is_sentinel;
use super::{OpenError, fault};

/// An answer that takes longer is none. A script never takes as long, so by then Redis or the way to it
/// stands still.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long an idle connection may take to prove that it is alive.
const CHECK_MAX: Duration = Duration::from_secs(1);
/// A call that was given up after so long says something about its connection: answers take milliseconds, and callers
/// may have little patience.
const GIVEN_UP_MIN: Duration = Duration::from_millis(250);

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

/// All connections to one shard.
pub(super) struct Link {
    route: Route,
    /// The Redis that was found last.
    target: Mutex<Option<Target>>,
    lanes: [Held; LANES],
    /// By lane, of its connection.
    doubts: Arc<[Doubts; LANES]>,
    /// How often connections were let go of because they led to the wrong Redis.
    left: watch::Sender<u64>,
}

/// One Redis, and the connections to it.
#[derive(Clone)]
struct Target {
    way: ConnectionInfo,
    pool: Pool,
}

/// Reasons to try a connection before it is used again, counted. A try that finds an answering connection settles those
/// that were raised before it; one that is dropped or fails settles none.
#[derive(Default)]
struct Doubts {
    raised: AtomicU64,
    settled: AtomicU64,
}

/// A call of a lane under way. Dropped without its answer after a while, its connection is tried before the next call
/// uses it: whoever gave it up has less patience than the connection, and would go on asking one that is dead.
#[must_use = "a call that is dropped at once was never under way"]
pub(super) struct UnderWay {
    doubts: Arc<[Doubts; LANES]>,
    lane: Lane,
    since: Instant,
    answered: bool,
}

#[derive(Default)]
struct Held {
    connection: Mutex<Option<deadpool_redis::Connection>>,
    /// Held by whoever replaces the connection.
    replacing: tokio::sync::Mutex<()>,
}

// === impl Link ===

impl Link {
    /// A link by a route; nothing is connected yet.
    pub(super) fn new(route: Route) -> Link {
        Link {
            route,
            target: Mutex::default(),
            lanes: Default::default(),
            doubts: Arc::default(),
            left: watch::Sender::new(0),
        }
    }

    /// A clone of the lane's connection. A new one is shown to `check` before anybody gets it.
    pub(super) async fn get(
        &self,
        lane: Lane,
        check: impl AsyncFnOnce(&mut Connection) -> Result<(), OpenError> + Clone,
    ) -> Result<Connection, OpenError> {
        if let Some(connection) = self.sound(lane) {
            return Ok(connection);
        }
        let held = &self.lanes[lane as usize];
        let _replacing = held.replacing.lock().await;
        // Somebody else may have replaced it meanwhile.
        if let Some(connection) = self.sound(lane) {
            return Ok(connection);
        }
        let doubts = &self.doubts[lane as usize];
        let raised = doubts.raised();
        let connection = self.prove_or_replace(held, check).await?;
        doubts.settle(raised);
        Ok(connection)
    }

    /// The connection that the lane holds, if it answers, or else a new one, whichever comes first: it may be dead, and
    /// then a new one is made at once; or Redis is slow, and then a new one takes as long and may be given up sooner.
    async fn prove_or_replace(
        &self,
        held: &Held,
        check: impl AsyncFnOnce(&mut Connection) -> Result<(), OpenError> + Clone,
    ) -> Result<Connection, OpenError> {
        let Some(old) = held.get() else { return self.replace(held, check).await };
        let (answers, replaced) = (pin!(answers(old.clone())), pin!(self.replace(held, check)));
        match select(answers, replaced).await {
            Either::Left((true, _)) => Ok(old),
            Either::Left((false, replaced)) => replaced.await,
            Either::Right((Ok(new), _)) => Ok(new),
            Either::Right((Err(error), answers)) => {
                if answers.await {
                    return Ok(old);
                }
                held.drop_connection();
                Err(error)
            }
        }
    }

    /// A new connection for the lane.
    async fn replace(
        &self,
        held: &Held,
        check: impl AsyncFnOnce(&mut Connection) -> Result<(), OpenError> + Clone,
    ) -> Result<Connection, OpenError> {
        // What is idle may be as dead as the one before, and to try each of them would take as long.
        if let Some(target) = self.target().as_ref() {
            target.pool.retain(|_, _| false);
        }
        let times = *self.left.borrow();
        let mut failure = None;
        for way in self.route.ways().await? {
            match self.try_way(way.clone(), times, check.clone()).await {
                Ok(pooled) => return self.hold(held, &way, pooled),
                Err(error) => failure = Some(OpenError::likelier(failure, error)),
            }
        }
        Err(failure.unwrap_or_else(nowhere))
    }

    /// A lane has this connection from now on; not so when that way was left meanwhile.
    fn hold(
        &self,
        held: &Held,
        way: &ConnectionInfo,
        pooled: deadpool_redis::Connection,
    ) -> Result<Connection, OpenError> {
        // Who leaves it lets go of what lanes hold under the same lock.
        let target = self.target();
        if target.as_ref().is_some_and(|target| target.leads(way)) {
            let connection = Connection::clone(&pooled);
            held.drop_connection();
            held.set(Some(pooled));
            return Ok(connection);
        }
        drop(deadpool_redis::Connection::take(pooled));
        Err(OpenError::Unreachable("another redis became the primary meanwhile".to_owned()))
    }

    /// A connection for one caller alone, who may block it; given back when it is dropped. It is shown to
    /// `check` each time.
    pub(super) async fn own(
        &self,
        check: impl AsyncFnOnce(&mut Connection) -> Result<(), OpenError> + Clone,
    ) -> Result<deadpool_redis::Connection, OpenError> {
        let times = *self.left.borrow();
        let mut failure = None;
        for way in self.route.ways().await? {
            match self.try_way(way, times, check.clone()).await {
                Err(error) => failure = Some(OpenError::likelier(failure, error)),
                made => return made,
            }
        }
        Err(failure.unwrap_or_else(nowhere))
    }

    /// A connection by this way, if it passes the check. Only then others follow it: while sentinels
    /// disagree, ways are tried that lead nowhere.
    async fn try_way(
        &self,
        way: ConnectionInfo,
        times: u64,
        check: impl AsyncFnOnce(&mut Connection) -> Result<(), OpenError>,
    ) -> Result<deadpool_redis::Connection, OpenError> {
        let unreachable = |error: RedisError| OpenError::Unreachable(fault::in_words(&error));
        let known = self.target().as_ref().filter(|target| target.leads(&way)).cloned();
        let target = match known {
            Some(target) => target,
            None => Target { pool: self.pool(way.clone()).map_err(unreachable)?, way },
        };
        let pooled = match target.pool.get().await {
            Ok(pooled) => pooled,
            Err(error) if fault::is_silence(&error) && answers_plainly(target.way.addr()).await => {
                return Err(OpenError::NoTls);
            }
            Err(error) => {
                let refused = fault::of_pool(&error, &target.way);
                let is_sentinel = is_sentinel(&target.way, &refused).await;
                return Err(if is_sentinel { OpenError::Sentinel } else { refused });
            }
        };
        let checked = check(&mut Connection::clone(&pooled)).await;
        if let Err(error) = checked {
            // A Redis that is wrong or not ready yet is asked anew, on a new connection.
            drop(deadpool_redis::Connection::take(pooled));
            return Err(error);
        }
        if !self.follow(target, times) {
            drop(deadpool_redis::Connection::take(pooled));
            let text = "another redis became the primary meanwhile";
            return Err(OpenError::Unreachable(text.to_owned()));
        }
        Ok(pooled)
    }

    /// From now on connections lead there. What is held of another one is let go of. Not so when others
    /// were let go of since `times`: whoever found this way may not have heard why.
    fn follow(&self, new: Target, times: u64) -> bool {
        let mut target = self.target();
        if *self.left.borrow() != times {
            return false;
        }
        let is_other = target.as_ref().is_some_and(|old| !old.leads(&new.way));
        if is_other {
            self.let_go(target.take());
        }
        target.get_or_insert(new);
        true
    }

    fn pool(&self, way: ConnectionInfo) -> Result<Pool, RedisError> {
        // A disconnection is heard of at once, so that no call is sent into the void.
        let all = Arc::clone(&self.doubts);
        let hear = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                all.iter().for_each(Doubts::raise);
            }
            Ok::<(), ()>(())
        };
        let login = way.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(ANSWER_MAX))
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_push_sender(hear);
        Pool::builder(Manager::new_with_config(way.set_redis_settings(login), config)?)
            .max_size(2 * LANES + 1 + 2 * limit::CONFIRMED_CALLS_MAX)
            .wait_timeout(Some(CONNECT_MAX))
            .create_timeout(Some(2 * CONNECT_MAX))
            .recycle_timeout(Some(CHECK_MAX))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| std::io::Error::other(error.to_string()).into())
    }

    /// The lane's connection, if there is no doubt about it.
    fn sound(&self, lane: Lane) -> Option<Connection> {
        if self.doubts[lane as usize].are_open() {
            return None;
        }
        self.lanes[lane as usize].get()
    }

    /// A call on the lane begins.
    pub(super) fn begin(&self, lane: Lane) -> UnderWay {
        let doubts = Arc::clone(&self.doubts);
        UnderWay { doubts, lane, since: Instant::now(), answered: false }
    }

    /// A call on the lane failed: its connection is tried before the next one uses it.
    pub(super) fn failed(&self, lane: Lane, error: &RedisError) {
        if fault::casts_doubt(error) {
            self.doubts[lane as usize].raise();
        }
        if fault::leads_elsewhere(error) {
            self.leave();
        }
    }

    /// Lets go of connections that are well but lead to the wrong Redis, which is no primary any more: by
    /// now the address may stand for another, or a sentinel name another.
    pub(super) fn leave(&self) {
        let mut target = self.target();
        self.let_go(target.take());
    }

    fn let_go(&self, target: Option<Target>) {
        if let Some(target) = target {
            target.pool.close();
        }
        self.lanes.iter().for_each(Held::drop_connection);
        self.left.send_modify(|times| *times += 1);
    }

    /// Changes whenever the connections were let go of for another Redis.
    pub(super) fn left(&self) -> watch::Receiver<u64> {
        self.left.subscribe()
    }

    /// By which way the last connection was made.
    pub(super) fn way(&self) -> Option<ConnectionInfo> {
        self.target().as_ref().map(|target| target.way.clone())
    }

    /// Whether sentinels agree on another primary than the one that is used: the news of it was missed.
    pub(super) async fn is_astray(&self) -> bool {
        if !self.route.asks_sentinels() {
            return false;
        }
        match (self.way(), self.route.ways().await.as_deref()) {
            (Some(used), Ok([named])) => used.addr() != named.addr(),
            _ => false,
        }
    }

    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    /// Lets go of all connections.
    pub(super) fn close(&self) {
        self.lanes.iter().for_each(|held| held.set(None));
        if let Some(target) = self.target().as_ref() {
            target.pool.close();
        }
    }

    fn target(&self) -> MutexGuard<'_, Option<Target>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether Redis answers on this connection, within the time that any call has.
async fn answers(mut connection: Connection) -> bool {
    redis::cmd("PING").exec_async(&mut connection).await.is_ok()
}

fn nowhere() -> OpenError {
    OpenError::Unreachable("no sentinel knows a way".to_owned())
}

// === impl Doubts ===

impl Doubts {
    fn raise(&self) {
        self.raised.fetch_add(1, Ordering::Release);
    }

    fn raised(&self) -> u64 {
        self.raised.load(Ordering::Acquire)
    }

    fn are_open(&self) -> bool {
        self.raised() != self.settled.load(Ordering::Acquire)
    }

    /// Those that had been raised by then are settled.
    fn settle(&self, raised: u64) {
        self.settled.store(raised, Ordering::Release);
    }
}

// === impl UnderWay ===

impl UnderWay {
    /// There is an answer, or an error that tells as much.
    pub(super) fn end(mut self) {
        self.answered = true;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.answered && self.since.elapsed() >= GIVEN_UP_MIN {
            self.doubts[self.lane as usize].raise();
        }
    }
}

// === impl Target ===

impl Target {
    /// Whether that way leads there.
    fn leads(&self, way: &ConnectionInfo) -> bool {
        self.way.addr() == way.addr()
    }
}

// === impl Held ===

impl Held {
    fn get(&self) -> Option<Connection> {
        let held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|connection| Connection::clone(connection))
    }

    /// Lets go of the connection without giving it back.
    fn drop_connection(&self) {
        let held = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held.map(deadpool_redis::Connection::take));
    }

    fn set(&self, connection: Option<deadpool_redis::Connection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}
