//! Configuration of a shard: `NAME=URL`, and in a file its weight and state.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::domain::ShardName;
use crate::domain::ring::{ShardState, WEIGHT_MAX};
use crate::store::redis::{RedisAddress, RedisTlsFiles};

use super::layer::ShardText;
use super::{bounds, parse};

/// Forms that [`ShardUrl::try_new`] accepts.
const ACCEPTED: &str = "use sqlite:PATH, sqlite::memory:, redis://HOST:PORT, rediss://HOST:PORT, \
                        redis+unix:///PATH or redis+sentinel://HOST:PORT,…/PRIMARY";

/// Name and place of a shard, with its weight and its first state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Name: 1 to 8 of `[a-z0-9]`; written on the shard at first contact, never reused.
    pub name: ShardName,
    /// Place of the shard; the scheme selects the store.
    pub url: ShardUrl,
    /// Share of the jobs, compared with the other shards': 1 to 100. Default 1.
    pub weight: u32,
    /// State when the server first sees the shard: active, or draining and without new jobs. Default active.
    pub state: ShardState,
}

/// Place of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardUrl {
    /// `sqlite:PATH`: a file, created at start if missing.
    SqliteFile(PathBuf),
    /// `sqlite::memory:`: nothing outlives the process.
    SqliteMemory,
    /// Redis, by one of the schemes that [`RedisAddress::try_new`] accepts.
    Redis(RedisAddress),
}

// === impl ShardConfig ===

impl ShardConfig {
    /// Returns the shard of a server whose settings have none.
    pub(super) fn default_in(data_dir: &Path) -> ShardConfig {
        ShardConfig {
            name: ShardName::try_new("s0").expect("s0 is a shard name"),
            url: ShardUrl::SqliteFile(data_dir.join("ringq.db")),
            weight: 1,
            state: ShardState::Active,
        }
    }

    /// Reads every part; the valid parts are enough to compare the shard with others. No problem quotes the url: it
    /// may contain a password.
    pub(super) fn read(found: &ShardText, problems: &mut Vec<String>) -> Option<ShardConfig> {
        let name = &found.name;
        let weight = found.weight.as_deref().map_or(Ok(1), weight);
        let state = found.state.as_deref().map_or(Ok(ShardState::Active), state);
        let shard =
            ShardConfig::try_new(name, &found.url).map_err(|problem| problems.push(problem));
        let weight = weight.map_err(|problem| problems.push(format!("{name}: {problem}")));
        let state = state.map_err(|problem| problems.push(format!("{name}: {problem}")));
        let mut shard = shard.ok()?;
        shard.weight = weight.unwrap_or(shard.weight);
        shard.state = state.unwrap_or(shard.state);
        Some(shard)
    }

    /// Sets the files for its connections, if it is encrypted.
    pub(super) fn with_tls(self, tls: &RedisTlsFiles) -> ShardConfig {
        let url = match self.url {
            ShardUrl::Redis(address) => ShardUrl::Redis(address.with_tls(tls)),
            url @ (ShardUrl::SqliteFile(_) | ShardUrl::SqliteMemory) => url,
        };
        ShardConfig { url, ..self }
    }

    /// Returns whether its connections are encrypted.
    pub(super) fn is_secure(&self) -> bool {
        self.url.remote().is_some_and(RedisAddress::is_secure)
    }

    pub(super) fn try_new(name: &str, url: &str) -> Result<ShardConfig, String> {
        let checked = ShardName::try_new(name).map_err(|_| match name {
            // A url without a name, or the rest of one that a blank has cut: probably with a password.
            name if name.is_empty() || name.contains([':', '@', '/']) => {
                "is not written as NAME=URL, like a=redis://localhost:6379; a url has no blanks, %20 is one".to_owned()
            }
            name => format!("the name {name:?} is not 1 to 8 of a-z 0-9"),
        })?;
        let found = ShardUrl::try_new(url).map_err(|problem| match url.split_once(',') {
            Some((_, next)) if next.is_empty() || next.contains("://") => {
                format!("{name}: {problem}; several shards are separated by blanks, not commas")
            }
            _ => format!("{name}: {problem}"),
        });
        let url = found?;
        Ok(ShardConfig { name: checked, url, weight: 1, state: ShardState::Active })
    }
}

