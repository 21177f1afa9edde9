//! Checks a Redis before it is used: the right one, and a safe one. redis-rs checks the login only; a replica, an
//! evicting Redis and that of another shard accept it and lose or misroute jobs.

use crate::store::Error;

use super::error_mapping;
use super::url::SENTINEL_PORT;

/// Oldest Redis that has everything that scripts use.
const VERSION_MIN: [u32; 3] = [6, 2, 0];
/// Format of everything stored on a shard, as written there. Raised by a change that an earlier build cannot read.
pub(super) const FORMAT: i64 = 1;
/// Oldest format that this build reads as well; a shard that has it is marked with the newest.
pub(super) const FORMAT_MIN: i64 = 1;

/// Reason why a store cannot be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum RedisOpenError {
    /// No reply, or not yet.
    #[error("{0}")]
    Unreachable(String),
    /// The reply is not from a Redis.
    #[error(
        "the server does not use the redis protocol; check host and port, and write rediss:// \
         for a port with TLS"
    )]
    NotRedis,
    /// The port has no TLS.
    #[error("the server has no TLS; write redis in place of rediss, or give its TLS port")]
    NoTls,
    /// A sentinel, where the url has a Redis.
    #[error(
        "the server is a sentinel, not a redis; write redis+sentinel://host:port/PRIMARY with the name of the \
         primary that it watches, or give the address of that redis"
    )]
    Sentinel,
    /// A Redis, where the url has a sentinel.
    #[error(
        "{0} is a redis, not a sentinel; give its sentinels, which listen on {SENTINEL_PORT} as a rule, \
         or write redis://{0}"
    )]
    NotSentinel(String),
    /// User and password are rejected.
    #[error(
        "redis rejects the user and password of the url, or the user is disabled; correct them in the url, \
         percent-encoded"
    )]
    LoginRejected,
    /// A password is missing.
    #[error("redis requires a password and the url has none; write redis://[user]:password@host")]
    NoPassword,
    /// Any password is accepted.
    #[error(
        "the url has a password and redis requires none; set requirepass in redis, or leave the password out \
         of the url"
    )]
    NeedlessPassword,
    /// Connections from other machines are rejected.
    #[error(
        "the protected mode of redis rejects other machines; set a password in redis and give it in the url, \
         or turn protected-mode off in a closed network"
    )]
    ProtectedMode,
    /// The database is rejected: its number, and the reason of Redis.
    #[error(
        "redis rejects database {0}; choose another one in the url, or raise the redis setting databases"
    )]
    Database(String),
    /// The certificates cannot be used.
    #[error("the certificates cannot be used: {0}; check redis_ca, redis_cert and redis_key")]
    Tls(String),
    /// The version lacks commands that scripts use.
    #[error("redis {0} is too old; use 6.2 or newer")]
    TooOld(String),
    /// The eviction policy drops jobs when Redis is full.
    #[error(
        "the maxmemory-policy of redis is {0}, which drops jobs when memory runs out; \
         set maxmemory-policy to noeviction"
    )]
    EvictionPolicy(String),
    /// A replica takes no writes.
    #[error("redis is a read-only replica; give the address of its primary")]
    Replica,
    /// The user lacks rights that scripts need.
    #[error(
        "the redis user may not use {0} on keys and channels that begin with ringq:; \
         grant it with the ACL SETUSER command in docs/redis.md"
    )]
    MissingPermission(String),
    /// The Redis belongs to another shard.
    #[error(
        "redis belongs to shard {found}, not {asked}; a shard keeps its name for ever: \
         configure it as {found} or choose another redis or database"
    )]
    WrongShardName {
        /// Name of the shard that is stored on it.
        found: String,
        /// Configured name.
        asked: String,
    },
    /// A build from before the first release wrote the stored data.
    #[error(
        "the stored data has format {found}, this build reads {FORMAT_MIN} and newer ones; drain it with the build \
         that wrote it, then remove the field format of ringq:shard"
    )]
    Older {
        /// Format that is stored on the shard.
        found: i64,
    },
    /// A newer build wrote the stored data.
    #[error(
        "the stored data has format {found}, this build reads up to {FORMAT}; use a newer build"
    )]
    Newer {
        /// Format that is stored on the shard.
        found: i64,
    },
}

// === impl RedisOpenError ===

impl RedisOpenError {
    /// Returns whether the error lasts until a setting is changed. Others may pass without a change: a Redis that is
    /// not running yet, or that is loading.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        !matches!(self, RedisOpenError::Unreachable(_))
    }

    /// Returns the failure to report for several endpoints: one that may pass, if there is one.
    pub(super) fn prefer_transient(
        first: Option<RedisOpenError>,
        other: RedisOpenError,
    ) -> RedisOpenError {
        first.filter(|first| !first.is_permanent()).unwrap_or(other)
    }
}

impl From<Error> for RedisOpenError {
    fn from(error: Error) -> RedisOpenError {
        RedisOpenError::Unreachable(error.to_string())
    }
}

/// Returns the value of a field of INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

/// Returns the version that INFO contains: major, minor and patch.
pub(super) fn version(info: &str) -> [u32; 3] {
    let version = field(info, "redis_version").unwrap_or("0");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// Checks the INFO of a Redis; returns its major version.
pub(super) fn check(info: &str) -> std::result::Result<u32, RedisOpenError> {
    if is_sentinel(info) {
        return Err(RedisOpenError::Sentinel);
    }
    let version = version(info);
    if version < VERSION_MIN {
        let found = field(info, "redis_version").unwrap_or("0");
        return Err(RedisOpenError::TooOld(error_mapping::one_line(found)));
    }
    if is_replica(info) {
        return Err(RedisOpenError::Replica);
    }
    Ok(version[0])
}

/// Returns whether the INFO is from a sentinel.
pub(super) fn is_sentinel(info: &str) -> bool {
    field(info, "redis_mode") == Some("sentinel")
}

/// Returns whether the INFO is from a replica.
pub(super) fn is_replica(info: &str) -> bool {
    field(info, "role") == Some("slave")
}

/// Returns the eviction policy, if it drops jobs.
pub(super) fn evicts(info: &str) -> Option<String> {
    let policy = field(info, "maxmemory_policy").filter(|&policy| policy != "noeviction");
    policy.map(error_mapping::one_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn a_good_server_is_accepted_and_others_are_refused_with_advice() {
        assert_eq!(check(GOOD).unwrap(), 7);
        for (good, bad, want) in [
            ("7.0.15", "6.0.20", "use 6.2 or newer"),
            ("role:master", "role:slave", "address of its primary"),
            ("mode:standalone", "mode:sentinel", "write redis+sentinel://"),
        ] {
            let error = check(&GOOD.replace(good, bad)).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        assert_eq!(evicts(GOOD), None);
        let policy = evicts(&GOOD.replace("noeviction", "allkeys-lru")).unwrap();
        let error = RedisOpenError::EvictionPolicy(policy).to_string();
        assert!(error.contains("set maxmemory-policy to noeviction"), "{error}");
    }
}
