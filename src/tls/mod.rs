//! TLS of this server's ports, gRPC and HTTP, with one set of files for both.
//!
//! 1. `load` reads the files and checks them: the certificate, its key, and the authorities of client certificates
//! 2. [`ServerTls`] has what is in use, and replaces it when the files change (`reload`)
//! 3. [`PortTls`] runs the handshake of a connection, in the task of that connection, and returns the names of the
//!    client's certificate
//! 4. `closing` answers clients that use TLS where there is none, or none where there is TLS
//! 5. `failure` has the reasons for which a handshake fails, each with its label in the metrics and a hint
//!
//! Connections that exist keep the certificate of the server that they began with; they end with that of their client. A port without TLS has a [`PortTls`], too, so that it recognizes
//! clients that use TLS.

mod certificate;
mod closing;
mod failure;
mod load;
mod port;
mod protocols;
mod reload;
#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;

pub use certificate::PeerCertificate;
pub(crate) use closing::answer_http1;
pub use load::TlsFileError;
pub use port::PortTls;
pub(crate) use port::SecuredSocket;
pub use reload::ServerTls;

/// Files of the server's TLS, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the server, followed by those of the authorities between it and the root.
    pub cert: PathBuf,
    /// Private key of that certificate.
    pub key: PathBuf,
    /// Authorities of client certificates; `None`: no client is asked for one.
    pub client_ca: Option<ClientCa>,
}

/// Check of client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCa {
    /// Certificates of the authorities that sign them.
    pub file: PathBuf,
    /// Clients that must present one.
    pub auth: ClientAuth,
}

/// Clients that must present a certificate. One that is presented is always verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// All clients.
    #[default]
    Required,
    /// None.
    Optional,
}
