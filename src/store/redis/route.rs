//! Finds the endpoints where the Redis of an address may be, and the reason why an endpoint rejects a connection.
//! Behind Sentinel the endpoints are queried before every new connection: the primary may have changed.
//!
//! Sockets, TLS and logins are those of redis-rs. This module adds two queries on connections of their own: redis-rs
//! reports a time-out for a Redis without TLS, and a rejected database or login for a sentinel.

use std::fs;
use std::path::Path;
use std::time::Duration;

use deadpool_redis::PoolError;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo,
    FromRedisValue, IntoConnectionInfo as _, RedisConnectionInfo, RedisError, TlsCertificates,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::address::{RedisAddress, RedisTlsFiles};
use super::url::{RedisEndpoint, RedisHost};
use super::{RedisOpenError, check, error_mapping};

/// Time after which unacknowledged data breaks the connection.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of the query whether a Redis has no TLS.
const TLS_PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limits of a single query: to connect, and to receive the reply.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// An address with the data that its connections need.
pub(super) struct RedisRoute {
    pub(super) address: RedisAddress,
    /// With TLS: an address without a host that has the certificates.
    sample: Option<ConnectionAddr>,
    /// Former primary, and the time at which a sentinel reported its end.
    pub(super) demoted: Mutex<Option<(RedisHost, Instant)>>,
}

// === impl RedisRoute ===

impl RedisRoute {
    /// Returns the route to an address; reads its certificates.
    ///
    /// # Errors
    /// [`RedisOpenError::Tls`].
    pub(super) fn try_new(address: RedisAddress) -> Result<RedisRoute, RedisOpenError> {
        let sample = address.secure.then(|| with_certificates(&address.tls)).transpose()?;
        Ok(RedisRoute { address, sample, demoted: Mutex::default() })
    }

    /// Returns the endpoints where the Redis may be, the likeliest first; at least one.
    ///
    /// # Errors
    /// [`RedisOpenError`], when no sentinel names a primary.
    pub(super) async fn endpoints(&self) -> Result<Vec<ConnectionInfo>, RedisOpenError> {
        let addrs = match &self.address.endpoint {
            RedisEndpoint::Host(host) => vec![self.addr(host)],
            RedisEndpoint::Socket(path) => vec![ConnectionAddr::Unix(path.clone())],
            RedisEndpoint::Sentinel { sentinels, primary } => {
                let votes = self.find_primary(sentinels, primary).await?;
                votes.hosts.iter().map(|host| self.addr(host)).collect()
            }
        };
        let endpoints = addrs.into_iter().map(|addr| endpoint(addr, &self.address.login));
        let endpoints = endpoints.collect::<Result<_, _>>();
        endpoints.map_err(|error| error_mapping::unreachable_error(&error_mapping::text(&error)))
    }

    /// Returns the endpoint that more than half of the sentinels name. One stale sentinel that answers alone must not
    /// take a primary out of use that works.
    pub(super) async fn agreed_endpoint(&self) -> Option<ConnectionInfo> {
        let RedisEndpoint::Sentinel { sentinels, primary } = &self.address.endpoint else {
            return None;
        };
        let votes = self.find_primary(sentinels, primary).await.ok()?;
        let agreed = votes.hosts.first().filter(|_| votes.is_majority)?;
        endpoint(self.addr(agreed), &self.address.login).ok()
    }

    /// Number of sentinels; 0 where the address names the Redis itself.
    pub(super) fn sentinels(&self) -> usize {
        match &self.address.endpoint {
            RedisEndpoint::Sentinel { sentinels, .. } => sentinels.len(),
            _ => 0,
        }
    }

