//! Parses the URL of a Redis. The url parser of redis-rs decodes hosts, users and passwords. The split into parts is
//! implemented here: redis-rs has no form for several sentinels, ignores an unknown query, takes `#insecure` as a
//! request to check no certificate, and does not name the part that is wrong.

use std::fmt;
use std::path::PathBuf;

use deadpool_redis::redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo, parse_redis_url,
};

/// User of a client that gives no name.
pub(super) const DEFAULT_USER: &str = "default";
/// Default port of Redis.
const REDIS_PORT: u16 = 6_379;
/// Default port of Sentinel.
pub(super) const SENTINEL_PORT: u16 = 26_379;

/// Forms of the urls of each scheme.
const PLAIN: &str = "redis://[[user]:password@]host[:port][/database]";
const TLS: &str = "rediss://[user:password@]host[:port][/database]";
const SOCKET: &str = "redis+unix:///path[?db=database&user=user&pass=password]";
const SENTINEL: &str = "redis+sentinel://[user:password@]host[:port],host[:port]/primary[/database]\
                        [?sentinel_user=user&sentinel_password=password]";

/// Mistakes in a url.
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

/// Endpoint that a url names.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum RedisEndpoint {
    Host(RedisHost),
    Socket(PathBuf),
    /// Primary that the sentinels name.
    Sentinel {
        sentinels: Vec<RedisHost>,
        primary: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedisHost {
    pub(super) name: String,
    pub(super) port: u16,
}

/// Error for a url that names no Redis. The url is not quoted: it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the url is not written as {form}: {mistake}")]
pub struct InvalidAddress {
    form: &'static str,
    mistake: &'static str,
}

/// A parsed part, or the mistake in it.
type UrlResult<T> = Result<T, &'static str>;

// === impl Host ===

impl fmt::Display for RedisHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

// === urls ===

/// Endpoint of a url, the login for it, and the login for the sentinels.
type ParsedUrl = (RedisEndpoint, RedisConnectionInfo, RedisConnectionInfo);

/// Parses a url of any scheme.
pub(super) fn parse(url: &str) -> Result<ParsedUrl, InvalidAddress> {
    let (form, parts) = match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        "redis" => (PLAIN, plain(url)),
        "rediss" => (TLS, plain(url)),
        "redis+unix" => (SOCKET, socket(url)),
        _ => (SENTINEL, sentinels(url)),
    };
    let (endpoint, mut login, of_sentinels) =
        parts.map_err(|wrong| InvalidAddress { form, mistake: wrong })?;
    // With the name every kind of connection checks the password in the same way: where the default user has none,
    // AUTH without a name fails, and HELLO does not.
    if login.username().is_none() && login.password().is_some() {
        login = login.set_username(DEFAULT_USER);
    }
    Ok((endpoint, login, of_sentinels))
}

fn plain(url: &str) -> UrlResult<ParsedUrl> {
    let UrlParts { user, hosts, path, query } = split(url, "://")?;
    let endpoint = RedisEndpoint::Host(host(hosts, REDIS_PORT)?);
    let [] = values(query, [])?;
    Ok((endpoint, user_info(user)?.set_db(database(path)?), RedisConnectionInfo::default()))
}

fn socket(url: &str) -> UrlResult<ParsedUrl> {
    let parsed = parse_redis_url(url).ok_or(SOCKET_PATH)?;
    if parsed.fragment().is_some() {
        return Err(FRAGMENT);
    }
    let query = parsed.query().unwrap_or_default();
    let [db, user, password] = values(query, ["db", "user", "pass"])?;
    let path = parsed.to_file_path().ok().filter(|path| path.file_name().is_some());
    let login = login(user, password)?.set_db(database(&db.unwrap_or_default())?);
    Ok((RedisEndpoint::Socket(path.ok_or(SOCKET_PATH)?), login, RedisConnectionInfo::default()))
}

fn sentinels(url: &str) -> UrlResult<ParsedUrl> {
    let UrlParts { user, hosts, path, query } = split(url, "+sentinel://")?;
    let (primary, db) = path.split_once('/').unwrap_or((path, ""));
    // Characters that Sentinel allows.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if primary.is_empty() || !primary.bytes().all(is_allowed) {
        return Err(PRIMARY);
    }
    let sentinels =
        hosts.split(',').map(|text| host(text, SENTINEL_PORT)).collect::<UrlResult<_>>()?;
    let endpoint = RedisEndpoint::Sentinel { sentinels, primary: primary.to_owned() };
    let [sentinel_user, password] = values(query, ["sentinel_user", "sentinel_password"])?;
    Ok((endpoint, user_info(user)?.set_db(database(db)?), login(sentinel_user, password)?))
}

/// Parts of a url that begins with hosts.
struct UrlParts<'a> {
    user: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

fn split<'a>(url: &'a str, mark: &str) -> UrlResult<UrlParts<'a>> {
    let (_, rest) = url.split_once(mark).ok_or(SLASHES)?;
    // One of these characters in a password that is not encoded leaves the @ after it. Two urls in a row are another
    // mistake.
    let first = rest.split("?sentinel_").next().unwrap_or_default();
    let is_raw = first.split_once(['/', '?', '#']).is_some_and(|(_, behind)| behind.contains('@'));
    if is_raw && !rest.contains("://") {
        return Err(LOGIN);
    }
    if rest.contains('#') {
        return Err(FRAGMENT);
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    Ok(UrlParts { user, hosts, path, query })
}

fn host(text: &str, default_port: u16) -> UrlResult<RedisHost> {
    let url = parse_redis_url(&format!("redis://{text}"));
    let port = url.as_ref().and_then(|url| url.port()).unwrap_or(default_port);
    let info = url.and_then(|url| url.into_connection_info().ok());
    if let Some(ConnectionAddr::Tcp(name, _)) = info.as_ref().map(ConnectionInfo::addr) {
        return Ok(RedisHost { name: name.clone(), port });
    }
    match text.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') && port.parse::<u16>().is_err() => Err(PORT),
        _ => Err(HOST),
    }
}

fn user_info(text: &str) -> UrlResult<RedisConnectionInfo> {
    let url = parse_redis_url(&format!("redis://{text}@host")).ok_or(LOGIN)?;
    let info = url.into_connection_info().map_err(|_| LOGIN)?;
    login(info.redis_settings().username(), info.redis_settings().password())
}

/// Returns a login. Redis would take a user without a password for the default one.
fn login<T: AsRef<str>>(user: Option<T>, password: Option<T>) -> UrlResult<RedisConnectionInfo> {
    let login = RedisConnectionInfo::default();
    match (user, password) {
        (None, None) => Ok(login),
        (None, Some(password)) => Ok(login.set_password(password)),
        (Some(user), Some(password)) => Ok(login.set_username(user).set_password(password)),
        (Some(_), None) => Err(NO_PASSWORD),
    }
}

fn database(text: &str) -> UrlResult<i64> {
    match text.trim_matches('/') {
        "" => Ok(0),
        number => number.parse::<u32>().map(i64::from).map_err(|_| DATABASE),
    }
}

/// Returns the decoded values of a query that has no other keys.
fn values<const N: usize>(query: &str, keys: [&str; N]) -> UrlResult<[Option<String>; N]> {
    let url = parse_redis_url(&format!("redis://host/?{query}")).ok_or(QUERY)?;
    let mut values = [const { None }; N];
    for (key, value) in url.query_pairs() {
        let at = keys.iter().position(|known| *known == key).ok_or(QUERY)?;
        values[at] = Some(value.into_owned());
    }
    Ok(values)
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
            let error = parse(url).err().unwrap();
            assert_eq!(error.mistake, part, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