fn weight(text: &str) -> Result<u32, String> {
    let weight = parse::number(text, &bounds::WEIGHT);
    let weight = weight.map_err(|problem| format!("the weight {problem}"))?;
    Ok(u32::try_from(weight).unwrap_or(WEIGHT_MAX))
}

fn state(text: &str) -> Result<ShardState, String> {
    match text {
        "active" => Ok(ShardState::Active),
        "draining" => Ok(ShardState::Draining),
        _ => Err(format!("the state {text:?} is neither active nor draining")),
    }
}

/// Returns the text that [`state`] reads.
pub(super) fn show_state(state: ShardState) -> &'static str {
    match state {
        ShardState::Active => "active",
        ShardState::Draining => "draining",
    }
}

// === impl ShardUrl ===

impl ShardUrl {
    /// Returns the kind of the store.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            ShardUrl::SqliteFile(_) | ShardUrl::SqliteMemory => "sqlite",
            ShardUrl::Redis(_) => "redis",
        }
    }

    /// Returns whether the url contains a user or a password, which are not shown.
    pub(super) fn has_credentials(&self) -> bool {
        self.remote().is_some_and(RedisAddress::has_credentials)
    }

    /// Returns the address, if the shard is reached over a connection.
    fn remote(&self) -> Option<&RedisAddress> {
        match self {
            ShardUrl::Redis(address) => Some(address),
            ShardUrl::SqliteFile(_) | ShardUrl::SqliteMemory => None,
        }
    }

    /// Returns whether both are one place. Paths are compared as they are written; if links hide that two are one
    /// file, the lock on the file detects it at start.
    pub(super) fn is_same(&self, other: &ShardUrl) -> bool {
        match (self, other) {
            (ShardUrl::SqliteFile(a), ShardUrl::SqliteFile(b)) => {
                let whole = |path: &Path| std::path::absolute(path).unwrap_or(path.to_owned());
                whole(a) == whole(b)
            }
            (ShardUrl::Redis(a), ShardUrl::Redis(b)) => a.is_same_database(b),
            // Each database in memory is one of its own.
            (ShardUrl::SqliteMemory | ShardUrl::SqliteFile(_) | ShardUrl::Redis(_), _) => false,
        }
    }

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
            ("redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel", _) => {
                let address = RedisAddress::try_new(url).map_err(|problem| problem.to_string())?;
                Ok(ShardUrl::Redis(address))
            }
            (redis, _) if redis.starts_with("redis") => {
                Err(format!("this build does not serve {redis} shards yet, {ACCEPTED}"))
            }
            (unknown, _) => Err(format!("the scheme {unknown:?} is not known, {ACCEPTED}")),
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
            "rediss://cache.internal:6380/3",
            "redis+unix:///run/redis.sock?db=3",
            "redis+sentinel://a:26379,b:26380/main/3",
            "rediss+sentinel://a:26379/main",
        ] {
            assert_eq!(ShardConfig::try_new("s0", url).unwrap().url.to_string(), url);
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let shard = ShardConfig::try_new("s0", "redis://user:secret@host/2").unwrap();
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
            ("s0", "redis://:secret@host/x", "s0: the url is not written as redis://"),
            ("s0", "redis://:secret@host/x", ": its database is no number"),
            ("s0", "rediss://:secret@host#insecure", "not written as rediss://"),
            ("s0", "redis+unix://secret", "not written as redis+unix:///path"),
            ("s0", "redis+sentinel://:secret@h", "not written as redis+sentinel://"),
            ("s0", "redis-cluster://:secret@h", "does not serve redis-cluster shards yet"),
            ("s0", "postgres://u:secret@h", "\"postgres\" is not known"),
            ("a", "redis://h:1,b=redis://:secret@h:2", "separated by blanks"),
            ("a", "redis://:secret@h:1,", "separated by blanks"),
            ("S0", "sqlite:a.db", "name \"S0\" is not 1 to 8 of a-z 0-9"),
            ("", "sqlite:a.db", "is not written as NAME=URL"),
            ("waytoolong", "sqlite:a.db", "name \"waytoolong\" is not"),
            ("redis://:secret@host", "", "is not written as NAME=URL"),
        ] {
            let problem = ShardConfig::try_new(name, url).unwrap_err();
            assert!(problem.contains(want), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
