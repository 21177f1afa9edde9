//! One fetch of a JSON Web Key Set: a GET request on a connection of its own. Redirects are not followed, and proxies
//! of the environment are not used: the keys decide who is recognized, so they come from the configured place only.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::AbortOnDropHandle;

use super::jwks_url::JwksUrl;
use crate::source_files;

/// Maximum duration of a fetch.
pub const FETCH_MAX: Duration = Duration::from_secs(5);
/// Maximum number of bytes of an answer.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Fetches the set of keys.
///
/// # Errors
/// A text for the log; it has no part of the token that is sent.
pub async fn fetch(url: &JwksUrl) -> Result<Bytes, String> {
    let fetched = timeout(FETCH_MAX, fetch_unbounded(url)).await;
    fetched.unwrap_or_else(|_| Err(format!("it was not answered within {} s", FETCH_MAX.as_secs())))
}

async fn fetch_unbounded(url: &JwksUrl) -> Result<Bytes, String> {
    let request = request(url).await?;
    let tls = match url.is_tls() {
        true => Some(tls(url).await?),
        false => None,
    };
    let socket = connect(url).await?;
    match tls {
        None => exchange(socket, request).await,
        Some(tls) => {
            let name = ServerName::try_from(url.host().to_owned());
            let name = name.map_err(|_| format!("{:?} is no host name", url.host()))?;
            let socket = tls.connect(name, socket).await;
            exchange(socket.map_err(failed("TLS handshake"))?, request).await
        }
    }
}

async fn request(url: &JwksUrl) -> Result<Request<Empty<Bytes>>, String> {
    let uri = url.uri();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::get(path)
        .header(header::HOST, host)
        .header(header::ACCEPT, "application/jwk-set+json, application/json")
        .header(header::USER_AGENT, concat!("ringq/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close");
    if let Some(path) = &url.token_file {
        let token = read(path).await?;
        let value = format!("Bearer {}", String::from_utf8_lossy(&token).trim());
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| format!("{} has no token in it", path.display()))?;
        value.set_sensitive(true);
        request = request.header(header::AUTHORIZATION, value);
    }
    request.body(Empty::new()).map_err(failed("request"))
}

/// Creates the connector. Certificates are read each time: those of a cluster are replaced while a server runs.
async fn tls(url: &JwksUrl) -> Result<TlsConnector, String> {
    let pem = match &url.ca {
        Some(path) => Some((path.clone(), read(path).await?)),
        None => None,
    };
    let roots = spawn_blocking(move || match pem {
        Some((path, pem)) => {
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            let certificates = certificates.unwrap_or_default();
            let mut roots = RootCertStore::empty();
            let (added, _) = roots.add_parsable_certificates(certificates);
            match added {
                0 => Err(format!("{} has no certificate (PEM) in it", path.display())),
                _ => Ok(roots),
            }
        }
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            match roots.is_empty() {
                true => Err("the system has no certificates; set jwks_ca".to_owned()),
                false => Ok(roots),
            }
        }
    });
    let roots = roots.await.map_err(failed("certificates"))??;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed("TLS"))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Connects to the first address that accepts; without TLS only to loopback addresses, whatever the name leads to.
async fn connect(url: &JwksUrl) -> Result<TcpStream, String> {
    let (host, port) = (url.host(), url.port());
    let found = lookup_host((host, port)).await;
    let found = found.map_err(|error| format!("cannot resolve {host}: {error}"))?;
    let is_allowed = |address: &SocketAddr| url.is_tls() || address.ip().is_loopback();
    let mut last = format!("{host} has no address that may be used");
    for address in found.filter(is_allowed) {
        match TcpStream::connect(address).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = format!("cannot connect to {address}: {error}"),
        }
    }
    Err(last)
}

async fn exchange<S>(socket: S, request: Request<Empty<Bytes>>) -> Result<Bytes, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = http1::handshake(TokioIo::new(socket)).await;
    let (mut sender, connection) = handshake.map_err(failed("HTTP"))?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let has_token = request.headers().contains_key(header::AUTHORIZATION);
    let response = sender.send_request(request).await.map_err(failed("HTTP"))?;
    let status = response.status();
    if status != StatusCode::OK {
        return Err(match status {
            _ if status.is_redirection() => {
                format!(
                    "it was answered with a redirect ({status}), which is not followed; set jwks_url to its target"
                )
            }
            StatusCode::UNAUTHORIZED if has_token => {
                format!("it was answered with {status}; renew the token in jwks_token_file")
            }
            StatusCode::FORBIDDEN if has_token => {
                format!(
                    "it was answered with {status}; give the account of the token in jwks_token_file the right to read it"
                )
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                format!(
                    "it was answered with {status}; set jwks_token_file to a token that may read it"
                )
            }
            _ => format!("it was answered with {status}"),
        });
    }
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => format!("the answer has more than {BODY_BYTES_MAX} bytes"),
        false => format!("the answer broke off: {error}"),
    })?;
    Ok(body.to_bytes())
}

/// Reads a file beside the runtime.
async fn read(path: &Path) -> Result<Vec<u8>, String> {
    let path = path.to_owned();
    spawn_blocking(move || source_files::read(&path)).await.map_err(failed("reading"))?
}

fn failed<E: Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what} failed: {error}")
}
