//! Before a Redis is used: whether it is the right one, and a safe one; and what its writes reach.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use deadpool_redis::redis::{
    self, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo as _,
};

use crate::clock::Clock;
use crate::domain::{Durability, ShardName};

use super::keys;
use super::link::{Connection, Lane, Link};
use super::script::Scripts;
use super::shard::Shard;

/// The oldest Redis that has everything scripts use.
const VERSION_MIN: (u32, u32) = (6, 2);
/// What is written on a shard about the form of everything else on it. Raised by a change that an earlier
/// build cannot read.
pub(super) const FORMAT: i64 = 1;

/// Where a Redis is, checked. What it shows holds no credentials.
#[derive(Clone)]
pub struct Address {
    info: ConnectionInfo,
}

/// The url names no Redis. It is not quoted: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the url is not written as redis://[user:password@]host[:port][/database]")]
pub struct InvalidAddress;

/// Why a store could not be opened. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nobody answers, or does not let us in.
    #[error("{0}; check that redis runs there and that user and password are right")]
    Unreachable(String),
    /// It lacks what scripts use.
    #[error("redis {0} is too old; use 6.2 or newer")]
    TooOld(String),
    /// It throws jobs away when it is full.
    #[error(
        "its maxmemory-policy is {0}, which drops jobs when memory runs out; \
         set maxmemory-policy to noeviction"
    )]
    Evicts(String),
    /// It cannot be written to.
    #[error("it is a read-only replica; give the address of its primary")]
    Replica,
    /// It belongs to another shard.
    #[error(
        "it is shard {found}, not {asked}; a shard keeps its name for ever: \
         configure it as {found} or choose another redis or database"
    )]
    OtherName {
        /// The name on it.
        found: String,
        /// The configured one.
        asked: String,
    },
    /// It was written by a newer version.
    #[error("what is stored has format {found}, this build knows {FORMAT}; use a newer build")]
    Newer {
        /// On the shard.
        found: i64,
    },
}

/// What a write reaches, as last observed.
pub(super) struct Reach(AtomicU8);

// === impl Address ===

impl Address {
    /// Checks a `redis://` url.
    ///
    /// # Errors
    /// [`InvalidAddress`].
    pub fn try_new(url: &str) -> std::result::Result<Address, InvalidAddress> {
        let info = url.into_connection_info().map_err(|_| InvalidAddress)?;
        match info.addr() {
            ConnectionAddr::Tcp(..) => Ok(Address { info }),
            _ => Err(InvalidAddress),
        }
    }

    /// How to connect.
    pub(super) fn info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis://{}", self.info.addr())?;
        match self.info.redis_settings().db() {
            0 => Ok(()),
            db => write!(f, "/{db}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Address) -> bool {
        let parts = |address: &Address| {
            let redis = address.info.redis_settings().clone();
            let user = redis.username().map(str::to_owned);
            (address.to_string(), user, redis.password().map(str::to_owned))
        };
        parts(self) == parts(other)
    }
}

impl Eq for Address {}

// === impl Reach ===

impl Reach {
    fn new(durability: Durability) -> Reach {
        let reach = Reach(AtomicU8::new(0));
        reach.set(durability);
        reach
    }

    pub(super) fn now(&self) -> Durability {
        if self.0.load(Ordering::Relaxed) == 0 { Durability::Memory } else { Durability::Fsynced }
    }

    pub(super) fn set(&self, durability: Durability) {
        self.0.store(u8::from(durability >= Durability::Fsynced), Ordering::Relaxed);
    }
}

/// The value of a field of INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

/// Connects and checks everything but the shard's name.
pub(super) async fn connect(
    name: &ShardName,
    address: &Address,
    clock: Clock,
    owner: u32,
) -> std::result::Result<(Shard, Reach), OpenError> {
    let unreachable = |error: redis::RedisError| OpenError::Unreachable(error.to_string());
    let link = Link::new(address.info()).map_err(unreachable)?;
    let mut connection = link.get(Lane::Write, async |_| Ok(())).await?;
    let info: String =
        redis::cmd("INFO").query_async(&mut connection).await.map_err(unreachable)?;
    let version = check(&info)?;
    let reach = Reach::new(durability(&mut connection, &info).await);
    let scripts = Scripts::new(keys::prefix(name), keys::caller(name, owner), version);
    Ok((Shard { link, scripts, name: name.clone(), clock }, reach))
}

/// Whether a Redis that says this of itself can be a shard; its major version.
fn check(info: &str) -> std::result::Result<u32, OpenError> {
    let version = field(info, "redis_version").unwrap_or("0");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) < VERSION_MIN {
        return Err(OpenError::TooOld(version.to_owned()));
    }
    if field(info, "role") == Some("slave") {
        return Err(OpenError::Replica);
    }
    match field(info, "maxmemory_policy") {
        Some(policy) if policy != "noeviction" => Err(OpenError::Evicts(policy.to_owned())),
        _ => Ok(major),
    }
}

/// What a write reaches by these settings. What cannot be read counts as memory.
///
/// This is the place for WAITAOF (since Redis 7.2): it can confirm more than settings promise, for the calls
/// that went down the same connection before it.
pub(super) async fn durability(connection: &mut Connection, info: &str) -> Durability {
    let mut settings = redis::cmd("CONFIG");
    settings.arg("GET").arg("*append*");
    let settings: Vec<(String, String)> = match settings.query_async(connection).await {
        Ok(settings) => pairs(settings),
        Err(_) => Vec::new(),
    };
    let setting = |name: &str| settings.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    let synced = field(info, "aof_enabled") == Some("1")
        && field(info, "aof_last_write_status") == Some("ok")
        && setting("appendfsync") == Some("always")
        && setting("no-appendfsync-on-rewrite") == Some("no");
    if synced { Durability::Fsynced } else { Durability::Memory }
}

fn pairs(value: redis::Value) -> Vec<(String, String)> {
    Vec::from_redis_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn a_good_server_is_taken_and_others_are_told_what_to_do() {
        assert_eq!(check(GOOD).unwrap(), 7);
        for (good, bad, want) in [
            ("7.0.15", "6.0.20", "use 6.2 or newer"),
            ("noeviction", "allkeys-lru", "set maxmemory-policy to noeviction"),
            ("role:master", "role:slave", "address of its primary"),
        ] {
            let error = check(&GOOD.replace(good, bad)).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn an_address_shows_no_password() {
        let address = Address::try_new("redis://user:secret@localhost:6380/2").unwrap();
        assert_eq!(address.to_string(), "redis://localhost:6380/2");
        assert!(!format!("{address:?}").contains("secret"));
        let other = Address::try_new("redis://user:other@localhost:6380/2").unwrap();
        assert!(address != other);
    }

    #[test]
    fn other_urls_are_refused() {
        for url in ["redis:", "redis://", "redis:///1", "redis://h/x", "unix:///tmp/x", "h:6379"] {
            assert_eq!(Address::try_new(url).err(), Some(InvalidAddress), "{url}");
        }
    }
}