    /// Returns the address of a host, with the TLS of this route.
    pub(super) fn addr(&self, host: &RedisHost) -> ConnectionAddr {
        let RedisHost { name, port } = host.clone();
        match &self.sample {
            Some(ConnectionAddr::TcpTls { tls_params, .. }) => ConnectionAddr::TcpTls {
                host: name,
                port,
                insecure: false,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(name, port),
        }
    }

    /// Returns the endpoint of a sentinel.
    pub(super) fn sentinel(&self, host: &RedisHost) -> Result<ConnectionInfo, RedisError> {
        endpoint(self.addr(host), &self.address.sentinel_login)
    }
}

/// Builds an endpoint: small writes are sent at once, and a silent peer is noticed.
fn endpoint(
    addr: ConnectionAddr,
    login: &RedisConnectionInfo,
) -> Result<ConnectionInfo, RedisError> {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(TCP_USER_TIMEOUT);
    let info = addr.into_connection_info()?;
    Ok(info.set_redis_settings(login.clone()).set_tcp_settings(settings))
}

// === refusals ===

/// Returns the reason why the pool could not connect to an endpoint.
pub(super) async fn connect_refusal(
    error: &PoolError,
    endpoint: &ConnectionInfo,
) -> RedisOpenError {
    let PoolError::Backend(error) = error else {
        return error_mapping::unreachable_error(&error.to_string());
    };
    let refusal = error_mapping::connect_error(error, endpoint);
    let may_be_sentinel =
        matches!(refusal, RedisOpenError::Database(_) | RedisOpenError::LoginRejected);
    if has_no_tls(error, endpoint.addr()).await {
        RedisOpenError::NoTls
    } else if may_be_sentinel && is_sentinel(endpoint).await {
        RedisOpenError::Sentinel
    } else {
        refusal
    }
}

/// Returns whether a connection with TLS failed because the peer has no TLS. A Redis without TLS takes the beginning
/// of a handshake for that of a line and waits for its end, so it is queried again without TLS.
pub(super) async fn has_no_tls(error: &RedisError, addr: &ConnectionAddr) -> bool {
    let ConnectionAddr::TcpTls { host, port, .. } = addr else { return false };
    if !error.is_timeout() {
        return error_mapping::is_not_tls(error);
    }
    let ask = async {
        let mut socket = TcpStream::connect((host.as_str(), *port)).await?;
        socket.write_all(b"PING\r\n").await?;
        socket.read_u8().await
    };
    // A reply or an error in the protocol of Redis.
    matches!(tokio::time::timeout(TLS_PROBE_TIMEOUT, ask).await, Ok(Ok(b'+' | b'-')))
}

/// Returns whether a sentinel is at the endpoint: it has no databases, and users of its own.
async fn is_sentinel(endpoint: &ConnectionInfo) -> bool {
    let anonymous = endpoint.clone().set_redis_settings(RedisConnectionInfo::default());
    let info = query_once::<String>(anonymous, redis::cmd("INFO").arg("server")).await;
    info.is_ok_and(|info| check::is_sentinel(&info))
}

/// Sends a query on a connection of its own.
pub(super) async fn query_once<T: FromRedisValue>(
    endpoint: ConnectionInfo,
    question: &Cmd,
) -> Result<T, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(QUERY_TIMEOUT))
        .set_response_timeout(Some(QUERY_TIMEOUT));
    let client = Client::open(endpoint)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    question.query_async(&mut connection).await
}

// === certificates ===

/// Returns an address without a host that has these certificates: redis-rs takes them in no other form.
fn with_certificates(tls: &RedisTlsFiles) -> Result<ConnectionAddr, RedisOpenError> {
    let client_tls = match &tls.client {
        Some((cert, key)) => {
            Some(ClientTlsConfig { client_cert: pem(cert)?, client_key: pem(key)? })
        }
        None => None,
    };
    let root_cert = tls.ca.as_deref().map(pem).transpose()?;
    let addr =
        ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    let client = Client::build_with_tls(addr, TlsCertificates { client_tls, root_cert });
    let client = client.map_err(|error| RedisOpenError::Tls(error.to_string()))?;
    Ok(client.get_connection_info().addr().clone())
}

/// Reads a file that contains PEM. redis-rs takes a file without PEM for an empty list of authorities.
fn pem(path: &Path) -> Result<Vec<u8>, RedisOpenError> {
    let wrong = |why: String| RedisOpenError::Tls(format!("{}: {why}", path.display()));
    let bytes =
        fs::read(path).map_err(|error| wrong(format!("file cannot be read: {}", error.kind())))?;
    if !bytes.windows(10).any(|window| window == b"-----BEGIN") {
        return Err(wrong("file contains no PEM".to_owned()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_none_of_tls_shows_that_there_is_no_tls() {
        let text = "received corrupt message of type InvalidContentType";
        let error = RedisError::from(io::Error::new(io::ErrorKind::InvalidData, text));
        let addr = |url: &str| url.into_connection_info().unwrap().addr().clone();
        assert!(has_no_tls(&error, &addr("rediss://h")).await);
        assert!(!has_no_tls(&error, &addr("redis://h")).await);
    }
}
