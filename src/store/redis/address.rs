//! Address of a Redis. Its text has no credentials.

use std::fmt;
use std::path::PathBuf;

use deadpool_redis::redis::RedisConnectionInfo;

use super::url::{self, InvalidAddress, RedisEndpoint};

/// Address of a Redis, and the login for it.
#[derive(Clone)]
pub struct RedisAddress {
    pub(super) endpoint: RedisEndpoint,
    /// Connections use TLS. Certificates are checked, host names too.
    pub(super) secure: bool,
    pub(super) tls: RedisTlsFiles,
    /// User, password and database.
    pub(super) login: RedisConnectionInfo,
    /// User and password for the sentinels.
    pub(super) sentinel_login: RedisConnectionInfo,
}

/// Files that `rediss` connections use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisTlsFiles {
    /// Certificates that sign those of the servers, instead of the system's (PEM).
    pub ca: Option<PathBuf>,
    /// Certificate and key of this client (PEM).
    pub client: Option<(PathBuf, PathBuf)>,
}

// === impl RedisAddress ===

impl RedisAddress {
    /// Checks a url of the schemes `redis`, `rediss`, `redis+unix`, `redis+sentinel` and
    /// `rediss+sentinel`. Users and passwords are percent-encoded.
    ///
    /// # Errors
    /// [`InvalidAddress`].
    pub fn try_new(url: &str) -> Result<RedisAddress, InvalidAddress> {
        let (endpoint, login, sentinel_login) = url::parse(url)?;
        let secure = url.starts_with("rediss");
        Ok(RedisAddress { endpoint, secure, tls: RedisTlsFiles::default(), login, sentinel_login })
    }

    /// Sets these files, if the address has one of the `rediss` schemes.
    #[must_use]
    pub fn with_tls(self, tls: &RedisTlsFiles) -> RedisAddress {
        let tls = if self.secure { tls.clone() } else { RedisTlsFiles::default() };
        RedisAddress { tls, ..self }
    }

    /// Returns whether the address has a user or a password, which its text does not show.
    #[must_use]
    pub fn has_credentials(&self) -> bool {
        self.credentials().iter().any(Option::is_some)
    }

    /// Returns whether its connections are encrypted.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns whether both are one database of one Redis, with any login or encryption. Host names are compared as
    /// they are written; aliases are found at start by the shard's name on the Redis.
    #[must_use]
    pub fn is_same_database(&self, other: &RedisAddress) -> bool {
        let is_same = match (&self.endpoint, &other.endpoint) {
            (
                RedisEndpoint::Sentinel { sentinels: a, primary: p },
                RedisEndpoint::Sentinel { sentinels: b, primary: q },
            ) => p == q && a.iter().any(|host| b.contains(host)),
            (a, b) => a == b,
        };
        is_same && self.login.db() == other.login.db()
    }

    fn credentials(&self) -> [Option<&str>; 4] {
        let RedisAddress { login, sentinel_login, .. } = self;
        [login.username(), login.password(), sentinel_login.username(), sentinel_login.password()]
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, db) = (if self.secure { "rediss" } else { "redis" }, self.login.db());
        match &self.endpoint {
            RedisEndpoint::Host(host) => write!(f, "{scheme}://{host}")?,
            RedisEndpoint::Socket(path) => write!(f, "redis+unix://{}", path.display())?,
            RedisEndpoint::Sentinel { sentinels, primary, .. } => {
                let hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
                write!(f, "{scheme}+sentinel://{}/{primary}", hosts.join(","))?;
            }
        }
        match (&self.endpoint, db) {
            (_, 0) => Ok(()),
            (RedisEndpoint::Socket(_), db) => write!(f, "?db={db}"),
            (_, db) => write!(f, "/{db}"),
        }
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl PartialEq for RedisAddress {
    fn eq(&self, other: &RedisAddress) -> bool {
        self.to_string() == other.to_string()
            && self.credentials() == other.credentials()
            && self.tls == other.tls
    }
}

impl Eq for RedisAddress {}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> RedisAddress {
        RedisAddress::try_new(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn an_address_shows_all_but_credentials() {
        for (url, shown) in [
            ("redis://u:secret@localhost:6380/2", "redis://localhost:6380/2"),
            ("redis://:secret@h", "redis://h:6379"),
            ("redis://[::1]:7000", "redis://[::1]:7000"),
            ("rediss://u:secret@h/1", "rediss://h:6379/1"),
            ("redis+unix:///tmp/r.sock?user=u&pass=secret", "redis+unix:///tmp/r.sock"),
            ("redis+unix:///tmp/r.sock?db=4", "redis+unix:///tmp/r.sock?db=4"),
            (
                "redis+sentinel://u:secret@a,b:7/main/3?sentinel_user=x&sentinel_password=secret",
                "redis+sentinel://a:26379,b:7/main/3",
            ),
            ("rediss+sentinel://a,[::1]/main", "rediss+sentinel://a:26379,[::1]:26379/main"),
        ] {
            let address = address(url);
            assert_eq!(address.to_string(), shown);
            assert!(!format!("{address:?}").contains("secret"));
            assert_eq!(address.is_secure(), url.starts_with("rediss"));
        }
    }

    #[test]
    fn users_and_passwords_are_decoded() {
        let password = Some("p:/?#@,%é");
        for url in [
            "redis://us%20er:p%3A%2F%3F%23%40%2C%25%C3%A9@h/5",
            "redis+unix:///s?user=us%20er&pass=p%3A%2F%3F%23%40%2C%25%C3%A9&db=5",
            "redis+sentinel://us%20er:p%3A%2F%3F%23%40%2C%25%C3%A9@h/main/5",
        ] {
            let login = address(url).login;
            assert_eq!(
                (login.username(), login.password(), login.db()),
                (Some("us er"), password, 5)
            );
        }
        let url = "redis+sentinel://h/main?sentinel_user=s&sentinel_password=a%26b";
        let login = address(url).sentinel_login;
        assert_eq!((login.username(), login.password()), (Some("s"), Some("a&b")));
    }

    #[test]
    fn same_database_ignores_login() {
        for (a, b, want) in [
            ("redis://h", "redis://u:p@h:6379/0", true),
            ("redis://h", "rediss://h", true),
            ("redis://h", "redis://h/1", false),
            ("redis://h", "redis://h:6380", false),
            ("redis+unix:///s", "redis+unix:///s?user=u&pass=p", true),
            ("redis+sentinel://a,b/main", "redis+sentinel://b,c/main", true),
            ("redis+sentinel://a,b/main", "redis+sentinel://a,b/other", false),
            ("redis+sentinel://a/main", "redis://a:26379", false),
        ] {
            assert_eq!(address(a).is_same_database(&address(b)), want, "{a} {b}");
        }
        assert!(address("redis://u:a@h") != address("redis://u:b@h"));
        assert!(address("redis://:a@h") == address("redis://default:a@h"));
    }
}
