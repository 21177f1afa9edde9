//! Opens a store: checks the Redis, and begins the subscriptions.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::clock::Clock;
use crate::domain::ShardName;
use crate::store::ShardIdentity;

use super::address::RedisAddress;
use super::connections::RedisConnections;
use super::event_sender::RedisEventSender;
use super::job_locks::JobLocks;
use super::route::RedisRoute;
use super::shard::RedisShard;
use super::{RedisStore, durability_monitor, notifications};

pub use super::check::RedisOpenError;

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the shard; a Redis that has another name is rejected.
    pub name: ShardName,
    /// Address of its Redis.
    pub address: RedisAddress,
    /// Clock of a test, which takes precedence over the clock of Redis; the system's clock does not.
    pub clock: Clock,
    /// Nonce of this replica, as in its claims, for the events of its leases.
    pub owner: u32,
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects, checks that this is the right Redis and a safe one, and subscribes. A Redis that does not answer yet
    /// is no error: calls fail until it does, see [`Store::status`](crate::store::Store::status).
    ///
    /// # Errors
    /// [`RedisOpenError`], when it does not pass by itself; at most the shard's name has been written then.
    pub async fn open(config: Config) -> std::result::Result<RedisStore, RedisOpenError> {
        let Config { name, address, clock, owner } = config;
        let route = RedisRoute::try_new(address.clone())?;
        let shard =
            Arc::new(RedisShard::new(name.clone(), owner, RedisConnections::new(route), clock));
        match shard.identify().await {
            Err(error) if error.is_permanent() => return Err(error),
            Err(_awaited) => {}
            Ok(()) => durability_monitor::observe_once(&shard).await,
        }
        let hints = Arc::new(RedisEventSender::new());
        let mut tasks = vec![
            notifications::keep_subscribed(Arc::clone(&shard), Arc::clone(&hints)).await,
            durability_monitor::observe(Arc::clone(&shard), Arc::clone(&hints)),
        ];
        let sentinels = 0..shard.connections.route().sentinels();
        tasks.extend(sentinels.map(|nth| notifications::follow_sentinel(Arc::clone(&shard), nth)));
        Ok(RedisStore {
            identity: ShardIdentity { name, address: address.to_string(), is_shared: true },
            owner,
            job_locks: JobLocks::new(),
            tasks: parking_lot::Mutex::new(tasks),
            shard,
            events: hints,
            memory_usage_refused: AtomicBool::new(false),
        })
    }
}
