//! From an address to the connections that may lead there. Behind Sentinel that is asked anew for every
//! connection: whoever was the primary a moment ago may be none any more.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError, TlsCertificates,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::address::{Address, Tls};
use super::url::{Endpoint, Host};
use super::{OpenError, fault};

/// Data that is not acknowledged for so long breaks the connection.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a Redis without TLS may take to show itself.
const PLAIN_MAX: Duration = Duration::from_millis(500);

/// How to reach one Redis.
pub(super) struct Route {
    pub(super) address: Address,
    /// With TLS: what connections are like, but for the host.
    sample: Option<ConnectionAddr>,
    /// Who was the primary until a sentinel said otherwise, and when.
    pub(super) demoted: Mutex<Option<(Host, Instant)>>,
}

// === impl Route ===

impl Route {
    /// A route to an address; its certificates are read.
    ///
    /// # Errors
    /// [`OpenError::Tls`].
    pub(super) fn try_new(address: Address) -> Result<Route, OpenError> {
        let sample = address.secure.then(|| with_certificates(&address.tls)).transpose()?;
        Ok(Route { address, sample, demoted: Mutex::default() })
    }

    /// Whether sentinels know the way.
    pub(super) fn asks_sentinels(&self) -> bool {
        self.sentinels() > 0
    }

    /// Where the Redis may be, the likeliest first.
    ///
    /// # Errors
    /// [`OpenError`], when no sentinel knows.
    pub(super) async fn ways(&self) -> Result<Vec<ConnectionInfo>, OpenError> {
        let places = match &self.address.endpoint {
            Endpoint::Host(host) => vec![self.to_host(host)],
            Endpoint::Socket(path) => vec![ConnectionAddr::Unix(path.clone())],
            Endpoint::Sentinel { sentinels, primary, login } => {
                let hosts = self.ask(sentinels, primary, login).await?;
                hosts.iter().map(|host| self.to_host(host)).collect()
            }
        };
        let ways = places.into_iter().map(|place| self.way(place, &self.address.login));
        ways.collect::<Result<_, _>>().map_err(unreachable)
    }

    /// How many sentinels there are.
    pub(super) fn sentinels(&self) -> usize {
        match &self.address.endpoint {
            Endpoint::Sentinel { sentinels, .. } => sentinels.len(),
            _ => 0,
        }
    }

    /// Whether that way leads to the host.
    pub(super) fn is_at(&self, way: &ConnectionInfo, host: &Host) -> bool {
        *way.addr() == self.to_host(host)
    }

    /// That host, reached as all of this address are.
    pub(super) fn to_host(&self, host: &Host) -> ConnectionAddr {
        let Host { name, port } = host.clone();
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

    pub(super) fn way(
        &self,
        addr: ConnectionAddr,
        login: &RedisConnectionInfo,
    ) -> Result<ConnectionInfo, RedisError> {
        let info = addr.into_connection_info()?;
        Ok(info.set_redis_settings(login.clone()).set_tcp_settings(tcp_settings()))
    }
}

/// Whether TLS is expected there, and a Redis answers without. It takes the beginning of a handshake for that of a line
/// as a rule, and waits for the end.
pub(super) async fn answers_plainly(addr: &ConnectionAddr) -> bool {
    let ConnectionAddr::TcpTls { host, port, .. } = addr else { return false };
    let ask = async {
        let mut socket = TcpStream::connect((host.as_str(), *port)).await?;
        socket.write_all(b"PING\r\n").await?;
        socket.read_u8().await
    };
    // Said or refused, it is in the protocol of Redis.
    matches!(tokio::time::timeout(PLAIN_MAX, ask).await, Ok(Ok(b'+' | b'-')))
}

/// Small writes go out at once; a peer that has gone silent is noticed.
fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE_MAX);
    settings
}

/// A way to nowhere with the certificates of this address: redis takes them in no other form.
fn with_certificates(tls: &Tls) -> Result<ConnectionAddr, OpenError> {
    let client_tls = match &tls.client {
        Some((cert, key)) => {
            Some(ClientTlsConfig { client_cert: pem(cert)?, client_key: pem(key)? })
        }
        None => None,
    };
    let root_cert = tls.ca.as_deref().map(pem).transpose()?;
    let nowhere =
        ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    let built = Client::build_with_tls(nowhere, TlsCertificates { client_tls, root_cert });
    match built {
        Ok(client) => Ok(client.get_connection_info().addr().clone()),
        Err(error) => Err(OpenError::Tls(error.to_string())),
    }
}

/// A file that holds something in PEM: without, nobody would be trusted and nothing say why.
fn pem(path: &Path) -> Result<Vec<u8>, OpenError> {
    let wrong = |why: String| OpenError::Tls(format!("{}: {why}", path.display()));
    let bytes =
        fs::read(path).map_err(|error| wrong(format!("it cannot be read: {}", error.kind())))?;
    match bytes.windows(10).any(|window| window == b"-----BEGIN") {
        true => Ok(bytes),
        false => Err(wrong("it holds nothing in PEM".to_owned())),
    }
}

fn unreachable(error: RedisError) -> OpenError {
    OpenError::Unreachable(fault::in_words(&error))
}
