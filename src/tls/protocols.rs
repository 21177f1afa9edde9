//! Protocols of the ports within TLS.

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

/// Protocols of a port, for which clients ask within the handshake (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortProtocols {
    /// Port of gRPC: HTTP/2.
    Grpc,
    /// Port of HTTP: HTTP/2 and HTTP/1.1.
    Http,
}

// === impl PortProtocols ===

impl PortProtocols {
    /// Returns the name of the port in logs and metrics.
    pub(super) fn port(self) -> &'static str {
        match self {
            PortProtocols::Grpc => "grpc",
            PortProtocols::Http => "http",
        }
    }

    /// Returns the settings of connections of a port with these protocols.
    pub(super) fn config(self, config: &ServerConfig) -> Arc<ServerConfig> {
        let protocols: &[&[u8]] = match self {
            PortProtocols::Grpc => &[b"h2"],
            PortProtocols::Http => &[b"h2", b"http/1.1"],
        };
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }
}
