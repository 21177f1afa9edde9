//! Handshakes of the connections of one port.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::domain::limit;
use crate::log_limiter::LogLimiter;
use crate::metrics::Metrics;

use super::certificate::PeerCertificate;
use super::closing::{self, ClientProtocol};
use super::failure::{FailureReason, HandshakeFailure};
use super::protocols::PortProtocols;
use super::reload::ServerTls;

/// Shortest interval between log lines about failures of one kind; each has the number of suppressed ones.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of bytes of answers that wait within TLS, where they count as written: one record. A connection whose
/// client does not read holds them.
const BUFFER_BYTES_MAX: usize = 16 << 10;

/// TLS of one port. Cloning is cheap.
#[derive(Clone)]
pub struct PortTls(Arc<PortState>);

struct PortState {
    protocols: PortProtocols,
    /// Certificates; `None`: the port does not use TLS.
    tls: Option<ServerTls>,
    metrics: Metrics,
    log: LogLimiter,
}

/// Socket after its handshake, or one without TLS, and the verified certificate of its client.
pub(crate) struct SecuredSocket<S> {
    pub(crate) socket: Either<S, Box<TlsStream<S>>>,
    /// `None`: no certificate was presented.
    pub(crate) certificate: Option<Arc<PeerCertificate>>,
}

// === impl PortTls ===

impl PortTls {
    /// Creates the TLS of the gRPC port; without `tls` the port does not use it.
    #[must_use]
    pub fn grpc(tls: Option<ServerTls>, metrics: Metrics) -> PortTls {
        PortTls::new(PortProtocols::Grpc, tls, metrics)
    }

    /// Creates the TLS of the HTTP port; without `tls` the port does not use it.
    #[must_use]
    pub fn http(tls: Option<ServerTls>, metrics: Metrics) -> PortTls {
        PortTls::new(PortProtocols::Http, tls, metrics)
    }

    fn new(protocols: PortProtocols, tls: Option<ServerTls>, metrics: Metrics) -> PortTls {
        PortTls(Arc::new(PortState {
            protocols,
            tls,
            metrics,
            log: LogLimiter::new("TLS handshakes", LOG_EVERY),
        }))
    }

    /// Runs the handshake of a connection from `peer`, if the port uses TLS. `prepare` makes of the socket what TLS and
    /// the server read from and write to. Returns `None`, after the client was answered, if the connection is not to be
    /// served; the cause is logged and counted.
    pub(crate) async fn accept<S>(
        &self,
        socket: TcpStream,
        peer: SocketAddr,
        prepare: impl FnOnce(TcpStream) -> S,
    ) -> Option<SecuredSocket<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some(tls) = &self.0.tls else {
            return Some(SecuredSocket {
                socket: Either::Left(prepare(socket)),
                certificate: None,
            });
        };
        let config = tls.config(self.0.protocols);
        // Boxed: a task without TLS must not be larger for it.
        let handshake = Box::pin(handshake(config, socket, prepare));
        match tokio::time::timeout(limit::TLS_HANDSHAKE_MAX, handshake).await {
            Ok(Ok(secured)) => return secured,
            Ok(Err(failure)) => self.report(peer, &failure),
            Err(_) => self.report(peer, &FailureReason::Timeout.into()),
        }
        None
    }

    /// Waits until the certificate of a connection's client is not valid any more, and makes it invalid for the calls on
    /// that connection; never ends without one.
    pub(crate) async fn certificate_ended(&self, certificate: Option<Arc<PeerCertificate>>) {
        let (Some(tls), Some(certificate)) = (&self.0.tls, certificate) else {
            return std::future::pending().await;
        };
        tls.until_invalid(&certificate).await;
        certificate.end();
    }

    /// Closes a connection without TLS whose client has begun a TLS handshake; the cause is logged and counted.
    pub(crate) async fn refuse_tls(
        &self,
        socket: impl AsyncRead + AsyncWrite + Unpin,
        peer: SocketAddr,
    ) {
        self.report(peer, &FailureReason::TlsIsOff.into());
        closing::refuse_tls(socket).await;
    }

    fn report(&self, peer: SocketAddr, failure: &HandshakeFailure) {
        let PortState { protocols, metrics, log, .. } = &*self.0;
        let (port, reason) = (protocols.port(), failure.reason.label());
        metrics.tls_handshake_failed(port, reason);
        let hint = failure.reason.hint();
        let error = failure.error.as_ref().map(tracing::field::display);
        match log.allow(&[reason]).filter(|_| failure.reason.is_warned()) {
            Some(passed) => {
                let suppressed = passed.suppressed();
                tracing::warn!(port, %peer, reason, error, suppressed, "connection closed: {hint}");
            }
            None => tracing::debug!(port, %peer, reason, error, "connection closed: {hint}"),
        }
    }
}

impl fmt::Debug for PortTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_on = self.0.tls.is_some();
        f.debug_struct("PortTls").field("port", &self.0.protocols).field("is_on", &is_on).finish()
    }
}

/// Runs a handshake; `None`: the client closed the connection without a byte, as probes of a port do.
async fn handshake<S>(
    config: Arc<ServerConfig>,
    socket: TcpStream,
    prepare: impl FnOnce(TcpStream) -> S,
) -> Result<Option<SecuredSocket<S>>, HandshakeFailure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut first = [0; ClientProtocol::BYTES];
    let length = socket.peek(&mut first).await.map_err(HandshakeFailure::from_error)?;
    if length == 0 {
        return Ok(None);
    }
    let protocol = ClientProtocol::of(&first[..length]);
    if protocol != ClientProtocol::Tls {
        closing::refuse_plain_text(socket, protocol).await;
        return Err(match protocol {
            ClientProtocol::Unknown => FailureReason::Invalid.into(),
            _ => FailureReason::PlainText.into(),
        });
    }
    let accepted = TlsAcceptor::from(config).accept_with(prepare(socket), |session| {
        session.set_buffer_limit(Some(BUFFER_BYTES_MAX));
    });
    let stream = match accepted.into_fallible().await {
        Ok(stream) => stream,
        Err((error, socket)) => {
            // The alert with the reason has been sent.
            closing::linger(socket).await;
            return Err(HandshakeFailure::from_error(error));
        }
    };
    let certificate = match stream.get_ref().1.peer_certificates() {
        Some(chain) => Some(Arc::new(PeerCertificate::read(chain).map_err(|error| {
            let error = Some(std::io::Error::other(error));
            HandshakeFailure { reason: FailureReason::UnusableCertificate, error }
        })?)),
        None => None,
    };
    Ok(Some(SecuredSocket { socket: Either::Right(Box::new(stream)), certificate }))
}
