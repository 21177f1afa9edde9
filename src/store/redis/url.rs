//! Takes the url of a Redis apart. What is wrong with one is told by the part, and nothing of it is quoted.

use std::fmt;
use std::path::PathBuf;

use deadpool_redis::redis::{
    ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, RedisError, parse_redis_url,
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

/// What may be wrong with a url.
const SLASHES: &str = "no // follows its scheme";
const LOGIN: &str = "its user or password has a character that must be percent-encoded: \
                     % is %25, / is %2F, ? is %3F, # is %23";
const NO_PASSWORD: &str = "its user has no password; a password alone has a : before it";
const HOST: &str = "its host is missing or is none";
const PORT: &str = "its port is no number up to 65535";
const DATABASE: &str = "its database is no number from 0 on";
const QUERY: &str = "what follows its ? is not known";
const FRAGMENT: &str = "nothing may follow a #; in a password that is %23";
const SOCKET_PATH: &str = "its path is missing, or a host stands in front of it";
const PRIMARY: &str =
    "the name of its primary is missing, or has more than letters, digits, ., - and _";

/// What ends the place within a url.
const ENDS: [char; 3] = ['/', '?', '#'];

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
#[error("the url is not written as {form}: {wrong}")]
pub struct InvalidAddress {
    form: &'static str,
    wrong: &'static str,
}

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

/// What its result is, or the part that is wrong.
type Parsed<T> = Result<T, &'static str>;

/// Where it leads, and who asks there.
type Found = Parsed<(Endpoint, RedisConnectionInfo)>;

/// Reads a url of any scheme.
pub(super) fn read(url: &str) -> Result<(Endpoint, RedisConnectionInfo), InvalidAddress> {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    let (form, found) = match scheme {
        "redis" => (PLAIN, host(url)),
        "rediss" => (TLS, host(url)),
        "redis+unix" => (SOCKET, socket(url)),
        _ => (SENTINEL, sentinels(url)),
    };
    let (endpoint, login) = found.map_err(|wrong| {
        let is_raw = scheme != "redis+unix" && has_raw_login(url);
        InvalidAddress { form, wrong: if is_raw { LOGIN } else { wrong } }
    })?;
    Ok((endpoint, with_user(login)))
}

/// `redis://…` and `rediss://…`. A query or a fragment means something that would be ignored here, or
/// asks for certificates to be ignored.
fn host(url: &str) -> Found {
    let parsed = parse_redis_url(url).filter(|parsed| !parsed.cannot_be_a_base());
    let parsed = parsed.ok_or_else(|| unreadable(url))?;
    if parsed.query().is_some() {
        return Err(QUERY);
    }
    if parsed.fragment().is_some() {
        return Err(FRAGMENT);
    }
    let info = parsed.into_connection_info().map_err(|error| of_parts(&error, HOST))?;
    let endpoint = match info.addr() {
        ConnectionAddr::Tcp(name, port)
        | ConnectionAddr::TcpTls { host: name, port, insecure: false, .. } => {
            Endpoint::Host(Host { name: name.clone(), port: *port })
        }
        _ => return Err(HOST),
    };
    Ok((endpoint, login(info.redis_settings())?))
}

fn socket(url: &str) -> Found {
    let parsed = parse_redis_url(url).ok_or(SOCKET_PATH)?;
    let known = |(key, _): (_, _)| matches!(&key as &str, "db" | "user" | "pass");
    if parsed.fragment().is_some() {
        return Err(FRAGMENT);
    }
    if !parsed.query_pairs().all(known) {
        return Err(QUERY);
    }
    let info = parsed.into_connection_info().map_err(|error| of_parts(&error, SOCKET_PATH))?;
    match info.addr() {
        ConnectionAddr::Unix(path) if path.file_name().is_some() => {
            Ok((Endpoint::Socket(path.clone()), login(info.redis_settings())?))
        }
        _ => Err(SOCKET_PATH),
    }
}

fn sentinels(url: &str) -> Found {
    let (_, rest) = url.split_once("+sentinel://").ok_or(SLASHES)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').ok_or(PRIMARY)?;
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (primary, database) = path.split_once('/').unwrap_or((path, ""));
    if primary.is_empty() || !primary.bytes().all(is_of_a_name) {
        return Err(PRIMARY);
    }
    let at = if user.is_empty() { "" } else { "@" };
    let (_, login) = host(&format!("redis://{user}{at}host/{database}"))?;
    let sentinels = hosts.split(',').map(sentinel).collect::<Result<Vec<_>, _>>()?;
    let endpoint = Endpoint::Sentinel {
        sentinels,
        primary: primary.to_owned(),
        login: sentinel_login(query)?,
    };
    Ok((endpoint, login))
}

/// What Sentinel allows in the name of a primary.
fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_".contains(&byte)
}

fn sentinel(text: &str) -> Parsed<Host> {
    let url = format!("redis://{text}");
    let port = parse_redis_url(&url).and_then(|parsed| parsed.port()).unwrap_or(SENTINEL_PORT);
    match host(&url)? {
        (Endpoint::Host(host), login) if login.password().is_none() => Ok(Host { port, ..host }),
        _ => Err(HOST),
    }
}

