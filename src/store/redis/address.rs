//! Where a Redis is, from its url. What is shown of it holds no credentials, and no error quotes it.

use std::fmt;
use std::path::PathBuf;

use deadpool_redis::redis::{
    ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, parse_redis_url,
};

/// Who a client is that gives no name.
pub(super) const DEFAULT_USER: &str = "default";
/// Where Sentinel listens unless told otherwise.
pub(super) const SENTINEL_PORT: u16 = 26_379;

/// How the urls of each scheme are written.
const PLAIN: &str = "redis://[[user]:password@]host[:port][/database]";
const TLS: &str = "rediss://[user:password@]host[:port][/database]";
const SOCKET: &str = "redis+unix:///path[?db=database&user=user&pass=password]";
const SENTINEL: &str = "redis+sentinel://[user:password@]host[:port],host[:port]/primary[/database]\
                        [?sentinel_user=user&sentinel_password=password]";

/// Where a Redis is and who asks it, checked.
#[derive(Clone)]
pub struct Address {
    pub(super) endpoint: Endpoint,
    /// Certificates are checked, host names too.
    pub(super) secure: bool,
    pub(super) tls: Tls,
    /// User, password and database.
    pub(super) login: RedisConnectionInfo,
}

/// The files that `rediss` connections use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates that sign the servers', instead of the system's (PEM).
    pub ca: Option<PathBuf>,
    /// The certificate and the key that this client shows (PEM).
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The parts of a url that say where.
#[derive(Clone)]
pub(super) enum Endpoint {
    Host(Host),
    Socket(PathBuf),
    /// Whoever the sentinels say is the primary of that name.
    Sentinel {
        sentinels: Vec<Host>,
        primary: String,
        /// The user and password of the sentinels themselves.
        login: RedisConnectionInfo,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

/// The url names no Redis. It is not quoted: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the url is not written as {0}")]
pub struct InvalidAddress(&'static str);

// === impl Address ===

impl Address {
    /// Checks a url of the schemes `redis`, `rediss`, `redis+unix`, `redis+sentinel` and
    /// `rediss+sentinel`. Users and passwords are percent-encoded.
    ///
    /// # Errors
    /// [`InvalidAddress`].
    pub fn try_new(url: &str) -> Result<Address, InvalidAddress> {
        let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
        let (form, found) = match scheme {
            "redis" => (PLAIN, host(url)),
            "rediss" => (TLS, host(url)),
            "redis+unix" => (SOCKET, socket(url)),
            _ => (SENTINEL, sentinels(url)),
        };
        let (endpoint, login) = found.ok_or(InvalidAddress(form))?;
        let secure = scheme.starts_with("rediss");
        let login = with_user(login);
        Ok(Address { endpoint, secure, tls: Tls::default(), login })
    }

    /// The same with these files, if it is one of the `rediss` schemes.
    #[must_use]
    pub fn with_tls(self, tls: &Tls) -> Address {
        let tls = if self.secure { tls.clone() } else { Tls::default() };
        Address { tls, ..self }
    }

    /// Whether it holds a user or a password, of which nothing is shown.
    #[must_use]
    pub fn has_credentials(&self) -> bool {
        let has =
            |login: &RedisConnectionInfo| login.username().is_some() || login.password().is_some();
        let sentinels = matches!(&self.endpoint, Endpoint::Sentinel { login, .. } if has(login));
        sentinels || has(&self.login)
    }

    /// Whether its connections are encrypted.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Whether both are one database of one Redis, whoever asks it and how. Host names are compared as
    /// they are written; what hides behind them, the shard's name on the Redis tells at start.
    #[must_use]
    pub fn is_same_place(&self, other: &Address) -> bool {
        let is_same = match (&self.endpoint, &other.endpoint) {
            (Endpoint::Host(a), Endpoint::Host(b)) => a == b,
            (Endpoint::Socket(a), Endpoint::Socket(b)) => a == b,
            (
                Endpoint::Sentinel { sentinels: a, primary: p, .. },
                Endpoint::Sentinel { sentinels: b, primary: q, .. },
            ) => p == q && a.iter().any(|host| b.contains(host)),
            _ => false,
        };
        is_same && self.login.db() == other.login.db()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, db) = (if self.secure { "rediss" } else { "redis" }, self.login.db());
        match &self.endpoint {
            Endpoint::Host(host) => write!(f, "{scheme}://{host}")?,
            Endpoint::Socket(path) => write!(f, "redis+unix://{}", path.display())?,
            Endpoint::Sentinel { sentinels, primary, .. } => {
                let hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
                write!(f, "{scheme}+sentinel://{}/{primary}", hosts.join(","))?;
            }
        }
        match (&self.endpoint, db) {
            (_, 0) => Ok(()),
            (Endpoint::Socket(_), db) => write!(f, "?db={db}"),
            (_, db) => write!(f, "/{db}"),
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
        let login = |login: &RedisConnectionInfo| {
            (login.username().map(str::to_owned), login.password().map(str::to_owned))
        };
        let of_sentinels = |endpoint: &Endpoint| match endpoint {
            Endpoint::Sentinel { login: of, .. } => Some(login(of)),
            _ => None,
        };
        let parts = |a: &Address| (a.to_string(), login(&a.login), of_sentinels(&a.endpoint));
        parts(self) == parts(other) && self.tls == other.tls
    }
}

impl Eq for Address {}

// === impl Host ===

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

// === parts of urls ===

type Found = Option<(Endpoint, RedisConnectionInfo)>;

/// `redis://…` and `rediss://…`. A query or a fragment means something that would be ignored here, or
/// asks for certificates to be ignored.
fn host(url: &str) -> Found {
    let parsed = parse_redis_url(url)?;
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return None;
    }
    let info = parsed.into_connection_info().ok()?;
    let endpoint = match info.addr() {
        ConnectionAddr::Tcp(name, port)
        | ConnectionAddr::TcpTls { host: name, port, insecure: false, .. } => {
            Endpoint::Host(Host { name: name.clone(), port: *port })
        }
        _ => return None,
    };
    Some((endpoint, login(info.redis_settings())?))
}

fn socket(url: &str) -> Found {
    let parsed = parse_redis_url(url)?;
    let known = |(key, _): (_, _)| matches!(&key as &str, "db" | "user" | "pass");
    if parsed.fragment().is_some() || !parsed.query_pairs().all(known) {
        return None;
    }
    let info = parsed.into_connection_info().ok()?;
    match info.addr() {
        ConnectionAddr::Unix(path) if path.file_name().is_some() => {
            Some((Endpoint::Socket(path.clone()), login(info.redis_settings())?))
        }
        _ => None,
    }
}

fn sentinels(url: &str) -> Found {
    let (_, rest) = url.split_once("+sentinel://")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/')?;
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (primary, database) = path.split_once('/').unwrap_or((path, ""));
    if primary.is_empty() || !primary.bytes().all(is_of_a_name) {
        return None;
    }
    let at = if user.is_empty() { "" } else { "@" };
    let (_, login) = host(&format!("redis://{user}{at}host/{database}"))?;
    let sentinels = hosts.split(',').map(sentinel).collect::<Option<Vec<_>>>()?;
    let endpoint = Endpoint::Sentinel {
        sentinels,
        primary: primary.to_owned(),
        login: sentinel_login(query)?,
    };
    Some((endpoint, login))
}

/// What Sentinel allows in the name of a primary.
fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_".contains(&byte)
}

fn sentinel(text: &str) -> Option<Host> {
    let port = parse_redis_url(&format!("redis://{text}"))?.port().unwrap_or(SENTINEL_PORT);
    match host(&format!("redis://{text}"))? {
        (Endpoint::Host(host), login) if login.password().is_none() => Some(Host { port, ..host }),
        _ => None,
    }
}

fn sentinel_login(query: &str) -> Option<RedisConnectionInfo> {
    let parsed = parse_redis_url(&format!("redis://host/?{query}"))?;
    parsed.fragment().is_none().then_some(())?;
    let mut pairs = parsed.query_pairs();
    let whole =
        pairs.try_fold(RedisConnectionInfo::default(), |login, (key, value)| match &key as &str {
            "sentinel_user" => Some(login.set_username(value)),
            "sentinel_password" => Some(login.set_password(value)),
            _ => None,
        });
    login(&whole?)
}

/// A password alone is the default user's. With the name it is checked in one way by whatever kind of connection:
/// AUTH fails without it where that user has no password, and HELLO does not.
fn with_user(login: RedisConnectionInfo) -> RedisConnectionInfo {
    let is_bare = login.username().is_none() && login.password().is_some();
    if is_bare { login.set_username(DEFAULT_USER) } else { login }
}

/// A user without a password is a slip: Redis would take it for the default one.
fn login(info: &RedisConnectionInfo) -> Option<RedisConnectionInfo> {
    let is_whole = info.username().is_none() || info.password().is_some();
    (is_whole && info.db() >= 0).then(|| info.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Address {
        Address::try_new(url).unwrap_or_else(|error| panic!("{url}: {error}"))
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
        match address(url).endpoint {
            Endpoint::Sentinel { login, .. } => {
                assert_eq!((login.username(), login.password()), (Some("s"), Some("a&b")));
            }
            _ => panic!("no sentinel"),
        }
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "redis:",
            "redis://",
            "redis:///1",
            "redis://h/x",
            "redis://h/-1",
            "redis://h?db=3",
            "redis://user@h",
            "rediss://h#insecure",
            "unix:///tmp/x",
            "redis+unix://",
            "redis+unix://host/path",
            "redis+unix:///tmp/x?database=3",
            "redis+sentinel://h",
            "redis+sentinel://h/",
            "redis+sentinel:///main",
            "redis+sentinel://a,,b/main",
            "redis+sentinel://a/main/x",
            "redis+sentinel://a/main?user=x",
            "redis+sentinel://a/ma in",
            "h:6379",
        ] {
            assert!(Address::try_new(url).is_err(), "{url}");
        }
    }

    #[test]
    fn one_database_is_one_place_whoever_asks() {
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
            assert_eq!(address(a).is_same_place(&address(b)), want, "{a} {b}");
        }
        assert!(address("redis://u:a@h") != address("redis://u:b@h"));
        assert!(address("redis://:a@h") == address("redis://default:a@h"));
    }
}
