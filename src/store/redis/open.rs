//! Which Redis a store is on, and how it is opened: it is looked at, and its listeners begin.

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
use super::{CALLS_MAX, RedisStore, hear, observe};

pub use super::check::OpenError;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shard's name; a Redis that carries another one is refused.
    pub name: ShardName,
    /// Where it is.
    pub address: Address,
    /// Anything but the system's clock is a test's, and goes before the clock of Redis.
    pub clock: Clock,
    /// Nonce of this replica, as in its claims: what others make of its leases is heard.
    pub owner: u32,
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects, makes sure that this is the right Redis and a safe one, and begins to listen. A Redis that
    /// does not answer, or not yet, is no reason to fail: its calls do until it is there, see
    /// [`Store::condition`](crate::store::Store::condition).
    ///
    /// # Errors
    /// [`OpenError`], when it is not a matter of time; at most the shard's name has been written then.
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
            hear::listen(Arc::clone(&shard), Arc::clone(&hints)).await,
            observe::observe(Arc::clone(&shard), Arc::clone(&hints)),
        ];
        let sentinels = 0..shard.link.route().sentinels();
        tasks.extend(sentinels.map(|nth| hear::follow(Arc::clone(&shard), nth)));
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