fn sentinel_login(query: &str) -> Parsed<RedisConnectionInfo> {
    let parsed = parse_redis_url(&format!("redis://host/?{query}")).ok_or(QUERY)?;
    if parsed.fragment().is_some() {
        return Err(FRAGMENT);
    }
    let mut pairs = parsed.query_pairs();
    let whole =
        pairs.try_fold(RedisConnectionInfo::default(), |login, (key, value)| match &key as &str {
            "sentinel_user" => Some(login.set_username(value)),
            "sentinel_password" => Some(login.set_password(value)),
            _ => None,
        });
    login(&whole.ok_or(QUERY)?)
}

/// Which part of a url is wrong that has all of them; `place`: the one that says where.
fn of_parts(error: &RedisError, place: &'static str) -> &'static str {
    let text = error.to_string();
    let parts = [("UTF-8", LOGIN), ("database", DATABASE)];
    parts.into_iter().find(|(word, _)| text.contains(word)).map_or(place, |(_, part)| part)
}

/// Which part of a url is wrong that cannot be taken apart.
fn unreadable(url: &str) -> &'static str {
    let Some((_, rest)) = url.split_once("://") else { return SLASHES };
    let authority = rest.split(ENDS).next().unwrap_or_default();
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    match place.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') && port.parse::<u16>().is_err() => PORT,
        _ => HOST,
    }
}

/// Whether a password seems to go on behind what ends the place: one of these characters stands in it as it is.
fn has_raw_login(url: &str) -> bool {
    // Two urls in a row are another mistake.
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    if rest.contains("://") {
        return false;
    }
    let before_sentinels = rest.split("?sentinel_").next().unwrap_or_default();
    before_sentinels.split_once(ENDS).is_some_and(|(_, behind)| behind.contains('@'))
}

/// A password alone is the default user's. With the name it is checked in one way by whatever kind of connection:
/// AUTH fails without it where that user has no password, and HELLO does not.
fn with_user(login: RedisConnectionInfo) -> RedisConnectionInfo {
    let is_bare = login.username().is_none() && login.password().is_some();
    if is_bare { login.set_username(DEFAULT_USER) } else { login }
}

/// A user without a password is a slip: Redis would take it for the default one.
fn login(info: &RedisConnectionInfo) -> Parsed<RedisConnectionInfo> {
    if info.username().is_some() && info.password().is_none() {
        return Err(NO_PASSWORD);
    }
    if info.db() < 0 { Err(DATABASE) } else { Ok(info.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_urls_are_refused_by_the_part_that_is_wrong() {
        for (url, part) in [
            ("redis:", SLASHES),
            ("redis:secret", SLASHES),
            ("redis://", HOST),
            ("redis:///1", HOST),
            ("redis://:6379", HOST),
            ("redis://u:secret@0.0.0.0", HOST),
            ("redis://[::1", HOST),
            ("redis://h:secret", PORT),
            ("redis://u:p@h:65536/1", PORT),
            ("redis://[::1]:x", PORT),
            ("redis://h/x", DATABASE),
            ("redis://h/-1", DATABASE),
            ("redis://h?db=3", QUERY),
            ("redis://secret@h", NO_PASSWORD),
            ("redis://h:1,b=redis://:secret@h:2", PORT),
            ("redis://:se/cret@h:6379", LOGIN),
            ("redis://u:se?cret@h:6379/1", LOGIN),
            ("redis://u:se#cret@h", LOGIN),
            ("redis://u:1/2@h", LOGIN),
            ("redis://u:secret%ff@h", LOGIN),
            ("rediss://h#insecure", FRAGMENT),
            ("unix:///tmp/x", SLASHES),
            ("redis+unix://", SOCKET_PATH),
            ("redis+unix://host/path", SOCKET_PATH),
            ("redis+unix:///tmp/x?database=3", QUERY),
            ("redis+unix:///tmp/x?db=x&user=u&pass=a@b", DATABASE),
            ("redis+sentinel:h/main", SLASHES),
            ("redis+sentinel://h", PRIMARY),
            ("redis+sentinel://h/", PRIMARY),
            ("redis+sentinel:///main", HOST),
            ("redis+sentinel://a,,b/main", HOST),
            ("redis+sentinel://a:x,b/main", PORT),
            ("redis+sentinel://a/main/x", DATABASE),
            ("redis+sentinel://a/main?user=x", QUERY),
            ("redis+sentinel://a/main?sentinel_user=x", NO_PASSWORD),
            ("redis+sentinel://a/main/x?sentinel_password=a@b", DATABASE),
            ("redis+sentinel://u:se/cret@a/main", LOGIN),
            ("redis+sentinel://u:se?cret@a/main", LOGIN),
            ("redis+sentinel://a/ma in", PRIMARY),
            ("h:6379", SLASHES),
        ] {
            let error = read(url).err().unwrap();
            assert_eq!(error.wrong, part, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
