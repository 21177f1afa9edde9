//! Opens a store: the Redis is checked, and the subscriptions begin.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::domain::ShardName;
use crate::store::Identity;

use super::address::Address;
use super::hints::Hints;
use super::link::Link;
use super::route::Route;
use super::shard::Shard;
use super::turns::Turns;
use super::{CALLS_MAX, RedisStore, observe, wake_ups};

pub use super::check::OpenError;

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shard's name; a Redis that carries another one is refused.
    pub name: ShardName,
    /// The address of its Redis.
    pub address: Address,
    /// A clock of a test takes precedence over the clock of Redis; the system's does not.
    pub clock: Clock,
    /// Nonce of this replica, as in its claims, for the events of its leases.
    pub owner: u32,
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects, checks that this is the right Redis and a safe one, and subscribes. A Redis that does not answer
    /// yet is no error: calls fail until it does, see [`Store::condition`](crate::store::Store::condition).
    ///
    /// # Errors
    /// [`OpenError`], when it does not pass by itself; at most the shard's name has been written then.
    pub async fn open(config: Config) -> std::result::Result<RedisStore, OpenError> {
        let Config { name, address, clock, owner } = config;
        let route = Route::try_new(address.clone())?;
        let shard = Arc::new(Shard::new(name.clone(), owner, Link::new(route), clock));
        match shard.identify().await {
            Err(error) if error.is_certain() => return Err(error),
            Err(_awaited) => {}
            Ok(()) => observe::look(&shard).await,
        }
        let hints = Arc::new(Hints::new());
        let mut tasks = vec![
            wake_ups::listen(Arc::clone(&shard), Arc::clone(&hints)).await,
            observe::observe(Arc::clone(&shard), Arc::clone(&hints)),
        ];
        let sentinels = 0..shard.link.route().sentinels();
        tasks.extend(sentinels.map(|nth| wake_ups::follow(Arc::clone(&shard), nth)));
        Ok(RedisStore {
            identity: Identity { name, address: address.to_string(), is_shared: true },
            owner,
            turns: Turns::new(),
            calls: Semaphore::new(CALLS_MAX as usize),
            tasks: std::sync::Mutex::new(tasks),
            shard,
            hints,
        })
    }
}
