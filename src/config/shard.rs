//! A shard as configured: `NAME=URL`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::domain::ShardName;
use crate::store::redis::Address;

/// What [`ShardUrl::try_new`] takes.
const ACCEPTED: &str = "use sqlite:PATH, sqlite::memory: or redis://HOST:PORT";

/// A shard's name and where it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// 1 to 8 of `[a-z0-9]`; written on the shard at first contact, never reused.
    pub name: ShardName,
    /// Where it lives; the scheme picks the store.
    pub url: ShardUrl,
}

/// Where a shard lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardUrl {
    /// `sqlite:PATH`: a file, made at start if missing.
    SqliteFile(PathBuf),
    /// `sqlite::memory:`: nothing outlives the process.
    SqliteMemory,
    /// `redis://[user:password@]host[:port][/database]`: a plain Redis.
    Redis(Address),
}

// === impl Shard ===

impl Shard {
    /// The shard of a server that was told none.
    pub(super) fn default_in(data_dir: &Path) -> Shard {
        Shard {
            name: ShardName::try_new("s0").expect("s0 is a shard name"),
            url: ShardUrl::SqliteFile(data_dir.join("ringq.db")),
        }
    }

    /// Checks both parts. The problem never quotes the url: it may hold a password.
    pub(super) fn try_new(name: &str, url: &str) -> Result<Shard, String> {
        let checked = ShardName::try_new(name).map_err(|_| match name {
            // A url without a name, as likely as not with a password.
            name if name.contains(':') => "is not written as NAME=URL".to_owned(),
            name => format!("the name {name:?} is not 1 to 8 of a-z 0-9"),
        })?;
        let url = ShardUrl::try_new(url).map_err(|problem| format!("{name}: {problem}"))?;
        Ok(Shard { name: checked, url })
    }
}

// === impl ShardUrl ===

impl ShardUrl {
    fn try_new(url: &str) -> Result<ShardUrl, String> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(format!("the url has no scheme, {ACCEPTED}"));
        };
        match (scheme, rest) {
            ("sqlite", ":memory:") => Ok(ShardUrl::SqliteMemory),
            ("sqlite", "") => Err(format!("the url has no path, {ACCEPTED}")),
            ("sqlite", path) if path.starts_with("//") || path.starts_with(':') => {
                Err(format!("the url has another form, {ACCEPTED}"))
            }
            ("sqlite", path) => Ok(ShardUrl::SqliteFile(PathBuf::from(path))),
            ("redis", _) => {
                let address = Address::try_new(url).map_err(|problem| problem.to_string())?;
                Ok(ShardUrl::Redis(address))
            }
            (redis, _) if redis.starts_with("redis") => {
                Err(format!("this build does not serve {redis} shards yet, {ACCEPTED}"))
            }
            (unknown, _) => Err(format!("the scheme {unknown:?} is not known, {ACCEPTED}")),
        }
    }
}

impl ShardUrl {
    /// What kind of store it is.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            ShardUrl::SqliteFile(_) | ShardUrl::SqliteMemory => "sqlite",
            ShardUrl::Redis(_) => "redis",
        }
    }
}

impl fmt::Display for ShardUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardUrl::SqliteFile(path) => write!(f, "sqlite:{}", path.display()),
            ShardUrl::SqliteMemory => f.write_str("sqlite::memory:"),
            ShardUrl::Redis(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_are_served_read_back() {
        for url in [
            "sqlite::memory:",
            "sqlite:a.db",
            "sqlite:/var/lib/a.db",
            "sqlite:a:b.db",
            "redis://127.0.0.1:6379",
            "redis://cache.internal:6380/3",
        ] {
            assert_eq!(Shard::try_new("s0", url).unwrap().url.to_string(), url);
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let shard = Shard::try_new("s0", "redis://user:secret@host/2").unwrap();
        assert_eq!(shard.url.to_string(), "redis://host:6379/2");
        assert!(!format!("{shard:?}").contains("secret"));
    }

    #[test]
    fn others_are_refused_without_quoting_the_url() {
        for (name, url, want) in [
            ("s0", "", "no scheme"),
            ("s0", "data/ringq.db", "no scheme"),
            ("s0", "sqlite:", "no path"),
            ("s0", "sqlite:///data/secret.db", "form"),
            ("s0", "sqlite::memory", "form"),
            ("s0", "redis:secret", "not written as redis://"),
            ("s0", "redis://:secret@host/x", "not written as redis://"),
            ("s0", "rediss://:secret@host", "does not serve rediss shards yet"),
            ("s0", "redis+unix:///secret", "does not serve redis+unix shards yet"),
            ("s0", "redis+sentinel://secret", "does not serve redis+sentinel shards yet"),
            ("s0", "postgres://u:secret@h", "\"postgres\" is not known"),
            ("S0", "sqlite:a.db", "name \"S0\" is not 1 to 8 of a-z 0-9"),
            ("", "sqlite:a.db", "name \"\" is not"),
            ("waytoolong", "sqlite:a.db", "name \"waytoolong\" is not"),
            ("redis://:secret@host", "", "is not written as NAME=URL"),
        ] {
            let problem = Shard::try_new(name, url).unwrap_err();
            assert!(problem.contains(want), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
